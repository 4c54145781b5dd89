"""A store, its view, storage in memory, and the controller's work over them, on virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from bmq.controller.topics.topics import TopicAdmin
from bmq.core.clock import LoopClock
from bmq.core.config import NodeConfig
from bmq.meta.catalog import KvCatalog
from bmq.meta.kv_memory import KvFaults, MemoryKeyValue, MemoryStore
from bmq.storage.access_files import AccessFiles
from bmq.storage.cluster_files import StoredTopics
from bmq.storage.memory import MemoryFileSystem, MemoryStorage


class AdminWorld:
    """One process.  Several share ``store`` and ``storage``; faults are its own, and come when they are set."""

    def __init__(
        self,
        store: MemoryStore | None = None,
        storage: MemoryStorage | None = None,
        *,
        config: NodeConfig | None = None,
        random: Random | None = None,
        name: str = "p",
        **options: Any,
    ) -> None:
        self.store = store or MemoryStore()
        self.storage = storage or MemoryStorage()
        self.config = config or NodeConfig()
        self.kv = MemoryKeyValue(self.store, random=random)
        self.view_kv = MemoryKeyValue(self.store, random=random)
        self.fs = MemoryFileSystem(self.storage, name)
        self.files = StoredTopics(self.fs)
        self.catalog = KvCatalog(self.view_kv, "c")
        options.setdefault("access_files", AccessFiles(self.fs))
        self.admin = TopicAdmin(self.kv, "c", self.catalog, self.config, self.files, LoopClock(), guard=list, **options)

    def fail(self, **faults: float) -> None:
        self.kv.faults = KvFaults(**faults)

    async def start(self) -> None:
        await self.catalog.start()
        await self.admin.start()

    async def close(self) -> None:
        await self.admin.close()
        await self.catalog.close()

    async def names(self, path: str) -> list[str]:
        return [each.path.rpartition("/")[2] async for each in self.fs.list(path)]


@asynccontextmanager
async def world(*args: Any, **kwargs: Any) -> AsyncIterator[AdminWorld]:
    one = AdminWorld(*args, **kwargs)
    await one.start()
    try:
        yield one
    finally:
        await one.close()
