"""Planning: facts in, ranges out."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.core.model import SegmentName
from bmq.spark.options import EARLIEST, LATEST, OptionError
from bmq.spark.planning.slices import (
    OPEN_BYTES,
    IndexedSegment,
    PartitionLog,
    Range,
    Segment,
    Slice,
    leave_out,
    pack,
    resolve,
    slices,
)
from bmq.storage.checkpoint import AbortedTransaction

MB = 1 << 20


def segment(base: int, end: int, length: int = 1000) -> Segment:
    return Segment(name=SegmentName(base, 1, 0), end=end, length=length, has_idx=True)


def facts(of: Segment, *entries: tuple[int, int, int], max_timestamp: int = 0) -> IndexedSegment:
    """``entries``: (offset, position, largest timestamp before)."""
    flat = array("q", [number for entry in entries for number in entry])
    return IndexedSegment(segment=of, entries=flat, position=of.length, max_timestamp=max_timestamp)


def log(*segments: Segment, start: int = 0) -> PartitionLog:
    end = segments[-1].end if segments else start
    return PartitionLog(topic="t", topic_id="i", partition=0, start=start, end=end, segments=segments)


LOG = log(segment(100, 200), segment(200, 300), segment(300, 300), start=120)


@pytest.mark.parametrize(
    ("start", "end", "expected", "lost"),
    [
        (EARLIEST, LATEST, (120, 300), ""),
        (120, 300, (120, 300), ""),
        (150, 160, (150, 160), ""),
        (300, LATEST, (300, 300), ""),
        (LATEST, LATEST, (300, 300), ""),
        (160, 160, (160, 160), ""),
        (EARLIEST, 0, (120, 120), ""),
        (EARLIEST, 120, (120, 120), ""),
        (EARLIEST, 119, (120, 120), "all records before ending offset 119 are gone, the log begins at 120"),
        (119, LATEST, (120, 300), "offset 119 are gone"),
        (301, LATEST, (300, 300), "starting offset 301 is past the end"),
        (EARLIEST, 301, (120, 300), "ending offset 301 is past the end"),
    ],
)
def test_resolve(start: int, end: int, expected: tuple[int, int], lost: str) -> None:
    found = resolve(LOG, start, end)
    assert (found.start, found.end) == expected
    assert bool(found.losses) == bool(lost)
    assert all(lost in loss for loss in found.losses)


@pytest.mark.parametrize(("start", "end", "named"), [(160, 150, 160), (100, 90, 100), (LATEST, 299, 300)])
def test_a_start_greater_than_the_end_is_refused(start: int, end: int, named: int) -> None:
    says = f"topic t, partition 0: the starting offset {named} is greater than the ending offset {end}"
    with pytest.raises(OptionError, match=says):
        resolve(LOG, start, end)


@pytest.mark.parametrize(
    ("start", "end", "bases"),
    [(100, 300, [100, 200]), (150, 160, [100]), (199, 201, [100, 200]), (200, 201, [200]), (150, 150, []),
     (300, 400, []), (250, 400, [200])],
)  # fmt: skip
def test_between(start: int, end: int, bases: list[int]) -> None:
    assert [each.name.base for each in LOG.between(start, end)] == bases


INDEXED = facts(segment(0, 100), (20, 200, 10), (40, 400, 30), (60, 600, 30), (80, 800, 90), max_timestamp=95)


@pytest.mark.parametrize(
    ("start", "end", "position", "end_position"),
    [
        (0, 100, 0, 1000),
        (20, 100, 200, 1000),
        (39, 100, 200, 1000),
        (0, 40, 0, 400),
        (0, 41, 0, 600),
        (45, 50, 400, 600),
        (99, 100, 800, 1000),
    ],
)
def test_slice_is_pruned_at_entries(start: int, end: int, position: int, end_position: int) -> None:
    (found,) = slices(log(INDEXED.segment), Range(start, end), [INDEXED])
    assert (found.position, found.end_position) == (position, end_position)
    assert (found.start, found.end) == (start, end)
    assert found.offset == position // 10, "the offset due there"
    assert found.limit == end_position // 10, "and behind its bytes"


def test_spacing_thins_the_cuts() -> None:
    (found,) = slices(log(INDEXED.segment), Range(0, 100), [INDEXED], spacing=300)
    assert list(found.cuts) == [40, 400, 80, 800]


def test_a_cut_divides_bytes_and_offsets() -> None:
    (whole,) = slices(log(INDEXED.segment), Range(5, 95), [INDEXED])
    halves = whole.cut(450)
    assert halves is not None
    head, tail = halves
    assert (head.start, head.end, head.position, head.end_position, head.limit) == (5, 40, 0, 400, 40)
    assert (tail.start, tail.end, tail.offset, tail.position, tail.end_position) == (40, 95, 40, 400, 1000)
    assert tail.limit == 100
    assert not slices(log(INDEXED.segment), Range(5, 95), [facts(INDEXED.segment)])[0].cut(450)


def test_aborted_transactions_that_touch_a_slice() -> None:
    """Omit a transaction that ended before the slice begins: the producer may have committed since."""
    (whole,) = slices(log(INDEXED.segment), Range(0, 100), [INDEXED])
    transactions = [
        AbortedTransaction(7, 10, 39, 40),
        AbortedTransaction(8, 30, 40, 41),
        AbortedTransaction(9, 50, 200, 201),
    ]
    (whole,) = leave_out([whole], transactions)
    assert [each[0] for each in whole.aborted] == [7, 8, 9]
    halves = whole.cut(400)
    assert halves is not None
    head, tail = halves
    assert head.aborted == ((7, 10, 39), (8, 30, 40))
    assert tail.aborted == ((8, 30, 40), (9, 50, 200))


def piece(size: int, *, base: int = 0, step: int = 0) -> Slice:
    cuts = array("q", [n for at in range(step, size, step) for n in (base + at, at)] if step else [])
    return Slice(
        topic="t", topic_id="i", partition=0, segment=SegmentName(base, 1, 0), start=base, end=base + size, offset=base,
        position=0, end_position=size, limit=base + size, cuts=cuts,
    )  # fmt: skip


def sizes(tasks: list[list[Slice]]) -> list[int]:
    return [sum(each.size for each in task) for task in tasks]


def test_one_large_segment_is_cut_evenly() -> None:
    assert sizes(pack([piece(64 * MB, step=MB)], max_bytes=16 * MB)) == [16 * MB] * 4
    assert sizes(pack([piece(65 * MB, step=MB)], max_bytes=16 * MB)) == [13 * MB] * 5


def test_min_partitions() -> None:
    assert sizes(pack([piece(64 * MB, step=MB)], max_bytes=128 * MB, min_partitions=8)) == [8 * MB] * 8


def test_what_has_no_entries_stays_whole() -> None:
    assert sizes(pack([piece(10 * MB), piece(10 * MB, base=1), piece(MB, base=2)], max_bytes=4 * MB)) == [
        10 * MB,
        10 * MB,
        MB,
    ]


def test_many_small_segments_share_tasks() -> None:
    """Opening a file counts, so not all of them make one task."""
    tasks = pack([piece(1000, base=i * 1000) for i in range(1000)], max_bytes=64 * MB)
    assert len(tasks) == -(-1000 * OPEN_BYTES // (64 * MB))
    assert max(len(task) for task in tasks) <= 2 * min(len(task) for task in tasks)


def test_nothing() -> None:
    assert pack([], max_bytes=1) == []


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(1, 40 * MB), st.sampled_from([0, 65_536, 300_000, MB])), min_size=1, max_size=12),
    st.integers(1, 64 * MB),
    st.integers(1, 40),
)
def test_every_byte_once_and_in_order(shape: list[tuple[int, int]], max_bytes: int, min_partitions: int) -> None:
    pieces = [piece(size, base=1_000_000_000 * i, step=step) for i, (size, step) in enumerate(shape)]
    tasks = pack(pieces, max_bytes=max(max_bytes, 100_000), min_partitions=min_partitions)
    flat = [each for task in tasks for each in task]
    at = iter(flat)
    for whole in pieces:
        position, offset = 0, whole.start
        while position < whole.size:
            part = next(at)
            assert (part.segment, part.position, part.start, part.offset) == (whole.segment, position, offset, offset)
            assert part.size > 0
            assert not part.cuts, "tasks are sent to executors without them"
            position, offset = part.end_position, part.end
        assert (position, offset) == (whole.end_position, whole.end)
    assert next(at, None) is None
    assert all(tasks)
