"""Many partitions at once: they move, or their datanode breaks.  How long one pauses, and what comes first.

On virtual time a process computes for nothing: what shows is order, and steps that wait for one another.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from bmq.broker.config import BrokerConfig
from bmq.broker.files.closing import SEAL_TURN_S
from bmq.broker.files.context import SEALS_AT_ONCE
from bmq.broker.partition.states import PartitionState
from bmq.core.model import PartitionKey
from bmq.meta.catalog import Topic
from bmq.meta.kv import Compare, Write
from bmq.meta.kv_memory import KvFaults
from bmq.storage.filesystem import CreateOptions, Lease
from bmq.storage.hdfs import HdfsSettings
from bmq.storage.memory import Faults
from tests.harness.waiting import now, until
from tests.unit.broker.cluster import Cluster, Node, cluster
from tests.unit.broker.world import idempotent

pytestmark = [pytest.mark.slow, pytest.mark.leaves_tasks]

PROBE_S = HdfsSettings().probe_timeout_s
WRITTEN = 12
UNDER_WAY = 64
"""Moves that a controller has under way when it empties a broker."""
HDFS = Faults(call_s=(0.001, 0.003), ack_s=(0.0003, 0.0003))
ETCD = KvFaults(latency_s=0.001)
STORAGE_CALLS = ("create", "append", "fence", "read", "status", "visible_length", "rename", "replace", "delete", "list")


def count_calls(of: Any, names: tuple[str, ...]) -> Counter[str]:
    """Count the calls of these methods from here on."""
    counts: Counter[str] = Counter()

    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            counts[name] += 1
            return real(*arguments, **options)

        return call

    for name in names:
        setattr(of, name, counted(name, getattr(of, name)))
    return counts


def count_records_written(kv: Any, counts: Counter[str]) -> None:
    """Count the records that are written from here on: a commit may write many."""
    real = kv.commit

    def commit(compares: Sequence[Compare], writes: Sequence[Write]) -> Any:
        counts["written"] += len(writes)
        return real(compares, writes)

    kv.commit = commit


class Moved:
    """Partitions of a broker that dies ("killed") or is emptied ("drained"), of which some are written."""

    def __init__(self) -> None:
        self.pauses_s: list[float] = []
        self.store: Counter[str] = Counter()
        self.records_written = 0
        self.storage: Counter[str] = Counter()

    @classmethod
    async def moved(cls, partitions: int, how: str) -> Moved:
        """Return the pauses and the calls of one such move."""
        self = cls()
        async with cluster("a", "b", broker=BrokerConfig()) as c:
            c.topic(partitions)
            keys = c.keys()
            written = keys[:: partitions // WRITTEN][:WRITTEN]
            c.give("a", *keys)
            for number, key in enumerate(written):
                await c.write("a", key, idempotent(0, producer_id=number))
            await _all_open(c["a"], keys)
            c.storage.faults = HDFS
            for node in c.nodes.values():
                node.kv.faults = ETCD
            store = count_calls(c["b"].kv, ("get", "commit"))
            count_records_written(c["b"].kv, store)
            storage = count_calls(c["b"].fs, STORAGE_CALLS)

            async def write(key: PartitionKey) -> None:
                began = now()
                await c.write("b", key, idempotent(1, producer_id=written.index(key)))
                self.pauses_s.append(now() - began)

            if how == "killed":
                c["a"].kill()
                c["b"].view.leave("a")
                c["b"].view.assign("b", *keys)
                await asyncio.gather(*map(write, written))
                await _all_open(c["b"], keys)
                await until(lambda: _indexes(c) == WRITTEN)  # of the dead owner's segments, written beside it
                del c.nodes["a"]
            else:
                await _drain(c, keys, lambda key: write(key) if key in written else None)
            self.records_written = store.pop("written")
            self.store, self.storage = Counter(store), Counter(storage)  # not what the end of the test calls

        return self


async def _drain(c: Cluster, keys: list[PartitionKey], use: Callable[[PartitionKey], Any]) -> None:
    """Give everything to the second broker, as the controller does it: the next as soon as one has arrived."""
    left, moving, writes = deque(keys), set[PartitionKey](), []
    while left or moving:
        moving = {key for key in moving if not _is_open(c["b"], key)}
        given = [left.popleft() for _ in range(min(UNDER_WAY - len(moving), len(left)))]
        c.give("b", *given)
        moving.update(given)
        writes += [asyncio.ensure_future(work) for key in given if (work := use(key)) is not None]
        await asyncio.sleep(0.005)
    await asyncio.gather(*writes)


def _indexes(c: Cluster) -> int:
    return sum(
        file.name.endswith(".idx") and not file.name.startswith(".") for file in c.storage.namespace.files.values()
    )


def _is_open(node: Node, key: PartitionKey) -> bool:
    driver = node.broker.get(key)
    return driver is not None and driver.machine.state is PartitionState.WRITE


async def _all_open(node: Node, keys: list[PartitionKey]) -> None:
    await asyncio.gather(*(node.assigned.wait(key, 60.0) for key in keys))


@pytest.mark.parametrize("how", ["killed", "drained"])
async def test_idle_partitions_do_not_make_written_ones_wait(how: str) -> None:
    """Twelve times the partitions: the pauses are as long; each idle one writes its record and makes no storage call.

    A read and a commit would be two calls for each.  Idle partitions share them: all together make fewer than they are.
    """
    few, many = await Moved.moved(WRITTEN, how), await Moved.moved(12 * WRITTEN, how)
    assert max(many.pauses_s) < 1.25 * max(few.pauses_s)
    assert sum(many.pauses_s) < 1.25 * sum(few.pauses_s)
    more = 11 * WRITTEN
    assert many.records_written - few.records_written == more
    assert many.store.total() - few.store.total() < more
    assert many.storage == few.storage


OPEN_S = 0.02
OPENINGS = 16
"""Files that are opened at once, each in ``OPEN_S``: as HDFS does it, roughly."""


class Broken:
    """A datanode dies ("killed") or stops ("paused") under partitions that are written all the time.

    ``fence_s``: how long a takeover takes.
    """

    def __init__(self, fence_s: float) -> None:
        self._fence_s = fence_s
        self.calls: list[str] = []
        """Segments that were created ("create") and taken over ("fence"), as each call ends or begins."""
        self.latencies_s: list[float] = []
        self.affected = 0
        self.fences = self.fences_most = 0
        """Takeovers under way, and the most at once."""

    @classmethod
    async def broken(cls, partitions: int, how: str, fence_s: float = OPEN_S) -> Broken:
        """Return what happened when the datanode broke."""
        self = cls(fence_s)
        async with cluster("a", broker=BrokerConfig()) as c:
            c.storage.faults = HDFS
            keys = _replicated(c, partitions)
            c.give("a", *keys)
            self._watch(c["a"], c)
            await asyncio.gather(*(c.write("a", key, _record(number, 0)) for number, key in enumerate(keys)))
            node, self.affected = Counter(n for file in c.storage.appenders for n in file.nodes).most_common(1)[0]
            self.calls.clear()
            (c.storage.kill_datanode if how == "killed" else c.storage.stop_datanode)(node)
            began = now()

            async def write(number: int, key: PartitionKey) -> None:
                await c.write("a", key, _record(number, 1))
                self.latencies_s.append(now() - began)

            await asyncio.gather(*(write(number, key) for number, key in enumerate(keys)))
            await until(lambda: self.calls.count("fence") >= self.affected)
            if how == "paused":
                c.storage.resume_datanode(node)

        return self

    def _watch(self, node: Node, c: Cluster) -> None:
        create, fence, probe = node.fs.create, node.fs.fence, node.fs.probe
        openings = asyncio.Semaphore(OPENINGS)

        async def watched_create(path: str, options: CreateOptions) -> Any:
            if ".spare" not in path:
                return await create(path, options)
            async with openings:
                await asyncio.sleep(OPEN_S)
                opened = await create(path, options)
            self.calls.append("create")
            return opened

        async def watched_fence(lease: Lease, *, sync: bool = False) -> int:
            self.calls.append("fence")
            self.fences += 1
            self.fences_most = max(self.fences_most, self.fences)
            try:
                await asyncio.sleep(self._fence_s)
                return await fence(lease, sync=sync)
            finally:
                self.fences -= 1

        async def slow_probe(name: str) -> bool:
            if not c.storage.datanodes[name].is_up:
                await asyncio.sleep(PROBE_S)
            return await probe(name)

        node.fs.create, node.fs.fence, node.fs.probe = watched_create, watched_fence, slow_probe  # type: ignore[method-assign, assignment]


def _replicated(c: Cluster, partitions: int) -> list[PartitionKey]:
    """Make a topic of three replicas."""
    topic = Topic(name="orders", topic_id=uuid.UUID(int=1), partitions=partitions, replication_factor=3)
    c.catalog.put("orders", topic)
    return c.keys()


def _record(number: int, sequence: int) -> bytearray:
    return idempotent(sequence, producer_id=number)


@pytest.mark.parametrize("how", ["killed", "paused"])
async def test_broken_segments_are_taken_over_after_the_next_are_open(how: str) -> None:
    """No produce waits for a takeover, and a takeover costs the NameNode more than opening a file."""
    broken = await Broken.broken(60, how)
    assert broken.affected > 30
    first = broken.calls.index("fence")
    assert first > broken.affected - OPENINGS
    assert how == "paused" or broken.fences_most == SEALS_AT_ONCE


async def test_slow_takeovers_do_not_start_all_at_once() -> None:
    """Each datanode gives a takeover half a second: hundreds at once would all time out, and begin again."""
    slow_s = 2.5 * SEAL_TURN_S  # as lease recovery is
    broken = await Broken.broken(110, "killed", slow_s)
    assert broken.affected > 3 * SEALS_AT_ONCE
    journals = 1
    assert broken.fences_most <= 3 * SEALS_AT_ONCE + journals, "as many more each time that turns are given on"


@pytest.mark.parametrize("partitions", [1, 8, 120])
@pytest.mark.parametrize("how", ["killed", "paused"])
async def test_a_pause_lasts_as_long_as_the_files_take_to_open(partitions: int, how: str) -> None:
    """The time in which a silent node is found comes on top: it is the same for one partition and for many."""
    broken = await Broken.broken(partitions, how)
    rounds = -(-broken.affected // OPENINGS)
    found_s = BrokerConfig().silent_flush_ms / 1000 + PROBE_S if how == "paused" else 0.0
    assert max(broken.latencies_s) < found_s + 2 * rounds * OPEN_S + 0.05


@pytest.mark.parametrize("behind", ["openings", "turns"])
async def test_a_move_ends_the_wait_of_its_takeover(behind: str) -> None:
    """The partition's takeover of a broken segment waits behind others: unless the move ends that wait, its successor
    serves the partition only after ``handover_wait_ms``."""
    config = BrokerConfig()

    async with cluster(broker=config) as c:
        (key,) = _replicated(c, 1)
        c.give("a", key)
        shared = c["a"].broker.context
        fences = count_calls(c["a"].fs, ("fence",))
        await c.write("a", key, _record(0, 0))
        if behind == "openings":
            assert shared.open_files.try_enter()
        else:
            for _ in range(SEALS_AT_ONCE):
                await shared.seals.acquire()
        (segment,) = (file for file in c.storage.appenders if ".spare" in file.lease.paths[0])
        c.storage.kill_datanode(segment.nodes[0])
        await c.write("a", key, _record(0, 1))
        assert fences.total() == 0, "the broken segment waits"
        began = now()
        c.give("b", key)
        await c.write("b", key, _record(0, 2))
        assert now() - began < config.handover_wait_ms / 1000 / 2
        assert fences.total() == 1, "its owner has taken it over"
