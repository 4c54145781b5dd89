"""Loads as they come and go in clusters, from the members' responses to the moves: none is made for nothing.

Each trace says what bytes a partition has in five seconds.  A leader asks every five seconds, and plans; a move is done
at once.  Of each trace is said how many moves it causes, that none is undone within ten minutes, and how uneven loads
and counts are in the end.
"""

from __future__ import annotations

import math
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pytest

from bmq.controller.planning.balancing import LOAD_START, START, UNEVEN_S
from bmq.controller.planning.lasting_loads import WINDOW_S, WINDOWS
from bmq.controller.planning.partition_load import Loads, Measured
from bmq.controller.planning.partition_table import PartitionTable
from bmq.controller.planning.planner import plan
from bmq.controller.planning.planner_view import SETTLE_S, Move, PlannerView, Why
from bmq.core.model import PartitionKey
from bmq.meta.cluster.assignment import CHUNK
from tests.unit.controller.planning.plans import brokers, keys

ASK_S = 5
UNDONE_S = 600
MB = 1_000_000
Trace = Callable[[float, PartitionKey], float]
"""Bytes a second of a partition at a time."""


@dataclass
class Leader:
    """A leader's planning alone: its members' loads in, moves out."""

    count: int
    owners: Mapping[PartitionKey, str]
    now: float = 0.0
    moves: list[tuple[float, Move]] = field(default_factory=list)
    carried: Counter[str] = field(default_factory=Counter)
    """Bytes of the last minute, by broker."""

    def __post_init__(self) -> None:
        self.table = PartitionTable.of(self.owners)
        self.loads = Loads(self.table)
        self.view = PlannerView(brokers=brokers(self.count), owners=self.table)

    def run(self, seconds: float, trace: Trace, requests_s: float = 0.0) -> None:
        """Go on for some time."""
        until = self.now + seconds
        while self.now < until:
            self.now += ASK_S
            if until - self.now == 60:
                self.carried.clear()
            for broker in self.view.brokers:
                self._ask(broker.incarnation, trace, requests_s)
            made = plan(self.view, self.now)
            self.view = replace(self.view, balance=made.balance)
            for move in made.moves:
                self._do(move)

    def _ask(self, name: str, trace: Trace, requests_s: float) -> None:
        measured = []
        for key, owner in self.table.items():
            size = int(trace(self.now, key) * ASK_S) if owner == name else 0
            if size:
                measured.append(Measured(key, size, 0, int(requests_s * ASK_S)))
                self.carried[name] += size
        for _ in self.loads.update(name, measured, self.now):
            pass

    def _do(self, move: Move) -> None:
        self.moves.append((self.now, move))
        number, index = divmod(move.key.partition, CHUNK)
        chunk = list(self.table.topics[move.key.topic_id].chunks[number])
        chunk[index] = move.target
        self.table.set_chunk(move.key.topic_id, number, chunk)
        if move.why is Why.BALANCE:
            self.view = replace(self.view, moved_at={**self.view.moved_at, move.key: self.now})

    def add_broker(self) -> None:
        found = brokers(len(self.view.brokers) + 1)
        self.view = replace(self.view, brokers=found, arrived_at={found[-1].incarnation: self.now})

    def undone(self) -> list[Move]:
        """Return the moves of a partition back to an owner that it had within ten minutes before."""
        return [
            later
            for number, (at, later) in enumerate(self.moves)
            for before, earlier in self.moves[:number]
            if earlier.key == later.key and later.target == earlier.source and at - before < UNDONE_S
        ]

    def uneven_counts(self) -> float:
        return uneven(Counter(self.table.values()), self.view)

    def uneven_loads(self) -> float:
        return uneven(self.carried, self.view)


def uneven(parts: Counter[str], view: PlannerView) -> float:
    found = [parts[broker.incarnation] for broker in view.brokers]
    mean = sum(found) / len(found)
    return max(abs(part - mean) for part in found) / mean


def cluster(busy: int, idle: int, count: int = 3) -> Leader:
    """Return the leader of a cluster with a busy topic and one at rest, spread over its brokers."""
    everything = keys(busy, idle)
    return Leader(count, {key: f"b{key.partition % count:02d}" for key in everything})


def is_busy(key: PartitionKey) -> bool:
    return key.topic_id == uuid.UUID(int=1)


@pytest.mark.slow
@pytest.mark.parametrize("every_s", [30, 60, 95, 240])
@pytest.mark.parametrize("shares", [(40, 33, 27), (43, 33, 24)])
def test_bursts_of_ten_seconds_move_nothing(every_s: int, shares: tuple[int, ...]) -> None:
    leader = cluster(busy=6, idle=50)

    def trace(now: float, key: PartitionKey) -> float:
        return shares[key.partition % 3] * MB if is_busy(key) and now % every_s < 10 else 0

    leader.run(1800, trace, requests_s=100)
    assert leader.moves == []


