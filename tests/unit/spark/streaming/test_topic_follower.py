"""Storage as it grows: what a look sees, and that it costs what changed and not how old a topic is."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, cast

import pytest

from bmq.core.model import PartitionKey, SegmentName
from bmq.spark.options import ReadOptions
from bmq.spark.planning.index_cache import IndexCache
from bmq.spark.planning.journal_follower import FollowedJournals
from bmq.spark.streaming.topic_follower import Follower
from bmq.storage import layout
from bmq.storage.checkpoint import Checkpoint, encode
from bmq.storage.filesystem import Appender, FileStatus, FileSystem
from bmq.storage.journal import CHECKPOINT, SNAPSHOT_END, frame, read_backwards, read_forwards, read_journals
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.unit.spark.storing import BLOCK, Store, series

NAME = SegmentName(0, 1, 0)


class Counting:
    """Counts reads and their bytes by the end of the name, and names listed."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self.reads: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.names = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fs, name)

    async def read(self, path: str, position: int, length: int) -> bytes:
        data = await self._fs.read(path, position, length)
        self.reads[path.rsplit(".", 1)[-1]] += 1
        self.bytes[path.rsplit(".", 1)[-1]] += len(data)
        return data

    async def list(self, path: str, *, after: str = "") -> AsyncIterator[FileStatus]:
        async for status in self._fs.list(path, after=after):
            self.names += 1
            yield status

    def count(self, kind: str) -> int:
        return self.reads[kind]

    def reset(self) -> None:
        self.reads.clear()
        self.bytes.clear()
        self.names = 0


def follower(fs: FileSystem, **given: str) -> Follower:
    subscription = {} if "subscribePattern" in given else {"topic": "orders"}
    return Follower(fs, ReadOptions.parse_stream({"root": "memory:"} | subscription | given))


def ends(follower: Follower) -> dict[tuple[str, int], int]:
    return {at: view.log.end for at, view in follower.views.items()}


def said(store: Store, end: int, *, is_full: bool = True, name: SegmentName = NAME, partition: int = 0) -> Checkpoint:
    """Return a checkpoint: the segment is flushed up to ``end``, a hundred bytes an offset."""
    return Checkpoint(
        key=PartitionKey(store.topic_id, partition),
        segment=name,
        position=(end - name.base) * 100,
        end_offset=end,
        log_start=0,
        is_full=is_full,
    )


class Journal:
    """One broker's open journal."""

    def __init__(self, fs: FileSystem, incarnation: str = "0-a", n: int = 1) -> None:
        self.fs = fs
        self.path = layout.journal(incarnation, n)
        self._file: Appender | None = None

    async def write(self, *checkpoints: Checkpoint, tail: bytes = b"") -> None:
        if self._file is None:
            self._file = await self.fs.create(self.path, BLOCK)
            self._file.write(frame(SNAPSHOT_END, b""))
        for each in checkpoints:
            self._file.write(frame(CHECKPOINT, encode(each)))
        if tail:
            self._file.write(tail)
        await self._file.flush()


# -------------------------------------------------------------------------------------------------------- journals


def test_records_read_forwards_are_those_read_backwards() -> None:
    whole = [frame(CHECKPOINT, b"one"), frame(SNAPSHOT_END, b""), frame(CHECKPOINT, b"two")]
    junk = b"JRN1 is not a record, nor is JR"
    data = memoryview(b"".join([junk, whole[0], whole[1], junk, whole[2]]))
    records, used = read_forwards(data)
    assert used == len(data)
    assert [(kind, bytes(payload)) for kind, payload in records] == [
        (kind, bytes(payload)) for kind, payload in reversed(list(read_backwards(data)))
    ]


@pytest.mark.parametrize("beyond", [0, 1, 1000, 100 << 20])
def test_a_damaged_length_hides_no_later_record(beyond: int) -> None:
    """Damage a length to lead to the end of a later record, or past what is written: that record is not waited for."""
    data = bytearray(b"".join(frame(CHECKPOINT, payload) for payload in (b"one", b"two", b"three")))
    data[5:9] = (len(data) - len(frame(CHECKPOINT, b"")) + beyond).to_bytes(4, "big")  # the first one's length
    found, used = read_forwards(memoryview(data))
    assert (used, [bytes(payload) for _, payload in found]) == (len(data), [b"two", b"three"])


def test_the_beginning_of_a_record_is_left_for_later() -> None:
    first, second = frame(CHECKPOINT, b"one"), frame(CHECKPOINT, b"two" * 10)
    for cut in range(len(second)):
        data = first + second[:cut]
        records, used = read_forwards(memoryview(data))
        assert len(records) == 1
        rest, _ = read_forwards(memoryview(data[used:] + second[cut:]))
        assert [bytes(payload) for _, payload in rest] == [b"two" * 10]


