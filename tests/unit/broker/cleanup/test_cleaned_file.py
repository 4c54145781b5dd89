"""The draft of a cleaned segment (storage/cleaning/cleaned_file.py), and what an owner knows of closed segments."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bmq.broker.cleanup import closed_segments
from bmq.broker.cleanup.retention import largest_timestamp
from bmq.core.aio.steps import finish_steps
from bmq.core.file_access import NO_ACCESS
from bmq.core.model import SegmentName
from bmq.core.records.batch import Record, build_batch
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.cleaning.cleaned_file import MORE_ROOM, ROOM, CleanedFileWriter, DraftFull
from bmq.storage.cleaning.round import CleanedFacts
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.unit.broker.cleanup.compacted_logs import BRISK, COMPACT, allow, compacted, contents, update
from tests.unit.broker.cleanup.upkeep import KEY, PATH, Owner, World

MB = 1 << 20


def batch(offset: int, size: int = 100) -> bytes:
    data = build_batch([Record(key=b"k", value=b"v" * size)], base_timestamp=offset, base_offset=offset)
    return bytes(data)


async def new_writer(fs: MemoryFileSystem, sources_bytes: int = MB, room: float = ROOM) -> CleanedFileWriter:
    return await CleanedFileWriter.create(
        fs, "/draft", sources_bytes=sources_bytes, room=room, interval_bytes=1, access=NO_ACCESS
    )


async def test_a_draft_is_on_storage_as_it_was_put() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "writer")
    writer = await new_writer(fs)
    parts = [batch(offset) for offset in range(4)]
    writer.put(parts[0])
    writer.put(parts[1])
    assert await writer.flush() == len(parts[0]) + len(parts[1])
    assert await writer.flush() == 0
    writer.put(memoryview(parts[2]))
    assert await writer.flush() == len(parts[2])
    writer.put(bytearray(parts[3]))
    await writer.close()
    assert await fs.read("/draft", 0, MB) == b"".join(parts)


async def test_a_draft_takes_no_more_than_it_was_created_for() -> None:
    """HDFS bounds an open file by its block."""
    fs = MemoryFileSystem(MemoryStorage(), "writer")
    large = batch(0, MB)
    for room, count in ((ROOM, 2), (MORE_ROOM, 5)):
        writer = await new_writer(fs, sources_bytes=MB, room=room)
        for _ in range(count - 1):
            writer.put(large)
        with pytest.raises(DraftFull):
            writer.put(b"".join([large, large]))
        writer.abort()
        await fs.delete("/draft")


def knowledge_of(owner: Owner) -> closed_segments.ClosedSegments:
    (care,) = owner.janitor.queue.states.values()
    assert care.closed is not None
    return care.closed


@pytest.mark.slow
@pytest.mark.leaves_tasks
async def test_a_draft_that_is_full_leaves_the_log_and_the_next_round_has_more_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    owner = await compacted(world)
    last = await update(owner, 20)
    put = CleanedFileWriter.put

    def full(self: CleanedFileWriter, data: bytes) -> None:
        raise DraftFull

    monkeypatch.setattr(CleanedFileWriter, "put", full)
    await owner.rounds()
    assert knowledge_of(owner).room == MORE_ROOM
    assert [name for name in await world.names() if name.startswith(".clean")] == []
    assert owner.janitor.failures == 0
    await owner.round(61)
    assert owner.janitor.failures == 1, "far more room is not enough"
    assert finish_steps(owner.janitor.cleaning.totals()).uncleanable == 1
    monkeypatch.setattr(CleanedFileWriter, "put", put)
    await owner.round(61)
    await owner.rounds(10)
    assert (owner.janitor.cleaning.cleaner.rounds, knowledge_of(owner).room) == (1, ROOM)
    assert finish_steps(owner.janitor.cleaning.totals()).uncleanable == 0
    assert (await contents(world, 0, 20))[0] == last


@pytest.mark.slow
@pytest.mark.leaves_tasks
async def test_an_index_is_read_once_for_all_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    config = replace(COMPACT, cleaning=replace(COMPACT.cleaning, min_compaction_lag_ms=1 << 50))
    owner = await compacted(world, config=config)
    await update(owner, 20)
    await owner.rounds()
    reads: list[str] = []

    async def read(path: str, position: int, length: int) -> bytes:
        reads.append(path)
        return await world.reading.read(path, position, length)

    monkeypatch.setattr(owner.steps, "read", read)
    await update(owner, 1)
    await owner.rounds(10)
    await owner.rounds(10)
    known = len((await knowledge_of(owner).look()).segments)
    assert known > 15
    assert len([path for path in reads if path.endswith(".idx")]) < 15, "the indexes of the newest segments only"


@pytest.mark.slow
@pytest.mark.leaves_tasks
async def test_a_round_that_waits_for_its_throttle_ends_soon_after_its_partition_has_left() -> None:
    """A broker cleans log.cleaner.threads logs at a time: the others would wait for it."""
    world = World()
    owner = await world.owner("a", COMPACT, replace(BRISK, clean_bytes_s=1, clean_wait_ms=1))
    allow(owner)
    await update(owner, 20)
    await owner.round()
    await asyncio.sleep(10)
    assert owner.janitor.cleaning._rounds
    config = owner.driver.machine.config
    owner.driver.machine.reconfigure(replace(config, cleaning=replace(config.cleaning, is_compacted=False)))
    await asyncio.sleep(2)
    assert not owner.janitor.cleaning._rounds
    assert owner.janitor.failures == 0


@pytest.mark.slow
@pytest.mark.leaves_tasks
async def test_a_round_ends_when_the_topic_is_not_compacted_any_more() -> None:
    world = World()
    owner = await world.owner("a", COMPACT, replace(BRISK, clean_piece_bytes=100))
    allow(owner)
    last = await update(owner, 20)
    gate, begun = asyncio.Event(), asyncio.Event()

    async def slow(call):  # type: ignore[no-untyped-def]
        begun.set()
        await gate.wait()
        return call()

    owner.wiring.offload = slow
    upkeep = asyncio.create_task(owner.rounds())
    await begun.wait()
    config = owner.driver.machine.config
    owner.driver.machine.reconfigure(replace(config, cleaning=replace(config.cleaning, is_compacted=False)))
    gate.set()
    await upkeep
    await asyncio.sleep(1)
    assert (owner.janitor.cleaning.cleaner.rounds, owner.janitor.cleaning.swapper.swaps_done) == (0, 0)
    assert [name for name in await world.names(PATH.folder) if name.startswith(".clean")] == []
    assert (await contents(world, 0, 20))[0] == last


@pytest.mark.parametrize("timestamp", [-1, 7])
async def test_the_index_has_the_last_sources_time(timestamp: int) -> None:
    """Take a source that was cleaned before for as old as its own last source."""
    fs = MemoryFileSystem(MemoryStorage(), "writer")
    facts = CleanedFacts(base=0, end_offset=1, cleaned_up_to=1)
    writer = await new_writer(fs)
    writer.put(bytes(build_batch([Record(key=b"k", value=b"v")], base_timestamp=timestamp)))
    index = Checkpoint(key=KEY, segment=SegmentName(0, 1, 0), position=1, end_offset=1, log_start=0)
    once = writer.index([index.segment], [index], facts, modified_ms=1_000)
    twice = writer.index([once.segment], [once], facts, modified_ms=2_000)
    times = [each.cleaned.modified_ms for each in (once, twice) if each.cleaned is not None]
    assert times == [1_000, 1_000]
    assert [largest_timestamp(each, 3_000) for each in (once, twice)] == ([1_000] * 2 if timestamp < 0 else [7] * 2)
    assert largest_timestamp(index, 3_000) == 3_000
    # A marker had the timestamp, and has gone; records without timestamps are left.
    rest = await new_writer(MemoryFileSystem(MemoryStorage(), "rest"))
    rest.put(bytes(build_batch([Record(key=b"k", value=b"v")], base_timestamp=-1)))
    assert largest_timestamp(rest.index([twice.segment], [twice], facts, modified_ms=4_000), 5_000) == 1_000
    for each in (writer, rest):
        await each.close()
