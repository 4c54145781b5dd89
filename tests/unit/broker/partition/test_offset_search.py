"""Searches in a partition's log: by timestamp, by the largest timestamp, and by leader epoch."""

from __future__ import annotations

import uuid

import pytest
from kafka.protocol.consumer import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)

from bmq.broker.partition.offset_search import SearchedLog
from bmq.core.errors import ErrorCode
from bmq.core.model import PartitionKey, SegmentName, cleaned_name
from bmq.core.records.batch import Record, build_batch
from bmq.core.records.reader import TimestampAndOffset
from bmq.storage.block_cache import BlockCache, ReadConfig
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.filesystem import write_once
from bmq.storage.layout import PartitionPath
from bmq.storage.memory import Faults, MemoryFileSystem, MemoryStorage
from bmq.storage.segment import encode_idx
from tests.harness.cleaned import cleaned_batch
from tests.unit.broker.partition.logs import ROLLING, T0, fill, offsets
from tests.unit.broker.world import World, world
from tests.unit.storage.stored_segments import PATH, S, put
from tests.unit.storage.stored_segments import batch as stored_batch

pytestmark = pytest.mark.slow

KEY = PartitionKey(uuid.UUID(int=7), 0)
LOG_PATH = PartitionPath("t", str(KEY.topic_id), 0)


async def test_list_offsets_finds_the_ends_timestamps_and_the_largest_one() -> None:
    async with world(broker=ROLLING) as w:
        w.topic()
        assert await offsets(w, -1, -2, -3, T0) == [
            ("NONE", 0, -1, 1),
            ("NONE", 0, -1, 1),
            ("NONE", -1, -1, -1),
            ("NONE", -1, -1, -1),
        ]
        await fill(w, 0, 100, 50, 300, 200, rolls_every=2)
        assert await offsets(w, -1, -2, -4, -5, -6) == [
            ("NONE", 5, -1, 1),
            ("NONE", 0, -1, -1),
            ("NONE", 0, -1, -1),
            ("NONE", -1, -1, -1),
            ("NONE", -1, -1, -1),
        ]
        assert await offsets(w, T0 + 1, T0 + 101, T0 + 301, 0) == [
            ("NONE", 1, T0 + 100, -1),
            ("NONE", 3, T0 + 300, -1),
            ("NONE", -1, -1, -1),
            ("NONE", 0, T0, -1),
        ]
        assert await offsets(w, -3) == [("NONE", 3, T0 + 300, -1)]


async def test_the_largest_timestamp_is_not_that_of_a_batch_without_records() -> None:
    """Kafka's cleaner leaves such a batch the time of what it removed."""
    fs = MemoryFileSystem(MemoryStorage(), "h")
    await put(fs, S(0, 1, 0), [cleaned_batch(stored_batch(0, 2, timestamp=900), ()), stored_batch(2, timestamp=5)])
    await put(fs, S(3, 1, 1), [])
    log = SearchedLog(BlockCache(fs, ReadConfig()), PATH)
    assert await log.offset_of_max_timestamp(0, 3, None) == TimestampAndOffset(2, 5)


@pytest.mark.parametrize("rolls_every", [0, 1, 2, 3])
@pytest.mark.parametrize("log_start", range(6))
async def test_the_largest_timestamp_is_that_of_the_records_that_are_left(rolls_every: int, log_start: int) -> None:
    """The segments, and how far the log start has moved into one, make no difference."""
    timestamps = [500, 100, 400, 50, 300, 200]

    async with world(broker=ROLLING) as w:
        w.topic()
        await fill(w, *timestamps, rolls_every=rolls_every)
        owner = await w.owner()
        await owner.delete_before(log_start)
        largest = max(timestamps[log_start:])
        for _ in range(2):  # found, then remembered
            assert await owner.offset_of_max_timestamp() == (timestamps.index(largest), T0 + largest)
        await fill(w, 900)
        assert await owner.offset_of_max_timestamp() == (6, T0 + 900)
        await owner.delete_before(-1)
        assert await owner.offset_of_max_timestamp() == (-1, -1)


async def test_a_search_that_takes_too_long_times_out() -> None:
    async with world(broker=ROLLING) as w:
        w.topic()
        await fill(w, 0, 1, rolls_every=1)
        w.storage.faults = Faults(call_s=(5.0, 5.0))
        assert (await offsets(w, T0))[0][0] == "REQUEST_TIMED_OUT"
        w.storage.faults = Faults(unavailable=1.0)
        assert (await offsets(w, T0))[0][0] == "KAFKA_STORAGE_ERROR"


@pytest.mark.parametrize("timeout_ms", [0, -1])
async def test_a_time_out_of_zero_or_less_is_the_usual_one(timeout_ms: int) -> None:
    """kafka-python sends 0: what is known is returned at once, and a slow search gets the time of clients that send no
    time-out."""

    async with world(broker=ROLLING) as w:
        w.topic()
        await fill(w, 0, 1, rolls_every=1)
        for version in (10, 11):
            found = await offsets(w, -1, -2, T0 + 1, version=version, timeout_ms=timeout_ms)
            assert [each[:2] for each in found] == [("NONE", 2), ("NONE", 0), ("NONE", 1)]
        w.storage.faults = Faults(call_s=(5.0, 5.0))
        assert (await offsets(w, T0, timeout_ms=timeout_ms))[0][:2] == ("NONE", 0)


async def end_of_epoch(w: World, epoch: int, *, current: int = -1, version: int = 4) -> tuple[str, int, int]:
    Topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    part = Topic.OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[Topic(topic="orders", partitions=[part])])
    response = await w.call(request, OffsetForLeaderEpochResponse, version)
    ((result,),) = [topic.partitions for topic in response.topics]
    return ErrorCode(result.error_code).name, result.leader_epoch, result.end_offset


