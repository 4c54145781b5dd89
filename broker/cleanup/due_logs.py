"""The compacted logs of a broker that wait for a round of cleaning, and their order: pure.

The order is computed at each choice, as in Kafka's ``LogCleanerManager.grabFilthiestCompactedLog``, so it changes while
logs wait.  Kafka takes the log with the highest dirty ratio, and may pass over a log without end.  Here the order is:

1. Logs with a record past max.compaction.lag.ms: the topic's setting promises a time.
2. Logs that have waited for ``WAIT_MAX_MS``, the oldest first; also among the logs of 1.
3. The log with the highest dirty ratio.

A choice costs O(log n).  A log has a single valid entry in a heap of ranks.  Ranks change at known times, in a second
heap.  Old entries stay in both heaps until they come up, or are most entries.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from bmq.storage.cleaning.plan import CleaningPlan

S = TypeVar("S")

WAIT_MAX_MS = 3_600_000
"""The wait after which no log with a higher dirty ratio comes first."""
_Rank = tuple[bool, bool, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Due:
    """A log that is due, as of its last look; ``since_ms``: the time of the first look that found it due.

    ``max_lag_ends_ms``: the time at which its oldest record passes max.compaction.lag.ms, None for never.
    """

    since_ms: int
    max_lag_ends_ms: int | None
    dirty_ratio: float

    def rank(self, now_ms: int) -> _Rank:
        """Return the rank; the log with the lowest rank is cleaned first."""
        is_past_lag = self.max_lag_ends_ms is not None and now_ms > self.max_lag_ends_ms
        has_waited = now_ms - self.since_ms >= WAIT_MAX_MS
        return (not is_past_lag, not has_waited, self.since_ms if has_waited else -self.dirty_ratio)

    def changes_ms(self, now_ms: int) -> int | None:
        """Return the time of the next change of the rank; None if it stays."""
        times = [self.since_ms + WAIT_MAX_MS]
        if self.max_lag_ends_ms is not None:
            times.append(self.max_lag_ends_ms + 1)
        return min((time for time in times if time > now_ms), default=None)


class DueLogs(Generic[S]):
    """The logs that are due.  Cost and memory grow with their number, not with the number of partitions.

    Times are on the monotonic clock.
    """

    def __init__(self) -> None:
        self._due: dict[S, _Due] = {}
        self._serial = itertools.count()
        self._valid: dict[S, int] = {}
        """The serial number of the entries in the heaps, by log; logs with a turn have none."""
        self._ranks: list[tuple[_Rank, int, S]] = []
        self._changes: list[tuple[int, int, S]] = []

    def __contains__(self, state: S) -> bool:
        return state in self._due

    def put(self, state: S, plan: CleaningPlan | None, now_ms: int, max_lag_ends_ms: int | None = None) -> None:
        """Note the plan of the last look at a log: None, or a plan that is not due, ends the wait of the log.

        ``max_lag_ends_ms``: the time at which its oldest record passes max.compaction.lag.ms, None for never.
        """
        if plan is None or not plan.is_due:
            self.forget(state)
            return
        before = self._due.get(state)
        since_ms = now_ms if before is None else before.since_ms
        due = _Due(since_ms=since_ms, max_lag_ends_ms=max_lag_ends_ms, dirty_ratio=plan.dirty_ratio)
        if due != before or state not in self._valid:
            self._due[state] = due
            self._push(state, now_ms)

    def forget(self, state: S) -> None:
        """End the wait of a log: it is clean, or not owned here any more."""
        self._due.pop(state, None)
        if self._valid.pop(state, None) is not None:
            self._compact()

    def take(self, now_ms: int, may_begin: Callable[[S], bool]) -> S | None:
        """Return the log to be cleaned next, of the logs that ``may_begin``; None without any.

        The log is not returned again before the next ``put``, and its wait goes on until a ``put`` ends it.
        """
        while self._changes and self._changes[0][0] <= now_ms:
            _, serial, state = heapq.heappop(self._changes)
            if self._valid.get(state) == serial:
                self._push(state, now_ms)
        passed_over: list[tuple[_Rank, int, S]] = []
        taken: S | None = None
        while self._ranks and taken is None:
            entry = heapq.heappop(self._ranks)
            _, serial, state = entry
            if self._valid.get(state) != serial:
                continue  # another look, or a change of its rank, has made a later entry
            if may_begin(state):
                taken = state
                del self._valid[state]
            else:
                passed_over.append(entry)
        for entry in passed_over:
            heapq.heappush(self._ranks, entry)
        return taken

    def _push(self, state: S, now_ms: int) -> None:
        """Make new entries for a log that waits."""
        serial = self._valid[state] = next(self._serial)
        due = self._due[state]
        heapq.heappush(self._ranks, (due.rank(now_ms), serial, state))
        changes_ms = due.changes_ms(now_ms)
        if changes_ms is not None:
            heapq.heappush(self._changes, (changes_ms, serial, state))
        self._compact()

    def _compact(self) -> None:
        """Drop old entries, which keep logs in memory, once most entries are old."""
        if max(len(self._ranks), len(self._changes)) <= 2 * len(self._valid) + 16:
            return
        self._ranks = [entry for entry in self._ranks if self._valid.get(entry[2]) == entry[1]]
        self._changes = [entry for entry in self._changes if self._valid.get(entry[2]) == entry[1]]
        heapq.heapify(self._ranks)
        heapq.heapify(self._changes)
