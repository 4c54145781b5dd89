"""A cluster that was served from two roots is put together again, whatever interrupts that."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bmq.cli.cluster.merge_root_run import bind, check_roots, common_folder, merge
from bmq.cli.main import main
from bmq.cli.usage import UsageError
from bmq.controller.topics.access import Walk, access_key, encode_walk
from bmq.core.features import Feature, FeatureTable, LevelRange, UnsupportedLevel
from bmq.core.file_access import Access
from bmq.core.http_call import RequestRefused
from bmq.core.store_count import StoreCount
from bmq.meta.catalog import cluster_id_key
from bmq.meta.cluster.keys import features_key, member_key
from bmq.meta.cluster.levels import FeatureLevels, encode_record
from bmq.meta.kv import Put
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.meta.open import open_keyvalue
from bmq.meta.store_count import encode_store_count, store_count_key
from bmq.server.root_guard import RootGuard
from bmq.storage.cluster_files import ClusterFile, WrongCluster, check_cluster, read_cluster
from bmq.storage.filesystem import NoSuchFile, write_once
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from bmq.storage.open import open_filesystem
from bmq.storage.store_counts import put_store_count

pytestmark = pytest.mark.slow

A, B, C = "/topics/t/id/0/a.log", "/topics/t/id/0/b.log", "/topics/t/id/7/c.log"
FACTS, JOURNAL = "/topics/t/topic-3.json", "/journals/x-00000001.jnl"


async def fill(fs: MemoryFileSystem, root: str, **files: bytes) -> None:
    for path, data in files.items():
        await write_once(fs, root + path, data)


async def paths(fs: MemoryFileSystem, folder: str) -> list[str]:
    found: list[str] = []
    async for child in fs.list(folder):
        found += await paths(fs, child.path) if child.is_dir else [child.path]
    return found


async def split_cluster() -> MemoryFileSystem:
    fs = MemoryFileSystem(MemoryStorage(), "merge")
    await fill(fs, "/root", **{A: b"a", FACTS: b"facts"})
    await fill(fs, "/rot", **{B: b"b", C: b"c", FACTS: b"facts", JOURNAL: b"j", "/cluster.json": b"x"})
    return fs


async def test_all_that_the_wrong_root_has_is_moved_as_the_same_file() -> None:
    fs = await split_cluster()
    ids = {path: (await fs.status("/rot" + path)).file_id for path in (B, C)}
    would = await merge(fs, "/root", "/rot", is_dry=True)
    assert await paths(fs, "/rot") == ["/rot" + path for path in ("/cluster.json", JOURNAL, B, C, FACTS)]
    done = await merge(fs, "/root", "/rot")
    assert done == would
    assert (done.moved, done.left) == (["/rot" + B, "/rot/topics/t/id/7", "/rot/journals"], [])
    assert await paths(fs, "/root") == ["/root" + path for path in (JOURNAL, A, B, C, FACTS)]
    assert {path: (await fs.status("/root" + path)).file_id for path in (B, C)} == ids
    assert (await merge(fs, "/root", "/rot")).moved == []


@pytest.mark.parametrize("has_index", [False, True])
async def test_an_index_without_its_segment_is_not_moved(has_index: bool) -> None:
    """Leave an index under the wrong root, whose segment lies under the right one: it is not moved.

    The right root has an index of its own, or reads the segment.
    """
    log, idx = (f"/topics/t/id/0/00000000000000000000-00000001-0000.{kind}" for kind in ("log", "idx"))
    own_log, own_idx = (f"/topics/t/id/0/00000000000000000007-00000002-0000.{kind}" for kind in ("log", "idx"))
    fs = await split_cluster()
    await fill(fs, "/root", **{log: b"segment", **({idx: b"right"} if has_index else {})})
    await fill(fs, "/rot", **{idx: b"wrong", own_log: b"segment", own_idx: b"index"})
    merged = await merge(fs, "/root", "/rot")
    assert merged.left == []
    assert {"/rot" + own_log, "/rot" + own_idx} <= set(merged.moved)
    assert ("/root" + idx in await paths(fs, "/root")) is has_index
    assert "/rot" + idx in await paths(fs, "/rot")
    if has_index:
        assert await fs.read("/root" + idx, 0, 100) == b"right"


async def test_what_collides_stays_and_is_named() -> None:
    fs = await split_cluster()
    await fill(fs, "/rot", **{A: b"another a"})
    merged = await merge(fs, "/root", "/rot")
    assert merged.left == ["/rot" + A]
    assert await fs.read("/root" + A, 0, 100) == b"a"
    assert await fs.read("/rot" + A, 0, 100) == b"another a"


TOPIC = {
    "format": 1,
    "name": "t",
    "topic_id": "00000000-0000-0000-0000-000000000001",
    "partitions": 50,
    "configs": {"segment.bytes": "1048576", "cleanup.policy": "compact"},
    "replication_factor": 3,
}


@pytest.mark.parametrize(
    ("right", "wrong", "is_same"),
    [
        ({"configs": {"cleanup.policy": "compact", "segment.bytes": "1048576"}}, {}, True),
        ({"replication_factor": None}, {}, True),
        ({}, {"replication_factor": None}, True),
        ({}, {"replication_factor": 1}, False),
        ({}, {"partitions": 51}, False),
        ({}, {"topic_id": "00000000-0000-0000-0000-000000000002"}, False),
        ({}, {"configs": {"cleanup.policy": "delete", "segment.bytes": "1048576"}}, False),
        ({}, {"configs": {"cleanup.policy": "compact"}}, False),
        ({}, {"partitions": "many"}, False),
        ({}, {"format": 2}, False),
    ],
    ids=str,
)
async def test_files_that_say_the_same_of_a_topic_are_the_same(
    right: dict[str, object], wrong: dict[str, object], is_same: bool
) -> None:
    """Files of older versions have the configs in the order of the topic's creation, or no replication factor."""

    def content(fields: dict[str, object]) -> bytes:
        return json.dumps({name: value for name, value in (TOPIC | fields).items() if value is not None}).encode()

    fs, path = MemoryFileSystem(MemoryStorage(), "merge"), "/topics/t/topic-3.json"
    for root, fields in (("/root", right), ("/rot", wrong)):
        await fill(fs, root, **{path: content(fields)})
    merged = await merge(fs, "/root", "/rot")
    assert merged.left == ([] if is_same else ["/rot" + path])
    assert await fs.read("/root" + path, 0, 10_000) == content(right)


