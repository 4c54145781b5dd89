"""Who is to own what: the cluster as it is -> the moves that make it better.  Pure, and the same for the same input.

In this order, and balance only when nothing else is to do:

1. partitions that nobody owns, and those of brokers that are gone: all at once;
2. those of brokers that drain, do not serve, or that most proxies cannot reach: a bounded number under way at a time;
3. balance: from the fullest broker to the emptiest, the partition that helps most.

A broker's **score** is its share of all bytes, requests and partitions, weighted; the scores of all add up to 1.  What
is little traffic at all counts as partitions instead, so that an idle cluster is not rearranged by noise.  Every
balance move makes the sum of squared scores smaller by a set part of the difference that it evens out, so a sequence
of them ends and cannot come back to where it was.
"""

from __future__ import annotations

import heapq
import math
import uuid
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import NamedTuple

from bmq.core.model import PartitionKey

START = 0.15
"""Balance begins when a broker's score is this far from the mean, as a part of it.  Traffic is up to 0.8 of a score and
partitions may be even already: bytes alone are then some 19 % off, and are to stay within 20 %."""
STOP = 0.075
"""It ends when all are within this.  Half of ``START``: a cluster just balanced is far from beginning again."""
UNDER_WAY_MAX = 64
"""Moves of drain and balance under way at once: a hand-over is some tens of milliseconds of a broker's flushes, and
what is under way does not acknowledge meanwhile."""
COOL_DOWN_S = 60.0
"""A partition that balance has moved stays that long: its clients have just found it again."""
HELPS = 0.9
"""A move may carry at most this part of the difference between two brokers: more would only swap them."""

BYTES_WEIGHT, REQUESTS_WEIGHT = 0.5, 0.3
"""The rest is by partitions.  Bytes cost a broker most (checksums, three datanodes), then requests; a partition at
rest still costs memory and a file now and then."""
BYTES_FLOOR_S, REQUESTS_FLOOR_S = 1_000_000.0, 100.0
"""Traffic a broker on average below which its weight shrinks in proportion: that little is no load."""

WHOLE = 10**12
"""The scores of all brokers together."""
SHARDS = uuid.UUID(int=0)
"""The shards of coordinators are planned as partitions of this topic, which is none."""


class Broker(NamedTuple):
    """A living one."""

    incarnation: str
    zone: str = ""
    is_draining: bool = False


class Rate(NamedTuple):
    """Of one partition, smoothed."""

    bytes_s: float
    requests_s: float


