"""Logs that compaction took records from: Spark's plans and reads find what the naive model finds."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bmq.core.records.batch import LOG_APPEND_TIME, Batch, Record, build_batch
from bmq.spark.decoding.decoder import BatchDecoder, DecodeOptions
from bmq.spark.decoding.framing import Framer
from bmq.spark.planning.slices import Range
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.harness.cleaned import cleaned_log, first_not_older_of, survivors
from tests.harness.seeds import example_count
from tests.unit.spark.planning.views import only
from tests.unit.spark.storing import Store

pytestmark = pytest.mark.slow


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[bytes], int]:
    """Draw the batches of a cleaned log, and the number of them in its first segment.

    Times rise from batch to batch: the search over segments relies on it.
    """
    full: list[bytes] = []
    offset = time = 0
    for steps in draw(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=10)):
        deltas = [sum(steps[: n + 1]) for n in range(len(steps))]
        records = [Record(key=b"k", value=b"v%d" % (offset + n), timestamp_delta=d) for n, d in enumerate(deltas)]
        attributes = draw(st.sampled_from([0, 0, LOG_APPEND_TIME]))
        full.append(bytes(build_batch(records, base_offset=offset, base_timestamp=time, attributes=attributes)))
        offset, time = offset + len(steps), time + deltas[-1]
    kept = draw(st.sets(st.integers(0, offset - 1)))
    horizon = draw(st.none() | st.integers(0, 40))
    made = cleaned_log(full, kept, horizon=horizon, keeps_empty=draw(st.booleans()))
    return made, draw(st.integers(1, len(made)))


@settings(deadline=None, max_examples=example_count(60, 1_000))
@given(logs(), st.sets(st.sampled_from(["offset", "timestamp", "key", "value"]), min_size=1), st.integers(1, 400))
def test_every_slice_has_the_survivors(log: tuple[list[bytes], int], names: set[str], chunk: int) -> None:
    made, first = log
    columns = ("offset", *sorted(names - {"offset"}))

    async def check() -> None:
        fs = MemoryFileSystem(MemoryStorage(), "test")
        store = await Store(fs).create(is_compacted=True)
        await store.segment(made[:first])
        if made[first:]:
            await store.segment(made[first:], n=1)
        view = await only(fs)
        end = Batch(memoryview(made[-1])).next_offset
        assert view.log.end == end
        for start in range(end):
            found = []
            for piece in await view.slices(Range(start, end), read_committed=True, spacing=1):
                data = b"".join(made[:first] if piece.segment.n == 0 else made[first:])
                framer = Framer(piece.position, piece.offset, start=piece.start, stop=piece.end, limit=piece.limit)
                options = DecodeOptions(columns=columns, start_offset=piece.start, end_offset=piece.end)
                decoder = BatchDecoder("orders", 0, options, where="")
                for at in range(piece.position, piece.end_position, chunk):
                    for run in framer.feed(data[at : min(at + chunk, piece.end_position)]):
                        for part in decoder.decode(run.data, run.position):
                            found += part.column(0).to_pylist()
            assert found == [each.offset for each in survivors(made) if each.offset >= start]

    asyncio.run(check())


@settings(deadline=None, max_examples=example_count(60, 1_000))
@given(logs())
def test_a_search_by_time_finds_the_first_record_that_is_there(log: tuple[list[bytes], int]) -> None:
    made, first = log

    async def check() -> None:
        fs = MemoryFileSystem(MemoryStorage(), "test")
        store = await Store(fs).create()
        await store.segment(made[:first])
        if made[first:]:
            await store.segment(made[first:], n=1)
        view = await only(fs)
        for timestamp in range(45):
            wanted = first_not_older_of(survivors(made), timestamp)
            assert await view.offset_for_timestamp(timestamp) == (None if wanted is None else wanted.offset)

    asyncio.run(check())
