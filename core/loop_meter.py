"""The event loop's delay and idle share, measured by a timer of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from bmq.core.metrics import Histogram

TICK_S = 0.1
"""Ten timers a second cost about 100 us of CPU time."""
IDLE_TICKS = 600
"""Ticks that the idle share is averaged over, exponentially: a minute, as in Kafka's one-minute rate."""


class LoopMeter:
    """Measures between `start` and `stop`, on the running loop.

    `delay_ms` counts how late each tick was: what every callback waits that becomes ready meanwhile.  `idle` is the
    share of time in which the loop's thread used no CPU, from 0 to 1.
    """

    def __init__(self, tick_s: float = TICK_S, thread_time: Callable[[], float] = time.thread_time) -> None:
        self.delay_ms = Histogram()
        self.idle = 1.0
        self._tick_s = tick_s
        self._thread_time = thread_time
        self._timer: asyncio.TimerHandle | None = None
        self._due = self._ticked = self._used = 0.0

    def __repr__(self) -> str:
        return f"<LoopMeter idle={self.idle:.3f} {self.delay_ms!r}>"

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._ticked, self._used = loop.time(), self._thread_time()
        self._arm(loop)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = loop.time() + self._tick_s
        self._timer = loop.call_at(self._due, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        now, used = loop.time(), self._thread_time()
        self.delay_ms.observe(max(0.0, now - self._due) * 1000)
        passed = now - self._ticked
        if passed > 0:
            share = min(1.0, max(0.0, 1 - (used - self._used) / passed))
            weight = min(1.0, passed / (self._tick_s * IDLE_TICKS))
            self.idle += (share - self.idle) * weight
        self._ticked, self._used = now, used
        self._arm(loop)
