"""Limits of micro-batches: shares, cuts and delays."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.core.model import SegmentName
from bmq.spark.options import OptionError
from bmq.spark.planning.slices import IndexedSegment, Segment
from bmq.spark.streaming.rate_limits import RateLimits, admit_offsets, cut_within, pending, position_at, shares

partitions = st.dictionaries(st.tuples(st.sampled_from("ab"), st.integers(0, 5)), st.integers(0, 1 << 40))


def test_limits_are_parsed() -> None:
    assert RateLimits.parse({"topic": "orders"}) == RateLimits()
    limits = RateLimits.parse(
        {"MAXOFFSETSPERTRIGGER": "9", "minOffsetsPerTrigger": "3", "maxBytesPerTrigger": "2k", "maxTriggerDelay": "3s"}
    )
    assert limits == RateLimits(max_offsets=9, min_offsets=3, max_bytes=2048, max_delay_ms=3000)


@pytest.mark.parametrize(
    ("text", "expected"), [("7", 7), ("500ms", 500), ("2 s", 2000), ("15m", 900_000), ("1h", 3_600_000), ("2000us", 2)]
)
def test_delays_have_units(text: str, expected: int) -> None:
    assert RateLimits.parse({"maxTriggerDelay": text}).max_delay_ms == expected


@pytest.mark.parametrize(
    "options",
    [
        {"maxOffsetsPerTrigger": "0"},
        {"maxBytesPerTrigger": "1 parsec"},
        {"minOffsetsPerTrigger": "-3"},
        {"maxTriggerDelay": "soon"},
        {"maxOffsetsPerTrigger": "2", "minOffsetsPerTrigger": "3"},
    ],
)
def test_limits_that_contradict_each_other_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=next(reversed(options))):
        RateLimits.parse(options)


@pytest.mark.parametrize(
    ("count", "waited", "expected"), [(4, 0, True), (5, 0, False), (4, 100, False), (0, 99, True), (0, None, False)]
)
def test_few_records_wait_for_more_but_not_longer_than_the_delay(
    count: int, waited: float | None, expected: bool
) -> None:
    limits = RateLimits(min_offsets=5, max_delay_ms=100)
    assert limits.is_worth_waiting(count, waited) is expected
    assert not RateLimits().is_worth_waiting(count, waited)


@pytest.mark.slow
@given(st.integers(1, 1 << 30), partitions)
def test_shares_keep_to_the_limit_and_starve_nobody(limit: int, sizes: dict[tuple[str, int], int]) -> None:
    granted = shares(limit, sizes)
    assert granted.keys() == {at for at, size in sizes.items() if size}
    assert all(1 <= granted[at] <= sizes[at] for at in granted)
    assert sum(granted.values()) <= limit + len(granted)
    if sum(sizes.values()) <= limit:
        assert granted == {at: size for at, size in sizes.items() if size}


def test_a_limit_of_records_is_shared_by_what_is_pending() -> None:
    begins = {("a", 0): 100, ("a", 1): 0, ("a", 2): 50}
    ends = {("a", 0): 400, ("a", 1): 100, ("a", 2): 50}
    assert pending(begins, ends) == 400
    assert admit_offsets(40, begins, ends) == {("a", 0): 130, ("a", 1): 10, ("a", 2): 50}
    assert admit_offsets(1, begins, ends) == {("a", 0): 101, ("a", 1): 1, ("a", 2): 50}
    assert admit_offsets(1000, begins, ends) == ends


FACTS = IndexedSegment(
    segment=Segment(name=SegmentName(10, 1, 0), end=50, length=500, has_idx=True),
    entries=array("q", [10, 0, 0, 20, 100, 0, 30, 200, 0, 40, 300, 0]),
    position=400,
)


@pytest.mark.parametrize(("offset", "expected"), [(10, 0), (19, 0), (20, 100), (45, 300), (50, 400), (90, 400)])
def test_an_offset_is_placed_between_index_entries(offset: int, expected: int) -> None:
    assert position_at(FACTS, offset) == expected


@pytest.mark.parametrize(
    ("start", "end", "budget", "expected"),
    [
        (10, 50, 100, 20),
        (10, 50, 299, 30),
        (10, 50, 300, 40),
        (10, 50, 99, 20),  # not a byte too few: it has to go on
        (15, 50, 1, 20),
        (40, 50, 1, 50),  # past the last entry: all of it
        (10, 17, 1, 17),
        (10, 25, 200, 25),
    ],
)
def test_a_cut_stands_at_an_index_entry(start: int, end: int, budget: int, expected: int) -> None:
    assert cut_within(FACTS, start, end, budget, must_advance=True) == expected


def test_a_cut_need_not_advance_where_something_was_taken_before() -> None:
    assert cut_within(FACTS, 10, 50, 99, must_advance=False) == 10
    assert cut_within(FACTS, 10, 50, 100, must_advance=False) == 20
