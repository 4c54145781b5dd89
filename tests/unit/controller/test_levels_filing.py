"""The filing of levels: store and root refuse versions before levels first, and only the leader writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from bmq.controller.levels_filing import file_levels
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.features import Feature, FeatureTable, LevelRange
from bmq.meta.kv import Commit, Compare, KvUnavailable, Put, Write
from bmq.meta.kv_memory import KvFaults, MemoryKeyValue, MemoryStore
from bmq.meta.root import RootRecord, bind_root, encode_root, read_root, root_key
from bmq.storage.cluster_files import check_cluster, read_cluster
from bmq.storage.feature_levels import StoredLevels
from bmq.storage.filesystem import StorageUnavailable
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from bmq.storage.root_id import make_root_id, read_root_id

ROOT = RootRecord(root_id="r", url="memory:")
RAISED, LOWERED = StoredLevels(revision=7, levels={"f": 1}), StoredLevels(revision=8)
TABLE = FeatureTable((Feature("f", LevelRange(0, 1)),))


class World:
    def __init__(self, kv: MemoryKeyValue | None = None) -> None:
        self.kv = kv or MemoryKeyValue(MemoryStore())
        self.fs = MemoryFileSystem(MemoryStorage(Random(0)), "h")
        self.leaders = 0

    async def start(self, root: RootRecord | None = ROOT) -> World:
        await check_cluster(self.fs, "id")
        await self.elect()
        if root is not None:
            await self.kv.commit([], [Put(root_key("c"), encode_root(root))])
        return self

    async def elect(self) -> None:
        self.leaders = (await self.kv.commit([], [Put("leader", b"")])).revision

    async def file(self, levels: StoredLevels, leader: int | None = None) -> None:
        revision = self.leaders if leader is None else leader
        await file_levels(self.kv, "c", self.fs, levels, lambda: [Compare("leader", revision)])

    async def format(self) -> Any:
        """Return the format of the root's record: versions before levels read format 1 alone."""
        entry = await self.kv.get(root_key("c"))
        return None if entry is None else json.loads(entry.value)["format"]


async def test_a_process_of_an_earlier_version_is_refused_when_it_joins_again() -> None:
    w = await World().start()
    await w.file(LOWERED)
    assert await w.format() == 1, "no level was ever raised"
    await w.file(RAISED)
    assert await w.format() == 2
    assert await read_root(w.kv, "c") == RootRecord(root_id="r", url="memory:", has_levels=True)
    before = await w.kv.revision()
    await w.file(RAISED)
    await w.file(LOWERED)
    assert await w.kv.revision() == before, "nothing is written twice"
    assert await w.format() == 2, "records of the level may still be on storage"


async def test_storage_shows_no_level_before_the_store_refuses_earlier_versions() -> None:
    class NoRoom(MemoryFileSystem):
        async def make_folder(self, path: str, *args: Any, **kwargs: Any) -> Any:
            raise StorageUnavailable("safe mode")

    w = await World().start()
    w.fs = NoRoom(w.fs.storage, "h")
    with pytest.raises(StorageUnavailable):
        await w.file(RAISED)
    assert await w.format() == 2


async def test_a_former_leader_changes_nothing() -> None:
    w = await World().start()
    former = w.leaders
    await w.elect()
    with pytest.raises(RequestError) as refused:
        await w.file(RAISED, former)
    assert refused.value.code is ErrorCode.NOT_CONTROLLER
    assert await w.format() == 1
    file = await read_cluster(w.fs, TABLE)
    assert file is not None
    assert not file.has_levels


async def test_a_root_without_a_record_is_bound_under_format_2() -> None:
    w = await World().start(None)
    await w.file(RAISED)
    assert await w.format() == 2
    record = await read_root(w.kv, "c")
    assert record is not None
    assert record.root_id == await read_root_id(w.fs) != ""
    file = await read_cluster(w.fs, TABLE)
    assert file is not None
    assert file.levels == {"f": 1}


@pytest.mark.parametrize("moment", ["before the filing", "during the filing", "after the filing"])
async def test_a_process_that_binds_the_root_meanwhile_leaves_no_record_of_format_1(moment: str) -> None:
    """The process has read ``cluster.json`` before it got format 2, or is of a version that knows no levels."""
    w = await World(Overtaken(MemoryStore())).start(None)
    assert isinstance(w.kv, Overtaken)
    late = RootRecord(root_id=await make_root_id(w.fs), url="memory:")
    if moment == "before the filing":
        await bind_root(w.kv, "c", late)
    elif moment == "during the filing":
        w.kv.root, w.kv.is_due = late, True
        with pytest.raises(KvUnavailable, match="changed at the same time"):
            await w.file(RAISED)
        assert await w.format() == 1
        file = await read_cluster(w.fs)
        assert file is not None
        assert not file.has_levels, "storage shows nothing before the store refuses"
    await w.file(RAISED)  # the leader tries again
    if moment == "after the filing":
        assert (await bind_root(w.kv, "c", late)).has_levels
    assert await w.format() == 2


async def test_a_write_whose_response_is_lost_is_recognised() -> None:
    w = await World(LostOnce(MemoryStore(), random=Random(1))).start()
    assert isinstance(w.kv, LostOnce)
    w.kv.is_due = True
    await w.file(RAISED)
    assert await w.format() == 2


async def test_a_record_that_changes_meanwhile_is_tried_again() -> None:
    w = await World(Overtaken(MemoryStore())).start()
    assert isinstance(w.kv, Overtaken)
    w.kv.is_due = True
    with pytest.raises(KvUnavailable, match="changed at the same time"):
        await w.file(RAISED)
    await w.file(RAISED)
    assert await read_root(w.kv, "c") == RootRecord(root_id="r2", url="memory:", has_levels=True)


class LostOnce(MemoryKeyValue):
    """A client whose next commit is done, and its response lost."""

    is_due = False

    async def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Commit:
        if self.is_due:
            self.is_due, self.faults = False, KvFaults(unknown_applied=1.0)
        try:
            return await super().commit(compares, writes)
        finally:
            self.faults = KvFaults()


class Overtaken(MemoryKeyValue):
    """A client before whose next commit another one writes the root."""

    is_due = False
    root = RootRecord(root_id="r2", url="memory:")

    async def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Commit:
        if self.is_due:
            self.is_due = False
            await super().commit([], [Put(root_key("c"), encode_root(self.root))])
        return await super().commit(compares, writes)
