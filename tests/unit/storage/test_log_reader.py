"""Reads of a partition's log from storage: what a read may show, and what it costs."""

from __future__ import annotations

import asyncio
import struct

import pytest

from bmq.storage.filesystem import CorruptData, NoSuchFile, StorageUnavailable, write_once
from bmq.storage.log_reader import OffsetNotFound
from bmq.storage.memory import Faults, MemoryFileSystem, MemoryStorage
from tests.unit.storage.stored_segments import (
    BLOCK,
    PATH,
    S,
    SlowFileSystem,
    batch,
    batches,
    offsets,
    put,
    put_idx,
    read_all,
    reader,
)


@pytest.mark.parametrize("idx", [True, False])
@pytest.mark.parametrize("max_bytes", [1, 700, 5_000])
async def test_every_offset_of_several_segments_is_read_in_order(idx: bool, max_bytes: int) -> None:
    fs = SlowFileSystem()
    await put(fs, S(0, 1, 0), batches(0, 30), idx=idx)
    await put(fs, S(30, 1, 1), batches(30, 55), idx=idx)
    await put(fs, S(55, 2, 0), batches(55, 80))
    log = reader(fs)
    assert await read_all(log, 0, 80, max_bytes) == list(range(80))
    for offset in (0, 7, 29, 30, 54, 55, 79):
        assert offsets(await log.read(offset, 1, 80)) == [offset]


