"""Recent lag of groups: small rings in the memory of their coordinator, for the console's charts.

Pure: the caller counts the lag and reads the clock.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypedDict

INTERVAL_MS = 15_000
SAMPLES_MAX = 240
"""Samples of an hour, in 4 kB a group."""
KEPT_MS = INTERVAL_MS * SAMPLES_MAX


class LagSample(NamedTuple):
    """A group's lag at one time."""

    time_ms: int
    lag: int
    """Lag in records, over all partitions with committed offsets."""


class LagSampleFacts(TypedDict):
    """A group's lag at one time, as JSON."""

    time_ms: int
    lag: int


class LagHistoryFacts(TypedDict):
    """The samples of one group in the order of time."""

    group_id: str
    interval_ms: int
    samples: Sequence[LagSampleFacts]
    error: str
    """Reason why there are no samples; "" if the group's lag is sampled."""


class LagHistory:
    """Rings of one coordinator's groups.  A group that is no longer counted is dropped within the hour."""

    def __init__(self) -> None:
        self._rings: dict[str, array[int]] = {}  # times and lags in turn

    def __repr__(self) -> str:
        return f"<LagHistory of {len(self._rings)} groups>"

    def __len__(self) -> int:
        return len(self._rings)

    def add(self, now_ms: int, lags: Mapping[str, int]) -> None:
        """Add one sample of each group, and drop groups whose last sample is older than an hour."""
        for group, lag in lags.items():
            ring = self._rings.setdefault(group, array("q"))
            ring.append(now_ms)
            ring.append(lag)
            del ring[: -2 * SAMPLES_MAX]
        for group in [group for group, ring in self._rings.items() if not 0 <= now_ms - ring[-2] <= KEPT_MS]:
            del self._rings[group]

    def since(self, group: str, after_ms: int) -> list[LagSample]:
        """Return the samples of a group that are newer than ``after_ms``."""
        ring = self._rings.get(group, ())
        pairs = (LagSample(*ring[at : at + 2]) for at in range(0, len(ring), 2))
        return [sample for sample in pairs if sample.time_ms > after_ms]