async def test_a_merge_that_was_interrupted_is_run_again() -> None:
    for allowed in range(4):
        fs, renames = await split_cluster(), 0
        rename = fs.rename

        async def fails(source: str, target: str, rename: Any = rename, allowed: int = allowed) -> None:
            nonlocal renames
            renames += 1
            if renames > allowed:
                raise NoSuchFile("killed")
            await rename(source, target)

        fs.rename = fails  # type: ignore[method-assign]
        if allowed < 3:
            with pytest.raises(NoSuchFile):
                await merge(fs, "/root", "/rot")
            fs.rename = rename  # type: ignore[method-assign]
        await merge(fs, "/root", "/rot")
        assert await paths(fs, "/root") == ["/root" + path for path in (JOURNAL, A, B, C, FACTS)]


def test_roots_of_one_file_system_share_a_folder() -> None:
    assert common_folder(["file:///a/b%20c/root", "file:///a/b%20c/x/rot"]) == ("file:///a/b%20c", ["/root", "/x/rot"])
    assert common_folder(["hdfs://n:1,m:1/root", "hdfs://n:1,m:1/rot"]) == ("hdfs://n:1,m:1/", ["/root", "/rot"])
    assert common_folder(["file:///a/root"]) == ("file:///a", ["/root"])
    for others in ("file:///a", "file:///a/root", "file:///a/root/x"):
        with pytest.raises(UsageError, match="in another one"):
            common_folder(["file:///a/root", others])
    with pytest.raises(UsageError, match="not on one file system"):
        common_folder(["hdfs://n/root", "hdfs://m/rot"])


