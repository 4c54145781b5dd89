"""A store and a root that do not belong together are refused, whichever of them is the wrong one."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import uuid
from pathlib import Path

import pytest

from bmq.controller.store_age import StoreAge, StoreOlder
from bmq.core.features import Feature, FeatureTable, LevelRange, UnsupportedLevel
from bmq.meta.catalog import Topic, cluster_id_key, encode_topic, topic_key
from bmq.meta.cluster.membership import JoinRefused
from bmq.meta.kv import Delete, KeyValue, Put
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.meta.open import open_keyvalue
from bmq.meta.root import RootRecord, decode_root, encode_root, read_root, root_key
from bmq.meta.store_count import store_count_key
from bmq.server.root_guard import STORAGE_PATIENCE_S, RootGuard, RootVerdict, judge
from bmq.storage.cluster_files import ClusterFile, WrongCluster, put_feature_levels, read_cluster
from bmq.storage.feature_levels import StoredLevels
from bmq.storage.filesystem import FileSystem, OutOfSpace, StorageUnavailable, write_once
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from bmq.storage.memory.faults import Faults
from bmq.storage.open import open_filesystem
from bmq.storage.root_id import read_root_id

CLUSTER = "c"


def new_root(holder: str = "h") -> MemoryFileSystem:
    return MemoryFileSystem(MemoryStorage(), holder)


def new_store() -> MemoryKeyValue:
    return MemoryKeyValue(MemoryStore())


async def put_topic(kv: KeyValue) -> None:
    topic = Topic(name="t", topic_id=uuid.UUID(int=1), partitions=1)
    await kv.commit([], [Put(topic_key(CLUSTER, "t"), encode_topic(topic))])


async def of_today(kv: KeyValue, *roots: FileSystem) -> None:
    """Write a cluster of a version without root ids, with a topic."""
    await kv.commit([], [Put(cluster_id_key(CLUSTER), b"id")])
    await put_topic(kv)
    for fs in roots:
        content = {"format": 1, "cluster_id": "id", "incarnation": 0}
        await write_once(fs, "/cluster.json", json.dumps(content).encode())


def check(kv: KeyValue, fs: FileSystem) -> asyncio.Task[ClusterFile]:
    return asyncio.ensure_future(RootGuard(kv, fs, CLUSTER).check())


def test_every_combination_has_its_verdict() -> None:
    one, two = RootRecord(root_id="1", url="u"), RootRecord(root_id="2", url="u")
    ours, theirs = ClusterFile(cluster_id="a"), ClusterFile(cluster_id="b")
    served = {
        (stored, has_data, file, root_id)
        for stored, has_data, file, root_id in itertools.product(
            (None, one, two), (False, True), (None, ours, theirs), ("", "1", "2")
        )
        if judge(stored, has_data, file, root_id, "a") in (RootVerdict.SERVE, RootVerdict.BIND)
    }
    assert served == {
        *((None, False, None, root_id) for root_id in ("", "1", "2")),  # new
        *((None, has_data, ours, root_id) for has_data in (False, True) for root_id in ("", "1", "2")),  # adopted
        *((stored, has_data, ours, stored.root_id) for stored in (one, two) for has_data in (False, True)),
    }


async def test_a_new_cluster_keeps_its_root() -> None:
    kv, fs = new_store(), new_root()
    found = await check(kv, fs)
    stored = await read_root(kv, CLUSTER)
    assert stored is not None
    assert stored.root_id == await read_root_id(fs) != ""
    assert await check(kv, fs) == found == await read_cluster(fs)
    with pytest.raises(WrongCluster, match=r"it has no cluster\.json.*Check --root"):
        await check(kv, new_root())
    with pytest.raises(WrongCluster, match="belongs to cluster"):
        await check(new_store(), fs)


async def test_storage_that_answers_later_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """Datanodes were just restarted: the NameNode knows no replica of the root's files yet."""

    with caplog.at_level(logging.WARNING):
        kv, fs = new_store(), new_root()
        found = await check(kv, fs)
        for name in fs.storage.datanodes:
            fs.storage.kill_datanode(name)
        checking = check(kv, fs)
        await asyncio.sleep(STORAGE_PATIENCE_S / 2)
        assert not checking.done()
        for name in fs.storage.datanodes:
            fs.storage.start_datanode(name)
        assert await checking == found
        for name in fs.storage.datanodes:
            fs.storage.kill_datanode(name)
        with pytest.raises(StorageUnavailable):
            await asyncio.wait_for(check(kv, fs), 2 * STORAGE_PATIENCE_S)
    waits = [record for record in caplog.records if "waiting for storage" in record.getMessage()]
    assert len(waits) == 2, "a line for each wait, not for each try"