async def test_the_end_of_each_earlier_epoch_is_known_after_restarts() -> None:
    """Epochs 1, 2 and 4 wrote, 3 did not; Kafka's ``LeaderEpochFileCache.endOffsetFor``."""

    async with world() as w:
        w.topic()
        await fill(w, 0, 1, 2)
        for number in range(3):
            await w.stop()
            await w.start()
            w.assign()
            await w.owner()
            if number != 1:
                await fill(w, 3, 4)
        assert (await w.owner()).epoch == 4
        for version in (2, 3, 4):
            assert await end_of_epoch(w, 1, version=version) == ("NONE", 1, 3)
        assert await end_of_epoch(w, 2) == ("NONE", 2, 5)
        assert await end_of_epoch(w, 3) == ("NONE", 2, 5), "the largest epoch at or below"
        assert await end_of_epoch(w, 4) == ("NONE", 4, 7), "the owner's own: its watermark"
        assert await end_of_epoch(w, 0) == ("NONE", 0, 0), "before all that is known: where that begins"
        assert await end_of_epoch(w, 5) == ("NONE", -1, -1)
        assert await end_of_epoch(w, -1) == ("NONE", -1, -1)
        assert (await end_of_epoch(w, 1, current=3))[0] == "FENCED_LEADER_EPOCH"
        assert (await end_of_epoch(w, 1, current=0))[0] == "NONE"
        assert (await end_of_epoch(w, 1, current=5))[0] == "UNKNOWN_LEADER_EPOCH"


async def test_an_epoch_that_wrote_nothing_yet_ends_where_the_log_ends() -> None:
    async with world() as w:
        w.topic()
        await fill(w, 0, 1)
        await w.stop()
        await w.start()
        w.assign()
        await w.owner()
        assert await end_of_epoch(w, 1) == ("NONE", 1, 2)
        assert await end_of_epoch(w, 2) == ("NONE", 2, 2)


# ------------------------------------------------------------------------------------------- cleaned segments


class CleanedLog:
    """A log on storage: epoch 1 from offset 0, 2 from 10, 4 from 20, 5 from 30; the first three are cleaned."""

    SOURCES = (SegmentName(0, 1, 0), SegmentName(10, 2, 0), SegmentName(20, 4, 0))
    NEWEST = SegmentName(30, 5, 0)

    def __init__(self) -> None:
        self.fs = MemoryFileSystem(MemoryStorage(), "h")
        self.log = SearchedLog(BlockCache(self.fs, ReadConfig()), LOG_PATH)

    async def put(self, name: SegmentName, *epochs: int, epochs_in_index: tuple[tuple[int, int], ...] = ()) -> None:
        """Write a file with a batch of ten records for each epoch."""
        batches = [
            bytes(build_batch([Record(value=b"v")] * 10, base_offset=name.base + 10 * at, leader_epoch=epoch))
            for at, epoch in enumerate(epochs)
        ]
        await write_once(self.fs, LOG_PATH.log(name), b"".join(batches))
        if epochs_in_index:
            checkpoint = Checkpoint(
                key=KEY,
                segment=name,
                position=sum(map(len, batches)),
                end_offset=name.base + 10 * len(epochs),
                log_start=0,
                is_closed=True,
                epochs=epochs_in_index,
            )
            await write_once(self.fs, LOG_PATH.idx(name), encode_idx(checkpoint))

    async def ends(self, end: int = 40) -> list[tuple[int, int] | None]:
        return [await self.log.end_of_epoch(epoch, end, None) for epoch in range(6)]


ENDS = [(0, 0), (1, 10), (2, 20), (2, 20), (4, 30), None]


@pytest.mark.parametrize("cleaning", [0, 1])
@pytest.mark.parametrize("has_index", [True, False])
async def test_a_cleaned_segment_over_several_epochs_has_them_all(cleaning: int, has_index: bool) -> None:
    """The index has them; without an index the batches' headers have."""
    made = CleanedLog()
    await made.put(made.NEWEST, 5)
    if cleaning:
        epochs = ((1, 0), (2, 10), (4, 20))
        await made.put(cleaned_name(made.SOURCES), 1, 2, 4, epochs_in_index=epochs if has_index else ())
    else:
        for name in made.SOURCES:
            await made.put(name, name.epoch)
    assert await made.ends() == ENDS


async def test_an_epoch_whose_batches_are_all_removed_is_known_from_the_index() -> None:
    made = CleanedLog()
    await made.put(made.NEWEST, 5)
    await made.put(cleaned_name(made.SOURCES), 4, 4, 4, epochs_in_index=((1, 0), (2, 10), (4, 20)))
    assert await made.ends() == ENDS


@pytest.mark.parametrize("has_index", [True, False])
async def test_epochs_are_found_after_the_known_cleaned_segment_was_cleaned_again(has_index: bool) -> None:
    made = CleanedLog()
    await made.put(made.NEWEST, 5)
    first = cleaned_name(made.SOURCES[:2])
    await made.put(first, 1, 2, epochs_in_index=((1, 0), (2, 10)))
    await made.put(made.SOURCES[2], 4)
    assert await made.ends() == ENDS
    second = cleaned_name([first, made.SOURCES[2]])
    await made.put(second, 1, 2, 4, epochs_in_index=((1, 0), (2, 10), (4, 20)) if has_index else ())
    for name in (first, made.SOURCES[2]):
        await made.fs.delete(LOG_PATH.idx(name))
        await made.fs.delete(LOG_PATH.log(name))
    assert await made.ends() == ENDS
