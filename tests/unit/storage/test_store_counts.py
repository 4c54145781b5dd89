"""The counts of the metadata store on the root: the highest counts, in whatever order they were made."""

from __future__ import annotations

from bmq.core.store_count import StoreCount
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from bmq.storage.store_counts import newest_store_counts, put_store_count


def count(rebuild_count: int, number: int, letter: str = "a") -> StoreCount:
    return StoreCount(rebuild_count=rebuild_count, number=number, id=letter * 32)


async def names(fs: MemoryFileSystem) -> list[str]:
    return [each.path async for each in fs.list("/store")]


async def test_a_root_without_a_count_has_none() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "one")
    assert await newest_store_counts(fs) == []
    await fs.make_folder("/store")
    await fs.make_folder("/store/of-a-later-version")
    assert await newest_store_counts(fs) == []


async def test_a_count_is_the_name_of_an_empty_folder_and_replaces_lower_ones() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "one")
    await put_store_count(fs, count(0, 9))
    await put_store_count(fs, count(0, 10))
    assert await names(fs) == ["/store/00000-0000000000000000010-" + "a" * 32]
    await put_store_count(fs, count(1, 1))
    await put_store_count(fs, count(1, 1))
    assert await newest_store_counts(fs) == [count(1, 1)]
    assert len(await names(fs)) == 1


async def test_a_count_that_comes_late_takes_nothing_back() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "one")
    await put_store_count(fs, count(0, 12))
    await put_store_count(fs, count(0, 11, "b"))
    assert await newest_store_counts(fs) == [count(0, 12)]
    await put_store_count(fs, count(0, 13))
    assert len(await names(fs)) == 1


async def test_equal_counts_of_two_stores_are_both_shown() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "one")
    for letter in "ab":
        await put_store_count(fs, count(0, 12, letter))
    assert await newest_store_counts(fs) == [count(0, 12, "a"), count(0, 12, "b")]


async def test_a_count_needs_no_room_at_datanodes() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "one")
    for name in fs.storage.datanodes:
        fs.storage.kill_datanode(name)
    await put_store_count(fs, count(0, 1))
    assert await newest_store_counts(fs) == [count(0, 1)]
