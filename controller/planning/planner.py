"""The planner of partitions' owners: it computes the moves to make from the state of a cluster.  Pure, deterministic.

In this order, and balancing only when there is nothing else to do:

1. partitions without an owner, and partitions of brokers that are gone: all at once;
2. partitions of brokers that drain, do not serve, or are out of reach of most proxies: a bounded number at a time;
3. balancing: partitions at rest by their number, partitions with a load by loads that last (``balancing``).

A broker's **score** is its share of all bytes, requests and partitions, weighted; the scores of all add up to 1.  Where
traffic is small its weight goes to the partitions instead.  1 and 2 place partitions by it, and operators see it.

A plan is made in steps of bounded work (``plan_in_steps``), and yields moves as it finds them.  At a million partitions
the first moves are written long before the last are planned.  Partitions are searched only when some have no live
owner, or a broker that must be emptied has some.  So the cost of a plan without moves depends only on the number of
brokers.
"""

from __future__ import annotations

import heapq
import uuid
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum

from bmq.controller.planning.balance_state import BalanceState
from bmq.controller.planning.balancing import Balance
from bmq.controller.planning.planner_view import (
    PENDING_MOVES_MAX,
    WHOLE,
    Move,
    MovePlan,
    PlannerBroker,
    PlannerView,
    Why,
)
from bmq.controller.planning.scores import Scores
from bmq.core.model import PartitionKey
from bmq.meta.cluster.assignment import CHUNK

RATED_FIRST_MAX = 5_000
"""Partitions with most traffic, moved before all others, since clients wait for them."""
RATED_PER_STEP = 2_000
"""Partitions with traffic, sorted in one step."""
CHUNKS_PER_STEP = 256
"""Chunks read in one step of a search: some 5 ms if they are full."""


def plan(view: PlannerView, now: float) -> MovePlan:
    """Return the moves to make now.  Empty if none is needed, or there is no broker to move anything to.

    ``now``: seconds of the clock of ``view.moved_at``.
    """
    steps, moves = plan_in_steps(view, now), list[Move]()
    while True:
        try:
            moves += next(steps)
        except StopIteration as end:
            return MovePlan(moves, end.value)


def plan_in_steps(view: PlannerView, now: float) -> Generator[list[Move], None, BalanceState]:
    """Yield the same moves, a few or none at a time, each after a few milliseconds of work.

    Returns the state of balancing after the plan.

    Between two steps the moves of earlier steps may be applied to ``view.owners``.
    """
    targets = _targets(view)
    if not targets:
        return view.balance
    scores = Scores(view, targets)
    emptied = _emptied(view, targets)
    has_moved = yield from _Placing(view, scores, _orphaned(view)).run(len(view.owners))
    budget = max(0, PENDING_MOVES_MAX - view.pending_moves)
    has_moved |= yield from _Placing(view, scores, emptied).run(budget)
    if has_moved or any(view.owners.count(name) for name in emptied):
        return view.balance
    return (yield from Balance(view, targets, now).run(budget))


def scores(view: PlannerView) -> dict[str, float]:
    """Return each live broker's share of the load, from 0 to 1, to be shown to operators."""
    brokers = sorted(view.brokers)
    return {name: score / WHOLE for name, score in Scores(view, brokers).scores.items()} if brokers else {}


# ------------------------------------------------------------------------------------------------------- the targets


def _targets(view: PlannerView) -> list[PlannerBroker]:
    """Return the brokers that may be given partitions, in the order that breaks ties.

    The order goes round the zones, so that neighbours are in different zones.  Only the fittest brokers are targets: if
    no broker is fitter, one that does not serve keeps its partitions, and is given the rest.
    """
    able = [broker for broker in view.brokers if not broker.is_draining]
    best = min((_fitness(view, broker.incarnation) for broker in able), default=_Fitness.FIT)
    chosen = [broker for broker in able if _fitness(view, broker.incarnation) is best]
    of_zone: Counter[str] = Counter()
    ranked: list[tuple[int, PlannerBroker]] = []
    for broker in sorted(chosen):
        ranked.append((of_zone[broker.zone], broker))
        of_zone[broker.zone] += 1
    return [broker for _, broker in sorted(ranked, key=lambda each: (each[0], each[1].zone))]


