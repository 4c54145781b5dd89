"""The reader of a source in pieces, and the throttle (storage/cleaning/source_reader.py)."""

from __future__ import annotations

import pytest

from bmq.core.errors import FormatError
from bmq.core.records.batch import Record, build_batch
from bmq.storage.cleaning.source_reader import SourceReader, Throttle
from bmq.storage.filesystem import write_once
from bmq.storage.memory import MemoryFileSystem, MemoryStorage

SIZES = (10, 300, 1, 2_000, 40, 90)
BASE = 7


def segment() -> bytes:
    """Return batches of one record, of several sizes."""
    parts = [
        build_batch([Record(key=b"k", value=b"v" * size)], base_timestamp=1, base_offset=BASE + at)
        for at, size in enumerate(SIZES)
    ]
    return b"".join(parts)


async def reader_of(data: bytes, piece_bytes: int, *, length: int | None = None) -> SourceReader:
    fs = MemoryFileSystem(MemoryStorage(), "reader")
    await write_once(fs, "/log", data)
    end_offset = BASE + len(SIZES)
    return SourceReader(
        fs, "/log", base=BASE, end_offset=end_offset, length=length or len(data), piece_bytes=piece_bytes
    )


async def walk(reader: SourceReader) -> tuple[list[int], list[int]]:
    """Return the offsets of the batches, and the bytes of each piece."""
    found, pieces = list[int](), list[int]()
    while not reader.is_over:
        pieces.append(await reader.read())
        found += [batch.base_offset for batch in reader.batches()]
    return found, pieces


@pytest.mark.parametrize("piece_bytes", [1, 61, 100, 500, 1_000, 1 << 20])
async def test_pieces_of_any_size_give_each_batch_once(piece_bytes: int) -> None:
    data = segment()
    found, pieces = await walk(await reader_of(data, piece_bytes))
    assert found == list(range(BASE, BASE + len(SIZES)))
    assert max(pieces) <= max(piece_bytes, 2_100)
    assert sum(pieces) <= 2 * len(data) + 200


async def test_what_lies_behind_the_index_is_not_read() -> None:
    data = segment()
    reader = await reader_of(data + b"leftover of a failed write", 200, length=len(data))
    assert (await walk(reader))[0] == list(range(BASE, BASE + len(SIZES)))


@pytest.mark.parametrize("piece_bytes", [61, 500, 1 << 20])
async def test_a_damaged_batch_is_an_error_behind_the_batches_before_it(piece_bytes: int) -> None:
    data = bytearray(segment())
    data[-20] ^= 1
    reader = await reader_of(bytes(data), piece_bytes)
    found = list[int]()
    with pytest.raises(FormatError, match="CRC"):  # noqa: PT012
        while not reader.is_over:
            await reader.read()
            for batch in reader.batches():
                found.append(batch.base_offset)
    assert found == list(range(BASE, BASE + len(SIZES) - 1))


@pytest.mark.parametrize("piece_bytes", [61, 500, 1 << 20])
async def test_bytes_that_end_before_the_segments_end_are_an_error(piece_bytes: int) -> None:
    """An index that is wrong ends a round before its segment, and not the whole round."""
    data = segment()
    fs = MemoryFileSystem(MemoryStorage(), "reader")
    await write_once(fs, "/log", data)
    end_offset = BASE + len(SIZES) + 1
    reader = SourceReader(fs, "/log", base=BASE, end_offset=end_offset, length=len(data), piece_bytes=piece_bytes)
    with pytest.raises(FormatError, match="its bytes end at offset 13, but its index ends at 14"):
        await walk(reader)


@pytest.mark.parametrize("piece_bytes", [61, 500, 1 << 20])
async def test_a_file_that_ends_before_its_index_says_is_an_error(piece_bytes: int) -> None:
    data = segment()
    reader = await reader_of(data[:-5], piece_bytes, length=len(data))
    with pytest.raises(FormatError, match="its index covers"):
        await walk(reader)


def test_the_throttle_waits_as_long_as_the_bytes_need() -> None:
    throttle = Throttle(1_000)
    assert throttle.wait_ms(500, 10_000) == 500
    assert throttle.wait_ms(500, 10_200) == 800
    assert throttle.wait_ms(100, 60_000) == 100, "time without reads is not saved up"
    assert Throttle((1 << 63) - 1).wait_ms(8 << 20, 0) < 0.001
