"""The scan of a root for its topics: what their files name, what their folders hold, and the order of the results."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest

from bmq.broker.repair.scan import PARALLEL, TopicFolder, in_order, newest_index, read_folder, read_topics
from bmq.core.model import PartitionKey, SegmentName
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.cluster_files import StoredTopic, StoredTopics, read_topic
from bmq.storage.filesystem import CorruptData, StorageError, StorageUnavailable, write_once
from bmq.storage.layout import PartitionPath
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from bmq.storage.segment import encode_idx

A, B = uuid.UUID(int=1), uuid.UUID(int=2)


async def found(fs: MemoryFileSystem, **adopted: StoredTopic) -> dict[str, TopicFolder]:
    return {each.name: each async for each in read_topics(fs, adopted)}


async def folder(fs: MemoryFileSystem, topic: str, topic_id: uuid.UUID | str, *partitions: int | str) -> None:
    for partition in partitions:
        await write_once(fs, f"/topics/{topic}/{topic_id}/{partition}/x.log", b"x")


async def test_a_topic_has_as_many_partitions_as_its_file_or_its_folders_say() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "tool")
    await StoredTopics(fs).write("t", 9, A, 3, {})
    await folder(fs, "t", A, 0, 4, "not-a-number", "٣")
    topic = (await found(fs))["t"].topic
    assert topic is not None
    assert (topic.partitions, topic.with_folder) == (5, frozenset({0, 4}))


async def test_folders_that_no_file_names_are_orphans() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "tool")
    await StoredTopics(fs).write("t", 9, A, 1, {})
    await folder(fs, "t", B, 0)
    await folder(fs, "t", "not-an-id", 0)
    await folder(fs, "gone", B, 0)
    topics = await found(fs)
    assert topics["t"].orphans == [B]
    assert (topics["gone"].topic, topics["gone"].orphans) == (None, [B])


async def test_a_topic_without_its_file_is_adopted_with_the_id_of_its_only_folder() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "tool")
    await StoredTopics(fs).write("model", 9, A, 2, {})
    stored = await read_topic(fs, "model")
    assert stored is not None
    await folder(fs, "one", B, 1)
    await folder(fs, "two", A, 0)
    await folder(fs, "two", B, 0)
    topics = await found(fs, one=stored, two=stored)
    adopted = topics["one"].topic
    assert adopted is not None
    assert (adopted.stored.topic_id, adopted.partitions) == (B, 2)
    assert (topics["two"].topic, sorted(topics["two"].orphans)) == (None, [A, B])


class LossyFileSystem(MemoryFileSystem):
    """Storage that cannot read the files ``lost``, and fails with ``error``."""

    lost: tuple[str, ...] = ()
    error: type[StorageError] = StorageUnavailable

    async def read(self, path: str, position: int, length: int) -> bytes:
        if path in self.lost:
            raise self.error(f"{path}: no replica")
        return await super().read(path, position, length)


@pytest.mark.parametrize("error", [CorruptData, StorageUnavailable])
async def test_an_index_that_storage_has_lost_ends_no_scan(error: type[StorageError]) -> None:
    """The segment is scanned, as without an index; in an outage the scan fails."""
    fs, path = LossyFileSystem(MemoryStorage(), "tool"), PartitionPath("t", str(A), 0)
    names = [SegmentName(0, 1, 0), SegmentName(1, 1, 1)]
    for name in names:
        index = Checkpoint(
            key=PartitionKey(A, 0), segment=name, position=1, end_offset=name.base + 1, log_start=0, is_closed=True
        )
        await write_once(fs, path.log(name), b"x")
        await write_once(fs, path.idx(name), encode_idx(index))
    files, fs.error = await read_folder(fs, path), error
    fs.lost = (path.idx(names[1]), path.log(names[1]))
    newest = await newest_index(fs, path, files)
    assert newest is not None
    assert newest.segment == names[0]
    fs.lost, fs.error = (*fs.lost, path.idx(names[0]), path.log(names[0])), StorageUnavailable
    with pytest.raises(StorageUnavailable):
        await newest_index(fs, path, files)


async def numbers(count: int) -> AsyncIterator[int]:
    for number in range(count):
        yield number


async def test_results_come_in_the_order_of_the_items_though_several_are_worked_on() -> None:
    under_way = most = 0

    async def slower_first(number: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(PARALLEL - number % PARALLEL)
        under_way -= 1
        return number

    assert [each async for each in in_order(numbers(3 * PARALLEL), slower_first)] == list(range(3 * PARALLEL))
    assert most == PARALLEL


async def test_a_failure_ends_the_work_under_way() -> None:
    async def fail(number: int) -> int:
        if number == 1:
            raise ZeroDivisionError
        await asyncio.sleep(10.0 * number)
        return number

    with pytest.raises(ZeroDivisionError):
        assert [each async for each in in_order(numbers(3), fail)] == []
    assert asyncio.all_tasks() == {asyncio.current_task()}
