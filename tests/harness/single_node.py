"""A whole process in a test: all roles, the only member of its cluster."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import Any

from bmq.core.clock import Clock, SystemClock
from bmq.core.config import NodeConfig
from bmq.core.features import FEATURES, FeatureTable
from bmq.meta.kv import KeyValue
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.server.cluster_member import ClusterMember
from bmq.server.node import Node
from bmq.storage.filesystem import FileSystem
from bmq.storage.memory import MemoryFileSystem, MemoryStorage


@contextlib.asynccontextmanager
async def single_node(
    config: NodeConfig,
    fs: FileSystem,
    kv: KeyValue,
    clock: Clock | None = None,
    name: str = "n",
    features: FeatureTable = FEATURES,
    **options: Any,
) -> AsyncIterator[Node]:
    """Yield the node of a process that has joined, and is to be started; it is closed at the end."""
    clock = clock or SystemClock()
    joined = ClusterMember(config, fs, kv, clock, name, features=features)
    try:
        await joined.join()
        node = Node(config, fs, kv, clock, joined, **options)
        try:
            yield node
        finally:
            await node.close()
    finally:
        await joined.leave()


def memory_node(config: NodeConfig, clock: Clock | None = None, **options: Any) -> AbstractAsyncContextManager[Node]:
    """Return the context of ``single_node`` on storage and a store in memory."""
    fs, kv = MemoryFileSystem(MemoryStorage(Random(0)), "n"), MemoryKeyValue(MemoryStore())
    return single_node(config, fs, kv, clock, **options)
