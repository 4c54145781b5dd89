"""Time as an argument: wall time for records, a boot clock for leases and deadlines."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

# Unlike CLOCK_MONOTONIC, CLOCK_BOOTTIME goes on while the machine is suspended: a lease must not look young after a
# resume.  Where the name is missing (macOS), CLOCK_MONOTONIC counts suspended time itself.
_BOOT_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """A source of both times, replaced by a virtual one in simulations."""

    def now_ms(self) -> int:
        """Return the wall time, milliseconds since 1970 UTC.  It may jump either way: for record timestamps only."""

    def monotonic(self) -> float:
        """Return the seconds since some fixed moment of this machine's run.

        Never goes back, and counts the time in which the machine is suspended.
        """


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.clock_gettime(_BOOT_CLOCK)


class LoopClock:
    """Both times taken from the running loop, so that a simulation's virtual time is the only time.

    ``epoch_ms`` is the wall time at the loop's zero; give two processes different ones to skew their clocks. Its
    methods raise RuntimeError outside a running loop.
    """

    def __init__(self, epoch_ms: int = 1_700_000_000_000) -> None:
        self._epoch_ms = epoch_ms

    def now_ms(self) -> int:
        return self._epoch_ms + int(self.monotonic() * 1000)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()
