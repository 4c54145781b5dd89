"""The verdict about a figure that was sampled over hours: does it rise?  Pure.

Only the last half counts: caches and histories fill up first.  The line through it is that of the median of all
slopes between two samples (Theil and Sen), which a few outliers do not move.  Beside it stands the spread of the
samples around the line, from the tenth to the ninetieth percentile.  A figure rises if the line does by more than
that spread; what rises by less cannot be told from noise, and the verdict says how much that would be a day.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

DAY_S = 86_400.0
SAMPLES_LEAST = 8
"""Samples in the last half: fewer say nothing."""


@dataclass(frozen=True, slots=True)
class Trend:
    """The line through the last half of the samples."""

    rise_day: float
    """How much the line rises a day; negative if it falls."""
    unseen_day: float
    """The rise a day that would be lost in the spread."""

    @property
    def verdict(self) -> str:
        """ "rises", "falls", or "steady" if the line moves by no more than the spread."""
        if abs(self.rise_day) <= self.unseen_day:
            return "steady"
        return "rises" if self.rise_day > 0 else "falls"


def trend(times_s: Sequence[float], values: Sequence[float]) -> Trend | None:
    """Return the trend of a figure; None if too few samples are in the last half of the time."""
    if not times_s:
        return None
    middle = (times_s[0] + times_s[-1]) / 2
    pairs = [(at, value) for at, value in zip(times_s, values, strict=True) if at >= middle]
    if len(pairs) < SAMPLES_LEAST or pairs[-1][0] == pairs[0][0]:
        return None
    at, value = (np.asarray(column, dtype=np.float64) for column in zip(*pairs, strict=True))
    first, then = np.triu_indices(len(pairs), 1)
    apart = at[then] != at[first]
    slope = float(np.median(((value[then] - value[first])[apart]) / (at[then] - at[first])[apart]))
    low, high = np.percentile(value - slope * at, (10, 90))
    span_s = float(at[-1] - at[0])
    return Trend(slope * DAY_S, float(high - low) / span_s * DAY_S)
