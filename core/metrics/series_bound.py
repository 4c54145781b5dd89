"""A bound on a metric's series, where more keys want series of their own than a scrape should carry.  Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from heapq import nlargest
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class SeriesBound(Generic[K]):
    """The keys that have series of their own, ``limit`` series in all.

    A key keeps its series for as long as it exists: series that come and go cost a time series database most, and leave
    gaps in graphs.  Free room goes to the keys with the largest values.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._shown: set[K] = set()

    def __repr__(self) -> str:
        return f"<SeriesBound {len(self._shown)} keys, at most {self.limit} series>"

    def choose(self, values: Mapping[K, float], costs: Mapping[K, int] | None = None) -> set[K]:
        """Return the keys of ``values`` that are shown.  ``costs`` are the series of each key; 1 if it is not given."""
        shown = {key for key in self._shown if key in values}
        room = self.limit - sum(1 if costs is None else costs[key] for key in shown)
        if room < 0:  # shown keys have grown
            return self._choose_again(values, costs)
        waiting = [key for key in values if key not in shown]
        for key in nlargest(self.limit, waiting, key=values.__getitem__):
            cost = 1 if costs is None else costs[key]
            if cost <= room:
                shown.add(key)
                room -= cost
        self._shown = shown
        return set(shown)

    def _choose_again(self, values: Mapping[K, float], costs: Mapping[K, int] | None) -> set[K]:
        self._shown = set()
        return self.choose(values, costs)