_NO_RATE = Rate(0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerView:
    """``owners`` has every partition that there is, "" for those without an owner.  An owner that is not among
    ``brokers`` is dead.

    ``unreachable``: how many of the ``proxies`` cannot reach a broker.  ``stalled``: brokers that do not serve.
    ``resting``: those that serve again, and are not to be given anything yet.  ``moved_at``: when balance moved a
    partition last.  ``under_way``: moves that are not finished.  ``is_balancing`` is what the last plan said.
    """

    brokers: Sequence[Broker]
    owners: Mapping[PartitionKey, str]
    rates: Mapping[PartitionKey, Rate] = field(default_factory=dict)
    unreachable: Mapping[str, int] = field(default_factory=dict)
    proxies: int = 0
    stalled: Set[str] = frozenset()
    resting: Set[str] = frozenset()
    moved_at: Mapping[PartitionKey, float] = field(default_factory=dict)
    under_way: int = 0
    is_balancing: bool = False


class Why(Enum):
    """What a move is for."""

    UNASSIGNED = "unassigned"
    DEAD = "dead"
    DRAIN = "drain"
    STALLED = "stalled"
    UNREACHABLE = "unreachable"
    BALANCE = "balance"
    ASKED = "asked"


class Move(NamedTuple):
    key: PartitionKey
    source: str
    target: str
    why: Why


class Moves(NamedTuple):
    """``is_balancing``: balance has more to do, and goes on down to ``STOP``."""

    moves: Sequence[Move]
    is_balancing: bool


def plan(view: PlannerView, now: float) -> Moves:
    """The moves to make now.  Empty when all is well, or when there is nobody to move anything to."""
    targets = _targets(view)
    if not targets:
        return Moves([], False)
    table = _Table(view, targets)
    orphans, leaving = _displaced(view, targets)
    budget = max(0, UNDER_WAY_MAX - view.under_way)
    moves = table.place(orphans) + table.place(leaving[:budget])
    if moves or leaving:
        return Moves(moves, view.is_balancing)
    return table.balance(view, now, budget)


def scores(view: PlannerView) -> dict[str, float]:
    """Each living broker's share of the load, for people to look at."""
    brokers = sorted(view.brokers)
    return {name: score / WHOLE for name, score in _Table(view, brokers).scores.items()} if brokers else {}


def _targets(view: PlannerView) -> list[Broker]:
    """Who may be given something, in the order that breaks ties: round the zones, so that neighbours lie apart.

    Only the best there are: with nobody better, one that does not serve keeps what it has, and is given the rest."""
    able = [broker for broker in view.brokers if not broker.is_draining]
    best = min((_fitness(view, broker.incarnation) for broker in able), default=_Fitness.FIT)
    chosen = [broker for broker in able if _fitness(view, broker.incarnation) is best]
    of_zone: Counter[str] = Counter()
    ranked: list[tuple[int, Broker]] = []
    for broker in sorted(chosen):
        ranked.append((of_zone[broker.zone], broker))
        of_zone[broker.zone] += 1
    return [broker for _, broker in sorted(ranked, key=lambda each: (each[0], each[1].zone))]


class _Fitness(IntEnum):
    """To be given something: the least is the best."""

    FIT = 0
    RESTING = 1
    UNREACHABLE = 2
    STALLED = 3


def _fitness(view: PlannerView, incarnation: str) -> _Fitness:
    if incarnation in view.stalled:
        return _Fitness.STALLED
    if view.unreachable.get(incarnation):
        return _Fitness.UNREACHABLE
    return _Fitness.RESTING if incarnation in view.resting else _Fitness.FIT


def _displaced(view: PlannerView, targets: Sequence[Broker]) -> tuple[list[Move], list[Move]]:
    """(those without a living owner, those whose owner is to be emptied), targets still to be found; nobody's first,
    and then those with most traffic, since clients wait for them: at rest ten thousand may take their time."""
    living = {broker.incarnation for broker in view.brokers}
    kept = {broker.incarnation for broker in targets}  # out of reach, or stalled, yet nobody is better
    emptied = {broker.incarnation: Why.DRAIN for broker in view.brokers if broker.is_draining}
    for incarnation in view.stalled & (living - kept):
        emptied.setdefault(incarnation, Why.STALLED)
    for incarnation, count in view.unreachable.items():
        if 2 * count > view.proxies and incarnation in living - kept:
            emptied.setdefault(incarnation, Why.UNREACHABLE)
    orphans: list[Move] = []
    leaving: list[Move] = []
    for key, owner in view.owners.items():
        if not owner:
            orphans.append(Move(key, "", "", Why.UNASSIGNED))
        elif owner not in living:
            orphans.append(Move(key, owner, "", Why.DEAD))
        elif owner in emptied:
            leaving.append(Move(key, owner, "", emptied[owner]))
    orphans.sort(key=lambda move: (move.why is Why.DEAD, *_urgency(view, move.key)))
    leaving.sort(key=lambda move: (move.why is Why.UNREACHABLE, *_urgency(view, move.key)))
    return orphans, leaving


def _urgency(view: PlannerView, key: PartitionKey) -> tuple[float, float, int, int]:
    rate = view.rates.get(key, _NO_RATE)
    return -rate.requests_s, -rate.bytes_s, *_order(key)


def _order(key: PartitionKey) -> tuple[int, int]:
    return key.topic_id.int, key.partition


def _shuffled(key: PartitionKey) -> int:
    """The order among equals in which balance takes partitions: not topic by topic, or a new broker would be given
    all of one."""
    return zlib.crc32(key.partition.to_bytes(4, "big"), zlib.crc32(key.topic_id.bytes))


class _Table:
    """Scores, kept while moves are decided.  In whole numbers, so that no order of adding them makes a difference."""

    def __init__(self, view: PlannerView, targets: Sequence[Broker]) -> None:
        self._view = view
        self._targets = [broker.incarnation for broker in targets]
        n = len(view.brokers)
        bytes_s = max(math.fsum(rate.bytes_s for rate in view.rates.values()), n * BYTES_FLOOR_S)
        requests_s = max(math.fsum(rate.requests_s for rate in view.rates.values()), n * REQUESTS_FLOOR_S)
        self._per_byte = BYTES_WEIGHT * WHOLE / bytes_s
        self._per_request = REQUESTS_WEIGHT * WHOLE / requests_s
        measured = sum(self._measured(rate) for rate in view.rates.values())
        self._average = WHOLE // max(1, len(view.owners))
        self._per_partition = max(1, (WHOLE - measured) // max(1, len(view.owners)))
        self.scores = {broker.incarnation: 0 for broker in view.brokers}
        for key, owner in view.owners.items():
            if owner in self.scores:
                self.scores[owner] += self.weight(key)

    def _measured(self, rate: Rate) -> int:
        return round(rate.bytes_s * self._per_byte + rate.requests_s * self._per_request)

    def weight(self, key: PartitionKey) -> int:
        return self._measured(self._view.rates.get(key, _NO_RATE)) + self._per_partition

    # ------------------------------------------------------------------------------------------------------- placing

    def place(self, displaced: Sequence[Move]) -> list[Move]:
        """A target for each.  By score, and by how many of its topic a broker has already, both as multiples of an even
        share: a new topic is spread, though a broker may have room for all of it."""
        by_topic: dict[uuid.UUID, list[Move]] = {}
        for move in displaced:
            by_topic.setdefault(move.key.topic_id, []).append(move)
        counts, totals = self._spread(by_topic.keys())
        placed: list[Move] = []
        for topic, moves in by_topic.items():
            placed += self._place_topic(moves, counts[topic], totals[topic])
        return placed

    def _spread(self, topics: Iterable[uuid.UUID]) -> tuple[dict[uuid.UUID, Counter[str]], Counter[uuid.UUID]]:
        """How many partitions of each of these topics each broker has, and how many there are."""
        counts: dict[uuid.UUID, Counter[str]] = {topic: Counter() for topic in topics}
        totals: Counter[uuid.UUID] = Counter()
        if counts:
            for key, owner in self._view.owners.items():
                if key.topic_id in counts:
                    counts[key.topic_id][owner] += 1
                    totals[key.topic_id] += 1
        return counts, totals

    def _place_topic(self, moves: Sequence[Move], counts: Counter[str], total: int) -> list[Move]:
        # Both multiples of an even share, times what they have in common, which leaves whole numbers.
        heap = [(total * self.scores[name] + WHOLE * counts[name], rank) for rank, name in enumerate(self._targets)]
        heapq.heapify(heap)
        placed: list[Move] = []
        for move in sorted(moves, key=lambda each: -self.weight(each.key)):  # stable: equals stay in their order
            weight = self.weight(move.key)
            if move.why is Why.UNASSIGNED:
                weight = max(weight, self._average)  # its load is not known yet: like the others'
            full, rank = heap[0]
            target = self._targets[rank]
            self.scores[target] += weight
            if move.source in self.scores:
                self.scores[move.source] -= weight
            heapq.heapreplace(heap, (full + total * weight + WHOLE, rank))
            placed.append(move._replace(target=target))
        return placed

    # ----------------------------------------------------------------------------------------------------- balancing

    def balance(self, view: PlannerView, now: float, budget: int) -> Moves:
        """Up to ``budget`` moves.  A broker whose load cannot be helped (one partition makes it) is set aside, and the
        others are balanced among themselves."""
        limit = STOP if view.is_balancing else START
        active = list(self._targets)
        if self._imbalance(active) <= limit:
            return Moves([], False)
        movable = self._movable(now)
        moves: list[Move] = []
        while len(active) > 1 and self._imbalance(active) > limit:
            if len(moves) == budget:
                return Moves(moves, True)
            top = max(active, key=self.scores.__getitem__)
            bottom = min(active, key=self.scores.__getitem__)
            at = _best(movable[top], self.scores[top] - self.scores[bottom])
            if at is None:
                active.remove(top)
                continue
            weight, _, _, _, key = movable[top].pop(at)
            self.scores[top] -= weight
            self.scores[bottom] += weight
            moves.append(Move(key, top, bottom, Why.BALANCE))
            limit = STOP
        return Moves(moves, False)

    def _imbalance(self, names: Sequence[str]) -> float:
        found = [self.scores[name] for name in names]
        mean = sum(found) / len(found)
        return max(max(found) - mean, mean - min(found)) / mean if mean > 0 else 0.0

    def _movable(self, now: float) -> dict[str, list[_Movable]]:
        """What each broker could give away, lightest first; what has just moved is left."""
        lists: dict[str, list[_Movable]] = {name: [] for name in self._targets}
        for key, owner in self._view.owners.items():
            moved_at = self._view.moved_at.get(key)
            if owner in lists and (moved_at is None or now - moved_at >= COOL_DOWN_S):
                lists[owner].append((self.weight(key), _shuffled(key), *_order(key), key))
        for each in lists.values():
            each.sort()
        return lists


_Movable = tuple[int, int, int, int, PartitionKey]


def _best(movable: Sequence[_Movable], difference: int) -> int | None:
    """Where the partition is that evens two brokers out most: the nearest to half of their difference."""
    middle = bisect_right(movable, difference / 2, key=lambda each: each[0])
    near = [at for at in (middle - 1, middle) if 0 <= at < len(movable) and movable[at][0] <= HELPS * difference]
    return max(near, key=lambda at: movable[at][0] * (difference - movable[at][0]), default=None)
