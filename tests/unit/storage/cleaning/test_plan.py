"""The plan of a cleaning (storage/cleaning/plan.py)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.storage.cleaning.plan import (
    GROUP_OFFSETS_MAX,
    CleaningConfig,
    CleaningPlan,
    LogFacts,
    Reason,
    SegmentFacts,
    group_segments,
    plan_cleaning,
)

NOW_MS = 1_700_000_000_000
COMPACTED = CleaningConfig(is_compacted=True)


def segments(*facts: tuple[int, int], time: int = NOW_MS - 1_000) -> list[SegmentFacts]:
    """Return segments of 10 offsets: (bytes, cleaned up to)."""
    return [
        SegmentFacts(
            base=at * 10,
            end_offset=at * 10 + 10,
            bytes=size,
            max_timestamp=time,
            first_timestamp=time,
            cleaned_up_to=cleaned,
        )
        for at, (size, cleaned) in enumerate(facts)
    ]


def log(*facts: tuple[int, int], stable: int = 1_000, watermark: int = 1_000, time: int = NOW_MS - 1_000) -> LogFacts:
    return LogFacts(
        segments=segments(*facts, time=time), log_start=0, last_stable_offset=stable, high_watermark=watermark
    )


def planned(facts: LogFacts, config: CleaningConfig = COMPACTED) -> CleaningPlan:
    return plan_cleaning(facts, config, NOW_MS)


def test_a_log_that_was_never_cleaned_is_dirty() -> None:
    plan = planned(log((100, -1), (100, -1)))
    assert (plan.reason, plan.is_due, plan.dirty_ratio) == (Reason.DIRTY, True, 1.0)
    assert (plan.first_dirty, plan.end, plan.clean_bytes, plan.dirty_bytes) == (0, 20, 0, 200)
    bounds = plan.bounds(replace(COMPACTED, delete_retention_ms=5), NOW_MS)
    assert (bounds.first_dirty, bounds.end, bounds.now_ms, bounds.horizon) == (0, 20, NOW_MS, NOW_MS + 5)


def test_the_dirty_ratio_is_of_the_bytes_below_the_end() -> None:
    facts = log((100, 20), (100, 20), (199, -1), (9_999, -1), stable=30, watermark=30)
    plan = planned(facts)
    assert (plan.first_dirty, plan.end, plan.clean_bytes, plan.dirty_bytes) == (20, 30, 200, 199)
    assert plan.reason is Reason.BELOW_RATIO
    assert not plan.is_due
    assert planned(facts, replace(COMPACTED, min_cleanable_dirty_ratio=0.4)).reason is Reason.DIRTY
    even = log((100, 10), (100, -1))
    assert planned(even).reason is Reason.BELOW_RATIO, "above the ratio, as in Kafka; not at it"


def test_the_ratio_zero_takes_anything_dirty_and_nothing_else() -> None:
    eager = replace(COMPACTED, min_cleanable_dirty_ratio=0.0)
    assert planned(log((100, 20), (1, 20)), eager).reason is Reason.OPEN_SEGMENT
    assert planned(log((100, 10), (1, -1)), eager).reason is Reason.DIRTY


@pytest.mark.parametrize(
    ("facts", "config", "reason"),
    [
        (log((1, -1)), CleaningConfig(is_compacted=False), Reason.NOT_COMPACTED),
        (replace(log((1, -1)), has_pending_swap=True), COMPACTED, Reason.SWAP_PENDING),
        (replace(log((1, -1)), damaged_at=0), COMPACTED, Reason.DAMAGED),
        (log((1, 10)), COMPACTED, Reason.OPEN_SEGMENT),
        (log(), COMPACTED, Reason.OPEN_SEGMENT),
        (log((1, -1), stable=9, watermark=9), COMPACTED, Reason.UNCOMMITTED),
        (log((1, -1), stable=9, watermark=10), COMPACTED, Reason.OPEN_TRANSACTION),
        (log((1, -1)), replace(COMPACTED, min_compaction_lag_ms=1_001), Reason.MIN_LAG),
        (log((1, -1)), replace(COMPACTED, min_compaction_lag_ms=1_000), Reason.DIRTY),
        (log((9, 10), (1, -1)), COMPACTED, Reason.BELOW_RATIO),
        (log((9, 10), (1, -1)), replace(COMPACTED, max_compaction_lag_ms=999), Reason.MAX_LAG),
        (log((9, 10), (1, -1)), replace(COMPACTED, max_compaction_lag_ms=1_000), Reason.BELOW_RATIO),
        (log((9, 20), (1, 20)), replace(COMPACTED, max_compaction_lag_ms=1), Reason.OPEN_SEGMENT),
        (log((9, 10), (1, -1), time=-1), replace(COMPACTED, max_compaction_lag_ms=1), Reason.BELOW_RATIO),
    ],
)
def test_a_log_is_due_or_has_a_reason(facts: LogFacts, config: CleaningConfig, reason: Reason) -> None:
    plan = planned(facts, config)
    assert plan.reason is reason
    assert plan.is_due == (reason in (Reason.DIRTY, Reason.MAX_LAG))
    assert reason.value


def test_a_log_of_nothing_has_no_ratio() -> None:
    plan = planned(log())
    assert (plan.dirty_ratio, plan.first_dirty, plan.end, plan.groups) == (0.0, 0, 0, [])
    assert (plan.oldest_dirty_timestamp, plan.earliest_horizon) == (-1, -1)


def test_kafka_13194_the_end_is_below_the_high_watermark_and_the_last_stable_offset() -> None:
    facts = log(*[(100, -1)] * 5)
    assert planned(replace(facts, high_watermark=39, last_stable_offset=39)).end == 30
    assert planned(replace(facts, high_watermark=40, last_stable_offset=25)).end == 20
    assert planned(replace(facts, high_watermark=39, last_stable_offset=1_000)).end == 30, "whichever is lower"


@pytest.mark.parametrize(("bound", "end"), [(30, 30), (29, 20)])
def test_kafka_13194_a_segment_is_taken_up_to_the_very_offset_of_a_bound(bound: int, end: int) -> None:
    """The last record of a segment may be the first that is undecided, or not yet flushed."""
    facts = log(*[(100, -1)] * 5)
    assert planned(replace(facts, high_watermark=bound)).end == end
    assert planned(replace(facts, last_stable_offset=bound)).end == end


def test_what_is_damaged_bounds_the_round() -> None:
    assert planned(replace(log(*[(100, -1)] * 5), damaged_at=20)).end == 20
    assert planned(replace(log((100, 20), (100, 20), (100, -1)), damaged_at=10)).reason is Reason.DAMAGED


def test_a_young_segment_bounds_the_round_and_a_clean_one_does_not() -> None:
    lag = replace(COMPACTED, min_compaction_lag_ms=500)
    facts = segments((100, 10), (100, -1), (100, -1), (100, -1))
    young = [replace(each, max_timestamp=NOW_MS) if each.base in (0, 20) else each for each in facts]
    plan = planned(LogFacts(segments=young, log_start=0, last_stable_offset=99, high_watermark=99), lag)
    assert (plan.first_dirty, plan.end) == (10, 20)


def test_a_round_that_ended_early_is_done_again_from_the_earlier_rounds_end() -> None:
    plan = planned(log((100, 30), (100, 20), (100, -1)))
    assert plan.first_dirty == 20
    assert planned(log((100, 30), (100, -1), (100, 30))).first_dirty == 10
    assert planned(log((100, 5), (100, -1))).first_dirty == 0, "concat made the file longer: its end is not clean"


def test_below_the_log_start_nothing_is_dirty() -> None:
    plan = planned(replace(log((100, -1), (100, -1)), log_start=15))
    assert plan.first_dirty == 15
    assert (plan.clean_bytes, plan.dirty_bytes) == (100, 100)


def test_the_facts_for_operators() -> None:
    facts = segments((9, 20), (9, 20), (1, -1), (1, -1))
    facts[0] = replace(facts[0], earliest_horizon=500)
    facts[1] = replace(facts[1], earliest_horizon=400, first_timestamp=1)
    facts[2] = replace(facts[2], first_timestamp=0)
    facts[3] = replace(facts[3], first_timestamp=77)
    plan = planned(LogFacts(segments=facts, log_start=0, last_stable_offset=99, high_watermark=99))
    assert (plan.oldest_dirty_timestamp, plan.earliest_horizon) == (77, 400)


def test_groups_are_neighbours_up_to_the_segment_size() -> None:
    sizes = [(60, -1), (40, -1), (1, -1), (200, -1), (50, -1), (50, -1)]
    groups = group_segments(segments(*sizes), 100)
    assert [[each.bytes for each in group] for group in groups] == [[60, 40], [1], [200], [50, 50]]


def test_a_group_has_no_more_offsets_than_kafkas_tools_count() -> None:
    first = SegmentFacts(base=0, end_offset=10, bytes=1, max_timestamp=-1)
    fits = SegmentFacts(base=10, end_offset=GROUP_OFFSETS_MAX + 1, bytes=1, max_timestamp=-1)
    assert len(group_segments([first, fits], 100)) == 1
    assert len(group_segments([first, replace(fits, end_offset=GROUP_OFFSETS_MAX + 2)], 100)) == 2


@given(st.lists(st.integers(0, 50), max_size=20), st.integers(1, 100))
def test_groups_hold_every_segment_once_in_order(sizes: list[int], limit: int) -> None:
    some = segments(*[(size, -1) for size in sizes])
    groups = group_segments(some, limit)
    assert [each for group in groups for each in group] == some
    for group in groups:
        assert len(group) == 1 or sum(each.bytes for each in group) <= limit
    for group, following in pairwise(groups):
        assert sum(each.bytes for each in group) + following[0].bytes > limit


def test_a_plan_tells_what_the_next_segment_waits_for() -> None:
    facts = log((100, -1), (100, -1))
    assert (planned(facts).waits_for, planned(facts).lag_ends_ms) == (-1, -1)
    assert planned(replace(facts, last_stable_offset=10)).waits_for == 20
    assert planned(replace(facts, last_stable_offset=10, high_watermark=15)).waits_for == 20
    lagging = planned(facts, replace(COMPACTED, min_compaction_lag_ms=5_000))
    assert (lagging.reason, lagging.waits_for, lagging.lag_ends_ms) == (Reason.MIN_LAG, -1, NOW_MS + 4_000)
    facts = replace(facts, segments=[*segments((100, -1), time=NOW_MS - 9_000), segments((0, 0), (900, -1))[1]])
    below = planned(facts, replace(COMPACTED, min_compaction_lag_ms=5_000, min_cleanable_dirty_ratio=1.0))
    assert (below.reason, below.lag_ends_ms) == (Reason.BELOW_RATIO, NOW_MS + 4_000), "the ratio rises with time"


@pytest.mark.parametrize(
    ("change", "config", "due_ms"),
    [
        ({}, {}, -1),
        ({}, {"max_compaction_lag_ms": 60_000}, NOW_MS + 59_001),
        ({}, {"max_compaction_lag_ms": 60_000, "min_compaction_lag_ms": 60_000}, NOW_MS + 59_500),
        ({}, {"max_compaction_lag_ms": 60_000, "is_compacted": False}, -1),
        ({"damaged_at": 20}, {"max_compaction_lag_ms": 60_000}, -1),
        ({"last_stable_offset": 39}, {"max_compaction_lag_ms": 60_000}, -1),
        ({"log_start": 40}, {"max_compaction_lag_ms": 60_000}, -1),
        ({"newest": None}, {"max_compaction_lag_ms": 60_000}, -1),
        ({"newest": SegmentFacts(base=40, end_offset=40, bytes=0, max_timestamp=NOW_MS)},
         {"max_compaction_lag_ms": 60_000}, -1),
    ],
)  # fmt: skip
def test_the_newest_segment_of_a_quiet_log_is_due_when_its_oldest_record_passes_the_lag(
    change: dict[str, Any], config: dict[str, Any], due_ms: int
) -> None:
    """Not if a round could not take it even behind another segment."""
    newest = SegmentFacts(base=20, end_offset=40, bytes=100, first_timestamp=NOW_MS - 1_000, max_timestamp=NOW_MS - 500)
    facts = replace(log((10, 50), (10, 50)), **{"newest": newest, "last_stable_offset": 40, **change})
    assert planned(facts, replace(COMPACTED, **config)).newest_due_ms == due_ms
