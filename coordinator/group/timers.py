"""Deadlines of one shard: a heap whose entries move only when they reach the top.

A heartbeat sets its member's timer to a later time, by an assignment.  The entry in the heap stays where it is, and is
pushed again if it is popped too early.  So a member costs one heap operation a session timeout, however many heartbeats
it sends.  Times are milliseconds of the monotonic clock.
"""

from __future__ import annotations

import heapq
from enum import Enum

NEVER = 1 << 62
_COMPACT_MIN = 64


class TimerKind(Enum):
    """The period that a timer ends."""

    SESSION = "session"
    PENDING = "pending member"
    JOIN = "join phase"
    SYNC = "sync phase"


class Timer:
    """One deadline of one group.  ``at`` is its time, ``NEVER`` while it is off."""

    __slots__ = ("at", "group_id", "kind", "member_id", "queued")

    def __init__(self, group_id: str, kind: TimerKind, member_id: str = "") -> None:
        self.group_id = group_id
        self.kind = kind
        self.member_id = member_id
        self.at = NEVER
        self.queued = NEVER  # time of its entry in the heap: ``at`` or earlier

    @property
    def is_set(self) -> bool:
        return self.at != NEVER


class GroupTimers:
    """All timers of a shard.  The heap has at most about twice as many entries as timers are set."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._pushes = 0
        self._dead = 0  # entries of timers that are off, and entries that were replaced by an earlier one

    def set(self, timer: Timer, at: int) -> None:
        """Set the timer to ``at``, whether it is on or off."""
        if timer.at == NEVER and timer.queued != NEVER:
            self._dead -= 1
        timer.at = at
        if at < timer.queued:
            if timer.queued != NEVER:
                self._dead += 1
            self._push(timer, at)

    def cancel(self, timer: Timer) -> None:
        """Switch the timer off, if it is on.  Its entry stays in the heap until it is popped or compacted away."""
        if timer.at == NEVER:
            return
        timer.at = NEVER
        if timer.queued != NEVER:
            self._dead += 1
        if self._dead > _COMPACT_MIN and self._dead * 2 > len(self._heap):
            self._compact()

    def next(self) -> int:
        """Return a time before which no timer ends; ``NEVER`` if none is queued.

        The time may be too early; ``pop`` then returns None.
        """
        return self._heap[0][0] if self._heap else NEVER

    def pop(self, now_ms: int) -> Timer | None:
        """Return a timer that has ended, and switch it off; None if no other has ended."""
        while self._heap and self._heap[0][0] <= now_ms:
            at, _, timer = heapq.heappop(self._heap)
            if at != timer.queued:  # replaced by an earlier entry
                self._dead -= 1
                continue
            timer.queued = NEVER
            if timer.at == NEVER:
                self._dead -= 1
            elif timer.at > now_ms:
                self._push(timer, timer.at)
            else:
                timer.at = NEVER
                return timer
        return None

    def __len__(self) -> int:
        return len(self._heap)

    def _push(self, timer: Timer, at: int) -> None:
        timer.queued = at
        self._pushes += 1
        heapq.heappush(self._heap, (at, self._pushes, timer))

    def _compact(self) -> None:
        alive = []
        for at, number, timer in self._heap:
            if at == timer.queued and timer.at != NEVER:
                alive.append((at, number, timer))
            elif at == timer.queued:
                timer.queued = NEVER
        heapq.heapify(alive)
        self._heap = alive
        self._dead = 0
