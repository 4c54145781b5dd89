"""The compacted logs of a broker that wait for a round of cleaning, and their order: pure.

The order is that of Kafka's ``LogCleanerManager.grabFilthiestCompactedLog``: logs with a record past
max.compaction.lag.ms come first, then the log with the highest dirty ratio.  Kafka may pass over a log without end.
Here a log that has waited for ``WAIT_MAX_MS`` comes before both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from bmq.storage.cleaning.plan import CleaningPlan, Reason

S = TypeVar("S")

WAIT_MAX_MS = 3_600_000
"""The wait after which a log is passed over no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Due:
    """A log that is due, as of its last look; ``since_ms``: the time of the first look that found it due."""

    since_ms: int
    is_past_lag: bool
    dirty_ratio: float

    def rank(self, now_ms: int) -> tuple[int, bool, float]:
        """Return the rank; the log with the highest rank is cleaned first."""
        waited_ms = now_ms - self.since_ms
        return (waited_ms if waited_ms >= WAIT_MAX_MS else 0, self.is_past_lag, self.dirty_ratio)


class DueLogs(Generic[S]):
    """The logs that are due.  Cost and memory grow with their number, not with the number of partitions."""

    def __init__(self) -> None:
        self._due: dict[S, _Due] = {}

    def __contains__(self, state: S) -> bool:
        return state in self._due

    def put(self, state: S, plan: CleaningPlan | None, now_ms: int) -> None:
        """Note the plan of the last look at a log: None, or a plan that is not due, ends the wait of the log."""
        if plan is None or not plan.is_due:
            self._due.pop(state, None)
            return
        before = self._due.get(state)
        self._due[state] = _Due(
            since_ms=now_ms if before is None else before.since_ms,
            is_past_lag=plan.reason is Reason.MAX_LAG,
            dirty_ratio=plan.dirty_ratio,
        )

    def keep(self, is_held: Callable[[S], bool]) -> None:
        """Forget the logs that are not owned here any more."""
        for state in [state for state in self._due if not is_held(state)]:
            del self._due[state]

    def take(self, now_ms: int, may_begin: Callable[[S], bool]) -> S | None:
        """Remove and return the log to be cleaned next, of the logs that ``may_begin``; None without any."""
        ready = [(due.rank(now_ms), state) for state, due in self._due.items() if may_begin(state)]
        if not ready:
            return None
        _, state = max(ready, key=lambda one: one[0])
        del self._due[state]
        return state
