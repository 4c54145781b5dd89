"""Room for a process's calls with markers: a bounded number at once, and late calls give their places up.

A call waits for its slowest broker.  A silent broker's calls last until their time-out, and must not hold the places of
calls to other brokers.  So a call without a response after ``PATIENCE_S`` gives its place to the next, unless
``late_max`` calls have done so and still wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

CALLS_AT_ONCE = 100
"""Calls of a process at once, without late calls: 100,000 partitions.

The senders bound the requests to each process, and let as many markers wait for a process (``WAITING_MAX`` of
``coordinator.partition_markers``).  Fewer calls would leave brokers idle beside a slow broker.  With more calls a
sender would refuse markers to a slow broker, and they would wait for the next try.
"""
LATE_MAX = 1_000
"""Late calls of a process.  The senders bound their markers for each process; this bounds their tasks."""
PATIENCE_S = 1.0
"""A broker with healthy storage has flushed a request's markers by then."""


class CallRoom:
    """The places of one process."""

    def __init__(self, places: int = CALLS_AT_ONCE, late_max: int = LATE_MAX) -> None:
        self.late = 0
        """The number of calls that have given up their place and have no response yet."""
        self._places = asyncio.Semaphore(places)
        self._late_max = late_max

    async def run(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the result of ``call``, made once there is a place.  Raises as it does."""
        await self._places.acquire()
        is_late = False

        def be_late() -> None:
            nonlocal is_late
            if self.late < self._late_max:
                is_late = True
                self.late += 1
                self._places.release()

        timer = asyncio.get_running_loop().call_later(PATIENCE_S, be_late)
        try:
            return await call()
        finally:
            timer.cancel()
            if is_late:
                self.late -= 1
            else:
                self._places.release()
