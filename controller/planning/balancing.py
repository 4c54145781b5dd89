"""Balancing: partitions at rest by their number, partitions with a load by their load.  Pure.

Balancing never evens out one of the two at the cost of the other.  Otherwise a burst on a broker would move partitions
at rest away from the broker, and the end of the burst would bring them back::

    counts     all partitions of a broker        moved: partitions at rest
    loads      bytes and requests that last      moved: partitions with a load, the one that evens out most
    counts     once loads are even               moved: the lightest partitions with a load

Each goes from the broker with the most to the broker with the least.  A broker that cannot give any away (a single
partition is its load) is set aside, and the others are evened out among themselves.

A partition with a load moves only after unevenness of ``UNEVEN_S``, during which every plan found a move that helps.
Partitions at rest all weigh the same, so any of them will do, and none is searched for before one is needed.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

from bmq.controller.planning.balance_state import BalanceState
from bmq.controller.planning.planner_view import Move, PlannerBroker, PlannerView, Why
from bmq.controller.planning.rates import NO_RATE
from bmq.controller.planning.scores import LoadWeights
from bmq.core.model import PartitionKey

START, STOP = 0.15, 0.075
"""Counts are evened out when a broker's differs from the mean by ``START`` of the mean, until all are within ``STOP``.
Half of it: a cluster just balanced is far from beginning again."""
LOAD_START, LOAD_STOP = 0.12, 0.06
"""The same for loads.  Bytes are five eighths of a load: alone they then differ by 19 %, and must stay within 20 %."""
HELPS = 0.9
"""A move may carry at most this part of the difference between two brokers: more would only swap them."""
UNEVEN_S = 120.0
"""Time for which loads must be uneven before a partition with a load moves.

