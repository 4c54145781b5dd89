"""A kind of shards beside groups: load, writes, snapshot and failover are those of every kind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bmq.coordinator.shard.log_records import BatchProducer
from bmq.core.errors import ErrorCode, RequestError
from bmq.meta.catalog import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from bmq.meta.cluster.view import ShardOwner
from bmq.meta.shard_kinds import GROUPS, TRANSACTIONS, ShardId
from tests.harness.waiting import until
from tests.unit.coordinator.cluster_world import View
from tests.unit.coordinator.fakes import MemoryCatalog, MemoryLogs, context_of, settings, topic
from tests.unit.coordinator.shard.kv_kind import ActiveKv, KvShards, marker

SHARD = ShardId(TRANSACTIONS, 0)
KEY, VALUE = b"key", b"value"


class Process:
    """A process with the shards of the kind that its view assigns to it."""

    def __init__(self, name: str, logs: MemoryLogs, **changes: Any) -> None:
        self.view = View(name)
        self.catalog = MemoryCatalog(topic(OFFSETS_TOPIC, 3), topic(TRANSACTIONS_TOPIC, 1))
        self.made: list[tuple[ShardId, int]] = []
        self.shards = KvShards(
            context_of(settings(**changes), logs, self.catalog, self.view),
            self.catalog.topics[TRANSACTIONS_TOPIC],
            lambda shard, ownership: self.made.append((shard, ownership)),
        )

    def show(self, owner: str, number: int) -> None:
        shown = View(self.view.own)
        shown.shards = {SHARD: ShardOwner(owner, number), ShardId(GROUPS, 0): ShardOwner(self.view.own, 99)}
        self.view.show(shown)

    async def serving(self) -> ActiveKv:
        return await self.shards.serving("any")


@asynccontextmanager
async def running(*processes: Process) -> AsyncIterator[None]:
    for process in processes:
        process.show("a", 1)
        await process.shards.start()
    try:
        yield
    finally:
        for process in processes:
            process.shards.close()
            await process.shards.wait_closed()


async def test_a_write_is_durable_and_there_after_a_failover() -> None:
    logs = MemoryLogs()
    a, b = Process("a", logs), Process("b", logs)
    async with running(a, b):
        first = await a.serving()
        await first.put([(KEY, VALUE), (b"other", b"x")])
        await first.put([(b"other", None), (b"open", b"1")], BatchProducer(7, 0))
        with pytest.raises(RequestError) as refused:
            await b.serving()
        assert refused.value.code is ErrorCode.NOT_COORDINATOR
        for process in (a, b):
            process.show("b", 2)
        with pytest.raises(RequestError) as refused:
            await first.put([(KEY, b"late")])
        assert refused.value.code is ErrorCode.NOT_COORDINATOR
        second = await b.serving()
        assert second.state.facts() == ({KEY: VALUE, b"other": b"x"}, {7: {b"other": None, b"open": b"1"}})
        await second.put([marker(is_commit=True)], BatchProducer(7, 0, is_control=True))
        assert second.state.facts() == ({KEY: VALUE, b"open": b"1"}, {})
        assert (a.made, b.made) == ([(SHARD, 1)], [(SHARD, 2)]), "the groups' shard of this number is another"


async def test_a_lost_log_is_loaded_again() -> None:
    logs = MemoryLogs()
    a = Process("a", logs)
    async with running(a):
        first = await a.serving()
        await first.put([(KEY, VALUE)])
        logs.partitions[0].fail_next = 1
        with pytest.raises(RequestError) as refused:
            await first.put([(KEY, b"lost")])
        assert refused.value.code is ErrorCode.NOT_COORDINATOR
        second = await a.serving()
        assert second is not first
        assert first.is_closed
        assert second.state.facts() == ({KEY: VALUE}, {})


async def test_a_snapshot_keeps_what_is_live_and_moves_the_start_of_the_log() -> None:
    logs = MemoryLogs()
    a = Process("a", logs, snapshot_bytes=2_000, snapshot_chunk_bytes=100)
    log = logs.partitions[0]
    async with running(a):
        serving = await a.serving()
        for number in range(200):
            await serving.put([(b"%d" % (number % 20), b"%d" % number)])
        await until(lambda: log.snapshots > 0)
        await asyncio.sleep(1)
        before, start = serving.state.facts(), log.log_start
        assert start > 0
        a.show("a", 2)
        assert (await a.serving()).state.facts() == before


async def test_a_shard_that_cannot_be_loaded_is_reported_under_its_kind() -> None:
    logs = MemoryLogs()
    a = Process("a", logs)
    logs.partitions[0].next_offset = 1
    logs.partitions[0].fail_reads = "storage is away"
    async with running(a):
        with pytest.raises(RequestError) as refused:
            await a.serving()
        assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert "shard 0 of __transaction_state" in refused.value.message
        assert a.shards.not_loaded().keys() == {SHARD}


async def test_a_topic_that_is_deleted_takes_its_shards_along() -> None:
    a = Process("a", MemoryLogs())
    async with running(a):
        await a.serving()
        a.catalog.delete(TRANSACTIONS_TOPIC)
        assert a.shards.not_loaded() == {}
        assert list(await a.shards.all_serving()) == []
