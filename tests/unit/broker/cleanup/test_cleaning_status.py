"""The numbers of compacted logs: by reason, the dirtiest, the oldest record, damage."""

from __future__ import annotations

import pytest

from bmq.broker.cleanup.cleaning_status import (
    NOT_CLEANED,
    UNKNOWN,
    LastCleaning,
    LogCleaning,
    Obstacle,
    Outcome,
    cleaning_state,
    count_logs,
    explain,
)
from bmq.core.aio.steps import finish_steps
from bmq.storage.cleaning.plan import CleaningPlan, Reason

NEVER = (1 << 63) - 1


def plan(reason: Reason, dirty: int = 0, oldest: int = -1) -> CleaningPlan:
    return CleaningPlan(
        reason=reason,
        first_dirty=0,
        end=0,
        clean_bytes=100 - dirty,
        dirty_bytes=dirty,
        oldest_dirty_timestamp=oldest,
        earliest_horizon=-1,
        groups=[],
    )


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (Outcome(plan=None, obstacle=Obstacle.LEVEL), Obstacle.LEVEL),
        (Outcome(plan=plan(Reason.DIRTY), obstacle=Obstacle.LARGE), Obstacle.LARGE),
        (Outcome(plan=plan(Reason.DIRTY), has_cleaned=True), None),
        (Outcome(plan=plan(Reason.MIN_LAG)), Reason.MIN_LAG),
        (Outcome(plan=plan(Reason.BELOW_RATIO), damaged_at=7), Obstacle.DAMAGED),
        (Outcome(plan=plan(Reason.DIRTY), has_cleaned=True, damaged_at=7), Obstacle.DAMAGED),
    ],
)
def test_a_look_at_a_log_has_one_reason(outcome: Outcome, reason: Reason | Obstacle | None) -> None:
    assert outcome.why_not is reason


def test_every_reason_is_counted_also_at_zero() -> None:
    dirty = (Outcome(plan=plan(Reason.BELOW_RATIO, dirty=40, oldest=1_000)), 3_000)
    quiet = (Outcome(plan=plan(Reason.OPEN_SEGMENT)), 1)
    cleaned = (Outcome(plan=plan(Reason.DIRTY, dirty=90, oldest=1), has_cleaned=True), 1)
    damaged = (Outcome(plan=plan(Reason.DAMAGED), damaged_at=0), NEVER)
    failed = (Outcome(plan=None, obstacle=Obstacle.FAILED), 1)
    totals = finish_steps(count_logs([dirty, quiet, cleaned, damaged, failed], now_ms=9_000))
    assert (totals.uncleanable, totals.max_dirty_percent, totals.max_delay_s) == (2, 40.0, 5.0)
    assert {name: count for name, count in totals.not_cleaned.items() if count} == {
        "below_ratio": 1,
        "open_segment": 1,
        "damaged": 1,
        "failed": 1,
    }
    assert len(totals.not_cleaned) == len(NOT_CLEANED)


def test_without_a_max_lag_no_record_is_late() -> None:
    totals = finish_steps(
        count_logs([(Outcome(plan=plan(Reason.BELOW_RATIO, dirty=1, oldest=5)), NEVER)], now_ms=1 << 42)
    )
    assert totals.max_delay_s == 0


def test_the_state_of_a_log_is_that_of_its_last_look() -> None:
    last = LastCleaning(ended_ms=5, bytes_before=100, bytes_after=10)
    dirty = Outcome(plan=plan(Reason.BELOW_RATIO, dirty=40))
    assert cleaning_state(dirty, last) == LogCleaning(reason="below_ratio", dirty_percent=40.0, last=last)
    cleaned = Outcome(plan=plan(Reason.DIRTY, dirty=90), has_cleaned=True)
    assert cleaning_state(cleaned, last) == LogCleaning(reason="", dirty_percent=0.0, last=last)
    large = Outcome(plan=None, obstacle=Obstacle.LARGE)
    assert cleaning_state(large, None) == LogCleaning(reason="large", dirty_percent=None, last=None)
    assert cleaning_state(None, None).reason == UNKNOWN


def test_every_reason_has_a_text_and_a_later_versions_has_none() -> None:
    assert explain("large") == Obstacle.LARGE.value
    assert all(explain(reason.name.lower()) for reason in NOT_CLEANED)
    assert "earlier version" in explain(UNKNOWN)
    assert explain("of_tomorrow") == explain("") == ""
