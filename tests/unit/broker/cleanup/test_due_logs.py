"""The order in which logs are cleaned."""

from __future__ import annotations

import copy

import pytest

from bmq.broker.cleanup import due_logs
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
    """Return the order of the logs; they still wait."""
    logs, found = copy.deepcopy(logs), []
    while (name := logs.take(now_ms, lambda _: True)) is not None:
        found.append(name)
    return found


def test_the_dirtiest_log_comes_first() -> None:
    assert order(due(a=plan(60), b=plan(90), c=plan(75))) == ["b", "c", "a"]


def test_logs_past_their_lag_come_before_dirtier_logs() -> None:
    logs = due(a=plan(95))
    logs.put("b", plan(10, Reason.MAX_LAG), 0, -5)
    logs.put("c", plan(20, Reason.MAX_LAG), 0, -1)
    assert order(logs) == ["c", "b", "a"]


def test_a_log_that_passes_its_lag_while_it_waits_comes_first() -> None:
    """No look follows: the log is due already."""
    logs = due(a=plan(95))
    logs.put("b", plan(60), 0, 500)
    assert order(logs, 500) == ["a", "b"]
    assert order(logs, 501) == ["b", "a"]


def test_a_log_is_not_passed_over_for_dirtier_logs_for_ever() -> None:
    """Later looks at the log do not end its wait; among logs that have waited too long the oldest comes first."""
    logs = due(a=plan(51))
    logs.put("b", plan(52), 1)
    logs.put("a", plan(53), WAIT_MAX_MS - 1)
    logs.put("c", plan(99), WAIT_MAX_MS - 1)
    assert order(logs, WAIT_MAX_MS - 1) == ["c", "a", "b"]
    assert order(logs, WAIT_MAX_MS) == ["a", "c", "b"]
    assert order(logs, WAIT_MAX_MS + 1) == ["a", "b", "c"]


def test_logs_past_their_lag_come_before_logs_that_have_waited() -> None:
    """Keep the order under lasting overload, when all logs have waited for long."""
    logs = due(a=plan(99))
    logs.put("b", plan(30, Reason.MAX_LAG), 1, 0)
    logs.put("c", plan(20, Reason.MAX_LAG), WAIT_MAX_MS, 0)
    assert order(logs, WAIT_MAX_MS + 1) == ["b", "c", "a"]


def test_a_log_that_is_due_no_more_or_not_owned_here_is_forgotten() -> None:
    logs = due(a=plan(60), b=plan(70), c=plan(80), d=plan(90))
    logs.put("b", plan(10, Reason.BELOW_RATIO), 1)
    logs.put("d", None, 1)
    logs.forget("c")
    assert [name in logs for name in "abcd"] == [True, False, False, False]
    assert order(logs) == ["a"]


def test_a_log_that_may_not_begin_waits_on() -> None:
    logs = due(a=plan(60), b=plan(90))
    assert logs.take(1, lambda name: name != "b") == "a"
    assert order(logs) == ["b"]


def test_a_turn_in_which_a_log_is_not_cleaned_does_not_end_its_wait() -> None:
    logs = due(a=plan(51))
    assert logs.take(1, lambda _: True) == "a"
    assert logs.take(1, lambda _: True) is None, "it waits for another look"
    logs.put("b", plan(99), 2)
    logs.put("a", plan(51), WAIT_MAX_MS)
    assert order(logs, WAIT_MAX_MS) == ["a", "b"]
    logs.put("a", None, WAIT_MAX_MS)
    logs.put("a", plan(51), WAIT_MAX_MS)
    assert order(logs, WAIT_MAX_MS + 1) == ["b", "a"]


def test_a_choice_costs_no_step_for_each_log_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks, turns and hours that pass leave no entries behind, and a choice asks for its own log alone."""
    logs: DueLogs[str] = DueLogs()
    ranked, rank = 0, due_logs._Due.rank

    def counted(self: due_logs._Due, now_ms: int) -> tuple[bool, bool, float]:
        nonlocal ranked
        ranked += 1
        return rank(self, now_ms)

    monkeypatch.setattr(due_logs._Due, "rank", counted)
    for number in range(1_000):
        for dirty in (60, 70, 80):
            logs.put(str(number), plan(dirty), number, 5_000)
    for number in range(100):
        ranked, asked = 0, list[str]()
        taken = logs.take(1_000, lambda name: asked.append(name) or True)  # type: ignore[func-returns-value]  # noqa: B023
        assert asked == [taken] == [str(number)]
        assert ranked == 0
        logs.put(str(number), None, 1_000)
    for number in range(100, 990):
        logs.forget(str(number))
    assert max(len(logs._ranks), len(logs._changes)) <= 40
    assert order(logs, 6_000) == [str(number) for number in range(990, 1_000)]
