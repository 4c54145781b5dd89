"""Moves of partitions in tests: what is written before one, and the calls that it costs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from bmq.core.model import PartitionKey
from bmq.meta import ownership
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.layout import PartitionPath
from bmq.storage.memory import Faults
from bmq.storage.segment import decode_idx
from tests.unit.broker.cluster import Cluster, Node
from tests.unit.broker.world import idempotent


def count_gets(node: Node) -> list[str]:
    """Return the keys that a node reads from the store, from here on."""
    asked: list[str] = []
    get = node.kv.get

    async def counted(key: str) -> Any:
        asked.append(key)
        return await get(key)

    node.kv.get = counted  # type: ignore[method-assign]
    return asked


async def record_of(c: Cluster, number: int = 0) -> ownership.PartitionRecord:
    node = next(iter(c.nodes.values()))
    record, _ = await ownership.read(node.kv, ownership.partition_key("bmq", c.keys()[number]))
    return record


HDFS = Faults(call_s=(0.001, 0.001), ack_s=(0.0003, 0.0003))


def path_of(c: Cluster, partition: int = 0) -> PartitionPath:
    return PartitionPath("orders", str(c.catalog.topics["orders"].topic_id), partition)


async def names(c: Cluster, partition: int = 0) -> list[str]:
    """Return the names of the partition's files."""
    node = next(iter(c.nodes.values()))
    listed = [status.path async for status in node.fs.list(path_of(c, partition).folder)]
    return [path.rsplit("/", 1)[-1] for path in listed]


async def kinds(c: Cluster) -> list[str]:
    return ["spare" if name.startswith(".spare") else name.rsplit(".", 1)[-1] for name in await names(c)]


def count_calls(node: Node, *methods: str) -> list[str]:
    """Return a list that collects the paths given to these methods of the node's storage from now on."""
    called: list[str] = []

    def counted(real: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(path: str, *arguments: Any, **options: Any) -> Any:
            called.append(path)
            return await real(path, *arguments, **options)

        return call

    for method in methods:
        setattr(node.fs, method, counted(getattr(node.fs, method)))
    return called


async def owned(c: Cluster, records: int = 2) -> PartitionKey:
    c.topic()
    (key,) = c.keys()
    c.give("a", key)
    for sequence in range(records):
        await c.write("a", key, idempotent(sequence))
    return key


async def later(ms: int) -> None:
    await asyncio.sleep(ms / 1000)


async def index_of(c: Cluster, node: str) -> Checkpoint | None:
    """Return what the index of the log's first segment says, None where there is none."""
    found = [status.path async for status in c[node].fs.list(path_of(c).folder) if status.path.endswith(".idx")]
    return decode_idx(await c[node].fs.read(found[0], 0, 1 << 20)) if found else None
