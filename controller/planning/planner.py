"""Who is to own what: the cluster as it is -> the moves that make it better.  Pure, and the same for the same input.

In this order, and balance only when nothing else is to do:

1. partitions that nobody owns, and those of brokers that are gone: all at once;
2. those of brokers that drain, do not serve, or that most proxies cannot reach: a bounded number under way at a time;
3. balance: from the fullest broker to the emptiest, the partition that helps most.

A broker's **score** is its share of all bytes, requests and partitions, weighted; the scores of all add up to 1.  What
is little traffic at all counts as partitions instead, so that an idle cluster is not rearranged by noise.  Every
balance move makes the sum of squared scores smaller by a set part of the difference that it evens out, so a sequence
of them ends and cannot come back to where it was.

A plan is made in steps of bounded work (``plan_in_steps``), and gives moves as it finds them: at a million partitions
the first are written long before the last are planned.  Partitions are gone through only when somebody without a
living owner, or a broker to be emptied, has some: a plan that moves nothing costs as much as there are brokers.
"""

from __future__ import annotations

import heapq
import uuid
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum

from bmq.controller.planning.balancing import Balance
from bmq.controller.planning.planner_view import UNDER_WAY_MAX, WHOLE, Broker, Move, Moves, PlannerView, Why
from bmq.controller.planning.scores import Scores
from bmq.core.model import PartitionKey
from bmq.meta.cluster.assignment import CHUNK

RATED_FIRST_MAX = 5_000
"""Partitions with traffic that are moved before all others, those with most of it first: what clients wait for."""
RATED_PER_STEP = 2_000
CHUNKS_PER_STEP = 256
"""Chunks looked at in one step of a search: some 5 ms if they are full."""


def plan(view: PlannerView, now: float) -> Moves:
    """The moves to make now.  Empty when all is well, or when there is nobody to move anything to."""
    steps, moves = plan_in_steps(view, now), list[Move]()
    while True:
        try:
            moves += next(steps)
        except StopIteration as end:
            return Moves(moves, end.value)


def plan_in_steps(view: PlannerView, now: float) -> Generator[list[Move], None, bool]:
    """The same, a few moves or none at a time, each after a few milliseconds of work; returns ``is_balancing``.

    Between two steps the moves of the steps before may be done in ``view.owners``.
    """
    targets = _targets(view)
    if not targets:
        return False
    scores = Scores(view, targets)
    emptied = _emptied(view, targets)
    has_moved = yield from _Placing(view, scores, _orphaned(view)).run(len(view.owners))
    budget = max(0, UNDER_WAY_MAX - view.under_way)
    has_moved |= yield from _Placing(view, scores, emptied).run(budget)
    if has_moved or any(view.owners.count(name) for name in emptied):
        return view.is_balancing
    return (yield from Balance(view, scores, now).run(budget))


def scores(view: PlannerView) -> dict[str, float]:
    """Each living broker's share of the load, for people to look at."""
    brokers = sorted(view.brokers)
    return {name: score / WHOLE for name, score in Scores(view, brokers).scores.items()} if brokers else {}


# ------------------------------------------------------------------------------------------------------- who gets some


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


# ------------------------------------------------------------------------------------------------------ who loses some


def _orphaned(view: PlannerView) -> dict[str, Why]:
    """The owners that do not live, "" among them, if they have anything."""
    living = {broker.incarnation for broker in view.brokers}
    dead = [owner for owner in view.owners.owners if owner and owner not in living]
    nobody = {"": Why.UNASSIGNED} if view.owners.count("") else {}
    return nobody | dict.fromkeys(sorted(dead), Why.DEAD)


def _emptied(view: PlannerView, targets: Sequence[Broker]) -> dict[str, Why]:
    """The living that are to have nothing.  Out of reach, or stalled, yet with nobody better: they keep theirs."""
    living = {broker.incarnation for broker in view.brokers}
    kept = {broker.incarnation for broker in targets}
    emptied = {broker.incarnation: Why.DRAIN for broker in view.brokers if broker.is_draining}
    for incarnation in sorted(view.stalled & (living - kept)):
        emptied.setdefault(incarnation, Why.STALLED)
    for incarnation, count in view.unreachable.items():
        if 2 * count > view.proxies and incarnation in living - kept:
            emptied.setdefault(incarnation, Why.UNREACHABLE)
    return {name: why for name, why in emptied.items() if view.owners.count(name)}


