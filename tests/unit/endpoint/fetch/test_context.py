"""Shared parts of all fetches of a process: the tails, the memory, the readers, and the events of owners."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from bmq.core.aio.turns import ELEMENTS_A_TURN
from bmq.core.config import NodeConfig
from bmq.core.model import PartitionKey
from bmq.core.records.batch import Batch, Record, build_batch
from bmq.endpoint.fetch.context import FetchContext
from bmq.endpoint.fetch.tail_cache import RELEASED_AT_ONCE
from bmq.storage.block_cache import BlockCache
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.harness.loop_stops import TurnCounter
from tests.harness.waiting import now
from tests.unit.coordinator.fakes import MemoryCatalog, topic
from tests.unit.endpoint.serving import errors, quiesce, release, serving, want

pytestmark = pytest.mark.slow

T0 = ("t", 0)


async def test_the_tail_follows_the_log_start_and_the_block_cache_the_tail() -> None:
    async with serving() as world:
        for _ in range(5):
            world.flush("t", size=5_000)
        pool, tails = world.pool, world.fetch_service.tails
        full = pool.cache_bytes
        assert full == world.config.cache_bytes - tails.used < world.config.cache_bytes
        world.owner("t").log_start = 3
        world.fetch_service.context.log_start_moved(world.key("t"), 3)
        assert tails.extent(world.key("t")) == (3, 5)
        assert full < pool.cache_bytes == world.config.cache_bytes - tails.used
        world.close("t")
        assert pool.cache_bytes == world.config.cache_bytes


async def test_a_reader_of_a_partition_is_kept_and_the_oldest_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bmq.endpoint.fetch.context.READERS_MAX", 2)

    async with serving() as world:
        world.topic("u", 3)
        for partition in (0, 1, 0, 2):
            await world.store("u", partition)
            release(await world.fetch([want("u", partition)]))
        assert [key.partition for key in world.fetch_service.context._readers] == [0, 2]


async def test_a_change_wakes_the_parked_fetches_of_its_partition_alone() -> None:
    async with serving() as world:
        world.owner("t").is_at_end = False
        world.owner("t", 1).is_at_end = False
        past = asyncio.create_task(world.fetch([want("t", offset=9)], max_wait_s=100))
        other = asyncio.create_task(world.fetch([want("t", 1, offset=9)], max_wait_s=100))
        await quiesce()
        world.owner("t").is_at_end = world.owner("t", 1).is_at_end = True
        world.fetch_service.context.changed(world.key("t"))
        assert (errors(await past), now()) == ({T0: "OFFSET_OUT_OF_RANGE"}, 0)
        assert not other.done()
        assert errors(await other) == {("t", 1): "OFFSET_NOT_AVAILABLE"}, "no event has come: it is not checked again"
        assert now() == pytest.approx(100)


async def test_a_large_topic_that_is_deleted_is_forgotten_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = TurnCounter()
    catalog = MemoryCatalog(topic("large", 3_500), topic("small", 3))
    context = FetchContext(NodeConfig(), catalog, BlockCache(MemoryFileSystem(MemoryStorage(), "b")))
    forgotten: list[PartitionKey] = []

    def forget(key: PartitionKey) -> None:
        counter.count()
        forgotten.append(key)

    monkeypatch.setattr(context.tails, "drop", forget)
    catalog.delete("small")
    assert len(forgotten) == 3, "at once: there is room in this turn"
    catalog.delete("large")
    await context._gone.finish()
    assert len(set(forgotten)) == len(forgotten) == 3_503
    assert max(counter.take()) <= ELEMENTS_A_TURN


@pytest.mark.parametrize("end", ["closed", "below the log start"])
async def test_a_long_tail_that_ends_is_released_in_turns_and_blocks_get_its_room(end: str) -> None:
    """A partition may move, or have its records deleted, with a million batches in the tail."""
    count = 3 * RELEASED_AT_ONCE
    async with serving() as world:
        context, key = world.fetch_service.context, world.key("t")
        full = world.pool.cache_bytes
        data = [Batch(memoryview(build_batch([Record(value=b"x")], base_offset=base))) for base in range(count)]
        context.flushed(key, data, count)
        if end == "closed":
            context.closed(key)
        else:
            context.log_start_moved(key, count)
        assert context.tails.extent(key) is None
        left = [len(context.tails)]
        while context.tails.dead:
            await asyncio.sleep(0)
            left.append(len(context.tails))
        steps = [before - after for before, after in itertools.pairwise([count, *left])]
        assert max(steps) == RELEASED_AT_ONCE
        assert (left[-1], context.tails.used, world.pool.cache_bytes) == (0, 0, full)
        context.flushed(key, [Batch(memoryview(build_batch([Record(value=b"x")], base_offset=count)))], count + 1)
        context.closed(key)
        await quiesce()
        assert len(context.tails) == 0, "a later run is released, too"
