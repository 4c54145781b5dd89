"""A topic that is followed: what each refresh finds, and that it costs what changed and not how old the topic is."""

from __future__ import annotations

import uuid
from typing import cast

import pytest

from bmq.spark.options import ReadOptions
from bmq.spark.streaming.topic_follower import Follower
from bmq.storage import layout
from bmq.storage.filesystem import FileSystem
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.unit.spark.checkpoints import Journal, said
from tests.unit.spark.counting import Counting
from tests.unit.spark.storing import Store, series


def follower(fs: FileSystem, **given: str) -> Follower:
    subscription = {} if "subscribePattern" in given else {"topic": "orders"}
    return Follower(fs, ReadOptions.parse_stream({"root": "memory:"} | subscription | given))


def ends(follower: Follower) -> dict[tuple[str, int], int]:
    return {at: view.log.end for at, view in follower.views.items()}


@pytest.mark.slow
async def test_a_refresh_costs_what_changed() -> None:
    """Three hundred segments: the first look lists them, no later one does."""

    fs = MemoryFileSystem(MemoryStorage(), "test")
    counting = Counting(fs)
    store = await Store(fs).create()
    for n in range(300):
        await store.segment(series(2 * n, 2), n=n)
    follow = follower(cast(FileSystem, counting))
    await follow.refresh()
    assert ends(follow) == {("orders", 0): 600}
    follow.trim({("orders", 0): 600})
    for n in range(300, 303):
        counting.reset()
        await follow.refresh()
        assert counting.names < 10
        assert counting.count("idx") == 0, "known"
        await store.segment(series(2 * n, 2), n=n)
        counting.reset()
        await follow.refresh()
        assert ends(follow) == {("orders", 0): 2 * n + 2}
        assert counting.names < 10
        assert counting.count("idx") == 1
        follow.trim({("orders", 0): 2 * n + 2})
    assert len(follow.views["orders", 0].log.segments) <= 3


async def test_an_open_segment_grows_with_its_checkpoints() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "test")
    store, journal = await Store(fs).create(), Journal(fs)
    await store.segment(series(0, 50), has_idx=False)
    follow = follower(fs)
    await follow.refresh()
    assert ends(follow) == {("orders", 0): 0}
    for end in (10, 20, 50):
        await journal.write(said(store, end))
        await follow.refresh()
        assert ends(follow) == {("orders", 0): end}


async def test_a_segment_that_had_no_index_is_read_again() -> None:
    """Write a segment's index just after the segment was listed without it: the next refresh finds the index."""

    fs = MemoryFileSystem(MemoryStorage(), "test")
    store = await Store(fs).create()
    written = await store.segment(series(0, 5), has_idx=False)
    await store.segment(series(5, 5), n=1)
    follow = follower(fs)
    await follow.refresh()
    assert [each.has_idx for each in follow.views["orders", 0].log.segments] == [False, True]
    await fs.delete(store.path().log(written.name))
    await store.segment(series(0, 5))
    await follow.refresh()
    assert [each.has_idx for each in follow.views["orders", 0].log.segments] == [True, True]


async def test_segments_may_be_merged_or_deleted_between_refreshes() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "test")
    store = await Store(fs).create()
    written = [await store.segment(series(5 * n, 5), n=n) for n in range(3)]
    follow = follower(fs)
    await follow.refresh()
    for gone in written[1:]:  # their bytes went into the first
        await fs.delete(store.path().log(gone.name))
        await fs.delete(store.path().idx(gone.name))
    await store.segment(series(15, 5), n=3)
    await follow.refresh()
    assert [each.name.base for each in follow.views["orders", 0].log.segments] == [0, 15]
    await fs.delete(store.path().log(written[0].name))
    follow.forget()
    await follow.refresh()
    assert follow.views["orders", 0].log.start == 15


async def test_the_segment_before_the_first_one_needed_is_kept() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "test")
    store = await Store(fs).create()
    for n in range(5):
        await store.segment(series(5 * n, 5), n=n)
    follow = follower(fs)
    await follow.refresh()
    for committed, first in ((0, 0), (7, 0), (10, 5), (14, 5), (25, 15)):
        follow.trim({("orders", 0): committed, ("gone", 3): 9})
        await follow.refresh()
        assert follow.views["orders", 0].log.segments[0].name.base == first


async def test_new_partitions_and_topics_are_found() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "test")
    store = await Store(fs).create()
    follow = follower(fs, subscribePattern="or.*")
    await follow.refresh()
    assert set(follow.views) == {("orders", 0)}
    await store.resize(2)
    await Store(fs, "organs", uuid.uuid4()).create()
    await Store(fs, "piano", uuid.uuid4()).create()
    await follow.refresh()
    assert set(follow.views) == {("orders", 0), ("orders", 1), ("organs", 0)}


async def test_a_topic_that_was_deleted_and_created_again_is_another() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "test")
    await Store(fs).create()
    await Store(fs, "other", uuid.uuid4()).create()
    follow = Follower(fs, ReadOptions.parse_stream({"root": "memory:", "subscribe": "orders,other"}))
    await follow.refresh()
    await fs.delete(layout.topic_folder("orders"), recursive=True)
    await follow.refresh()
    assert set(follow.views) == {("other", 0)}
    assert not follow.recreated
    await fs.delete(layout.topic_folder("other"), recursive=True)
    await Store(fs, "other", uuid.uuid4()).create()
    await follow.refresh()
    assert follow.recreated == {("other", 0)}
