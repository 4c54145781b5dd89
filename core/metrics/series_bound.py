"""A bound on a metric's series, where more keys want series of their own than a scrape should carry.  Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from heapq import nlargest
from itertools import chain
from typing import Generic, TypeVar

from bmq.core.aio.steps import Steps, batched, finish_steps

KEYS_PER_STEP = 10_000
"""Keys of one step.  A step takes some milliseconds."""
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
        return finish_steps(self.choose_in_steps(values, costs))

    def choose_in_steps(self, values: Mapping[K, float], costs: Mapping[K, int] | None = None) -> Steps[set[K]]:
        """Return the keys as ``choose`` does, in steps of ``KEYS_PER_STEP``.

        ``values`` and ``costs`` must not change meanwhile.
        """
        shown = {key for key in self._shown if key in values}
        room = self.limit - sum(1 if costs is None else costs[key] for key in shown)
        if room < 0:  # shown keys have grown
            shown, room = set(), self.limit
        largest: list[K] = []
        for part in batched(values, KEYS_PER_STEP) if room else ():
            waiting = (key for key in part if key not in shown)
            largest = nlargest(room if costs is None else self.limit, chain(largest, waiting), key=values.__getitem__)
            yield
        for key in largest:
            cost = 1 if costs is None else costs[key]
            if cost <= room:
                shown.add(key)
                room -= cost
        self._shown = shown
        return set(shown)
