"""The levels of features on storage: which name counts, and who refuses a root."""

from __future__ import annotations

import asyncio

import pytest

from bmq.core.errors import FormatError
from bmq.core.features import Feature, FeatureTable, LevelRange, UnsupportedLevel
from bmq.core.file_access import Access
from bmq.storage import layout
from bmq.storage.access_files import AccessFiles
from bmq.storage.cluster_files import (
    ClusterFile,
    check_cluster,
    parse_file,
    put_feature_levels,
    raise_rebuild_count,
    read_cluster,
)
from bmq.storage.feature_levels import StoredLevels, newest_levels, put_levels
from bmq.storage.filesystem import FileSystem, NotAllowed
from bmq.storage.memory import MemoryFileSystem, MemoryStorage

TABLE = FeatureTable((Feature("f", LevelRange(0, 2)),))


def fs_of(storage: MemoryStorage | None = None, holder: str = "h") -> MemoryFileSystem:
    return MemoryFileSystem(storage or MemoryStorage(), holder)


def levels(revision: int, level: int, *held: str, rebuild_count: int = 0) -> StoredLevels:
    return StoredLevels(
        rebuild_count=rebuild_count, revision=revision, levels={"f": level} if level else {}, held=frozenset(held)
    )


async def names(fs: FileSystem) -> list[str]:
    return [layout.base_name(child.path) async for child in fs.list(layout.LEVELS)]


async def test_a_name_has_all_of_it() -> None:
    fs = fs_of()
    put = StoredLevels(rebuild_count=1, revision=7, levels={"a.b": 2, "c": 1}, held=frozenset({"c", "d"}))
    await put_levels(fs, put)
    assert await names(fs) == ["00001-0000000000000000007,a.b=2,c=1,held,d=0,held"]
    assert await newest_levels(fs) == put


async def test_the_highest_revision_of_the_latest_store_counts() -> None:
    fs = fs_of()
    assert await newest_levels(fs) == StoredLevels()
    await put_levels(fs, levels(5, 1))
    await put_levels(fs, levels(9, 2))
    assert len(await names(fs)) == 1
    await put_levels(fs, levels(2, 1, rebuild_count=1))
    assert await newest_levels(fs) == levels(2, 1, rebuild_count=1)


async def test_a_deposed_leader_takes_nothing_back() -> None:
    fs = fs_of()
    await put_levels(fs, levels(9, 2))
    await put_levels(fs, levels(5, 1))
    assert await newest_levels(fs) == levels(9, 2)


async def test_a_name_of_a_later_version_is_not_passed_over() -> None:
    fs = fs_of()
    await put_levels(fs, levels(9, 2))
    await fs.make_folder(f"{layout.LEVELS}/later")
    with pytest.raises(FormatError, match="later"):
        await newest_levels(fs)


async def test_a_root_without_levels_is_as_before() -> None:
    fs = fs_of()
    await check_cluster(fs, "id")
    await put_feature_levels(fs, levels(5, 0))
    assert await read_cluster(fs) == ClusterFile(cluster_id="id")
    parse_file(layout.CLUSTER, await fs.read(layout.CLUSTER, 0, 1000))  # as versions before levels read it


async def test_a_root_that_has_had_a_level_is_refused_by_versions_before_levels() -> None:
    fs = fs_of()
    await check_cluster(fs, "id")
    await put_feature_levels(fs, levels(5, 2))
    await put_feature_levels(fs, levels(6, 0))
    with pytest.raises(FormatError, match="is of format 2: this version reads 1"):
        parse_file(layout.CLUSTER, await fs.read(layout.CLUSTER, 0, 1000))


async def test_whoever_reads_the_root_must_support_its_levels() -> None:
    fs = fs_of()
    await check_cluster(fs, "id")
    await put_feature_levels(fs, levels(5, 2, "f"))
    expected = ClusterFile(cluster_id="id", has_levels=True, levels={"f": 2}, held=frozenset({"f"}))
    assert await read_cluster(fs, TABLE) == expected
    for reading in (read_cluster(fs), check_cluster(fs, "id")):
        with pytest.raises(UnsupportedLevel, match="f 2 is in force, this version supports 0 to 0"):
            await reading
    await put_feature_levels(fs, levels(6, 0))
    assert (await check_cluster(fs, "id")).levels == {}, "a lowered level lets earlier versions in again"


async def test_a_rebuild_keeps_the_levels() -> None:
    fs = fs_of()
    await check_cluster(fs, "id")
    await put_feature_levels(fs, levels(5, 2))
    found = await read_cluster(fs, TABLE)
    assert found is not None
    await raise_rebuild_count(fs, found)
    kept = await read_cluster(fs, TABLE)
    assert kept is not None
    assert (kept.rebuild_count, kept.levels) == (1, {"f": 2})


@pytest.mark.parametrize("stop_at", range(8))
async def test_a_leader_that_stood_still_takes_no_rebuild_count_back(stop_at: int) -> None:
    """A leader is held before one of its calls, for as long as a rebuild takes, and goes on after it."""
    storage = MemoryStorage()
    leader, tool = fs_of(storage, "leader"), fs_of(storage, "tool")
    await check_cluster(tool, "id")
    reached, goes_on = asyncio.Event(), asyncio.Event()
    calls = 0

    def held(call: str) -> None:
        inner = getattr(leader, call)

        async def wait(*args: object, **options: object) -> object:
            nonlocal calls
            calls += 1
            if calls == stop_at + 1:
                reached.set()
                await goes_on.wait()
            return await inner(*args, **options)

        setattr(leader, call, wait)

    for call in ("read", "create", "replace", "rename", "make_folder", "delete"):
        held(call)
    putting = asyncio.create_task(put_feature_levels(leader, levels(5, 2)))
    waiting = asyncio.create_task(reached.wait())
    await asyncio.wait({putting, waiting}, return_when=asyncio.FIRST_COMPLETED)
    found = await read_cluster(tool, TABLE)
    assert found is not None
    await raise_rebuild_count(tool, found)
    goes_on.set()
    await asyncio.gather(putting, return_exceptions=True)
    waiting.cancel()
    after = await read_cluster(tool, TABLE)
    assert after is not None
    assert after.rebuild_count == 1


async def rights(fs: FileSystem, path: str) -> tuple[str, int]:
    status = await fs.status(path)
    return status.group, status.mode


async def test_who_may_read_the_root_may_read_its_levels() -> None:
    """The leader gives the rights once in its term, and files the first level after it."""
    fs = fs_of()
    await check_cluster(fs, "id")
    await AccessFiles(fs).give_shared(Access(mode=0o710, group="readers"))
    before = await rights(fs, layout.CLUSTER)
    assert before == ("readers", 0o640)
    await put_feature_levels(fs, levels(5, 1))
    assert await rights(fs, layout.CLUSTER) == before
    assert await rights(fs, layout.LEVELS) == ("readers", 0o750)
    await raise_rebuild_count(fs, ClusterFile(cluster_id="id", has_levels=True))
    assert await rights(fs, layout.CLUSTER) == before


async def test_rights_that_storage_refuses_do_not_keep_a_level_back(caplog: pytest.LogCaptureFixture) -> None:
    class Refusing(MemoryFileSystem):
        async def set_access(self, path: str, access: Access) -> bool:
            raise NotAllowed("no superuser")

    fs = fs_of()
    await check_cluster(fs, "id")
    await AccessFiles(fs).give_shared(Access(mode=0o710))
    await put_feature_levels(Refusing(fs.storage, "other"), levels(5, 1))
    assert await newest_levels(fs) == levels(5, 1)
    assert "their readers may not be able to" in caplog.text