@pytest.mark.parametrize("idx", [True, False])
async def test_an_offset_in_the_middle_of_a_batch_gives_the_whole_batch(idx: bool) -> None:
    fs = SlowFileSystem()
    await put(fs, S(0, 1, 0), [batch(base, 10) for base in range(0, 100, 10)], idx=idx)
    await put(fs, S(100, 1, 1), [])
    log = reader(fs)
    for offset in (0, 9, 45, 99):
        assert offsets(await log.read(offset, 1, 100)) == [offset // 10 * 10]


async def test_at_least_one_batch_though_it_is_larger_than_asked_and_than_a_block() -> None:
    fs = SlowFileSystem()
    content = [batch(0), batch(1, size=10 * BLOCK), batch(2)]
    await put(fs, S(0, 1, 0), content)
    log = reader(fs)
    assert await log.read(1, 1, 3) == content[1]
    assert await log.read(0, 10 * BLOCK, 3) == content[0]
    assert await log.read(0, 1 << 20, 3) == b"".join(content)
    assert await log.read(0, len(content[0]) + len(content[1]), 3) == content[0] + content[1]


async def test_records_are_views_of_their_blocks_unless_they_are_a_small_part_of_them() -> None:
    fs = SlowFileSystem()
    content = batches(0, 40)
    await put(fs, S(0, 1, 0), content, idx=True)
    await put(fs, S(40, 1, 1), [])
    log = reader(fs, ahead_max=0)
    size = len(content[0])
    large = await log.read_slice(1, 10 * size, 40)
    assert b"".join(large.buffers) == b"".join(content[1:11])
    assert (large.size, len(large.buffers), large.kept_bytes) == (10 * size, 2, 2 * BLOCK)
    assert [memoryview(view).obj for view in large.buffers] == [
        log.pool.cached(PATH.log(S(0, 1, 0)), number, BLOCK) for number in (0, 1)
    ]
    small = await log.read_slice(5, 1, 40)
    assert (small.size, small.kept_bytes) == (size, size), "a copy: a view would keep its blocks alive"
    assert list(small.buffers) == [content[5]]
    assert (await log.read_slice(40, 1, 40)).size == 0


async def test_rule_2_a_read_shows_nothing_at_or_past_the_watermark() -> None:
    fs = SlowFileSystem()
    await put(fs, S(0, 1, 0), [batch(base, 10) for base in range(0, 100, 10)])
    log = reader(fs)
    assert offsets(await log.read(0, 1 << 20, 50)) == [0, 10, 20, 30, 40]
    assert await log.read(50, 1 << 20, 50) == b""
    assert await log.read(70, 1 << 20, 50) == b""
    assert offsets(await log.read(0, 1 << 20, 55)) == [0, 10, 20, 30, 40]  # 50..59 is not wholly below
    assert await log.read(52, 1 << 20, 55) == b""
    assert offsets(await log.read(40, 1 << 20, 70)) == [40, 50, 60]


@pytest.mark.parametrize("idx", [True, False])
async def test_rule_5_bytes_past_the_next_segments_base_are_leftovers(idx: bool) -> None:
    """The first segment holds offsets 10 to 14 too, in a version that was never acknowledged."""

    fs = SlowFileSystem()
    leftovers = batches(10, 15, size=77)
    flushed = await put(MemoryFileSystem(fs.storage, "x"), S(0, 9, 0), batches(0, 10))
    await fs.delete(PATH.log(S(0, 9, 0)))
    await put(fs, S(0, 1, 0), [*batches(0, 10), *leftovers])
    if idx:
        await put_idx(fs, S(0, 1, 0), flushed.position, 10, flushed.index)
    await put(fs, S(10, 2, 0), batches(10, 20))
    log = reader(fs)
    assert await log.read(9, 1 << 20, 20) == batch(9)
    assert await log.read(10, 1 << 20, 20) == b"".join(batches(10, 20))


async def test_a_superseded_segment_is_never_read() -> None:
    fs = SlowFileSystem()
    await put(fs, S(0, 1, 0), batches(0, 10))
    await put(fs, S(10, 1, 1), batches(10, 12, size=50))
    await put(fs, S(10, 1, 2), batches(10, 20))
    log = reader(fs)
    assert await read_all(log, 0, 20) == list(range(20))
    assert await log.read(10, 1, 20) == batch(10)
    assert PATH.log(S(10, 1, 1)) not in {path for path, _ in fs.log_reads}


async def test_rule_2_a_segment_registered_since_the_last_listing_is_seen_before_old_leftovers() -> None:
    """The watermark moves to 12 after a fail-over at 10: the old file's 10 and 11 must not be shown."""

    fs = SlowFileSystem()
    await put(fs, S(0, 1, 0), [*batches(0, 10), *batches(10, 12, size=33)])
    log = reader(fs)
    assert offsets(await log.read(9, 1 << 20, 10)) == [9]
    await put(fs, S(10, 1, 1), batches(10, 12, size=44))
    assert await log.read(9, 1 << 20, 12) == batch(9)
    assert await log.read(10, 1 << 20, 12) == b"".join(batches(10, 12, size=44))


async def test_an_offset_below_the_first_segment_is_an_error_that_names_the_first_offset() -> None:
    fs = SlowFileSystem()
    log = reader(fs)
    with pytest.raises(OffsetNotFound) as empty:
        await log.read(0, 1, 5)
    assert empty.value.first_offset is None
    await put(fs, S(10, 1, 0), batches(10, 20))
    log = reader(fs)
    with pytest.raises(OffsetNotFound) as caught:
        await log.read(9, 1, 20)
    assert caught.value.first_offset == 10


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (0, struct.pack(">q", 99), "a batch at offset 99, but 3 is due"),
        (8, struct.pack(">i", -5), "7 bytes"),
        (8, struct.pack(">i", 0x7FFFFFFF), "its length field says 2147483659 bytes"),
        (16, b"\x01", "magic 1"),
        (23, struct.pack(">i", -1), "last offset delta is -1"),
    ],
)
async def test_a_damaged_header_is_corrupt_data_with_its_place(place: int, value: bytes, message: str) -> None:
    fs = SlowFileSystem()
    content = batches(0, 5)
    bad = bytearray(content[3])
    bad[place : place + len(value)] = value
    await put(fs, S(0, 1, 0), [*content[:3], bytes(bad)])
    log = reader(fs)
    assert offsets(await log.read(0, 2 * len(content[0]), 5)) == [0, 1]
    with pytest.raises(CorruptData, match=message) as caught:
        await log.read(3, 1, 5)
    assert f"{PATH.log(S(0, 1, 0))} at {3 * len(content[0])}" in str(caught.value)


async def test_promised_bytes_that_are_not_there_are_corrupt_data() -> None:
    fs = SlowFileSystem()
    whole = await put(fs, S(0, 1, 0), batches(0, 5))
    with pytest.raises(CorruptData, match=f"ends at {whole.position}: offset 5 is missing, 6 is promised"):
        await reader(fs).read(5, 1, 6)


