"""Rounds of work on the indexes that a taken over log lacks (``broker.partition.missing_indexes``)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from bmq.core.aio.timers import TimerHeap

PARALLEL = 4
"""Most rounds at once, and most indexes that are written late or made again at once: nothing waits for them."""

Begin = Callable[[], "asyncio.Task[None] | None"]
"""A function that starts a task and returns it; None if the work is not needed any more."""


class IndexRounds:
    """The rounds of one broker's partitions.  A round that waits needs no task.

    A death leaves such work to thousands of partitions at the same moment.
    """

    def __init__(self, timers: TimerHeap, now_ms: Callable[[], int]) -> None:
        self._timers = timers
        self._now_ms = now_ms
        self._due: deque[Begin] = deque()
        self._running = 0

    def __repr__(self) -> str:
        return f"<IndexRounds due={len(self._due)} running={self._running}>"

    def later(self, after_ms: int, begin: Begin) -> None:
        """Call ``begin`` after ``after_ms``, as soon as fewer than ``PARALLEL`` tasks of such calls run."""
        self._timers.at(self._now_ms() + after_ms, lambda: self._is_due(begin))

    def abandon(self) -> None:
        """Drop the rounds that are due and have not begun."""
        self._due.clear()

    def _is_due(self, begin: Begin) -> None:
        self._due.append(begin)
        self._begin_due()

    def _begin_due(self) -> None:
        while self._due and self._running < PARALLEL:
            task = self._due.popleft()()
            if task is not None:
                self._running += 1
                task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running -= 1
        self._begin_due()
