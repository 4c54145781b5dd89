"""Discovery of topics and partitions from storage."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, cast

import pytest

from bmq.core.features import UnsupportedLevel
from bmq.spark.options import OptionError, ReadOptions
from bmq.spark.planning.discover import NoSuchTopic, find_logs, find_topics, relocate
from bmq.storage.cluster_files import check_cluster, put_feature_levels
from bmq.storage.feature_levels import StoredLevels
from bmq.storage.filesystem import FileSystem
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.unit.spark.planning.views import all_slices, only, options
from tests.unit.spark.storing import Store, series

pytestmark = pytest.mark.slow


async def test_topics_are_found_by_name_and_by_pattern() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "test")
    for name in ("orders", "orders.eu", "__consumer_offsets", "other"):
        await Store(fs, name, uuid.uuid4()).create(2)
    found = await find_topics(fs, ReadOptions.parse({"root": "memory:", "subscribe": "other,orders"}))
    assert [topic.name for topic in found] == ["orders", "other"]
    for pattern, names in {"orders": ["orders"], ".*er.*": ["orders", "orders.eu", "other"], "x": []}.items():
        found = await find_topics(fs, ReadOptions.parse({"root": "memory:", "subscribePattern": pattern}))
        assert [topic.name for topic in found] == names
    assert await find_topics(fs, options(topic="__consumer_offsets")), "a name may be internal, a pattern not"


async def test_partitions_are_assigned_by_name() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "test")
    for name in ("orders", "other"):
        await Store(fs, name, uuid.uuid4()).create(3)

    async def found(assign: str, **given: str) -> list[str]:
        views = await find_logs(fs, ReadOptions.parse({"root": "memory:", "assign": assign} | given))
        return [view.log.label for view in views]

    assert await found('{"other": [2], "orders": [1, 0, 1]}') == ["orders-0", "orders-1", "other-2"]
    assert await found('{"orders": [1]}', startingOffsets='{"orders": {"1": 0}}') == ["orders-1"]
    with pytest.raises(OptionError, match="missing are orders-1; not there are orders-0"):
        await found('{"orders": [1]}', startingOffsets='{"orders": {"0": 0}}')
    with pytest.raises(NoSuchTopic, match="topic orders has 3 partitions, and no partition 3"):
        await found('{"orders": [1, 3]}')


async def test_a_topic_of_the_same_name_with_another_id_is_not_read() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "test")
    store = await Store(fs).create()
    assert len(await find_logs(fs, options(topicId=str(store.topic_id)))) == 1
    with pytest.raises(NoSuchTopic, match="it was deleted and created again"):
        await find_logs(fs, options(topicId=str(uuid.uuid4())))


@pytest.mark.parametrize(("name", "error"), [("none", NoSuchTopic), ("a/b", OptionError), ("..", OptionError)])
async def test_a_missing_topic_is_refused(name: str, error: type[Exception]) -> None:
    fs = MemoryFileSystem(MemoryStorage(), "test")
    with pytest.raises(error):
        await find_topics(fs, options(topic=name))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"orders":{"0":1}}', "missing are orders-1; not there are none"),
        ('{"orders":{"0":1,"1":1,"2":1}}', "missing are none; not there are orders-2"),
        ('{"other":{"0":1}}', "missing are orders-0, orders-1; not there are other-0"),
    ],
)
async def test_offsets_name_every_partition(text: str, expected: str) -> None:
    fs = MemoryFileSystem(MemoryStorage(), "test")
    await Store(fs).create(2)
    for name in ("startingOffsets", "endingOffsets", "startingOffsetsByTimestamp"):
        with pytest.raises(OptionError, match=expected):
            await find_logs(fs, options(**{name: text}))


async def test_a_file_that_was_merged_is_found_again() -> None:
    """Rule 10: a reader that misses a file lists once more."""

    fs = MemoryFileSystem(MemoryStorage(), "test")
    store = await Store(fs).create()
    first = await store.segment(series(0, 10))
    second = await store.segment(series(10, 10), n=1)
    await store.segment(series(20, 10), n=2)
    pieces = await all_slices(await only(fs))
    names = [store.path().log(each.name) for each in (first, second)]
    await fs.concat(names[0], names[1:])
    (found,), losses = await relocate(fs, replace(pieces[1], start=13))
    assert not losses
    assert (found.segment, found.start, found.end) == (first.name, 13, 20)
    assert found.end_position == len(first.data) + len(second.data)


async def test_a_file_that_was_deleted_is_not() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "test")
    store = await Store(fs).create()
    first = await store.segment(series(0, 10))
    await store.segment(series(10, 10), n=1)
    pieces = await all_slices(await only(fs))
    await fs.delete(store.path().log(first.name))
    assert await relocate(fs, pieces[0]) == ([], [])


async def test_listing_after_journals() -> None:
    """Register a segment between the reading of journals and the listing: it is not taken for older data."""

    class Registering:
        """A new segment appears when the journals have been read."""

        def __init__(self, fs: FileSystem, store: Store) -> None:
            self._fs = fs
            self._store = store

        def __getattr__(self, name: str) -> Any:
            return getattr(self._fs, name)

        async def list(self, path: str, *, after: str = "") -> AsyncIterator[Any]:
            if path == self._store.path().folder:
                await self._store.segment(series(8, 4, size=5), n=1, has_idx=False)
            async for status in self._fs.list(path, after=after):
                yield status

    fs = MemoryFileSystem(MemoryStorage(), "test")
    store = await Store(fs).create()
    opened = await store.segment(series(0, 10), has_idx=False, covered=8)
    await store.journal(opened.checkpoint)
    view = await only(cast(FileSystem, Registering(fs, store)))
    assert view.log.end == 8
    assert [(piece.start, piece.end, piece.end_position) for piece in await all_slices(view)] == [
        (0, 8, opened.checkpoint.position)
    ]


async def test_a_root_with_a_level_that_this_version_would_misread_is_refused() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "test")
    await Store(fs, "orders", uuid.uuid4()).create()
    await check_cluster(fs, "id")
    await put_feature_levels(fs, StoredLevels(revision=9, levels={"transaction.version": 3}))
    for subscription in ({"subscribe": "orders"}, {"subscribePattern": ".*"}):
        with pytest.raises(UnsupportedLevel, match=r"transaction\.version 3 is in force, this version supports 0 to 2"):
            await find_topics(fs, ReadOptions.parse({"root": "memory:"} | subscription))
