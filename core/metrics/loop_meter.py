"""The event loop's delay and idle share, measured by a timer of its own."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

from bmq.core.metrics.counters import Histogram

TICK_S = 0.1
"""Seconds between ticks.  Ten timers a second cost about 100 us of CPU time, and as much for reading the kernel's file.
"""
IDLE_TICKS = 600
"""Ticks over which the idle share is averaged, exponentially: a minute, as in Kafka's one-minute rate."""


class ThreadLoad:
    """Seconds in which the thread that created this has run, or has waited for a processor.

    The wait counts (``/proc/PID/task/TID/schedstat`` of Linux). A process with a used-up quota of its container, or
    with shared processors, gets less than a processor, and is not idle because of it. On a system without that file
    only the time in which the thread has run counts.
    """

    def __init__(self, path: str = "/proc/thread-self/schedstat") -> None:
        self._file: int | None
        try:
            # Resolved here: the path would lead another thread to its own file.
            self._file = os.open(os.path.realpath(path), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = None

    def __repr__(self) -> str:
        return f"<ThreadLoad by {'thread_time' if self._file is None else 'schedstat'}>"

    def __call__(self) -> float:
        if self._file is None:
            return time.thread_time()
        ran_ns, waited_ns, _ = os.pread(self._file, 128, 0).split()
        return (int(ran_ns) + int(waited_ns)) / 1e9

    def close(self) -> None:
        """Close the file.  Idempotent; later calls return the time in which the calling thread has run."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


class LoopMeter:
    """A meter of the running loop, between ``start`` and ``stop``.

    ``delay_ms`` counts the delay of the ticks: every callback that becomes ready meanwhile waits as long.  ``idle`` is
    the share of time in which the loop's thread had nothing to do, from 0 to 1: ``load`` returns its busy seconds.
    """

    def __init__(self, tick_s: float = TICK_S, load: Callable[[], float] = time.thread_time) -> None:
        self.delay_ms = Histogram()
        self.idle = 1.0
        self._tick_s = tick_s
        self._load = load
        self._timer: asyncio.TimerHandle | None = None
        self._due = self._ticked = self._used = 0.0

    def __repr__(self) -> str:
        return f"<LoopMeter idle={self.idle:.3f} {self.delay_ms!r}>"

    def start(self) -> None:
        """Begin to measure."""
        loop = asyncio.get_running_loop()
        self._ticked, self._used = loop.time(), self._load()
        self._arm(loop)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = loop.time() + self._tick_s
        self._timer = loop.call_at(self._due, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        now, used = loop.time(), self._load()
        self.delay_ms.observe(max(0.0, now - self._due) * 1000)
        passed = now - self._ticked
        if passed > 0:
            share = min(1.0, max(0.0, 1 - (used - self._used) / passed))
            weight = min(1.0, passed / (self._tick_s * IDLE_TICKS))
            self.idle += (share - self.idle) * weight
        self._ticked, self._used = now, used
        self._arm(loop)
