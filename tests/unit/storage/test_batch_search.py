"""Reading batches in blocks, and the search for right ones at and behind damage."""

from __future__ import annotations

import struct

import pytest

from bmq.core.errors import FormatError
from bmq.core.records.batch import HEADER_BYTES, LENGTH_OVERHEAD, Batch, Record, build_batch, build_gap
from bmq.storage import batch_search
from bmq.storage.batch_search import BlockReader, due_header, next_batch, with_right_length
from bmq.storage.filesystem import write_once
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.harness.cleaned import cleaned_batch

PATH = "/file"
BLOCK = 100


class CountingFileSystem(MemoryFileSystem):
    """Notes every range that is read."""

    def __init__(self) -> None:
        super().__init__(MemoryStorage(), "reader")
        self.reads: list[tuple[int, int]] = []

    async def read(self, path: str, position: int, length: int) -> bytes:
        found = await super().read(path, position, length)
        self.reads.append((position, len(found)))
        return found


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_search, "READ_BYTES", BLOCK)


async def opened(data: bytes, length: int | None = None) -> tuple[BlockReader, CountingFileSystem]:
    fs = CountingFileSystem()
    await write_once(fs, PATH, data)
    return BlockReader(fs, PATH, len(data) if length is None else length), fs


def batch(base: int, count: int = 2, size: int = 20) -> bytes:
    return bytes(build_batch([Record(value=b"v" * size)] * count, base_offset=base, base_timestamp=0, leader_epoch=1))


def with_length(data: bytes, size: int) -> bytes:
    """Return the batch with a length field that claims ``size`` bytes."""
    return data[:8] + struct.pack(">i", size - LENGTH_OVERHEAD) + data[12:]


async def test_a_view_inside_the_window_reads_nothing_and_one_outside_moves_it() -> None:
    data = bytes(range(250))
    reader, fs = await opened(data)
    assert bytes(await reader.view(0, 10)) == data[:10]
    assert bytes(await reader.view(90, 10)) == data[90:100]
    assert fs.reads == [(0, BLOCK)]
    assert bytes(await reader.view(95, 10)) == data[95:105]
    assert bytes(await reader.view(20, 150)) == data[20:170]
    assert bytes(await reader.view(240, 50)) == data[240:], "fewer at the end"
    assert bytes(await reader.view(250, 5)) == b""
    assert fs.reads == [(0, BLOCK), (95, BLOCK), (20, 150), (240, 10)]


async def test_a_file_shorter_than_its_length_is_a_format_error() -> None:
    reader, _ = await opened(bytes(30), length=40)
    with pytest.raises(FormatError, match="40 bytes are promised, 30 can be read"):
        await reader.view(20, 20)
    with pytest.raises(FormatError, match="40 bytes are promised, 30 can be read"):
        await reader.read(0, 40)


@pytest.mark.parametrize("junk", [0, 1, 39, BLOCK - 1, BLOCK, 3 * BLOCK + 7])
async def test_the_next_right_batch_is_found_wherever_blocks_end(junk: int) -> None:
    reader, _ = await opened(b"\xff" * junk + batch(7, size=2 * BLOCK) + batch(9))
    assert await next_batch(reader, 0, 5) == junk
    assert await reader.is_batch(junk)
    assert not await reader.is_batch(junk + 1)


async def test_a_batch_of_an_earlier_offset_or_one_cut_short_is_not_the_next_one() -> None:
    early, cut = batch(3), batch(9)[:-1]
    reader, _ = await opened(early + cut)
    assert await next_batch(reader, 0, 4) is None
    assert await next_batch(reader, 0, 3) == 0
    assert await next_batch(reader, len(early) + len(cut) - HEADER_BYTES + 1, 0) is None


async def test_a_header_is_due_if_only_its_length_and_crc_may_be_wrong() -> None:
    data = batch(7)
    for bad in (data, with_length(data, 5000), data[:17] + b"\0\0\0\0" + data[21:]):
        reader, _ = await opened(bad)
        header = await due_header(reader, 0, 7)
        assert header is not None
        assert header.base_offset == 7
        assert await due_header(reader, 0, 8) is None
    for bad in (data[:16] + b"\1" + data[17:], data[: HEADER_BYTES - 1]):
        reader, _ = await opened(bad)
        assert await due_header(reader, 0, 7) is None


async def test_the_header_of_a_gap_is_due() -> None:
    (gap,) = build_gap(7, 20, 1)
    reader, _ = await opened(bytes(gap))
    assert await due_header(reader, 0, 7) is not None


@pytest.mark.parametrize("kept", [{7}, {8}, {7, 9}, {9}])
async def test_a_batch_that_compaction_took_records_from_is_due_and_its_length_is_found(kept: set[int]) -> None:
    data = cleaned_batch(batch(7, count=3), kept)
    reader, _ = await opened(with_length(data, 5000) + batch(10))
    header = await due_header(reader, 0, 7)
    assert header is not None
    mended = await with_right_length(reader, 0, header)
    assert mended is not None
    assert bytes(mended.data) == data


async def test_a_header_of_more_records_than_offsets_is_not_due() -> None:
    data = bytearray(batch(7))
    data[57:61] = (3).to_bytes(4)
    reader, _ = await opened(bytes(data))
    assert await due_header(reader, 0, 7) is None


@pytest.mark.parametrize("wrong", [0, HEADER_BYTES, 120, 1 << 20])
@pytest.mark.parametrize("following", [b"", batch(9)])
async def test_a_batch_with_a_damaged_length_is_found_up_to_the_next_one_or_the_end(
    wrong: int, following: bytes
) -> None:
    data = batch(7, size=BLOCK)
    reader, _ = await opened(with_length(data, wrong) + following)
    header = await due_header(reader, 0, 7)
    assert header is not None
    mended = await with_right_length(reader, 0, header)
    assert mended is not None
    assert bytes(mended.data) == data


async def test_no_length_makes_a_damaged_batch_right() -> None:
    data = bytearray(batch(7))
    data[HEADER_BYTES + 3] ^= 1
    reader, _ = await opened(bytes(data) + batch(9))
    assert await with_right_length(reader, 0, Batch(memoryview(data))) is None