class Place:
    """A SQLite file and folders."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.meta = f"sqlite://{folder}/meta.db"

    def url(self, root: str) -> str:
        return f"file://{self.folder}/{root}"

    def serve(self, root: str) -> None:
        """Start as a server does, and end."""

        async def start() -> None:
            kv = await open_keyvalue(self.meta)
            fs = await open_filesystem(self.url(root), holder="h")
            try:
                await RootGuard(kv, fs, "bmq").check()
            finally:
                await fs.close()
                await kv.close()

        asyncio.run(start())

    def put(self, key: str, value: bytes) -> None:
        async def put() -> None:
            kv = await open_keyvalue(self.meta)
            await kv.commit([], [Put(key, value)])
            await kv.close()

        asyncio.run(put())

    def write(self, root: str, path: str, data: bytes) -> None:
        file = self.folder / root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)

    def old_version_served(self, root: str) -> None:
        content = {"format": 1, "cluster_id": "id", "incarnation": 2}
        self.write(root, "/cluster.json", json.dumps(content).encode())


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    for name in list(os.environ):
        if name.startswith("BMQ_"):
            monkeypatch.delenv(name)
    return Place(tmp_path)


def merge_root(place: Place, root: str, *wrong: str, words: tuple[str, ...] = ()) -> int:
    flags = [word for each in wrong for word in ("--from", place.url(each))]
    return main(["cluster", "merge-root", "--root", place.url(root), "--meta", place.meta, *flags, *words])


def test_a_cluster_that_an_older_version_split_serves_one_root_again(place: Place, capsys: Any) -> None:
    """The process with the wrong root was the first to start with this version, and is refused afterwards."""
    place.put(cluster_id_key("bmq"), b"id")
    for root in ("root", "rot"):
        place.old_version_served(root)
    place.write("root", A, b"a")
    place.write("rot", B, b"b")
    place.serve("rot")
    with pytest.raises(WrongCluster, match="merge-root"):
        place.serve("root")
    assert merge_root(place, "root", "rot", words=("--dry-run",)) == 0
    assert "would move /rot/topics/t/id/0/b.log" in capsys.readouterr().out
    assert not (place.folder / ("root" + B)).exists()
    assert merge_root(place, "root", "rot") == 0
    assert f"is served from {place.url('root')}" in capsys.readouterr().out
    assert (place.folder / ("root" + B)).read_bytes() == b"b"
    place.serve("root")
    with pytest.raises(WrongCluster):
        place.serve("rot")
    place.write("rot", A, b"another")
    assert merge_root(place, "root", "rot") == 1
    assert "another file of this name: /rot/topics/t/id/0/a.log" in capsys.readouterr().err


def test_a_root_that_lost_its_files_gets_them_back(place: Place) -> None:
    place.serve("root")
    place.write("root", A, b"a")
    for name in ("cluster.json", "root.json"):
        (place.folder / "root" / name).unlink()
    with pytest.raises(WrongCluster, match="merge-root"):
        place.serve("root")
    assert merge_root(place, "root") == 0
    place.serve("root")


def test_a_merge_of_wrong_places_or_a_running_cluster_is_refused(place: Place, capsys: Any) -> None:
    place.serve("root")
    (place.folder / "empty").mkdir()
    assert merge_root(place, "none") == 2
    assert "there is no such folder" in capsys.readouterr().err
    assert merge_root(place, "empty") == 1
    assert "no cluster was ever served from there" in capsys.readouterr().err
    assert merge_root(place, "root", "empty") == 1
    assert "no cluster was ever served from there" in capsys.readouterr().err
    place.old_version_served("foreign")
    assert merge_root(place, "root", "foreign") == 1
    assert "belongs to cluster id" in capsys.readouterr().err
    assert merge_root(place, "root", words=("--cluster", "other")) == 1
    assert "check --meta and --cluster" in capsys.readouterr().err
    place.put(member_key("bmq", "broker-1"), b"")
    assert merge_root(place, "root") == 1
    assert "broker-1 is running" in capsys.readouterr().err
    assert main(["cluster", "merge-root", "--root", place.url("root")]) == 2
    assert "give --meta" in capsys.readouterr().err
    assert main(["cluster", "merge-root", "--root", "memory:x", "--meta", place.meta]) == 2
    assert "file:///dir or hdfs://" in capsys.readouterr().err
    assert main(["cluster", "merge-root", "--root", place.url("root"), "--meta", f"{place.meta}x"]) == 2
    assert "there is no such file" in capsys.readouterr().err


@pytest.mark.parametrize("is_right", [True, False])
async def test_a_store_that_is_older_than_a_root_is_refused(is_right: bool) -> None:
    """The later state of the store knows other topics and owners: an old copy must not say which root is right."""
    kv = MemoryKeyValue(MemoryStore())
    right, wrong = (MemoryFileSystem(MemoryStorage(), "merge") for _ in range(2))
    for fs in (right, wrong):
        await check_cluster(fs, "id")
    count = StoreCount(rebuild_count=0, number=7, id="a" * 32)
    await kv.commit([], [Put(cluster_id_key("c"), b"id"), Put(store_count_key("c"), encode_store_count(count))])
    assert await check_roots(kv, "c", right, [wrong]) == ClusterFile(cluster_id="id")
    await put_store_count(right if is_right else wrong, replace(count, number=8, id="b" * 32))
    with pytest.raises(RequestRefused, match="the metadata store is older than storage"):
        await check_roots(kv, "c", right, [wrong])


async def test_files_from_another_root_are_given_their_topics_rights_anew() -> None:
    """Files keep the rights that they had in the wrong root, so the walks over all topics begin again."""
    fs, kv = MemoryFileSystem(MemoryStorage(), "merge"), MemoryKeyValue(MemoryStore())
    done = access_key("c", uuid.UUID(int=5))
    await kv.commit([], [Put(done, encode_walk(Walk(Access(mode=0o750), is_done=True))), Put("/c/other", b"stays")])
    await bind(kv, "c", fs, ClusterFile(cluster_id="id"))
    assert [entry.key async for entry in kv.list("/c/access/")] == []
    assert await kv.get("/c/other")


async def test_the_right_root_shows_the_levels_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    kv, right = MemoryKeyValue(MemoryStore()), MemoryFileSystem(MemoryStorage(), "merge")
    record = encode_record(
        FeatureLevels(epoch=1, levels={"transaction.version": 1}, intended={"transaction.version": 3})
    )
    await kv.commit([], [Put(cluster_id_key("c"), b"id"), Put(features_key("c"), record)])
    with pytest.raises(UnsupportedLevel, match=r"transaction\.version 3 is in force, this version supports 0 to 2"):
        await check_roots(kv, "c", right, [])
    table = FeatureTable((Feature("transaction.version", LevelRange(0, 3)),))
    monkeypatch.setattr("bmq.cli.cluster.merge_root_run.FEATURES", table)
    assert (await bind(kv, "c", right, ClusterFile(cluster_id="id"))).has_levels
    found = await read_cluster(right, table)
    assert found is not None
    assert found.levels == {"transaction.version": 3}
