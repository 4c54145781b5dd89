"""The rebuilding of a store: tasks that a failure leaves, the root's id, and reports of progress."""

from __future__ import annotations

import asyncio
import io
import uuid
from collections.abc import AsyncIterator

import pytest

from bmq.broker.repair.scan import FoundPartition
from bmq.cli.progress import Progress
from bmq.cli.rebuild.run import rebuild
from bmq.core.config import NodeConfig
from bmq.core.features import Feature, FeatureTable, LevelRange, UnsupportedLevel
from bmq.core.store_count import StoreCount
from bmq.meta.catalog import cluster_id_key
from bmq.meta.cluster.keys import features_key
from bmq.meta.cluster.levels import decode_record
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.meta.root import read_root
from bmq.server.root_guard import RootGuard
from bmq.storage.cluster_files import StoredTopics, check_cluster, put_feature_levels, read_cluster
from bmq.storage.feature_levels import StoredLevels
from bmq.storage.filesystem import FileStatus, StorageError, write_once
from bmq.storage.layout import PartitionPath
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from bmq.storage.root_id import read_root_id
from bmq.storage.store_counts import put_store_count

TOPIC_ID = uuid.UUID(int=1)
PARTITIONS = 3


class SlowFileSystem(MemoryFileSystem):
    """Never ends to list the folders of partitions but the first; ``listing`` are those that it is at."""

    def __init__(self) -> None:
        super().__init__(MemoryStorage(), "rebuild")
        self.listing: set[str] = set()

    async def list(self, path: str, *, after: str = "") -> AsyncIterator[FileStatus]:
        if path in [PartitionPath("t", str(TOPIC_ID), number).folder for number in range(1, PARTITIONS)]:
            self.listing.add(path)
            try:
                await asyncio.Event().wait()
            finally:
                self.listing.discard(path)
        async for status in super().list(path, after=after):
            yield status


async def _root() -> SlowFileSystem:
    fs = SlowFileSystem()
    await _fill(fs)
    return fs


async def _fill(fs: MemoryFileSystem) -> None:
    await check_cluster(fs, "id")
    await StoredTopics(fs).write("t", 5, TOPIC_ID, PARTITIONS, {}, 1)
    for number in range(PARTITIONS):
        await write_once(fs, PartitionPath("t", str(TOPIC_ID), number).folder + "/file", b"x")


async def test_listings_that_are_read_ahead_end_with_the_rebuild() -> None:
    """Keep a reference to the error, which would keep a generator from being collected: the listings still end."""

    fs = await _root()
    had: list[int] = []

    def on_partition(found: FoundPartition) -> None:
        had.append(len(fs.listing))
        raise StorageError("the output is full")

    with pytest.raises(StorageError, match="full") as held:
        await rebuild(
            fs, MemoryKeyValue(MemoryStore()), NodeConfig(cluster="c"), is_dry=True, on_partition=on_partition
        )
    assert held.value.__traceback__ is not None
    assert had == [PARTITIONS - 1]
    assert fs.listing == set()


async def test_the_rebuilt_store_knows_its_root() -> None:
    """Rebuild from a root of an older version, which has no id yet: it gets one."""

    storage, kv = MemoryStorage(), MemoryKeyValue(MemoryStore())
    fs = MemoryFileSystem(storage, "rebuild")
    await check_cluster(fs, "id")
    assert await read_root_id(fs) == ""
    await rebuild(fs, kv, NodeConfig(cluster="c"), is_dry=True)
    assert await read_root_id(fs) == ""
    await rebuild(fs, kv, NodeConfig(cluster="c"))
    stored = await read_root(kv, "c")
    assert stored is not None
    assert stored.root_id == await read_root_id(fs) != ""
    assert (await RootGuard(kv, fs, "c").check()).rebuild_count == 1


async def test_a_rebuild_shows_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics, journals and partitions are counted, and then the topics that are written."""

    fs = MemoryFileSystem(MemoryStorage(), "rebuild")
    await _fill(fs)
    await write_once(fs, "/journals/broker-00000001.jnl", b"")
    stream = io.StringIO()
    monkeypatch.setattr("bmq.cli.progress.LOG_S", 0.0)
    progress = Progress("rebuild", stream=stream)
    await rebuild(fs, MemoryKeyValue(MemoryStore()), NodeConfig(cluster="c"), progress=progress)
    lines = [line.removeprefix("bmq: rebuild: ") for line in stream.getvalue().splitlines()]
    assert lines[0] == "reading topics: 1 topics"
    assert lines[1] == "reading journals: 1 brokers"
    assert lines[2].startswith(f"reading partitions: 1 of {PARTITIONS} partitions")
    assert lines[1 + PARTITIONS].startswith(f"reading partitions: {PARTITIONS} of {PARTITIONS} partitions (100 %)")
    assert lines[2 + PARTITIONS].startswith("writing topics: 1 of 1 topics")


async def test_a_rebuilt_store_is_as_new_as_a_root_whose_cluster_json_came_from_a_backup() -> None:
    """The store was rebuilt once before, and the root's `cluster.json` is then one of before that."""

    fs = MemoryFileSystem(MemoryStorage(), "rebuild")
    await check_cluster(fs, "id")
    await put_store_count(fs, StoreCount(rebuild_count=1, number=7, id="a" * 32))
    kv = MemoryKeyValue(MemoryStore())
    outcome = await rebuild(fs, kv, NodeConfig(cluster="c"), is_dry=True)
    assert outcome.cluster.rebuild_count == 2
    assert await rebuild(fs, kv, NodeConfig(cluster="c")) == outcome
    assert (await RootGuard(kv, fs, "c").check()).rebuild_count == 2


async def test_a_rebuild_brings_the_levels_of_features_back(monkeypatch: pytest.MonkeyPatch) -> None:
    fs, kv = MemoryFileSystem(MemoryStorage(), "rebuild"), MemoryKeyValue(MemoryStore())
    await _fill(fs)
    levels = StoredLevels(revision=9, levels={"transaction.version": 3}, held=frozenset({"transaction.version"}))
    await put_feature_levels(fs, levels)
    with pytest.raises(UnsupportedLevel, match=r"transaction\.version 3 is in force, this version supports 0 to 2"):
        await rebuild(fs, kv, NodeConfig(cluster="c"))
    assert await kv.get(cluster_id_key("c")) is None, "nothing was begun"
    table = FeatureTable((Feature("transaction.version", LevelRange(0, 3)),))
    monkeypatch.setattr("bmq.cli.rebuild.run.read_cluster", lambda fs: read_cluster(fs, table))
    outcome = await rebuild(fs, kv, NodeConfig(cluster="c"))
    entry = await kv.get(features_key("c"))
    assert entry is not None
    record = decode_record(entry.value)
    assert (record.levels, record.held) == (levels.levels, levels.held)
    assert record.epoch > outcome.cluster.rebuild_count << 48, "above every epoch of the lost store"
    assert (await read_cluster(fs, table)) == outcome.cluster
    root = await read_root(kv, "c")
    assert root is not None
    assert root.has_levels, "versions before levels do not join"


async def test_a_rebuild_without_levels_writes_none() -> None:
    fs, kv = MemoryFileSystem(MemoryStorage(), "rebuild"), MemoryKeyValue(MemoryStore())
    await _fill(fs)
    await rebuild(fs, kv, NodeConfig(cluster="c"))
    assert await kv.get(features_key("c")) is None
