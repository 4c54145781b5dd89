"""The tail cache: what is found in it, what goes first, and what its bytes are."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bmq.core.model import PartitionKey
from bmq.core.records.batch import Batch, Record, build_batch, build_gap
from bmq.core.records.cursor import read_batches
from bmq.endpoint.fetch.tail_cache import (
    COPY_BYTES,
    COPY_SHARE,
    ENTRY_BYTES,
    JOIN_BYTES,
    MANY_BYTES,
    RELEASED_AT_ONCE,
    TINY_BYTES,
    VIEW_BYTES,
    TailCache,
)
from tests.harness.seeds import example_count

A = PartitionKey(uuid.UUID(int=1), 0)
B = PartitionKey(uuid.UUID(int=2), 0)
BIG = 20 << 10
VIEW_COST = ENTRY_BYTES + VIEW_BYTES


def batch(base: int, count: int = 1, size: int = BIG) -> Batch:
    """Return a batch in a frame of its own; ``size`` is that of each value."""
    return Batch(memoryview(build_batch([Record(value=b"x" * size)] * count, base_offset=base)))


def small(base: int) -> Batch:
    return batch(base, 1, 100)


def cache(limit: int = 1 << 30) -> TailCache:
    return TailCache(limit)


def read(tails: TailCache, key: PartitionKey, offset: int, max_bytes: int = 1 << 30, end: int = 1 << 40) -> list[int]:
    """Return the base offsets of the batches found."""
    found = tails.read(key, offset, max_bytes, end, at_least_one=True)
    assert found is not None
    assert found.size == sum(map(len, found.buffers))
    return [part.base_offset for part in read_batches(memoryview(b"".join(found.buffers)))]


def test_a_read_begins_with_the_batch_that_holds_the_offset() -> None:
    tails = cache()
    tails.add(A, [batch(10, 5), batch(15, 5), batch(20, 5)])
    assert [read(tails, A, offset) for offset in (10, 14, 15, 19, 24)] == [[10, 15, 20]] * 2 + [[15, 20]] * 2 + [[20]]


def test_a_read_begins_with_records_wherever_some_are_left_below_the_bound() -> None:
    tails = cache()
    gaps = [Batch(memoryview(gap)) for base in (0, 3) for gap in build_gap(base, base + 3, 1)]
    tails.add(A, [*gaps, batch(6), Batch(memoryview(next(build_gap(7, 9, 1))))])
    assert [read(tails, A, offset, 1) for offset in (0, 4, 6)] == [[6]] * 3
    assert read(tails, A, 0) == [6, 7]
    assert read(tails, A, 0, end=6) == [0, 3], "only gaps below the bound: the position moves on"
    assert read(tails, A, 2, 1, end=6) == [0]
    assert read(tails, A, 7) == [7]


def test_an_offset_outside_the_tail_is_no_hit() -> None:
    tails = cache()
    tails.add(A, [batch(10, 5)])
    for key, offset in ((A, 9), (A, 15), (A, 99), (B, 10)):
        assert tails.read(key, offset, 1000, 1 << 40, at_least_one=True) is None
    assert tails.extent(A) == (10, 15)
    assert tails.extent(B) is None


def test_bytes_and_end_offset_bound_a_read() -> None:
    tails = cache()
    batches = [batch(0, 2), batch(2, 2), batch(4, 2)]
    size = batches[0].size
    tails.add(A, batches)
    assert read(tails, A, 0, 3 * size) == [0, 2, 4]
    assert read(tails, A, 0, 3 * size - 1) == [0, 2]
    assert read(tails, A, 0, 1) == [0]
    assert tails.read(A, 0, size - 1, 6, at_least_one=False) == ([], 0, 0, 0)
    assert read(tails, A, 0, end=4) == [0, 2]
    assert read(tails, A, 0, end=5) == [0, 2]
    assert tails.read(A, 0, 1 << 30, 1, at_least_one=True) == ([], 0, 0, 0)


@pytest.mark.parametrize(("most", "found"), [(0, 1), (1, 1), (2, 2), (9, 4)])
def test_a_read_has_no_more_batches_than_wanted_and_one_at_least(most: int, found: int) -> None:
    tails = cache()
    tails.add(A, [small(base) for base in range(4)])
    slice_ = tails.read(A, 0, 1 << 30, 4, at_least_one=True, batches_max=most)
    assert slice_ is not None
    assert (slice_.batches, slice_.end, slice_.size) == (found, found, found * small(0).size)


def test_flushes_that_follow_each_other_are_one_run() -> None:
    tails = cache()
    for base in range(300):  # past the point where the front of the list is cut off
        tails.add(A, [batch(base)])
        if base >= 100:
            tails.trim(A, base - 99)
            tails.release()
    assert read(tails, A, 200) == list(range(200, 300))
    assert len(tails) == 100


@pytest.mark.parametrize("base", [4, 6, 0])
def test_a_gap_starts_a_new_tail(base: int) -> None:
    tails = cache()
    tails.add(A, [batch(0, 5)])
    tails.add(A, [batch(base), batch(base + 1)])
    assert tails.extent(A) == (base, base + 2)
    assert len(tails) - tails.dead == 2
    tails.add(A, [batch(base + 2), batch(base + 9)])
    assert tails.extent(A) == (base + 9, base + 10)


def test_the_oldest_of_all_partitions_goes_first() -> None:
    one = batch(0).size + VIEW_COST
    tails = cache(4 * one)
    tails.add(A, [batch(0)])
    tails.add(B, [batch(0), batch(1)])
    tails.add(A, [batch(1)])
    tails.add(B, [batch(2)])
    assert tails.extent(A) == (1, 2)
    assert tails.extent(B) == (0, 3)
    tails.add(A, [batch(2)])
    assert (tails.extent(A), tails.extent(B)) == ((1, 3), (1, 3))
    tails.add(A, [batch(base) for base in range(3, 6)])
    assert (tails.extent(A), tails.extent(B)) == ((2, 6), None)
    assert tails.used == 4 * one


def test_a_batch_larger_than_the_cache_is_not_kept() -> None:
    tails = cache(BIG)
    tails.add(A, [batch(0, 1, 100)])
    tails.add(A, [batch(1, 1, 2 * BIG)])
    assert (len(tails), tails.used, tails.extent(A)) == (0, 0, None)
    tails.add(A, [batch(2, 1, 100)])
    assert tails.extent(A) == (2, 3)


def test_drop_and_trim_leave_nothing_behind() -> None:
    tails = cache()
    tails.add(A, [batch(0, 5), batch(5, 5)])
    tails.add(B, [batch(0)])
    tails.trim(A, 4)
    assert tails.extent(A) == (0, 10)
    tails.trim(A, 5)
    assert tails.extent(A) == (5, 10)
    tails.trim(A, 10)
    assert tails.extent(A) is None
    tails.drop(B)
    tails.drop(B)
    tails.release()
    assert (len(tails), tails.used, len(tails._tails)) == (0, 0, 0)


MANY = 3 * RELEASED_AT_ONCE


def filled(count: int) -> TailCache:
    """Return tails with so many batches of A, between two of B."""
    tails = TailCache(1 << 30)
    tails.add(B, [small(0)])
    tails.add(A, [small(offset) for offset in range(count)])
    tails.add(B, [small(1)])
    return tails


@pytest.mark.parametrize("end", ["drop", "trim", "gap"])
def test_a_run_that_ends_is_gone_for_readers_at_once_and_from_memory_in_steps(end: str) -> None:
    """A partition may move with a million batches in the cache: the loop does not stop for them."""
    tails = filled(MANY)
    others = filled(1)
    if end == "drop":
        tails.drop(A)
        others.drop(A)
    elif end == "trim":
        tails.trim(A, MANY)
        others.drop(A)
    else:
        for each in (tails, others):
            each.add(A, [small(2 * MANY)])
    others.release()
    assert tails.extent(A) == others.extent(A)
    assert tails.read(A, 0, 1 << 20, MANY, at_least_one=True) is None
    assert tails.size_between(A, 0, MANY) == MANY_BYTES
    assert tails.dead
    for step in range(3):
        assert len(tails) == MANY + (3 if end == "gap" else 2) - step * RELEASED_AT_ONCE
        tails.release()
    assert not tails.dead
    assert (len(tails), tails.used) == (len(others), others.used)
    assert read(tails, B, 0) == [0, 1]


def test_batches_below_a_log_start_are_released_in_steps_beside_the_rest_of_their_run() -> None:
    tails = filled(MANY)
    tails.trim(A, MANY - 1)
    assert tails.extent(A) == (MANY - 1, MANY)
    tails.add(A, [small(MANY)])
    held = tails.held(A)
    assert held is not None
    size = small(0).size
    assert [held.size_until(offset) for offset in (0, MANY - 1, MANY, MANY + 1)] == [None, 0, size, 2 * size]
    assert tails.size_between(A, MANY - 1, MANY + 1) == 2 * size
    while tails.dead:
        assert read(tails, A, MANY - 1) == [MANY - 1, MANY]
        tails.release(100)
    assert [held.size_until(offset) for offset in (0, MANY - 1, MANY, MANY + 1)] == [None, 0, size, 2 * size]
    assert len(tails) == 4


def test_rule8_room_comes_from_batches_that_no_reader_finds_before_others_are_evicted() -> None:
    tails = filled(MANY)
    tails.drop(A)
    cost = small(0).size + ENTRY_BYTES
    tails.shrink(2 * cost)
    assert (len(tails), tails.dead, tails.extent(B)) == (2, 0, (0, 2))
    tails.shrink(cost)
    assert tails.extent(B) == (1, 2)


def test_rule8_an_evicted_batch_is_freed_at_once() -> None:
    """Entries leave the front of a long run in large parts: their bytes, and the time to free them, must not."""
    tails = TailCache(1 << 30)
    frames = [bytearray(batch(offset, 1, COPY_BYTES).data) for offset in range(1_000)]
    for frame in frames:
        tails.add(A, [Batch(memoryview(frame))])
    tails.shrink(tails.used * 5 // 9)
    count = 1_000 - len(tails)
    assert 400 < count < 500
    for frame in frames[:count]:
        frame.clear()  # raises BufferError while a view is left
    with pytest.raises(BufferError):
        frames[count].clear()


def test_rule8_a_small_view_of_a_frame_is_copied_out_and_a_large_one_counted_with_it() -> None:
    small, large = build_batch([Record(value=b"s" * 100)]), build_batch([Record(value=b"l" * BIG)], base_offset=1)
    frame = bytearray(50) + small + large
    view = memoryview(frame)
    tails = cache()
    tails.add(A, [Batch(view[50 : 50 + len(small)]), Batch(view[50 + len(small) :])])
    first, second = (tails.read(A, offset, 1, 2, at_least_one=True) for offset in (0, 1))
    assert first is not None
    assert second is not None
    assert first.buffers[0] == small
    assert isinstance(first.buffers[0], bytes)
    assert isinstance(second.buffers[0], memoryview)
    assert second.buffers[0].obj is frame
    assert tails.used == len(small) + len(frame) + ENTRY_BYTES + VIEW_COST


def in_one_frame(*bases: int, padding: int = 0) -> list[Batch]:
    """Return large batches in one frame, as one produce request for several partitions brings them."""
    parts = [build_batch([Record(value=b"x" * BIG)], base_offset=base) for base in bases]
    view = memoryview(b"".join(parts).ljust(sum(map(len, parts)) + padding, b"."))
    return list(read_batches(view[: len(view) - padding]))


def test_rule8_a_frame_of_several_batches_is_kept_as_it_came_and_counted_once_until_the_last_has_gone() -> None:
    first, second, third = in_one_frame(0, 1, 0)
    frame = first.data.obj
    tails = cache()
    tails.add(A, [first, second])
    tails.add(B, [third])
    for key, offset in ((A, 0), (A, 1), (B, 0)):
        found = tails.read(key, offset, 1, 2, at_least_one=True)
        assert found is not None
        assert isinstance(found.buffers[0], memoryview)
        assert found.buffers[0].obj is frame
    assert tails.used == 3 * first.size + 3 * VIEW_COST
    tails.drop(A)
    tails.release()
    assert tails.used == 3 * first.size + VIEW_COST
    tails.drop(B)
    tails.release()
    assert (tails.used, tails._frames) == (0, {})


def test_rule8_past_the_limit_all_batches_of_the_oldest_frame_go() -> None:
    tails = cache(4 * (batch(0).size + VIEW_COST))
    first, second = in_one_frame(0, 0)
    tails.add(A, [first])
    tails.add(B, [second])
    third, fourth = in_one_frame(1, 1)
    tails.add(A, [third])
    tails.add(B, [fourth])
    assert (tails.extent(A), tails.extent(B), tails.used) == ((0, 2), (0, 2), tails.limit)
    tails.add(A, [batch(2, 1, 2 * VIEW_COST)])
    assert (tails.extent(A), tails.extent(B)) == ((1, 3), (1, 2))
    assert tails.used <= tails.limit


@pytest.mark.parametrize(("padding", "is_copied"), [(0, False), (1, True)])
def test_rule8_a_small_share_of_its_frame_is_copied_out_however_large_it_is(padding: int, is_copied: bool) -> None:
    size = batch(0).size
    (alone,) = in_one_frame(0, padding=(COPY_SHARE - 1) * size + padding)
    tails = cache()
    tails.add(A, [alone])
    found = tails.read(A, 0, 1, 1, at_least_one=True)
    assert found is not None
    assert isinstance(found.buffers[0], bytes) is is_copied
    assert tails.used == (size + ENTRY_BYTES if is_copied else COPY_SHARE * size + VIEW_COST)


@pytest.mark.parametrize(("size", "is_copied"), [(1, True), (TINY_BYTES // 2, True), (TINY_BYTES, False)])
def test_rule8_a_tiny_batch_is_copied_out_of_a_frame_of_its_own(size: int, is_copied: bool) -> None:
    """A view of it would cost about as much as the batch, or more."""
    tails, one = cache(), batch(0, 1, size)
    tails.add(A, [one])
    found = tails.read(A, 0, 1, 1, at_least_one=True)
    assert found is not None
    assert isinstance(found.buffers[0], bytes) is is_copied
    assert tails.used == one.size + (ENTRY_BYTES if is_copied else VIEW_COST)


@pytest.mark.parametrize("ended", ["trimmed", "dropped"])
def test_the_oldest_goes_first_also_behind_runs_that_were_shortened_or_have_ended(ended: str) -> None:
    tails = cache()
    keys = [PartitionKey(uuid.UUID(int=3), partition) for partition in range(200)]
    for key in keys:
        tails.add(key, [batch(0), batch(1)])
    for number, key in enumerate(keys):
        if number % 10:
            tails.drop(key) if ended == "dropped" else tails.trim(key, 1)
    tails.release()
    left = [(number, base) for number in range(200) for base in (0, 1) if number % 10 == 0]
    if ended == "trimmed":
        left = sorted([*left, *((number, 1) for number in range(200) if number % 10)])
    for number, base in left:
        assert tails.extent(keys[number]) == (base, 2)
        tails.shrink(tails.used - 1)
    assert (len(tails), tails.used) == (0, 0)


def test_runs_that_have_ended_are_not_kept_though_nothing_is_evicted() -> None:
    tails = cache()
    tails.add(A, [batch(0)])
    for base in range(0, 20_000, 2):
        tails.add(B, [small(base)])
    assert len(tails._oldest) < 100
    assert tails.extent(B) == (19_998, 19_999)


def test_many_small_batches_are_joined_and_large_ones_are_not_copied() -> None:
    tails = cache()
    tails.add(A, [batch(0, 1, 100), batch(1, 1, 100), batch(2, 1, JOIN_BYTES), batch(3, 1, 2 * JOIN_BYTES)])
    joined = tails.read(A, 0, 1000, 4, at_least_one=True)
    whole = tails.read(A, 2, 1 << 20, 4, at_least_one=True)
    assert joined is not None
    assert whole is not None
    assert len(joined.buffers) == 1
    assert len(whole.buffers) == 2
    assert read(tails, A, 0) == [0, 1, 2, 3]


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from([A, B]), st.integers(1, 3), st.integers(0, 12)),
        st.tuples(st.just("trim"), st.sampled_from([A, B]), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("drop"), st.sampled_from([A, B]), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@pytest.mark.slow
@settings(max_examples=example_count(50, 2_000), deadline=None)
@given(OPERATIONS)
def test_the_tail_cache_does_what_a_plain_list_does(operations: list[tuple[str, PartitionKey, int, int]]) -> None:
    """The model: (partition, base offset) in order of arrival; a gap (one operation in twelve) begins again."""
    cost = batch(0, 1, 100).size + ENTRY_BYTES
    tails, kept, ends = cache(5 * cost), list[tuple[PartitionKey, int]](), {A: 0, B: 0}
    for kind, key, number, chance in operations:
        if kind == "add":
            if chance == 0:
                ends[key] += 2
                kept = [each for each in kept if each[0] != key]
            tails.add(key, [batch(ends[key] + step, 1, 100) for step in range(number)])
            kept = [*kept, *((key, ends[key] + step) for step in range(number))][-5:]
            ends[key] += number
        elif kind == "trim":
            tails.trim(key, number)
            kept = [each for each in kept if each[0] != key or each[1] + 1 > number]
        else:
            tails.drop(key)
            kept = [each for each in kept if each[0] != key]
        tails.release()
        assert tails.used == cost * len(kept)
        for each in (A, B):
            bases = [base for owner, base in kept if owner == each]
            assert tails.extent(each) == ((bases[0], bases[-1] + 1) if bases else None)
            for base in bases:
                assert read(tails, each, base) == [other for other in bases if other >= base]
            held = tails.held(each)
            assert (held is not None) == bool(bases)
            if held is not None:
                size = cost - ENTRY_BYTES
                found = [held.size_until(offset) for offset in range(bases[0] - 1, bases[-1] + 3)]
                assert found == [None, *(size * number for number in range(len(bases) + 1)), None]


def test_the_bytes_of_a_long_run_are_counted_from_its_beginning() -> None:
    """Evicted entries are removed from the front of the run now and then."""
    tails = cache()
    for base in range(0, 1_000, 5):
        tails.add(A, [batch(base, 5, 10 + base)])
        tails.trim(A, base - 100)
        held = tails.held(A)
        assert held is not None
        slice_ = tails.read(A, held.start, 1 << 30, base, at_least_one=True)
        assert slice_ is not None
        assert held.size_until(base) == slice_.size
        assert held.size_until(base + 3) is None
