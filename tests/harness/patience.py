"""A time-out of the wall clock that a machine's own standstill does not use up."""

from __future__ import annotations

import time
from collections.abc import Callable

STEP_S = 1.0
"""Most that the time between two looks counts for: every loop that waits looks far more often."""


class Patience:
    """A limit of ``limit_s`` seconds for a loop that waits and looks each time whether its limit is over.

    A machine that stands still, as a virtual machine does whose host is busy, takes the waiting loop and the processes
    that it waits for along.  Then a look comes late, and counts for `STEP_S`.  Where only the others stand still, looks
    are punctual, and the limit is that of the clock.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit_s = limit_s
        self.spent_s = 0.0
        self.lost_s = 0.0
        """Time in which this process stood still, in seconds: it does not count."""
        self._clock = clock
        self._looked_at = clock()

    def is_over(self) -> bool:
        now = self._clock()
        passed, self._looked_at = now - self._looked_at, now
        self.spent_s += min(passed, STEP_S)
        self.lost_s += max(passed - STEP_S, 0.0)
        return self.spent_s >= self.limit_s

    def __str__(self) -> str:
        lost = f" of its own, and {self.lost_s:.1f} s in which this machine stood still" if self.lost_s else ""
        return f"{self.spent_s:.1f} s{lost}"
