"""Searches of a partition's log by timestamp: the first record that is not older."""

from __future__ import annotations

import gzip
import struct

import pytest
from crc32c import crc32c

from bmq.core.records.batch import HEADER_BYTES
from bmq.core.records.reader import TimestampAndOffset
from bmq.storage.memory import MemoryFileSystem
from bmq.storage.timestamp_search import TimestampSearch
from tests.unit.storage.stored_segments import PATH, S, SlowFileSystem, batch, put, reader


async def timed_log(fs: MemoryFileSystem) -> None:
    """Write offsets 0 to 39, ten a segment, 10 ms from record to record; the second segment's are the oldest."""
    for n, first_ms in enumerate((5_000, 1_000, 9_000, 9_500)):
        content = [
            batch(n * 10, 5, timestamp=first_ms, step=10),
            batch(n * 10 + 5, 5, timestamp=first_ms + 50, step=10),
        ]
        await put(fs, S(n * 10, 1, n), content, idx=n < 3)


@pytest.mark.parametrize(
    ("timestamp", "start", "wanted"),
    [
        (0, 0, TimestampAndOffset(0, 5_000)),
        (5_001, 0, TimestampAndOffset(1, 5_010)),
        (5_040, 0, TimestampAndOffset(4, 5_040)),
        (5_041, 0, TimestampAndOffset(5, 5_050)),
        (5_090, 0, TimestampAndOffset(9, 5_090)),
        (5_091, 0, TimestampAndOffset(20, 9_000)),
        (1_015, 10, TimestampAndOffset(12, 1_020)),
        (1_015, 14, TimestampAndOffset(14, 1_040)),
        (9_200, 0, TimestampAndOffset(30, 9_500)),
        (9_555, 0, TimestampAndOffset(36, 9_560)),
        (9_591, 0, None),
    ],
)
async def test_offset_for_timestamp(timestamp: int, start: int, wanted: TimestampAndOffset | None) -> None:
    fs = SlowFileSystem()
    await timed_log(fs)
    search = TimestampSearch(reader(fs))
    for _ in range(2):
        assert await search.find(timestamp, 40, start_offset=start) == wanted


async def test_offset_for_timestamp_stays_below_the_watermark() -> None:
    fs = SlowFileSystem()
    await timed_log(fs)
    search = TimestampSearch(reader(fs))
    assert await search.find(9_540, 35) == TimestampAndOffset(34, 9_540)
    assert await search.find(9_541, 35) is None
    assert await search.find(9_541, 40) == TimestampAndOffset(35, 9_550)


async def test_offset_for_timestamp_asks_each_index_once_and_survives_a_merge() -> None:
    fs = SlowFileSystem()
    await timed_log(fs)
    log = reader(fs)
    search = TimestampSearch(log)
    assert await search.find(9_591, 40) is None
    asked = fs.idx_reads
    assert await search.find(9_591, 40) is None
    assert fs.idx_reads <= asked + 1  # the newest one has none, it may have come
    await fs.concat(PATH.log(S(0, 1, 0)), [PATH.log(S(10, 1, 1))])
    log.pool._blocks.clear()
    assert await search.find(1_000, 40, start_offset=12) == TimestampAndOffset(12, 1_020)
    await fs.delete(PATH.log(S(0, 1, 0)))
    await fs.delete(PATH.log(S(20, 1, 2)))
    assert await search.find(9_000, 40) == TimestampAndOffset(30, 9_500)


async def test_offset_for_timestamp_looks_into_compressed_batches() -> None:
    fs = SlowFileSystem()
    plain = batch(0, 5, timestamp=100, step=10)
    packed = bytearray(plain[:HEADER_BYTES] + gzip.compress(plain[HEADER_BYTES:]))
    struct.pack_into(">i", packed, 8, len(packed) - 12)
    struct.pack_into(">h", packed, 21, 1)
    struct.pack_into(">I", packed, 17, crc32c(memoryview(packed)[21:]))
    await put(fs, S(0, 1, 0), [bytes(packed)])
    search = TimestampSearch(reader(fs))
    assert await search.find(121, 5) == TimestampAndOffset(3, 130)
    assert await search.find(100, 5) == TimestampAndOffset(0, 100)


async def test_offset_for_timestamp_of_a_batch_that_cannot_be_opened_is_the_batch() -> None:
    fs = SlowFileSystem()
    broken = bytearray(batch(0, 5, timestamp=100, step=10))
    struct.pack_into(">h", broken, 21, 1)  # says gzip, is not
    await put(fs, S(0, 1, 0), [bytes(broken)])
    assert await TimestampSearch(reader(fs)).find(121, 5) == TimestampAndOffset(0, 140)
