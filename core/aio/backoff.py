"""Exponential back-off: pauses that double, as Kafka's ``ExponentialBackoff`` with multiplier 2.  Pure."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

N = TypeVar("N", int, float)
_DOUBLINGS_MAX = 32  # a count of failures may grow without end, but floats do not: 2.0 ** 1024 is an OverflowError


@dataclass(frozen=True, slots=True)
class Backoff(Generic[N]):
    """Pauses of ``least`` after the first failure, twice as long after each further one, and of ``most`` at most.

    The bounds and the pauses are in the unit of the user.
    """

    least: N
    most: N

    def pause(self, failures: int) -> N:
        """Return the pause after ``failures`` tries in a row that failed; 0 if none did."""
        return min(self.least * (1 << min(failures - 1, _DOUBLINGS_MAX)), self.most) if failures > 0 else 0

    def half_random(self, failures: int, chance: Callable[[], float] = random.random) -> float:
        """Return the pause, half of it by ``chance``, which gives numbers in [0, 1).

        For processes that fail together and would come back together: clients of one server, say.
        """
        return self.pause(failures) * (0.5 + 0.5 * chance())