async def test_a_cluster_of_an_older_version_is_taken_over_as_it_is() -> None:
    kv, fs = new_store(), new_root()
    await of_today(kv, fs)
    assert (await check(kv, fs)).cluster_id == "id"
    stored = await read_root(kv, CLUSTER)
    assert stored is not None
    assert stored.root_id == await read_root_id(fs)


async def test_a_full_root_of_an_older_version_is_served_and_bound_when_there_is_room(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        kv, fs = new_store(), new_root()
        await of_today(kv, fs)
        fs.storage.is_full = True
        guard = RootGuard(kv, fs, CLUSTER)
        assert (await guard.check()).cluster_id == "id"
        assert await read_root(kv, CLUSTER) is None
        await guard.before_join()  # still full
        assert await read_root(kv, CLUSTER) is None
        fs.storage.is_full = False
        await guard.before_join()
        stored = await read_root(kv, CLUSTER)
        assert stored is not None
        assert stored.root_id == await read_root_id(fs) != ""
    assert sum("has no room for /root.json" in record.getMessage() for record in caplog.records) == 2


async def test_a_full_root_is_refused_when_another_one_was_bound_meanwhile() -> None:
    kv, fs = new_store(), new_root()
    await of_today(kv, fs)
    fs.storage.is_full = True
    guard = RootGuard(kv, fs, CLUSTER)
    await guard.before_join()
    other = RootRecord(root_id="other", url="file:///other")
    await kv.commit([], [Put(root_key(CLUSTER), encode_root(other))])
    with pytest.raises(JoinRefused, match="file:///other"):
        await guard.before_join()


async def test_a_new_cluster_does_not_begin_on_a_full_root() -> None:
    fs = new_root()
    fs.storage.is_full = True
    with pytest.raises(OutOfSpace):
        await check(new_store(), fs)


async def test_an_empty_root_beside_a_store_with_topics_is_never_adopted() -> None:
    kv, right, wrong = new_store(), new_root(), new_root()
    await of_today(kv, right)
    with pytest.raises(WrongCluster, match=r"with topics \(/c/catalog/topics/t\)"):
        await check(kv, wrong)
    assert [each.path async for each in wrong.list("/")] == []
    assert await read_root(kv, CLUSTER) is None
    await check(kv, right)


async def test_a_root_that_lost_its_files_is_not_a_new_one() -> None:
    kv, fs = new_store(), new_root()
    await check(kv, fs)
    await fs.delete("/root.json")
    with pytest.raises(WrongCluster, match=r"without an id.*merge-root"):
        await check(kv, fs)
    await fs.delete("/cluster.json")
    with pytest.raises(WrongCluster, match="merge-root"):
        await check(kv, fs)


@pytest.mark.parametrize("is_new", [False, True])
async def test_members_that_start_at_once_with_one_root_all_serve(is_new: bool) -> None:
    kv, storage = new_store(), MemoryStorage()
    members = [MemoryFileSystem(storage, f"m{number}") for number in range(5)]
    if not is_new:
        await of_today(kv, members[0])
    found = await asyncio.gather(*(check(kv, fs) for fs in members))
    assert len(set(found)) == 1


@pytest.mark.parametrize("is_new", [False, True])
async def test_of_members_that_start_at_once_with_several_roots_those_of_one_serve(is_new: bool) -> None:
    """Start members with three roots at once, new or with an older version's file in each: those of one root serve."""

    kv, storages = new_store(), [MemoryStorage() for _ in range(3)]
    members = [MemoryFileSystem(storages[number % 3], f"m{number}") for number in range(6)]
    if not is_new:
        await of_today(kv, *members[:3])
    found = await asyncio.gather(*(check(kv, fs) for fs in members), return_exceptions=True)
    served = {number % 3 for number, each in enumerate(found) if isinstance(each, ClusterFile)}
    assert len(served) == 1
    assert all(isinstance(each, ClusterFile | WrongCluster) for each in found)
    stored = await read_root(kv, CLUSTER)
    assert stored is not None
    assert stored.root_id == await read_root_id(members[served.pop()])


async def test_whoever_joins_again_looks_whether_the_store_is_still_the_same() -> None:
    kv, fs = new_store(), new_root()
    guard = RootGuard(kv, fs, CLUSTER)
    await guard.before_join()
    await guard.before_join()
    stored = await read_root(kv, CLUSTER)
    assert stored is not None
    other = RootRecord(root_id="other", url="file:///other")
    await kv.commit([], [Put(root_key(CLUSTER), encode_root(other))])
    with pytest.raises(JoinRefused, match="file:///other"):
        await guard.before_join()
    await kv.commit([], [Put(root_key(CLUSTER), encode_root(stored)), Delete(cluster_id_key(CLUSTER))])
    with pytest.raises(JoinRefused, match="empty or being rebuilt"):
        await guard.before_join()
    assert await kv.get(cluster_id_key(CLUSTER)) is None
    await kv.commit([], [Put(cluster_id_key(CLUSTER), b"\xff")])
    with pytest.raises(JoinRefused, match="another cluster"):
        await guard.before_join()


@pytest.mark.parametrize(
    "value", [b"", b"[]", b"{}", b'{"format":3,"root_id":"a","url":""}', b'{"format":1,"root_id":1,"url":""}']
)
async def test_a_record_that_cannot_be_read_is_named(value: bytes) -> None:
    kv, fs = new_store(), new_root()
    await check(kv, fs)
    await kv.commit([], [Put(root_key(CLUSTER), value)])
    with pytest.raises(Exception, match="/c/root") as refused:
        await check(kv, fs)
    assert type(refused.value).__name__ == "FormatError"


@pytest.mark.slow
def test_a_sqlite_file_and_a_mistyped_folder(tmp_path: Path) -> None:
    async def start(root: str) -> None:
        kv = await open_keyvalue(f"sqlite://{tmp_path}/meta.db")
        fs = await open_filesystem(f"file://{tmp_path}/{root}", holder="h")
        try:
            await RootGuard(kv, fs, CLUSTER).check()
            entry = await kv.get(root_key(CLUSTER))
            assert entry is not None
            assert decode_root(entry).url == f"file://{tmp_path}/root"
        finally:
            await fs.close()
            await kv.close()

    asyncio.run(start("root"))
    with pytest.raises(WrongCluster, match=f"served from file://{tmp_path}/root"):
        asyncio.run(start("rot"))
    asyncio.run(start("root"))


async def test_whoever_joins_again_refuses_an_old_state_of_the_store(caplog: pytest.LogCaptureFixture) -> None:
    """An etcd came back from a snapshot while brokers lived on."""
    kv, fs = new_store(), new_root()
    guard = RootGuard(kv, fs, CLUSTER)
    await guard.before_join()
    age = StoreAge(kv, fs, CLUSTER, 0, guard=list)
    await age.note()
    before = await kv.get(store_count_key(CLUSTER))
    assert before is not None
    await put_topic(kv)
    await age.note()
    await guard.before_join()
    await kv.commit([], [Put(before.key, before.value)])
    fs.storage.faults = Faults(unavailable=1.0)
    with caplog.at_level(logging.WARNING):
        await guard.before_join()
    assert "could not check whether the metadata store is older" in caplog.text
    fs.storage.faults = Faults()
    with pytest.raises(JoinRefused, match="the metadata store is older than storage"):
        await guard.before_join()


@pytest.mark.parametrize("is_bound", [True, False])
async def test_rule_3_an_old_state_of_the_store_is_refused_before_anything_is_written(is_bound: bool) -> None:
    kv, fs = new_store(), new_root()
    found = await check(kv, fs)
    if not is_bound:
        await kv.commit([], [Delete(root_key(CLUSTER))])
    age = StoreAge(kv, fs, CLUSTER, found.rebuild_count, guard=list)
    await age.note()
    before = await kv.get(store_count_key(CLUSTER))
    assert before is not None
    await put_topic(kv)
    await age.note()
    await kv.commit([], [Put(before.key, before.value), Delete(topic_key(CLUSTER, "t"))])
    revision = await kv.revision()
    with pytest.raises(StoreOlder, match="the metadata store is older than storage"):
        await RootGuard(kv, fs, CLUSTER).before_join()
    assert await kv.revision() == revision


async def test_a_root_with_a_level_that_this_version_does_not_support_is_refused_by_name() -> None:
    kv, fs = new_store(), new_root()
    await check(kv, fs)
    await put_feature_levels(fs, StoredLevels(revision=9, levels={"transaction.version": 3}))
    with pytest.raises(
        UnsupportedLevel, match=r"transaction\.version 3 is in force, this version supports 0 to 2\. Use"
    ):
        await check(kv, fs)
    table = FeatureTable((Feature("transaction.version", LevelRange(0, 3)),))
    assert (await RootGuard(kv, fs, CLUSTER, table).check()).levels == {"transaction.version": 3}
    await put_feature_levels(fs, StoredLevels(revision=10))
    assert (await check(kv, fs)).levels == {}
