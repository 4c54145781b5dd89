"""Reads that come to records which the caller holds in memory: they stop there, and read none of these bytes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bmq.core.records.batch import Batch
from bmq.storage.log_reader import ActiveSegment
from tests.harness.waiting import until
from tests.unit.storage.stored_segments import PATH, S, SlowFileSystem, batches, offsets, put, reader

COUNT = 120
NAME = S(0, 1, 0)


class Held:
    """Batches that the caller holds, as (first offset, bytes)."""

    def __init__(self, content: Sequence[bytes]) -> None:
        self.batches = [Batch(memoryview(each)) for each in content]

    @property
    def start(self) -> int:
        return int(self.batches[0].base_offset)

    def size_until(self, offset: int) -> int | None:
        size = 0
        for each in self.batches:
            if each.base_offset == offset:
                return size
            size += each.size
        return size if offset == self.batches[-1].next_offset else None


class MeteredFileSystem(SlowFileSystem):
    """Notes the end of the furthest read of a log."""

    reached = 0

    async def read(self, path: str, position: int, length: int) -> bytes:
        data = await super().read(path, position, length)
        if path.endswith(".log"):
            self.reached = max(self.reached, position + len(data))
        return data


async def read_to(
    fs: MeteredFileSystem, held: Held, active: ActiveSegment | None, *, max_bytes: int = 700
) -> list[int]:
    """Read from the beginning until the caller's records come, as a consumer does; return the offsets."""
    log = reader(fs)
    found: list[int] = []
    while len(found) < held.start:
        part = await log.read_slice(len(found), max_bytes, COUNT, active=active, held=held)
        found += offsets(b"".join(part.buffers))
        assert part.size
    await until(lambda: not log.pool.ahead)
    return found


@pytest.mark.parametrize("start", [1, 37, 64, 118])
@pytest.mark.parametrize("ends_at", [COUNT, COUNT - 1])
async def test_reads_and_read_ahead_stop_where_the_held_records_begin(start: int, ends_at: int) -> None:
    """``ends_at``: the owner's segment is told with a flush that the caller holds, or before it."""
    fs, content = MeteredFileSystem(), batches(0, COUNT)
    segment = await put(fs, NAME, content)
    active = ActiveSegment(NAME, len(b"".join(content[:ends_at])), ends_at, segment.index)
    assert await read_to(fs, Held(content[start:]), active) == list(range(start))
    assert fs.reached == len(b"".join(content[:start]))


async def test_held_records_that_begin_in_a_closed_segment_are_not_read_either() -> None:
    fs, content = MeteredFileSystem(), batches(0, COUNT)
    await put(fs, NAME, content[:80], idx=True)
    active = await put(fs, S(80, 1, 1), content[80:])
    assert await read_to(fs, Held(content[61:]), active) == list(range(61))
    assert fs.reached == len(b"".join(content[:61]))
    assert {path for path, _ in fs.log_reads} == {PATH.log(NAME)}


async def test_when_the_held_records_end_before_the_segment_its_index_bounds_the_reads() -> None:
    """A proxy's tail is a flush behind what the owner tells: the next index entry is as near as it gets."""
    fs, content = MeteredFileSystem(), batches(0, COUNT)
    active = await put(fs, NAME, content)
    assert await read_to(fs, Held(content[50:110]), active) == list(range(50))
    begin = len(b"".join(content[:50]))
    assert begin <= fs.reached <= begin + 2 * active.index.interval_bytes


async def test_a_reader_behind_the_held_records_beginning_reads_on() -> None:
    """The tail was dropped and began again, or the read has taken long: what is asked for is returned."""
    fs, content = MeteredFileSystem(), batches(0, COUNT)
    active = await put(fs, NAME, content)
    log = reader(fs)
    part = await log.read_slice(60, 10_000_000, COUNT, active=active, held=Held(content[50:]))
    assert offsets(b"".join(part.buffers)) == list(range(60, COUNT))
    await log.pool.close()
