"""The backlog of an open loop, and whether it grows: then the load is more than the servers can take.  Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

GROWN_S = 0.1
"""A backlog of less than so many seconds of load is none: a pause of a collector is as long."""
GROWTH = 1.5
LOOKS = 20
"""How often a quarter of the run is looked at."""
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Growth:
    """The least backlog in the second and in the last quarter of a run, in seconds of its load.

    The least and not the mean: a backlog that was worked off once in a quarter was a pause, and does not grow.
    """

    before_s: float
    after_s: float

    @property
    def is_saturated(self) -> bool:
        """True if the backlog grew."""
        return self.after_s > GROWN_S and self.after_s > GROWTH * self.before_s


def backlog(due: Floats, done: Floats, at: float) -> int:
    """Return how many records were due and not done at this time; ``done`` is nan for what was never done."""
    return int(np.count_nonzero(due <= at)) - int(np.count_nonzero(done <= at))


def growth(due: Floats, done: Floats) -> Growth:
    """Return the growth of the backlog over the run, from the first record due to the last."""
    begun, length = float(due[0]), float(due[-1] - due[0])
    records_s = (len(due) - 1) / length

    def least(quarter: int) -> float:
        times = begun + length * (quarter + (np.arange(LOOKS) + 1) / LOOKS) / 4
        return min(backlog(due, done, float(at)) for at in times) / records_s

    return Growth(least(1), least(3))
