"""Rules that must hold of a simulated cluster: while it lives, when all faults are over, and once it is quiet."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Iterator
from random import Random

from tests.harness.loop import PROCESS
from tests.simulation.cluster_world import ClusterClient, ClusterWorld, Process
from tests.simulation.group_clients import Member
from tests.simulation.kafka_clients import Client, read_all
from tests.simulation.kafka_world import Observed

QUIET_S = 90.0
"""Time until nothing is kept any more: a broker's own patience with batches in flight (60 s), and a sweep."""


class Through:
    """The world as a client sees it that uses one proxy only."""

    def __init__(self, world: ClusterWorld, host: str) -> None:
        self.rng: Random = world.rng
        self.observed: Observed = world.observed
        self.is_over = False
        self._world = world
        self._host = host

    def client(self) -> Client:
        return ClusterClient(self._world, self._host)


class BugsTold(logging.Handler):
    """Log lines of a living process that must never occur: a task that failed, an unexpected exception.

    Expected troubles are logged without a traceback.
    """

    def __init__(self, world: ClusterWorld) -> None:
        super().__init__()
        self._world = world

    def __enter__(self) -> None:
        logging.getLogger("bmq").addHandler(self)

    def __exit__(self, *exc: object) -> None:
        logging.getLogger("bmq").removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        process, text = PROCESS.get(), record.getMessage()
        if (record.exc_info or "bug: " in text) and process not in self._world.loop.gates.dead:
            error = record.exc_info[1] if record.exc_info else None
            self._world.observed.errors.append(f"{process} logs: {text}: {error!r}")


# -------------------------------------------------------------------------------------------------------------- records


async def check_logs(world: ClusterWorld, host: str, topics: dict[str, int], plain: set[str]) -> None:
    """Compare every partition, read to its end through one proxy, with the clients' acknowledgements.

    ``topics``: their partitions; ``plain``: producers without an id, of which batches may be missing.
    """
    for topic, partitions in topics.items():
        for partition in range(partitions):
            values = await read_all(Through(world, host), topic, partition)
            where = f"{topic}-{partition}, read through {host}"
            _check_observed(world.observed, (topic, partition), values, where)
            _check_order(values, plain, where)


def _check_observed(expected: Observed, key: tuple[str, int], values: dict[int, bytes], where: str) -> None:
    assert sorted(values) == list(range(len(values))), f"offsets of {where} have gaps"
    for name, known in (("acknowledged", expected.acked), ("seen", expected.seen)):
        for offset, value in known[key].items():
            assert values.get(offset) == value, f"{value!r} was {name} at {offset} of {where}: {values.get(offset)!r}"


def _check_order(values: dict[int, bytes], plain: set[str], where: str) -> None:
    """Nothing stands twice; each producer's numbers go up; with a producer id none is left out."""
    twice = [value for value, count in Counter(values.values()).items() if count > 1]
    assert not twice, f"doubled in {where}: {twice}"
    numbers: dict[str, list[int]] = defaultdict(list)
    for _, value in sorted(values.items()):
        producer, _, number = value.decode().rpartition(":")
        numbers[producer].append(int(number))
    for producer, own in numbers.items():
        expected = sorted(own) if producer.partition(".")[0] in plain else list(range(len(own)))
        assert own == expected, f"{producer} is out of order in {where}: {own}"


# --------------------------------------------------------------------------------------------------------------- groups


async def check_groups(world: ClusterWorld, host: str, topic: str, partitions: int) -> None:
    """Check that everything below a committed offset was processed, and groups find their commits, or later ones."""
    observed = world.observed
    for (group, _, partition), committed in observed.committed.items():
        missed = set(range(committed)) - observed.processed[group, topic, partition]
        assert not missed, f"{group} never processed {sorted(missed)[:5]} of {topic}-{partition}, {committed} committed"
    for group in sorted({group for group, _, _ in observed.committed}):
        member = Member(Through(world, host), group, topic, partitions)
        await member.positions()


# ---------------------------------------------------------------------------------------------------------------- leaks


def kept(process: Process) -> Iterator[str]:
    """Yield what a process holds although no client asks it for anything any more."""
    node = process.node
    assert node is not None
    holding = node.proxy.services.produce_queue
    budget = node.proxy.fetch_service.budget
    if len(holding) or holding.held_bytes or len(holding.deadlines):
        yield f"produces: {holding!r}, {len(holding.deadlines)} deadlines"
    if budget.memory.used or budget.storage.used:
        yield f"room for answers: {budget!r}"
    if node.proxy.remote_owners is not None:
        yield from (repr(each) for each in node.proxy.remote_owners._owners.values() if not each.is_idle)
    if node.broker is not None and node.broker.broker.context.budget.used:
        yield f"room for records: {node.broker.broker.context.budget!r}"
    listener = process.sockets._kafka if process.sockets is not None else None
    if listener is not None and listener.budget.held:
        yield f"requests: {listener.budget!r}"


async def check_quiet(world: ClusterWorld) -> None:
    """Once no client asks for anything, nothing is kept for one."""

    def found() -> list[str]:
        ready = [place.process for place in world.places if place.process is not None and place.is_ready]
        return [f"{process.incarnation}: {what}" for process in ready for what in kept(process)]

    for place in world.places:
        node = place.process.node if place.process is not None else None
        remote = node.proxy.remote_owners if node is not None else None
        lost = [each for each in remote._owners.values() if each.route.is_idle and each.route.bytes] if remote else []
        assert not lost, f"{place}: credit that nobody gives back: {lost}"
    begin = world.loop.time()
    while found():
        assert world.loop.time() < begin + QUIET_S, f"kept for nobody: {found()}"
        await asyncio.sleep(1.0)
