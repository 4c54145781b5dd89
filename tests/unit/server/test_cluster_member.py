"""The drain of a process: it waits for the moves that the leader makes, and for no others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from bmq.core.clock import SystemClock
from bmq.core.config import NodeConfig
from bmq.core.features import Feature, FeatureTable, LevelRange
from bmq.meta.cluster.assignment import encode_shards
from bmq.meta.cluster.keys import controller_key, features_key, member_key, shards_key
from bmq.meta.cluster.levels import FeatureLevels, encode_record
from bmq.meta.cluster.member import Address, Member, encode_member
from bmq.meta.cluster.ownership_numbers import LAST
from bmq.meta.cluster.view import ShardOwner
from bmq.meta.kv import Put
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.meta.shard_kinds import GROUPS, TRANSACTIONS, ShardKind
from bmq.server.cluster_member import ClusterMember
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.harness.waiting import now

CONFIG = NodeConfig(default_replication_factor=1, meta="etcd://127.0.0.1:1")
TABLE = FeatureTable((Feature("f", LevelRange(0, 1)),))
LIMIT_S = 60.0


@asynccontextmanager
async def joined(kv: MemoryKeyValue) -> AsyncIterator[ClusterMember]:
    fs = MemoryFileSystem(MemoryStorage(Random(0)), "own")
    member = ClusterMember(CONFIG, fs, kv, SystemClock(), "own", features=TABLE)
    await member.join()
    try:
        yield member
    finally:
        await member.leave()


def other(*, of_this_version: bool = True) -> Member:
    features = (("f", LevelRange(0, 1)),) if of_this_version else ()
    roles = frozenset({"broker", "controller", "coordinator"})
    return Member(incarnation="other", roles=roles, internal=Address(host="127.0.0.1", port=1), features=features)


@pytest.mark.parametrize(
    ("kind", "of_this_version", "level", "waits"),
    [
        pytest.param(GROUPS, True, 0, True, id="a leader that moves the shard"),
        pytest.param(TRANSACTIONS, True, 0, True, id="a leader that moves shards of all kinds"),
        pytest.param(GROUPS, False, 0, True, id="a leader of a version before kinds moves groups"),
        pytest.param(TRANSACTIONS, False, 0, False, id="a leader of a version before kinds knows no others"),
        pytest.param(GROUPS, False, 1, False, id="the other member may be given nothing"),
    ],
)
async def test_the_drain_waits_only_for_shards_that_the_leader_moves(
    kind: ShardKind, of_this_version: bool, level: int, waits: bool
) -> None:
    kv = MemoryKeyValue(MemoryStore())
    async with joined(kv) as member:
        cluster = CONFIG.cluster
        puts = [
            Put(member_key(cluster, "other"), encode_member(other(of_this_version=of_this_version))),
            Put(controller_key(cluster), b"other"),
            Put(shards_key(cluster, kind), encode_shards({0: ShardOwner("own", 1)})),
        ]
        if level:
            puts.append(Put(features_key(cluster), encode_record(FeatureLevels(epoch=1, levels={"f": level}))))
        done = await kv.commit([], puts)
        await member.view.wait_revision(done.revision)
        began = now()
        await member.drain(LIMIT_S, lambda: False, asyncio.Event())
        assert (now() - began >= LIMIT_S) is waits


@pytest.mark.parametrize(("number", "waits"), [(LAST - 1, True), (LAST, False)])
async def test_the_drain_waits_for_no_shard_that_has_no_further_ownership_number(number: int, waits: bool) -> None:
    """The leader leaves the shard with its last owner, so nobody takes it over, however long the process waits."""
    kv = MemoryKeyValue(MemoryStore())
    async with joined(kv) as member:
        cluster = CONFIG.cluster
        puts = [
            Put(member_key(cluster, "other"), encode_member(other())),
            Put(controller_key(cluster), b"other"),
            Put(shards_key(cluster, GROUPS), encode_shards({0: ShardOwner("own", number)})),
        ]
        done = await kv.commit([], puts)
        await member.view.wait_revision(done.revision)
        began = now()
        await member.drain(LIMIT_S, lambda: False, asyncio.Event())
        assert (now() - began >= LIMIT_S) is waits


async def test_the_drain_ends_when_the_levels_leave_no_member_that_may_be_given_anything() -> None:
    kv = MemoryKeyValue(MemoryStore())
    async with joined(kv) as member:
        cluster = CONFIG.cluster
        await kv.commit(
            [],
            [
                Put(member_key(cluster, "other"), encode_member(other(of_this_version=False))),
                Put(controller_key(cluster), b"other"),
                Put(shards_key(cluster, GROUPS), encode_shards({0: ShardOwner("own", 1)})),
            ],
        )
        began = now()
        drain = asyncio.create_task(member.drain(LIMIT_S, lambda: False, asyncio.Event()))
        await asyncio.sleep(5)
        assert not drain.done()
        await kv.commit([], [Put(features_key(cluster), encode_record(FeatureLevels(epoch=1, levels={"f": 1})))])
        await drain
        assert now() - began < LIMIT_S
