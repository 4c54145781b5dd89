"""The fetch service: reads of storage beside the tails, limits, and readers that share the memory."""

from __future__ import annotations

import asyncio

import pytest

from bmq.core.model import SegmentName
from bmq.core.records.batch import HEADER_BYTES, Batch
from bmq.storage.filesystem import CreateOptions
from bmq.storage.index import SegmentIndex
from bmq.storage.layout import PartitionPath
from bmq.storage.log_reader import ActiveSegment
from tests.harness.waiting import now
from tests.unit.endpoint.serving import EPOCH, batch_of, offsets, quiesce, release, serving, want

pytestmark = pytest.mark.slow

T0 = ("t", 0)


async def test_records_before_the_tail_are_read_from_storage() -> None:
    async with serving() as world:
        size = await world.store("t", batches=20)
        await world.produce("t")
        fetched = await world.fetch([want("t", offset=7)])
        assert offsets(fetched) == {T0: list(range(7, 20))}
        assert world.metrics.storage_read_bytes == size * 13 // 20
        assert world.fetch_service.budget.storage.used == size, "the block that they are views of"
        release(fetched)
        tail = await world.fetch([want("t", offset=20)])
        assert offsets(tail) == {T0: [20]}
        release(tail)


async def test_several_partitions_are_read_at_once_and_limits_hold() -> None:
    async with serving() as world:
        size = 0
        for partition in (0, 1):
            size = await world.store("t", partition, batches=10)
        started = asyncio.create_task(world.fetch([want("t", 0, 0, size), want("t", 1)], max_bytes=size * 3 // 2))
        world.fs.gate.clear()
        await quiesce()
        assert world.fs.running == 2
        world.fs.gate.set()
        fetched = await started
        assert offsets(fetched) == {T0: list(range(10)), ("t", 1): list(range(5))}
        release(fetched)


async def test_only_the_first_partition_from_storage_may_pass_the_limits() -> None:
    async with serving() as world:
        for partition in (0, 1):
            await world.store("t", partition, size=500)
        small = HEADER_BYTES + 10
        fetched = await world.fetch([want("t", max_bytes=small), want("t", 1, max_bytes=small)])
        assert offsets(fetched) == {T0: [0], ("t", 1): []}
        release(fetched)


async def test_partitions_that_do_not_fit_are_not_read_from_storage() -> None:
    async with serving() as world:
        for partition in (0, 1):
            await world.store("t", partition)
        tiny = HEADER_BYTES - 1
        fetched = await world.fetch([want("t", 0, max_bytes=tiny), want("t", 1, max_bytes=tiny)])
        assert offsets(fetched) == {T0: [0], ("t", 1): []}
        assert world.fs.log_reads == 1
        release(fetched)


async def test_two_hundred_lagging_readers_stay_within_the_budget_and_leave_the_tail_alone() -> None:
    """AutoMQ #201: catch-up reads ran out of memory on defaults."""

    async with serving(cache_bytes=24 << 20, block_bytes=64 << 10) as world:
        budget, limit = world.fetch_service.budget, world.config.cache_bytes
        world.topic("lag", 8)
        for partition in range(8):
            await world.store("lag", partition, batches=40, size=50_000)
        for _ in range(20):
            world.flush("t", size=50_000)
        kept = world.fetch_service.tails.extent(world.key("t"))
        peak = [0]

        def used() -> int:
            pool = world.pool
            blocks = pool.cached_bytes + pool.reading_bytes
            return world.fetch_service.tails.used + budget.memory.used + budget.storage.used + blocks

        async def reader(number: int) -> int:
            offset = 0
            while offset < 40:
                fetched = await world.fetch([want("lag", number % 8, offset)], max_wait_s=5)
                peak[0] = max(peak[0], used())
                await asyncio.sleep(0.01)  # the client is slow to take it
                found = offsets(fetched)["lag", number % 8]
                offset = found[-1] + 1 if found else offset
                release(fetched)
            return offset

        assert await asyncio.gather(*map(reader, range(200))) == [40] * 200
        assert limit // 4 < peak[0] <= limit
        assert world.fetch_service.tails.extent(world.key("t")) == kept
        tail = await world.fetch([want("t", offset=19)])
        assert world.metrics.tail_hit_bytes == tail.results[0].size
        release(tail)


async def test_a_reader_that_comes_to_the_tail_under_load_reads_no_byte_of_it_from_storage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tail moves on meanwhile: each read of storage ends where the tail begins when the read is begun."""

    async with serving(cache_bytes=16 << 20, block_bytes=256 << 10) as world:
        key, size = world.key("t"), 70_000
        name = SegmentName(0, EPOCH, 0)
        path = PartitionPath("t", str(key.topic_id), 0).log(name)
        appender = await world.fs.create(path, CreateOptions(block_bytes=1 << 30))
        owner, index, positions = world.owner("t"), SegmentIndex(), {0: 0}

        async def produce() -> None:
            base = owner.high_watermark
            data = batch_of(base, 1, size)
            index.add(base, positions[base], 0)
            appender.write(data)
            await appender.flush()
            positions[base + 1] = positions[base] + len(data)
            owner.active_segment = ActiveSegment(name, positions[base + 1], base + 1, index)
            owner.high_watermark = base + 1
            world.fetch_service.context.flushed(key, [Batch(memoryview(data))], base + 1)

        reads: list[tuple[int, int]] = []  # (end of the read, where the tail began)
        read = world.fs.read

        async def metered(path: str, position: int, length: int) -> bytes:
            extent = world.fetch_service.tails.extent(key)
            assert extent is not None
            if path.endswith(".log"):
                reads.append((position + length, positions[extent[0]]))
            return await read(path, position, length)

        monkeypatch.setattr(world.fs, "read", metered)
        for _ in range(400):
            await produce()
        at = 0
        while at < owner.high_watermark:
            fetched = await world.fetch([want("t", offset=at)], max_wait_s=5)
            found = offsets(fetched)[T0]
            assert found[0] == at
            at = found[-1] + 1
            release(fetched)
            await produce()
            if world.metrics.tail_hit_bytes > 5 * size:
                break
        assert len(reads) > 20
        assert sum(max(0, end - tail) for end, tail in reads) == 0, "bytes of the tail that were read from storage"
        await appender.close()


async def test_readers_that_never_read_leave_room_for_others() -> None:
    """Ten readers ask for all that there is; four of them never take their responses, and small fetches continue all
    the while."""

    async with serving(cache_bytes=16 << 20) as world:
        world.topic("large", 1)
        for _ in range(60):
            world.flush("large", size=100_000)
        world.flush("t")
        idle = [await world.fetch([want("large", max_bytes=50 << 20)]) for _ in range(4)]
        assert all(fetched.results[0].size for fetched in idle)
        others = [asyncio.create_task(world.fetch([want("large", max_bytes=50 << 20)])) for _ in range(6)]
        for _ in range(100):
            began = now()
            fetched = await world.fetch([want("t")])
            assert offsets(fetched) == {T0: [0]}
            assert now() == began
            release(fetched)
            await asyncio.sleep(0.1)
        for other in others:
            fetched = await other
            assert fetched.results[0].size or fetched.results[0].marks
            release(fetched)
        for fetched in idle:
            release(fetched)