@pytest.mark.slow
def test_bursts_that_come_for_long_and_can_be_mended_are_and_idle_partitions_stay() -> None:
    leader = cluster(busy=6, idle=50)

    def trace(now: float, key: PartitionKey) -> float:
        return (47, 33, 20)[key.partition % 3] * MB if is_busy(key) and now % 60 < 10 else 0

    leader.run(3600, trace)
    assert 0 < len(leader.moves) <= 3
    assert all(is_busy(move.key) for _, move in leader.moves)
    assert leader.moves[0][0] >= WINDOWS * WINDOW_S + UNEVEN_S
    assert leader.undone() == []
    assert leader.uneven_loads() <= LOAD_START * 8 / 5


@pytest.mark.slow
def test_a_consumer_that_reads_broker_after_broker_moves_nothing() -> None:
    leader = cluster(busy=6, idle=50)

    def trace(now: float, key: PartitionKey) -> float:
        return 100 * MB if is_busy(key) and key.partition % 3 == int(now / 30) % 3 else 0

    leader.run(3600, trace, requests_s=50)
    assert leader.moves == []


@pytest.mark.slow
def test_a_days_wave_moves_little_and_nothing_back() -> None:
    """Let four continents' topics rise and fall after one another, each within four hours."""
    everything = keys(6, 6, 6, 6, 50)
    leader = Leader(3, {key: f"b{(key.partition + key.topic_id.int) % 3:02d}" for key in everything})

    def trace(now: float, key: PartitionKey) -> float:
        if key.topic_id.int == 5:
            return 0
        hour = now / 600 + key.topic_id.int * 6
        weight = 1 + (key.partition == 0)  # the first partition of each topic has twice the others' load
        return weight * MB * max(0.05, 2 + 2 * math.sin(2 * math.pi * hour / 24))

    leader.run(4 * 3600, trace)
    assert len(leader.moves) <= 20
    assert leader.undone() == []
    assert leader.uneven_loads() <= 0.25


@pytest.mark.slow
def test_an_added_broker_gets_its_share_after_a_minute_and_nothing_comes_back() -> None:
    leader = cluster(busy=36, idle=60)

    def trace(now: float, key: PartitionKey) -> float:
        return MB if is_busy(key) else 0

    leader.run(600, trace, requests_s=20)
    assert leader.moves == []
    leader.add_broker()
    arrived = leader.now
    leader.run(1200, trace, requests_s=20)
    first_busy = min(at for at, move in leader.moves if is_busy(move.key))
    assert min(at for at, _ in leader.moves) >= arrived + SETTLE_S
    assert first_busy >= arrived + SETTLE_S + UNEVEN_S
    assert all(move.target == "b03" for _, move in leader.moves)
    assert len(leader.moves) <= 96 / 4 + 9
    assert leader.undone() == []
    assert leader.uneven_counts() <= START
    assert leader.uneven_loads() <= LOAD_START * 8 / 5


@pytest.mark.slow
def test_an_added_broker_gets_partitions_that_have_bursts_alone() -> None:
    leader = cluster(busy=30, idle=0)

    def trace(now: float, key: PartitionKey) -> float:
        return MB if now % 150 < 10 else 0

    leader.run(600, trace)
    leader.add_broker()
    leader.run(600, trace)
    assert leader.uneven_counts() <= START
    assert leader.undone() == []


@pytest.mark.slow
def test_a_partition_that_becomes_hot_is_left_alone_with_its_broker() -> None:
    leader = cluster(busy=18, idle=30)
    hot = PartitionKey(uuid.UUID(int=1), 0)

    def trace(now: float, key: PartitionKey) -> float:
        return (10 if key == hot and now > 900 else 1) * MB if is_busy(key) else 0

    leader.run(900, trace)
    assert leader.moves == []
    leader.run(1800, trace)
    assert leader.moves[0][0] >= 900 + UNEVEN_S
    assert all(is_busy(move.key) and move.key != hot for _, move in leader.moves)
    assert len(leader.moves) <= 5
    assert leader.undone() == []
    assert leader.uneven_loads() <= 0.2


@pytest.mark.slow
def test_a_hot_partition_that_cools_again_soon_moves_nothing() -> None:
    leader = cluster(busy=18, idle=30)

    def trace(now: float, key: PartitionKey) -> float:
        return (10 if key.partition == 0 and 900 < now < 900 + WINDOW_S * WINDOWS else 1) * MB if is_busy(key) else 0

    leader.run(2700, trace)
    assert leader.moves == []