async def test_a_damaged_index_costs_a_scan_and_nothing_else() -> None:
    fs = SlowFileSystem()
    await put(fs, S(0, 1, 0), batches(0, 30))
    await write_once(fs, PATH.idx(S(0, 1, 0)), b"BMQIDX1\n rubbish")
    await put(fs, S(30, 1, 1), [])
    log = reader(fs)
    assert await read_all(log, 0, 30) == list(range(30))
    assert log.pool.bad_indexes > 0


async def test_the_active_segment_needs_neither_listing_nor_scan() -> None:
    fs = SlowFileSystem()
    active = await put(fs, S(0, 1, 0), batches(0, 60))
    log = reader(fs, ahead_max=0)
    assert offsets(await log.read(50, 1, 60, active=active)) == [50]
    assert len(fs.log_reads) <= 2
    assert fs.idx_reads == 0
    await log.read(59, 1, 60, active=active)
    assert log.segments.listings == 1


async def test_an_open_segment_is_scanned_once_then_known() -> None:
    fs = SlowFileSystem()
    await put(fs, S(0, 1, 0), batches(0, 100))
    log = reader(fs, ahead_max=0)
    await log.read(99, 1, 100)
    assert len(set(fs.log_reads)) == len(fs.log_reads) == 17
    await log.read(50, 1, 100)
    assert len(fs.log_reads) == 17


async def test_rule_10_a_reader_that_misses_a_file_lists_once_more() -> None:
    fs = SlowFileSystem()
    for n in range(4):
        await put(fs, S(n * 10, 1, n), batches(n * 10, n * 10 + 10), idx=True)
    log = reader(fs, cache_bytes=0)
    assert await read_all(log, 0, 40) == list(range(40))
    await fs.concat(PATH.log(S(10, 1, 1)), [PATH.log(S(20, 1, 2))])
    assert await read_all(log, 10, 40) == list(range(10, 40))
    await fs.delete(PATH.log(S(0, 1, 0)))
    with pytest.raises(OffsetNotFound) as caught:
        await log.read(5, 1, 40)
    assert caught.value.first_offset == 10


async def test_a_file_that_is_listed_but_cannot_be_found_is_an_error_after_a_bounded_number_of_reads() -> None:
    class Blind(MemoryFileSystem):
        tries = 0

        async def read(self, path: str, position: int, length: int) -> bytes:
            self.tries += path.endswith(".log")
            raise NoSuchFile(path)

    fs = Blind(MemoryStorage(), "h")
    await put(fs, S(0, 1, 0), batches(0, 3))
    with pytest.raises(NoSuchFile):
        await reader(fs).read(0, 1, 3)
    assert fs.tries == 3


@pytest.mark.parametrize("is_index_renewed", [False, True])
async def test_a_merged_file_is_read_past_its_old_index_and_by_its_new_one(is_index_renewed: bool) -> None:
    fs = SlowFileSystem()
    await put(fs, S(0, 1, 0), batches(0, 20), idx=True)
    await put(fs, S(20, 1, 1), batches(20, 40), idx=True)
    await put(fs, S(40, 1, 2), batches(40, 50))
    log = reader(fs)
    assert offsets(await log.read(19, 1, 50)) == [19]  # the first index is known now
    await fs.concat(PATH.log(S(0, 1, 0)), [PATH.log(S(20, 1, 1))])
    if is_index_renewed:
        await fs.delete(PATH.idx(S(0, 1, 0)))
        whole = await put(MemoryFileSystem(MemoryStorage(), "x"), S(0, 1, 0), batches(0, 40))
        await put_idx(fs, S(0, 1, 0), whole.position, 40, whole.index)
    assert await read_all(log, 0, 50) == list(range(50))
    assert await read_all(reader(fs), 0, 50) == list(range(50))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
async def test_reads_under_storage_faults_are_right_or_fail(seed: int) -> None:
    fs = SlowFileSystem()
    for n in range(6):
        await put(fs, S(n * 20, 1, n), batches(n * 20, n * 20 + 20), idx=n % 2 == 0)
    fs.storage.faults = Faults(unavailable=0.2, call_s=(0.0, 0.05))
    log = reader(fs, cache_bytes=5 * BLOCK)

    async def one(offset: int) -> bool:
        try:
            return await log.read(offset, 1, 120) == batch(offset)
        except StorageUnavailable:
            return True

    assert all(await asyncio.gather(*(one(offset) for offset in range(120))))
    assert not log.pool._shared