async def test_only_what_was_written_since_is_read() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "test")
    counting = Counting(fs)
    store, journal = Store(fs), Journal(fs)
    key = PartitionKey(store.topic_id, 0)
    followed = FollowedJournals(cast(FileSystem, counting))
    await journal.write(*[said(store, end) for end in range(1, 500)])
    assert (await followed.refresh(frozenset([key])))[key].end_offset == 499
    counting.reset()
    assert (await followed.refresh(frozenset([key])))[key].end_offset == 499
    assert counting.bytes["jnl"] == 0
    await journal.write(said(store, 600, is_full=False), tail=frame(CHECKPOINT, encode(said(store, 700)))[:20])
    assert (await followed.refresh(frozenset([key])))[key].end_offset == 600
    assert counting.bytes["jnl"] < 300
    assert (await followed.refresh(frozenset([key])))[key] == (await read_journals(fs, "0-a"))[key]


async def test_partitions_wanted_later_are_told_of_too() -> None:
    """Ask for a partition whose full checkpoint was passed over: the journal is read again, beyond its deltas."""

    fs = MemoryFileSystem(MemoryStorage(), "test")
    store, journal = Store(fs), Journal(fs)
    first, second = (PartitionKey(store.topic_id, partition) for partition in range(2))
    followed = FollowedJournals(fs)
    await journal.write(said(store, 5), said(store, 7, partition=1))
    assert set(await followed.refresh(frozenset([first]))) == {first}
    await journal.write(said(store, 8, partition=1, is_full=False))
    found = await followed.refresh(frozenset([first, second]))
    assert {key: each.end_offset for key, each in found.items()} == {first: 5, second: 8}


async def test_a_checkpoint_that_cannot_be_decoded_is_none() -> None:
    """Write a checkpoint that cannot be decoded: it is skipped, with the deltas behind it, until the next full one."""

    fs = MemoryFileSystem(MemoryStorage(), "test")
    store, journal = Store(fs), Journal(fs)
    first, second = (PartitionKey(store.topic_id, partition) for partition in range(2))
    followed = FollowedJournals(fs)
    bad = frame(CHECKPOINT, b"X" + encode(said(store, 9))[1:])
    await journal.write(said(store, 5), said(store, 7, partition=1), tail=frame(CHECKPOINT, b"short") + bad)
    await journal.write(said(store, 10, is_full=False), said(store, 8, partition=1, is_full=False))
    found = await followed.refresh(frozenset([first, second]))
    assert {key: each.end_offset for key, each in found.items()} == {first: 5, second: 8}
    await journal.write(said(store, 11))
    assert (await followed.refresh(frozenset([first, second])))[first].end_offset == 11


async def test_a_file_with_a_successor_is_read_to_its_end_and_then_no_more() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "test")
    counting = Counting(fs)
    store, old, new = Store(fs), Journal(fs), Journal(fs, n=2)
    key = PartitionKey(store.topic_id, 0)
    followed = FollowedJournals(cast(FileSystem, counting))
    await old.write(said(store, 5))
    await followed.refresh(frozenset([key]))
    await old.write(said(store, 6, is_full=False))  # the partition went to another broker before the roll
    await new.write()
    assert (await followed.refresh(frozenset([key])))[key].end_offset == 6
    counting.reset()
    await followed.refresh(frozenset([key]))
    assert counting.reads["jnl"] == 1, "the open one alone"
    await fs.delete(old.path)
    assert (await followed.refresh(frozenset([key])))[key].end_offset == 6, "true for ever"


# --------------------------------------------------------------------------------------------------------- listing


async def test_a_look_costs_what_changed() -> None:
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


async def test_a_segment_that_had_no_index_is_looked_at_again() -> None:
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


async def test_segments_joined_or_deleted_under_it() -> None:
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


# ---------------------------------------------------------------------------------------------------------- topics


async def test_new_partitions_and_new_topics() -> None:
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


async def test_a_topic_deleted_and_one_made_anew() -> None:
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


# --------------------------------------------------------------------------------------------------------- indexes


def test_indexes_are_kept_within_a_bound() -> None:
    cache = IndexCache(bytes_max=100)
    whole = replace(said(Store(cast(FileSystem, None)), 1), position=7)
    for n in range(5):
        cache.put(f"{n}.idx", 7, whole, 40)
    assert [cache.get(f"{n}.idx", 7) for n in range(5)] == [None, None, None, whole, whole]
    assert repr(cache) == "<IndexCache 2 indexes of 80 bytes>"
    cache.put("4.idx", 7, whole, 60)
    assert repr(cache) == "<IndexCache 2 indexes of 100 bytes>"
    cache.put("large.idx", 7, whole, 101)
    cache.put("partial.idx", 9, whole, 1)
    assert cache.get("large.idx", 7) is None
    assert cache.get("partial.idx", 9) is None
    assert cache.get("4.idx", 8) is None, "it was joined with its neighbour"