class _Placing:
    """A target for each partition of some owners: those with traffic first, since clients wait for them, then topic by
    topic."""

    def __init__(self, view: PlannerView, scores: Scores, sources: Mapping[str, Why]) -> None:
        self._view = view
        self._table = view.owners
        self._scores = scores
        self._sources = sources
        self._first: set[PartitionKey] = set()
        self._begun: dict[uuid.UUID, _TopicPlacing] = {}
        self._looked = 0

    def run(self, budget: int) -> Generator[list[Move], None, bool]:
        """Up to ``budget`` moves; whether there were any."""
        left = min(budget, sum(self._table.count(source) for source in self._sources))
        if not left:
            return False
        first = (yield from self._rated())[:left]
        self._first = {move.key for move in first}
        for topic_id, moves in _by_topic(first).items():
            yield self._of_topic(topic_id).place(moves)
        left -= len(first)
        for topic_id in self._topics():
            if left <= 0:
                break
            found = yield from self._at_rest(topic_id, left)
            left -= found
        return True

    def _rated(self) -> Generator[list[Move], None, list[Move]]:
        """Those with traffic, those with most of it first; of too many, only these."""
        found: list[tuple[bool, float, float, int, int, Move]] = []
        for source, why in self._sources.items():
            is_late = why in (Why.DEAD, Why.UNREACHABLE)
            for number, (key, rate) in enumerate(list(self._table.rates_of(source).items()), 1):
                move = Move(key, source, "", why)
                found.append((is_late, -rate.requests_s, -rate.bytes_s, key.topic_id.int, key.partition, move))
                if number % RATED_PER_STEP == 0:
                    found = heapq.nsmallest(RATED_FIRST_MAX, found)
                    yield []
        return [move for *_, move in heapq.nsmallest(RATED_FIRST_MAX, found)]

    def _topics(self) -> Iterator[uuid.UUID]:
        """The topics to look through: all, unless partitions without an owner are all there is to place."""
        unowned = dict(self._table.unowned) if "" in self._sources else {}
        yield from unowned
        if self._sources.keys() - {""}:
            yield from (topic_id for topic_id in self._table.topics if topic_id not in unowned)

    def _at_rest(self, topic_id: uuid.UUID, budget: int) -> Generator[list[Move], None, int]:
        """Place what is left of one topic; how many partitions those are."""
        topic, sources, placed = self._table.topics[topic_id], self._sources, 0
        for number, chunk in enumerate(topic.chunks):
            self._looked += 1
            if self._looked % CHUNKS_PER_STEP == 0:
                yield []
            if sources.keys().isdisjoint(chunk):
                continue
            moves = [
                Move(PartitionKey(topic_id, number * CHUNK + index), owner, "", sources[owner])
                for index, owner in enumerate(chunk)
                if owner in sources
            ]
            moves = [move for move in moves if move.key not in self._first][: budget - placed]
            placed += len(moves)
            if moves:
                yield self._of_topic(topic_id).place(moves)
            if placed == budget:
                break
        self._begun.pop(topic_id, None)
        return placed

    def _of_topic(self, topic_id: uuid.UUID) -> _TopicPlacing:
        found = self._begun.get(topic_id)
        if found is None:
            found = self._begun[topic_id] = _TopicPlacing(self._scores, self._table.spread(topic_id))
        return found


def _by_topic(moves: Iterable[Move]) -> dict[uuid.UUID, list[Move]]:
    found: dict[uuid.UUID, list[Move]] = {}
    for move in moves:
        found.setdefault(move.key.topic_id, []).append(move)
    return found


class _TopicPlacing:
    """Targets for partitions of one topic.  By score, and by how many of the topic a broker has already, both as
    multiples of an even share: a new topic is spread, though a broker may have room for all of it."""

    def __init__(self, scores: Scores, counts: Counter[str]) -> None:
        self._scores = scores
        self._counts = counts
        self._total = counts.total()

    def place(self, moves: Sequence[Move]) -> list[Move]:
        scores, targets, total = self._scores, self._scores.targets, self._total
        # Both multiples of an even share, times what they have in common, which leaves whole numbers.
        heap = [(total * scores.scores[name] + WHOLE * self._counts[name], rank) for rank, name in enumerate(targets)]
        heapq.heapify(heap)
        weighed = [(scores.weight(move.key, move.source), move) for move in moves]
        weighed.sort(key=lambda each: -each[0])  # stable: equals stay in their order
        placed: list[Move] = []
        for weight, move in weighed:
            if move.why is Why.UNASSIGNED:
                weight = max(weight, scores.average)  # its load is not known yet: like the others'
            full, rank = heap[0]
            target = targets[rank]
            scores.moved(move.source, target, weight)
            self._counts[target] += 1
            heapq.heapreplace(heap, (full + total * weight + WHOLE, rank))
            placed.append(move._replace(target=target))
        return placed