A load itself counts only after minutes (``lasting_loads``), so it is five minutes from a change of the load to the
first move.
"""
WEIGHED_PER_STEP = 1_000
"""Partitions with traffic, weighed in one step."""

_Weighed = tuple[int, int, int, int, PartitionKey]
"""Weight, order among equals, topic, partition."""
_Moves = Generator[list[Move], None, bool]
_Choice = Generator[list[Move], None, Move | None]


@dataclass(slots=True)
class _Source:
    """The partitions that a broker could give away.  ``idle`` is None until one is searched for."""

    weighed: list[_Weighed] = field(default_factory=list)
    idle: PartitionKey | None = None
    has_idle: bool = True


class Balance:
    """The balancing of one plan."""

    def __init__(self, view: PlannerView, targets: Sequence[PlannerBroker], now: float) -> None:
        self._view = view
        self._now = now
        state, since = view.balance, view.balance.uneven_since
        self._state = state
        self._may_move_loads = state.evens_loads or (since is not None and now - since >= UNEVEN_S)
        self._is_uneven = False
        self._names = [broker.incarnation for broker in targets if view.is_settled(broker.incarnation, now)]
        owners = view.owners
        self._counts = {name: owners.count(name) for name in self._names}
        self._idle_counts = {name: self._counts[name] - len(owners.lasting.of(name)) for name in self._names}
        self._idle_mean = sum(self._idle_counts.values()) / max(1, len(self._names))
        self._weights = LoadWeights(owners.lasting.total, len(view.brokers))
        self._loads = {name: self._weights.of_sum(owners.lasting.sum_of(name)) for name in self._names}
        self._sources: dict[str, _Source] = {}
        self._searched: set[str] = set()
        self._moved: set[PartitionKey] = set()

    def run(self, budget: int) -> Generator[list[Move], None, BalanceState]:
        """Yield up to ``budget`` moves, and empty lists where a step of bounded work ends.  Returns the new state."""
        has_more_counts = yield from self._even_counts(budget, self._move_idle, self._lacks_idle)
        has_more_loads = yield from self._even_loads(budget)
        if not has_more_loads and not self._is_uneven:
            has_more_counts |= yield from self._even_counts(budget, self._move_lightest, lambda _: True)
        since = self._state.uneven_since
        if not self._is_uneven:
            since = None
        elif since is None:
            since = self._now
        return BalanceState(has_more_counts, has_more_loads, since)

    # ------------------------------------------------------------------------------------------------------- counts

    def _even_counts(
        self, budget: int, choose: Callable[[str, str, Sequence[str]], _Choice], may_take: Callable[[str], bool]
    ) -> _Moves:
        """Even out the numbers of partitions, by moves that ``choose`` finds, to brokers that ``may_take`` them.

        Returns whether there is more to do.
        """
        counts = self._counts
        limit = STOP if self._state.evens_counts else START
        active = list(self._names)
        while len(active) > 1 and _unevenness(counts, active) > limit:
            top = max(active, key=counts.__getitem__)
            bottom = min(filter(may_take, active), key=counts.__getitem__, default=top)
            if counts[top] - counts[bottom] < 2:
                return False
            if len(self._moved) >= budget:
                return True
            move = yield from choose(top, bottom, active)
            if move is None:
                active.remove(top)
                yield []  # a step costs time by the number of brokers, all of which may be set aside
                continue
            yield [move]
            limit = STOP
        return False

    def _lacks_idle(self, name: str) -> bool:
        """Return whether the broker has less than its share of partitions at rest.

        With few partitions and its share, it lacks some with a load, which a new broker gets later.
        """
        return self._idle_counts[name] < self._idle_mean

    def _move_idle(self, top: str, bottom: str, active: Sequence[str]) -> _Choice:
        """Return the move of a partition at rest; None if ``top`` has none."""
        source = yield from self._source(top)
        key = yield from self._idle(top, source, active)
        if key is None:
            return None
        source.idle = None
        self._idle_counts[top] -= 1
        self._idle_counts[bottom] += 1
        return self._move(key, top, bottom, 0)

    def _move_lightest(self, top: str, bottom: str, active: Sequence[str]) -> _Choice:
        """Return the move of the lightest partition with a load; None if it makes loads uneven, or is too early."""
        source = yield from self._source(top)
        if not source.weighed:
            return None
        weight, *_, key = source.weighed[0]
        surplus = (self._loads[bottom] + weight) - (self._loads[top] - weight)
        if surplus > LOAD_START * self._weights.even:
            return None
        if not self._may_move_loads:
            self._is_uneven = True
            return None
        source.weighed.pop(0)
        return self._move(key, top, bottom, weight)

    # -------------------------------------------------------------------------------------------------------- loads

    def _even_loads(self, budget: int) -> _Moves:
        """Even out the loads that last.  Returns whether there is more to do."""
        loads = self._loads
        limit = LOAD_STOP if self._state.evens_loads else LOAD_START
        active = list(self._names)
        while len(active) > 1 and self._load_unevenness(active) > limit:
            if len(self._moved) >= budget:
                return True
            top, bottom = max(active, key=loads.__getitem__), min(active, key=loads.__getitem__)
            source = yield from self._source(top)
            at = _best(source.weighed, loads[top] - loads[bottom])
            if at is None:
                active.remove(top)
                yield []
                continue
            if not self._may_move_loads:
                self._is_uneven = True
                return False
            weight, *_, key = source.weighed.pop(at)
            yield [self._move(key, top, bottom, weight)]
            limit = LOAD_STOP
        return False

    def _load_unevenness(self, active: Sequence[str]) -> float:
        """Return the largest distance of a load from the mean, as a part of an even share of all load.

        Where traffic is small (``scores.BYTES_FLOOR_S``), all loads are small parts of a share, and none is uneven.
        """
        found = [self._loads[name] for name in active]
        mean = sum(found) / len(found)
        return max(max(found) - mean, mean - min(found)) / self._weights.even

    # -------------------------------------------------------------------------------------------------- the sources

    def _move(self, key: PartitionKey, top: str, bottom: str, weight: int) -> Move:
        self._counts[top] -= 1
        self._counts[bottom] += 1
        self._loads[top] -= weight
        self._loads[bottom] += weight
        self._moved.add(key)
        return Move(key, top, bottom, Why.BALANCE)

    def _source(self, owner: str) -> Generator[list[Move], None, _Source]:
        """Return what ``owner`` could give away: its partitions with traffic, lightest first."""
        source = self._sources.get(owner)
        if source is None:
            source = self._sources[owner] = _Source()
            lasting = self._view.owners.lasting.of(owner)
            for number, (key, rate) in enumerate(list(lasting.items()), 1):
                if self._view.may_balance(key, self._now):
                    weight = self._weights.of(rate)
                    source.weighed.append((weight, _shuffled(key), key.topic_id.int, key.partition, key))
                if number % WEIGHED_PER_STEP == 0:
                    yield []
            source.weighed.sort()
        return source

    def _idle(
        self, owner: str, source: _Source, active: Sequence[str]
    ) -> Generator[list[Move], None, PartitionKey | None]:
        """Return one of the owner's partitions at rest; None if it has none."""
        if source.idle is None and source.has_idle:
            source.idle = self._take_idle(owner)
            if source.idle is None and owner not in self._searched and self._idle_counts[owner] > 0:
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
        mean = sum(self._counts[name] for name in active) / len(active)
        return frozenset(name for name in active if self._counts[name] >= mean)

    def _is_movable(self, key: PartitionKey) -> bool:
        """Return whether a partition without a lasting load may be moved: not if its traffic may be a lasting load."""
        view = self._view
        is_known = view.knows_loads or view.owners.rate(key) == NO_RATE
        return is_known and key not in self._moved and view.may_balance(key, self._now)


def _unevenness(parts: dict[str, int], names: Sequence[str]) -> float:
    """Return the largest distance of a part from the mean, as a part of the mean."""
    found = [parts[name] for name in names]
    mean = sum(found) / len(found)
    return max(max(found) - mean, mean - min(found)) / mean if mean > 0 else 0.0


def _best(weighed: Sequence[_Weighed], difference: int) -> int | None:
    """Return the place of the partition that evens two brokers out most: the nearest to half their difference.

    None if no partition would help.
    """
    most = HELPS * difference
    middle = bisect_right(weighed, difference / 2, key=lambda each: each[0])
    near = [at for at in (middle - 1, middle) if 0 <= at < len(weighed) and 0 < weighed[at][0] <= most]
    return max(near, key=lambda at: weighed[at][0] * (difference - weighed[at][0]), default=None)


def _shuffled(key: PartitionKey) -> int:
    """Return the rank of a partition among partitions of equal weight, in an order that mixes topics."""
    return zlib.crc32(key.partition.to_bytes(4, "big"), zlib.crc32(key.topic_id.bytes))
