"""Operators' requests at the leader: move, balance, drain and status."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bmq.controller.admin.messages import NOT_FINISHED, MoveStatus
from bmq.core.errors import ErrorCode, RequestError
from bmq.meta.cluster.member import decode_member
from bmq.meta.kv_memory import MemoryKeyValue
from bmq.meta.ownership import PartitionRecord, partition_key, store
from tests.unit.controller.world import world

pytestmark = pytest.mark.slow


async def test_an_operator_moves_a_partition_drains_a_member_and_reads_the_status() -> None:
    async with world("a", "b") as w:
        key, owner = next(iter(w.owners(w.standbys[0]).items()))
        other = "b" if owner == "a" else "a"
        await w.admin().move("t", key.partition, other)
        assert w.owners(w.standbys[0])[key] == other
        await store(MemoryKeyValue(w.store), partition_key("c", key), PartitionRecord(owner=other), 0)
        await w.admin().drain(other)
        assert w.members.left == [other]
        status = await w.admin().status()
        assert (status.partitions, status.unassigned, len(status.shards)) == (12, 0, 6)
        members = {decode_member(each.registration).incarnation: each for each in status.members}
        assert {name: each.partitions for name, each in members.items()} == dict(w.counts())
        (pending,) = status.pending_moves
        assert pending == MoveStatus(topic="t", partition=key.partition, source=owner, target=other, why="asked")
        await asyncio.sleep(1)
        status = await w.admin().status()
        (past,) = status.past_moves
        assert replace(past, ended_ms=0, took_ms=NOT_FINISHED) == pending
        assert 0 <= past.took_ms < 1_000
        with pytest.raises(RequestError) as caught:
            await w.admin().move("t", 99, other)
        assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        with pytest.raises(RequestError) as caught:
            await w.admin().move("t", 0, "nobody")
        assert caught.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED


async def test_an_operator_balances_below_the_limit_that_begins_it() -> None:
    async with world("a", "b", topic=23) as w:
        owned = [key for key, owner in w.owners(w.standbys[0]).items() if owner == "b"]
        await w.admin().move("t", owned[0].partition, "a")
        await asyncio.sleep(10)
        assert abs(w.counts()["a"] - w.counts()["b"]) in (1, 3)
        assert await w.admin().balance() == (1 if abs(w.counts()["a"] - w.counts()["b"]) == 3 else 0)
        await w.until(lambda: abs(w.counts()["a"] - w.counts()["b"]) == 1)


async def test_what_a_dead_member_owned_last_has_no_owner() -> None:
    """The store keeps the last owner while no other can take its place."""
    async with world("a") as w:
        assert (await w.admin().status()).unassigned == 0
        await w.kill("a")
        w.led_by().controller.report("proxy", "a")
        await w.until(lambda: not w.is_member("a"))
        status = await w.admin().status()
        assert (status.partitions, status.unassigned) == (12, 12)
        assert (len(status.shards), status.unassigned_shards) == (6, 6)
