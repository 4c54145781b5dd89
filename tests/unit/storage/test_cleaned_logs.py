"""Logs that compaction took records from: every read from storage finds what the naive model finds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bmq.core.aio import turns
from bmq.core.records.batch import LOG_APPEND_TIME, Batch, Record, build_batch, build_gap
from bmq.core.records.cursor import read_batches
from bmq.core.records.reader import TimestampAndOffset
from bmq.storage import log_reader
from bmq.storage.filesystem import CorruptData
from bmq.storage.log_reader import LogReader
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from bmq.storage.timestamp_search import TimestampSearch
from tests.harness.cleaned import Survivor, cleaned_batch, cleaned_log, first_not_older_of, survivors
from tests.harness.seeds import example_count
from tests.unit.storage.stored_segments import PATH, S, SlowFileSystem, batch, put, reader
from tests.unit.storage.test_held_records import Held


@dataclass(frozen=True, slots=True)
class Layout:
    """A cleaned log in segments: lists of batches, which of them have an index, and the offset where a read ends."""

    segments: tuple[tuple[bytes, ...], ...]
    indexed: tuple[bool, ...]
    end: int

    @property
    def batches(self) -> list[bytes]:
        return [data for segment in self.segments for data in segment]

    @property
    def shown(self) -> list[bytes]:
        """The batches below ``end``."""
        return [data for data in self.batches if Batch(memoryview(data)).next_offset <= self.end]


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    times = st.lists(st.integers(0, 12), min_size=1, max_size=4)
    full: list[bytes] = []
    offset = 0
    for each in draw(st.lists(times, min_size=1, max_size=12)):
        records = [Record(key=b"k", value=b"v%d" % n, timestamp_delta=time - each[0]) for n, time in enumerate(each)]
        attributes = draw(st.sampled_from([0, 0, 0, LOG_APPEND_TIME]))
        full.append(bytes(build_batch(records, base_offset=offset, base_timestamp=each[0], attributes=attributes)))
        offset += len(each)
    kept = draw(st.sets(st.integers(0, offset - 1)))
    horizon = draw(st.none() | st.integers(0, 15))
    made = cleaned_log(full, kept, horizon=horizon, keeps_empty=draw(st.booleans()))
    cuts = sorted(draw(st.sets(st.integers(1, len(made)), max_size=3)) - {len(made)})
    bounds = [0, *cuts, len(made)]
    segments = tuple(tuple(made[low:high]) for low, high in pairwise(bounds))
    ends = [Batch(memoryview(data)).next_offset for data in made]
    indexed = tuple(draw(st.booleans()) for _ in segments)
    return Layout(segments, indexed, draw(st.sampled_from(ends)))


async def stored(layout: Layout) -> LogReader:
    fs = MemoryFileSystem(MemoryStorage(), "h")
    for n, content in enumerate(layout.segments):
        name = S(Batch(memoryview(content[0])).base_offset, 1, n)
        await put(fs, name, content, idx=layout.indexed[n] and n + 1 < len(layout.segments))
    return reader(fs)


def first_read(shown: Sequence[bytes], offset: int) -> bytes | None:
    """Return the batch that a read at ``offset`` begins with: the next with records, else the next one."""
    left = [data for data in shown if Batch(memoryview(data)).next_offset > offset]
    full = [data for data in left if Batch(memoryview(data)).count]
    return next(iter(full or left), None)


@pytest.mark.slow
@settings(deadline=None, max_examples=example_count(60, 2_000))
@given(layouts(), st.sampled_from([1, 150, 400, 10_000]), st.none() | st.integers(0, 11))
def test_a_consumer_from_any_offset_gets_the_survivors(layout: Layout, max_bytes: int, held_from: int | None) -> None:
    """Every read has a batch with records wherever one is left below the bound, also if the reader holds it."""

    async def check() -> None:
        log = await stored(layout)
        shown = layout.shown
        held = None if held_from is None else Held(layout.batches[min(held_from, len(layout.batches) - 1) :])
        for start in range(layout.end):
            offset, found = start, list[Survivor]()
            while offset < layout.end and (held is None or offset < held.start):
                part = await log.read_slice(offset, max_bytes, layout.end, held=held)
                data = b"".join(part.buffers)
                first = first_read(shown, offset)
                assert first is not None
                assert data.startswith(first)
                assert (part.size, part.end_offset) == (len(data), list(read_batches(memoryview(data)))[-1].next_offset)
                assert part.size <= max(max_bytes, len(first))
                found += [each for each in survivors([data]) if each.offset >= offset]
                offset = part.end_offset
            assert found == [each for each in survivors(shown) if start <= each.offset < offset]

    asyncio.run(check())


@pytest.mark.slow
@settings(deadline=None, max_examples=example_count(60, 2_000))
@given(layouts(), st.integers(0, 40))
def test_a_search_by_time_finds_the_first_record_that_is_there(layout: Layout, start: int) -> None:
    async def check() -> None:
        search = TimestampSearch(await stored(layout))
        for timestamp in range(14):
            model = first_not_older_of(survivors(layout.shown), timestamp, start)
            wanted = None if model is None else TimestampAndOffset(model.offset, model.timestamp)
            assert await search.find(timestamp, layout.end, start_offset=start) == wanted

    asyncio.run(check())


async def test_thousands_of_gaps_are_passed_over_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read over gaps lets other work run."""
    taken = 0

    async def counted() -> None:
        nonlocal taken
        taken += 1
        await turns.next_turn()

    monkeypatch.setattr(log_reader, "next_turn", counted)
    fs = SlowFileSystem()
    gaps = [bytes(gap) for base in range(5_000) for gap in build_gap(base, base + 1, 1)]
    await put(fs, S(0, 1, 0), [*gaps, batch(5_000), batch(5_001)], idx=True)
    await put(fs, S(5_002, 1, 1), [batch(5_002)])
    log = reader(fs, block_bytes=1 << 16)
    part = await log.read_slice(0, 1, 5_003)
    assert b"".join(part.buffers) == batch(5_000)
    assert taken == (5_000 - 1) // turns.ELEMENTS_A_TURN
    assert part.end_offset == 5_001


async def test_gaps_before_damage_are_returned_and_the_damage_is_raised_at_its_offset() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "h")
    gap = bytes(next(build_gap(0, 5, 1)))
    wrong = bytearray(batch(5))
    wrong[16] = 1
    await put(fs, S(0, 1, 0), [gap, bytes(wrong)])
    log = reader(fs)
    assert await log.read(0, 1, 6) == gap
    with pytest.raises(CorruptData, match="magic 1"):
        await log.read(5, 1, 6)


async def test_a_segment_of_gaps_alone_is_passed_over_though_it_was_merged_away() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "h")
    gap = bytes(next(build_gap(2, 9, 1)))
    await put(fs, S(0, 1, 0), [batch(0, 2)], idx=True)
    await put(fs, S(2, 1, 1), [gap], idx=True)
    await put(fs, S(9, 1, 2), [cleaned_batch(batch(9, 3), {10})])
    log = reader(fs)
    assert await log.read(0, 1, 12) == batch(0, 2)
    for name in (S(0, 1, 0), S(2, 1, 1)):
        await fs.delete(PATH.log(name))
        await fs.delete(PATH.idx(name))
    await put(fs, S(0, 1, 0), [batch(0, 2), gap])
    assert await log.read(2, 1, 12) == cleaned_batch(batch(9, 3), {10})
