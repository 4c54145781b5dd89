"""The controller's planner alone, at any number of brokers and partitions: its time and its memory, without a store."""

from __future__ import annotations

import gc
import multiprocessing
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

import psutil

from bench.results import Sample
from bmq.controller.planning.partition_table import PartitionTable
from bmq.controller.planning.planner import plan_in_steps
from bmq.controller.planning.planner_view import Move, PlannerBroker, PlannerView
from bmq.controller.planning.rates import Rate
from bmq.core.model import PartitionKey
from bmq.meta.cluster.assignment import CHUNK

ADAPTER = "planner"
BENCH = "planning"
BUSY_EACH = 10
"""One partition in so many has traffic: the others are idle, as in a large cluster most are."""
ZONES = 3
TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True)
class Size:
    """Number of brokers, topics, and partitions of each topic."""

    brokers: int
    topics: int
    partitions_each: int

    @property
    def partitions(self) -> int:
        """Partitions of all topics."""
        return self.topics * self.partitions_each

    @property
    def name(self) -> str:
        """The name in the results."""
        return f"{self.brokers:,} brokers, {self.topics:,} topics of {self.partitions_each:,}"


def measure(size: Size, number: int) -> Iterator[Sample]:
    """Yield a sample of one size, from a process of its own, whose memory nothing else has used."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        metrics = pool.submit(figures, size).result(TIMEOUT_S)
    yield Sample(adapter=ADAPTER, bench=BENCH, case=size.name, round=number, metrics=metrics)


def figures(size: Size) -> dict[str, float]:
    """Return the figures of a table that is filled, planned from nothing, planned again, and loses a broker."""
    gc.collect()
    process = psutil.Process()
    before = process.memory_info().rss
    table = PartitionTable()
    for number in range(size.topics):
        table.set_topic(uuid.UUID(int=number + 1), size.partitions_each)
    brokers = [PlannerBroker(f"broker-{number:04}", f"zone-{number % ZONES}") for number in range(size.brokers)]
    view = PlannerView(brokers=brokers, owners=table)
    first = plan_timed(view, "all")
    for topic_id, topic in table.topics.items():
        for partition in range(0, topic.partitions, BUSY_EACH):
            table.set_rate(PartitionKey(topic_id, partition), Rate(1000.0 * (1 + partition % 7), 1.0))
    gc.collect()
    bytes_each = (process.memory_info().rss - before) / size.partitions
    still = plan_timed(view, "none", is_applied=False)
    lost = plan_timed(replace(view, brokers=brokers[1:]), "lost")
    return first | still | lost | {"bytes_partition": bytes_each}


def plan_timed(view: PlannerView, name: str, *, is_applied: bool = True) -> dict[str, float]:
    """Plan in steps, as the leader does, and apply each step's moves; return the planner's own time and its moves.

    The leader has other work between two steps: the longest one is how long that waits.
    """
    steps, took_s, longest_s, count = plan_in_steps(view, 0.0), 0.0, 0.0, 0
    while True:
        begun = time.thread_time()
        moves = next(steps, None)
        step_s = time.thread_time() - begun
        took_s, longest_s = took_s + step_s, max(longest_s, step_s)
        if moves is None:
            break
        count += len(moves)
        if is_applied:
            apply(view.owners, moves)
    return {f"{name}_seconds": took_s, f"{name}_step_ms": 1000 * longest_s, f"{name}_moves": float(count)}


def apply(table: PartitionTable, moves: Sequence[Move]) -> None:
    """Give the partitions to their targets, chunk by chunk, as the commits to the store do."""
    changed: dict[tuple[uuid.UUID, int], list[str]] = {}
    for move in moves:
        place = (move.key.topic_id, move.key.partition // CHUNK)
        if place not in changed:
            changed[place] = list(table.topics[place[0]].chunks[place[1]])
        changed[place][move.key.partition % CHUNK] = move.target
    for (topic_id, number), owners in changed.items():
        table.set_chunk(topic_id, number, owners)
