"""Many partitions move at once and a few of them are written: how long these pause does not depend on the others.

On virtual time a process computes for nothing: what shows is order, and steps that wait for one another.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import pytest

from bmq.broker.config import BrokerConfig
from bmq.broker.transitions import State
from bmq.core.model import PartitionKey
from bmq.meta.memory import KvFaults
from bmq.storage.memory import Faults
from tests.unit.broker.cluster import Cluster, Node
from tests.unit.broker.test_following import now, play
from tests.unit.broker.world import idempotent

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


class Moved:
    """Partitions of a broker that dies ("killed") or is emptied ("drained"), of which some are written."""

    def __init__(self, partitions: int, how: str) -> None:
        self.pauses_s: list[float] = []
        self.store: Counter[str] = Counter()
        self.storage: Counter[str] = Counter()

        async def story(c: Cluster) -> None:
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
            storage = count_calls(c["b"].fs, STORAGE_CALLS)

            async def write(key: PartitionKey) -> None:
                began = now()
                await c.write("b", key, idempotent(1, producer_id=written.index(key)))
                self.pauses_s.append(now() - began)

            if how == "killed":
                c["a"].kill()
                c["b"].view.lose("a")
                c["b"].view.give("b", *keys)
                await asyncio.gather(*map(write, written))
                await _all_open(c["b"], keys)
                del c.nodes["a"]
            else:
                await _drain(c, keys, lambda key: write(key) if key in written else None)
            self.store, self.storage = Counter(store), Counter(storage)  # not what the end of the test calls

        play(story, "a", "b", broker=BrokerConfig())


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


def _is_open(node: Node, key: PartitionKey) -> bool:
    writer = node.broker.get(key)
    return writer is not None and writer.partition.state is State.WRITE


async def _all_open(node: Node, keys: list[PartitionKey]) -> None:
    await asyncio.gather(*(node.assigned.wait(key, 60.0) for key in keys))


@pytest.mark.parametrize("how", ["killed", "drained"])
def test_idle_partitions_do_not_make_written_ones_wait(how: str) -> None:
    """Twelve times the partitions: the pauses are as long; each idle one costs a read, a commit and no storage call."""
    few, many = Moved(WRITTEN, how), Moved(12 * WRITTEN, how)
    assert max(many.pauses_s) < 1.25 * max(few.pauses_s)
    assert sum(many.pauses_s) < 1.25 * sum(few.pauses_s)
    more = 11 * WRITTEN
    assert many.store["commit"] - few.store["commit"] == more
    assert many.store["get"] - few.store["get"] <= more
    assert many.storage == few.storage
