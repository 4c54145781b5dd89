"""All processes of a cluster are one user of storage: who is refused, and who goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random

import pytest

from bmq.core.aio.subscribers import no_op
from bmq.core.clock import SystemClock
from bmq.core.config import NodeConfig
from bmq.meta.cluster.keys import member_key
from bmq.meta.cluster.member import Address, Member, encode_member
from bmq.meta.cluster.membership import JoinRefused
from bmq.meta.kv import Put
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.server.cluster_member import ClusterMember
from bmq.server.user_check import refusal
from bmq.storage.filesystem import NotAllowed, StorageError, StorageUnavailable
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.harness.waiting import until

CONFIG = NodeConfig(default_replication_factor=1, meta="etcd://127.0.0.1:1", node_id=-1)
OWN = Member(incarnation="m", roles=frozenset({"broker"}), hdfs_user="bmq")
AT = Address(host="h", port=1)


class OwnedFileSystem(MemoryFileSystem):
    """A file system whose files have an owner, or that fails when it is asked for the owner."""

    def __init__(self, storage: MemoryStorage, holder: str, owner: str | StorageError) -> None:
        super().__init__(storage, holder)
        self.owner = owner

    async def user(self) -> str:
        if isinstance(self.owner, StorageError):
            raise self.owner
        return self.owner


@asynccontextmanager
async def process(
    kv: MemoryKeyValue,
    storage: MemoryStorage,
    name: str,
    owner: str | StorageError,
    on_failed: Callable[[str], None] = no_op,
) -> AsyncIterator[ClusterMember]:
    """Yield a process that has joined and serves."""
    fs = OwnedFileSystem(storage, name, owner)
    member = ClusterMember(CONFIG, fs, kv, SystemClock(), name, on_failed=on_failed)
    try:
        await member.join()
        member.is_at(internal=Address(host="127.0.0.1", port=1))
        yield member
    finally:
        await member.leave()


def test_only_another_user_is_a_reason() -> None:
    for user in ("", "bmq"):
        assert refusal(OWN, [replace(OWN, incarnation="a", hdfs_user=user, internal=AT)]) == ""
    assert refusal(replace(OWN, hdfs_user=""), [replace(OWN, incarnation="a", internal=AT)]) == ""
    why = refusal(OWN, [OWN, replace(OWN, incarnation="a", hdfs_user="alice")])
    assert why.startswith("this process is the HDFS user bmq, and the member a is alice: all processes")
    assert "hadoop.security.auth_to_local" in why


@pytest.mark.parametrize("name", ["a", "z"])
@pytest.mark.parametrize(("own_serves", "other_serves"), [(True, False), (False, True), (True, True), (False, False)])
def test_of_two_users_exactly_one_yields(name: str, own_serves: bool, other_serves: bool) -> None:
    own = replace(OWN, internal=AT if own_serves else Address())
    other = replace(OWN, incarnation=name, hdfs_user="alice", internal=AT if other_serves else Address())
    assert bool(refusal(own, [other])) is not bool(refusal(other, [own]))
    if own_serves is not other_serves:
        assert bool(refusal(own, [other])) is not own_serves, "a process that starts yields to one that serves"


@pytest.mark.parametrize("name", ["a", "z"])
async def test_a_second_user_is_refused_at_its_start_and_the_first_goes_on(name: str) -> None:
    kv, storage = MemoryKeyValue(MemoryStore()), MemoryStorage(Random(0))
    failures: list[str] = []
    async with process(kv, storage, "m", "bmq", failures.append) as first:
        await until(lambda: "m" in first.view.members and not first.view.members["m"].is_starting)
        assert first.view.members["m"].hdfs_user == "bmq"
        with pytest.raises(JoinRefused, match="is the HDFS user alice, and the member m is bmq"):
            async with process(kv, storage, name, "alice"):
                pass
        assert failures == []
        async with process(kv, storage, name, "bmq") as second:
            await until(lambda: len(second.view.members) == 2)


async def test_of_two_that_join_at_once_one_ends() -> None:
    kv, storage = MemoryKeyValue(MemoryStore()), MemoryStorage(Random(0))
    failures: list[str] = []
    fs = OwnedFileSystem(storage, "m", "bmq")
    member = ClusterMember(CONFIG, fs, kv, SystemClock(), "m", on_failed=failures.append)
    await member.join()
    other = replace(OWN, incarnation="a", hdfs_user="alice")
    await kv.commit([], [Put(member_key(CONFIG.cluster, "a"), encode_member(other))])
    await until(lambda: bool(failures))
    assert "the member a is alice" in failures[0]
    with pytest.raises(JoinRefused, match="the member a is alice"):
        member.is_at(internal=AT)
    await member.leave()


async def test_storage_that_cannot_show_the_user_now_keeps_nobody_out(caplog: pytest.LogCaptureFixture) -> None:
    kv, storage = MemoryKeyValue(MemoryStore()), MemoryStorage(Random(0))
    async with process(kv, storage, "m", "bmq"), process(kv, storage, "z", StorageUnavailable("safe mode")):
        assert "it is not compared with the members'" in caplog.text


async def test_a_user_without_rights_on_the_root_does_not_join() -> None:
    kv, storage = MemoryKeyValue(MemoryStore()), MemoryStorage(Random(0))
    with pytest.raises(NotAllowed, match="access=WRITE"):
        async with process(kv, storage, "m", NotAllowed("mkdirs /bmq/.user: user=alice, access=WRITE")):
            pass
    await asyncio.sleep(0)
