"""The roots of measurements: one per adapter, and in it a fresh folder with a fresh store for each measurement."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bmq.broker.broker import Broker, new_incarnation
from bmq.broker.config import BrokerConfig
from bmq.meta.kv import KeyValue
from bmq.meta.open import open_keyvalue
from bmq.storage.filesystem import FileSystem
from bmq.storage.open import open_filesystem
from tests.harness.members import lone_broker
from tests.services.hdfs import HdfsCluster

ADAPTERS = ("memory", "local", "hdfs")
DATANODES = 4
REPLICAS = 3
CLOSE_S = 120.0
# The JVM chooses the rest by itself, as it would in production: C2, G1 on most machines.
JAVA_OPTIONS = ("--add-opens=java.base/java.lang=ALL-UNNAMED",)


@dataclass(slots=True)
class Site:
    """A fresh folder of one adapter, and the store that belongs to it."""

    adapter: str
    url: str
    kv: KeyValue

    @contextlib.asynccontextmanager
    async def broker(self, config: BrokerConfig | None = None) -> AsyncIterator[Broker]:
        """Yield one broker, as in a process of its own; closing it at the end fails if it cannot hand over."""
        incarnation = new_incarnation()
        fs = await open_filesystem(self.url, holder=f"bmq-{incarnation}")
        try:
            broker = lone_broker(fs, self.kv, incarnation=incarnation, config=config)
            await broker.start()
            try:
                yield broker
            finally:
                async with asyncio.timeout(CLOSE_S):
                    await broker.close()
        finally:
            await fs.close()


def flushes_of(broker: Broker) -> int:
    """Return the number of flushes that were acknowledged on a broker."""
    return sum(broker.context.flush_ms.buckets)


class Roots:
    """The roots of the chosen adapters, with HDFS started if it is among them."""

    def __init__(self, folder: Path, cluster: HdfsCluster | None, settle_s: float) -> None:
        self.folder = folder
        self.cluster = cluster
        self._settle_s = settle_s
        self._count = 0

    @contextlib.asynccontextmanager
    async def site(self, adapter: str) -> AsyncIterator[Site]:
        """Yield a site, and remove it afterwards with everything that was written."""
        self._count += 1
        name = f"bench-{self._count}"
        keeper: FileSystem | None = None
        kv = await open_keyvalue("memory:")
        match adapter:
            case "memory":
                url = f"memory:{name}"
                keeper = await open_filesystem(url, holder="keeper")  # the files live while one file system is open
            case "local":
                url = (self.folder / name).as_uri()
            case _:
                assert self.cluster is not None
                url = f"{self.cluster.root}/{name}"
                keeper = await open_filesystem(self.cluster.root, holder="keeper")
        try:
            yield Site(adapter, url, kv)
        finally:
            await kv.close()
            if adapter == "local":
                await asyncio.to_thread(shutil.rmtree, self.folder / name, ignore_errors=True)
            if keeper is not None:
                if adapter == "hdfs":
                    await keeper.delete(f"/{name}", recursive=True)
                    await asyncio.sleep(self._settle_s)
                await keeper.close()


@contextlib.contextmanager
def open_roots(adapters: Sequence[str], *, settle_s: float, parent: Path | None = None) -> Iterator[Roots]:
    """Yield the roots.  At the end HDFS is stopped and all files are removed, except HDFS's logs after a failure."""
    folder = Path(tempfile.mkdtemp(prefix="bmq-bench-", dir=parent))
    try:
        with contextlib.ExitStack() as stack:
            cluster = None
            if "hdfs" in adapters:
                cluster = stack.enter_context(
                    HdfsCluster(
                        datanodes=DATANODES,
                        folder=Path(tempfile.mkdtemp(prefix="bmq-bench-hdfs-", dir=parent)),
                        namenode_heap_mb=512,
                        datanode_heap_mb=512,
                        java_options=JAVA_OPTIONS,
                    )
                )
            yield Roots(folder, cluster, settle_s)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
