"""A segment's sparse index (storage/index.py) against a search of every batch."""

from __future__ import annotations

from array import array
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.storage.index import ENTRY, OFFSET, POSITION, TIMESTAMP, SegmentIndex

BASE = 1000
# (records, bytes, largest timestamp) of each batch
BATCHES = st.lists(st.tuples(st.integers(1, 5), st.integers(61, 400), st.integers(-1, 50)), max_size=40)
Placed = list[tuple[int, int, int, int]]  # base offset, next offset, position, largest timestamp


def build(batches: list[tuple[int, int, int]], interval: int) -> tuple[SegmentIndex, Placed]:
    index, placed, offset, position = SegmentIndex(interval), [], BASE, 0
    for count, size, timestamp in batches:
        index.add(offset, position, timestamp)
        placed.append((offset, offset + count, position, timestamp))
        offset += count
        position += size
    return index, placed


@pytest.mark.slow
@given(BATCHES, st.integers(0, 1000))
def test_position_of_is_a_floor_and_not_far_off(batches: list[tuple[int, int, int]], interval: int) -> None:
    """Reading begins at a batch's beginning, at or before the batch that holds the offset, and less than an interval
    and a batch before it."""
    index, placed = build(batches, interval)
    for base, following, position, _ in placed:
        for offset in range(base, following):
            due, found = index.place_of(offset, BASE)
            assert found <= position
            assert (due, found) in {(o, p) for o, _, p, _ in placed}
            assert position - found < max(interval, 1)


@pytest.mark.slow
@given(BATCHES, st.integers(0, 1000))
def test_offsets_outside_go_to_the_ends(batches: list[tuple[int, int, int]], interval: int) -> None:
    index, placed = build(batches, interval)
    assert index.place_of(-1, BASE) == index.place_of(BASE - 1, BASE) == (BASE, 0)
    last = index.entries[-2] if len(index) else 0
    assert index.place_of(1 << 62, BASE)[1] == last
    assert last <= (placed[-1][2] if placed else 0)


@pytest.mark.slow
@given(BATCHES, st.integers(0, 1000), st.integers(-5, 60))
def test_no_batch_before_the_timestamps_position_is_late_enough(
    batches: list[tuple[int, int, int]], interval: int, timestamp: int
) -> None:
    """Looking from there on finds the first batch that brute force finds, and starts no entry earlier than needed."""
    index, placed = build(batches, interval)
    due, start = index.place_of_timestamp(timestamp, BASE)
    assert (due, start) in {(BASE, 0), *((offset, position) for offset, _, position, _ in placed)}
    wanted = next((position for _, _, position, largest in placed if largest >= timestamp), None)
    if wanted is not None:
        assert start <= wanted
    later = [index.entries[n + 1] for n in range(0, len(index.entries), 3) if index.entries[n + 1] > start]
    if later:
        assert wanted is not None
        assert wanted < later[0]


@pytest.mark.slow
@given(BATCHES, st.integers(0, 1000))
def test_entries_are_sparse_and_say_what_lies_before(batches: list[tuple[int, int, int]], interval: int) -> None:
    """One entry each ``interval`` bytes at most, each with the largest timestamp before it."""
    index, placed = build(batches, interval)
    by_position = {position: (base, n) for n, (base, _, position, _) in enumerate(placed)}
    entries = [tuple(index.entries[n : n + 3]) for n in range(0, len(index.entries), 3)]
    assert len(entries) == len(index)
    for base, position, largest in entries:
        assert by_position[position][0] == base
        assert largest == max((t for _, _, p, t in placed if p < position), default=-1)
    assert all(later[1] - earlier[1] >= interval for earlier, later in pairwise(entries))
    assert all(later[1] > earlier[1] for earlier, later in pairwise(entries))


@pytest.mark.slow
@given(BATCHES, st.integers(0, 300), st.sampled_from([OFFSET, POSITION, TIMESTAMP]), st.data())
def test_one_search_in_every_column(
    batches: list[tuple[int, int, int]], interval: int, column: int, data: st.DataObject
) -> None:
    """A count of the entries gives the same, at and beside each value."""
    index, _ = build(batches, interval)
    values = index.entries[column::ENTRY].tolist()
    value = data.draw(st.sampled_from([each + by for each in [*values, 0] for by in (-1, 0, 1)]))
    assert index.count_up_to(value, column) == sum(each <= value for each in values)


def test_an_entry_comes_after_exactly_an_interval() -> None:
    index, _ = build([(1, 100, 5)] * 7, 200)
    assert index.entries.tolist() == [1002, 200, 5, 1004, 400, 5, 1006, 600, 5]
    assert [index.place_of(offset, BASE)[1] for offset in range(BASE, BASE + 7)] == [0, 0, 200, 200, 400, 400, 600]
    assert [index.next_position(offset) for offset in range(BASE, BASE + 8)] == [200] * 3 + [400] * 2 + [600] * 2 + [
        None
    ]


@pytest.mark.slow
@given(BATCHES)
def test_the_largest_timestamp_is_kept_with_its_first_batch(batches: list[tuple[int, int, int]]) -> None:
    """ListOffsets' max-timestamp: the first offset that carries it; none without timestamps."""
    index, placed = build(batches, 100)
    largest = max((t for *_, t in placed), default=-1)
    first = next((base for base, _, _, t in placed if t == largest), -1) if largest >= 0 else -1
    assert (index.max_timestamp, index.max_timestamp_offset) == (largest, first)


@pytest.mark.slow
@given(BATCHES, st.integers(1, 500), st.data())
def test_an_index_goes_on_from_saved_entries(
    batches: list[tuple[int, int, int]], interval: int, data: st.DataObject
) -> None:
    """Cut anywhere, saved with its timestamps as a checkpoint does, and continued: the same index."""
    whole, placed = build(batches, interval)
    cut = data.draw(st.integers(0, len(placed)))
    first, _ = build(batches[:cut], interval)
    second = SegmentIndex(interval, array("q", first.entries))
    second.max_timestamp, second.max_timestamp_offset = first.max_timestamp, first.max_timestamp_offset
    for base, _, position, timestamp in placed[cut:]:
        second.add(base, position, timestamp)
    assert second.entries == whole.entries
    assert (second.max_timestamp, second.max_timestamp_offset) == (whole.max_timestamp, whole.max_timestamp_offset)


@pytest.mark.parametrize("batch_bytes", [61, 1000, 65_536, 1 << 20])
def test_memory_is_bounded_by_the_interval(batch_bytes: int) -> None:
    """24 bytes for each 64 KB at the default, whatever the batches' size."""
    index = SegmentIndex()
    size = 16 << 20
    for position in range(0, size, batch_bytes):
        index.add(position, position, 0)
    assert len(index) <= size // 65_536
    assert index.entries.itemsize == 8
