"""The order in which logs are cleaned."""

from __future__ import annotations

from dataclasses import replace

from bmq.broker.cleanup.due_logs import WAIT_MAX_MS, DueLogs
from bmq.storage.cleaning.plan import CleaningPlan, Reason


def plan(dirty_percent: int, reason: Reason = Reason.DIRTY) -> CleaningPlan:
    return CleaningPlan(
        reason=reason,
        first_dirty=0,
        end=9,
        clean_bytes=100 - dirty_percent,
        dirty_bytes=dirty_percent,
        oldest_dirty_timestamp=1,
        earliest_horizon=-1,
        groups=[],
    )


def due(**plans: CleaningPlan) -> DueLogs[str]:
    logs: DueLogs[str] = DueLogs()
    for name, each in plans.items():
        logs.put(name, each, 0)
    return logs


def order(logs: DueLogs[str], now_ms: int = 1) -> list[str]:
    found = []
    while (name := logs.take(now_ms, lambda _: True)) is not None:
        found.append(name)
    return found


def test_the_dirtiest_log_comes_first() -> None:
    assert order(due(a=plan(60), b=plan(90), c=plan(75))) == ["b", "c", "a"]


def test_logs_past_their_lag_come_before_dirtier_logs() -> None:
    logs = due(a=plan(95), b=plan(10, Reason.MAX_LAG), c=plan(20, Reason.MAX_LAG))
    assert order(logs) == ["c", "b", "a"]


def test_a_log_is_not_passed_over_for_ever() -> None:
    """Later looks at the log do not end its wait; among logs that have waited too long the oldest comes first."""
    logs = due(a=plan(51))
    logs.put("b", plan(52), 1)
    logs.put("a", plan(53), WAIT_MAX_MS)
    logs.put("c", plan(99, Reason.MAX_LAG), WAIT_MAX_MS)
    assert order(copy_of(logs), WAIT_MAX_MS - 1) == ["c", "a", "b"]
    assert order(copy_of(logs), WAIT_MAX_MS) == ["a", "c", "b"]
    assert order(copy_of(logs), WAIT_MAX_MS + 1) == ["a", "b", "c"]


def copy_of(logs: DueLogs[str]) -> DueLogs[str]:
    """Return a copy: ``order`` takes all."""
    copied: DueLogs[str] = DueLogs()
    copied._due = {name: replace(each) for name, each in logs._due.items()}
    return copied


def test_a_log_that_is_due_no_more_or_not_owned_here_is_forgotten() -> None:
    logs = due(a=plan(60), b=plan(70), c=plan(80), d=plan(90))
    logs.put("b", plan(10, Reason.BELOW_RATIO), 1)
    logs.put("d", None, 1)
    assert "a" in logs
    assert "b" not in logs
    logs.keep(lambda name: name != "c")
    assert order(logs) == ["a"]


def test_a_log_that_may_not_begin_waits_on() -> None:
    logs = due(a=plan(60), b=plan(90))
    assert logs.take(1, lambda name: name != "b") == "a"
    assert order(logs) == ["b"]
