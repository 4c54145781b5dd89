"""Balancing: moves from the broker with the highest score to the one with the lowest, the best partition first.  Pure.

A broker whose load cannot be reduced (a single partition causes it) is set aside, and the others are balanced among
themselves.  Partitions with traffic are weighed one by one.  Partitions at rest all have the same weight, so any of
them will do, and none is searched for before one is needed.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from bmq.controller.planning.planner_view import Move, PlannerView, Why
from bmq.controller.planning.scores import Scores
from bmq.core.model import PartitionKey

START = 0.15
"""Balancing begins when a broker's score differs from the mean by this part of the mean.  Traffic is up to 0.8 of a
score and partitions may be even already: bytes alone then differ by some 19 %, and must stay within 20 %."""
STOP = 0.075
"""Balancing ends when all scores are within this.  Half of ``START``: a cluster just balanced is far from beginning
again."""
HELPS = 0.9
"""A move may carry at most this part of the difference between two brokers: more would only swap them."""
WEIGHED_PER_STEP = 1_000
"""Partitions with traffic that are weighed in one step."""

_Rated = tuple[int, int, int, int, PartitionKey]
"""Weight, order among equals, topic, partition."""


@dataclass(slots=True)
class _Source:
    """The partitions that one broker could give away.  ``idle`` is None until one is searched for."""

    rated: list[_Rated] = field(default_factory=list)
    idle: PartitionKey | None = None
    has_idle: bool = True


class Balance:
    """The balancing of one plan."""

    def __init__(self, view: PlannerView, scores: Scores, now: float) -> None:
        self._view = view
        self._scores = scores
        self._now = now
        self._sources: dict[str, _Source] = {}
        self._searched: set[str] = set()
        self._moved: set[PartitionKey] = set()

    def run(self, budget: int) -> Generator[list[Move], None, bool]:
        """Yield up to ``budget`` moves, and empty lists where a step of bounded work ends.

        Returns whether there is more to do.
        """
        limit = STOP if self._view.is_balancing else START
        active, done = list(self._scores.targets), 0
        if self._imbalance(active) <= limit:
            return False
        scores = self._scores.scores
        while len(active) > 1 and self._imbalance(active) > limit:
            if done == budget:
                return True
            top = max(active, key=scores.__getitem__)
            bottom = min(active, key=scores.__getitem__)
            found = yield from self._best(top, scores[top] - scores[bottom], active)
            if found is None:
                active.remove(top)
                continue
            key, weight = found
            self._scores.moved(top, bottom, weight)
            self._moved.add(key)
            yield [Move(key, top, bottom, Why.BALANCE)]
            done, limit = done + 1, STOP
        return False

    def _imbalance(self, names: Sequence[str]) -> float:
        found = [self._scores.scores[name] for name in names]
        mean = sum(found) / len(found)
        return max(max(found) - mean, mean - min(found)) / mean if mean > 0 else 0.0

    def _best(
        self, top: str, difference: int, active: Sequence[str]
    ) -> Generator[list[Move], None, tuple[PartitionKey, int] | None]:
        """Return the partition that evens two brokers out most, with its weight: the nearest to half their difference.

        Returns None if no partition of ``top`` would help.
        """
        source = self._sources.get(top)
        if source is None:
            source = self._sources[top] = _Source((yield from self._weigh(top)))
        most = HELPS * difference
        middle = bisect_right(source.rated, difference / 2, key=lambda each: each[0])
        near = [at for at in (middle - 1, middle) if 0 <= at < len(source.rated) and source.rated[at][0] <= most]
        best = max(near, key=lambda at: source.rated[at][0] * (difference - source.rated[at][0]), default=None)
        evened = 0 if best is None else source.rated[best][0] * (difference - source.rated[best][0])
        at_rest = self._scores.at_rest
        if at_rest <= most and at_rest * (difference - at_rest) > evened:
            idle = yield from self._idle(top, source, active)
            if idle is not None:
                source.idle = None
                return idle, at_rest
        if best is None:
            return None
        weight, *_, key = source.rated.pop(best)
        return key, weight

    def _weigh(self, owner: str) -> Generator[list[Move], None, list[_Rated]]:
        """Return the owner's partitions that have traffic, lightest first, without those that have just moved."""
        found: list[_Rated] = []
        for number, (key, rate) in enumerate(list(self._view.owners.rates_of(owner).items()), 1):
            if self._view.may_balance(key, self._now):
                weight = self._scores.weight_of(rate)
                found.append((weight, _shuffled(key), key.topic_id.int, key.partition, key))
            if number % WEIGHED_PER_STEP == 0:
                yield []
        found.sort()
        return found

    def _idle(
        self, owner: str, source: _Source, active: Sequence[str]
    ) -> Generator[list[Move], None, PartitionKey | None]:
        """Return one of the owner's partitions at rest; None if it has none."""
        if source.idle is None and source.has_idle:
            source.idle = self._take_idle(owner)
            if source.idle is None and owner not in self._searched:
                owners = self._above_mean(active)
                self._searched |= owners
                for _ in self._view.idle.search(self._view.owners, owners, self._is_movable):
                    yield []
                source.idle = self._take_idle(owner)
            source.has_idle = source.idle is not None
        return source.idle

    def _take_idle(self, owner: str) -> PartitionKey | None:
        return self._view.idle.take(self._view.owners, owner, self._is_movable)

    def _above_mean(self, active: Sequence[str]) -> frozenset[str]:
        """Return the brokers that may have to give partitions away."""
        scores = self._scores.scores
        mean = sum(scores[name] for name in active) / len(active)
        return frozenset(name for name in active if scores[name] >= mean)

    def _is_movable(self, key: PartitionKey) -> bool:
        return key not in self._moved and self._view.may_balance(key, self._now)


def _shuffled(key: PartitionKey) -> int:
    """Return the rank of a partition among those of equal weight, in an order that mixes topics."""
    return zlib.crc32(key.partition.to_bytes(4, "big"), zlib.crc32(key.topic_id.bytes))