class _Fitness(IntEnum):
    """Fitness of a broker to be given partitions; the least value is the best."""

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


# ------------------------------------------------------------------------------------------------------- the sources


def _orphaned(view: PlannerView) -> dict[str, Why]:
    """Return the owners that are not alive and have partitions, with "" for partitions without an owner."""
    living = {broker.incarnation for broker in view.brokers}
    dead = [owner for owner in view.owners.owners if owner and owner not in living]
    unowned = {"": Why.UNASSIGNED} if view.owners.count("") else {}
    return unowned | dict.fromkeys(sorted(dead), Why.DEAD)


def _emptied(view: PlannerView, targets: Sequence[PlannerBroker]) -> dict[str, Why]:
    """Return the live brokers that must give all their partitions up.

    Unreachable or stalled ones keep theirs if no broker is fitter.
    """
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
    """The placing of all partitions of some owners.

    Partitions with traffic come first, since clients wait for them, then the others topic by topic.
    """

    def __init__(self, view: PlannerView, scores: Scores, sources: Mapping[str, Why]) -> None:
        self._view = view
        self._table = view.owners
        self._scores = scores
        self._sources = sources
        self._first: set[PartitionKey] = set()
        self._begun: dict[uuid.UUID, _TopicPlacing] = {}
        self._looked = 0

    def run(self, budget: int) -> Generator[list[Move], None, bool]:
        """Yield up to ``budget`` moves in steps of bounded work.  Returns whether there were any."""
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
        """Return up to ``RATED_FIRST_MAX`` partitions with traffic, those with most first, as moves without a target.

        Partitions of dead and of unreachable brokers come after all others.
        """
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
        """Yield the topics to search: all, or only those with a partition without an owner if no others are placed."""
        unowned = dict(self._table.unowned) if "" in self._sources else {}
        yield from unowned
        if self._sources.keys() - {""}:
            yield from (topic_id for topic_id in self._table.topics if topic_id not in unowned)

    def _at_rest(self, topic_id: uuid.UUID, budget: int) -> Generator[list[Move], None, int]:
        """Place the partitions of one topic that are left, up to ``budget``.  Returns how many those are."""
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
    """The choice of targets for partitions of one topic.

    The target has the least sum of its score and of its number of the topic's partitions, both as multiples of an even
    share.  So a new topic is spread, although a single broker may have room for all of it.
    """

    def __init__(self, scores: Scores, counts: Counter[str]) -> None:
        self._scores = scores
        self._counts = counts
        self._total = counts.total()

    def place(self, moves: Sequence[Move]) -> list[Move]:
        """Return the moves with their targets, the heaviest partition first."""
        scores, targets, total = self._scores, self._scores.targets, self._total
        # Both multiples of an even share, times what they have in common, which leaves whole numbers.
        heap = [(total * scores.scores[name] + WHOLE * self._counts[name], rank) for rank, name in enumerate(targets)]
        heapq.heapify(heap)
        weighed = [(scores.weight(move.key, move.source), move) for move in moves]
        weighed.sort(key=lambda each: -each[0])  # stable: equals stay in their order
        placed: list[Move] = []
        for weight, move in weighed:
            if move.why is Why.UNASSIGNED:
                weight = max(weight, scores.average)  # its load is not known yet: taken as an average one
            full, rank = heap[0]
            target = targets[rank]
            scores.moved(move.source, target, weight)
            self._counts[target] += 1
            heapq.heapreplace(heap, (full + total * weight + WHOLE, rank))
            placed.append(move._replace(target=target))
        return placed
