"""The removal of a deleted topic: all of it goes after its delay, and nothing else goes, whatever fails on the way."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from bmq.controller.topics.deletion import (
    DeletedTopic,
    TopicCleaner,
    decode_deleted,
    deleted_key,
    encode_deleted,
)
from bmq.core.clock import LoopClock
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.model import PartitionKey
from bmq.meta.catalog import Topic
from bmq.meta.kv import Delete, Entry, Put
from bmq.meta.kv_memory import KvFaults, MemoryKeyValue, MemoryStore
from bmq.meta.ownership import PartitionRecord, encode, partition_key
from bmq.storage.cluster_files import StoredTopics, read_topic
from bmq.storage.filesystem import write_once
from bmq.storage.memory import MemoryStorage
from tests.harness.loop import run
from tests.unit.controller.admin.world import AdminWorld, world

TOMB = DeletedTopic(
    name="t", topic_id=uuid.UUID(int=5), partitions=3, revision=7, deleted_at_ms=1_000_000, delay_ms=60_000
)


def test_the_record_is_read_as_it_was_written() -> None:
    data = encode_deleted(TOMB)
    assert decode_deleted(Entry(deleted_key("c", TOMB.topic_id), data, 1)) == TOMB
    assert data == (b'{"format":1,"name":"t","partitions":3,"revision":7,"deleted_at_ms":1000000,"delay_ms":60000}')


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"{}", b'{"format":2}', b'{"format":1,"name":"t"}', b"[" * 100_000,
        encode_deleted(replace(TOMB, name="../x")), encode_deleted(replace(TOMB, delay_ms=-1)),
        encode_deleted(TOMB).replace(b":3,", b":1.5,"), encode_deleted(TOMB).replace(b":7,", b":true,"),
    ],
)  # fmt: skip
def test_bytes_that_are_no_deletion_record_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        decode_deleted(Entry(deleted_key("c", TOMB.topic_id), data, 1))


def test_the_wait_is_bounded_by_the_delay_when_clocks_jump() -> None:
    assert TOMB.wait_ms(1_000_000) == 60_000
    assert TOMB.wait_ms(1_059_000) == 1_000
    assert TOMB.wait_ms(1_060_000) == 0
    assert TOMB.wait_ms(0) == 60_000


async def fill(w: AdminWorld, topic: Topic) -> None:
    """Write a segment and a partition record for each partition."""
    for partition in range(topic.partitions):
        key = PartitionKey(topic.topic_id, partition)
        await w.view_kv.commit([], [Put(partition_key("c", key), encode(PartitionRecord(epoch=1)))])
        await write_once(w.fs, f"/topics/{topic.name}/{topic.topic_id}/{partition}/x.log", b"data")


async def left(w: AdminWorld, topic: Topic) -> tuple[int, list[str]]:
    records = [e async for e in MemoryKeyValue(w.store).list(f"/c/partitions/{topic.topic_id}/")]
    return len(records), await w.names(f"/topics/{topic.name}/{topic.topic_id}")


@pytest.mark.slow
async def test_a_deleted_topics_files_are_removed_after_the_delay() -> None:
    async with world() as w:
        gone = await w.admin.create_topic("t", 250, configs={"file.delete.delay.ms": "30000"})
        kept = await w.admin.create_topic("kept", 2)
        await fill(w, gone)
        await fill(w, kept)
        cleaner = TopicCleaner(MemoryKeyValue(w.store), "c", w.files, LoopClock(), guard=list)
        await cleaner.start()
        await w.admin.delete_topic("t")
        assert await read_topic(w.fs, "t") is None
        again = await w.admin.create_topic("t", 1)
        await fill(w, again)
        await asyncio.sleep(25)
        assert (await left(w, gone))[0] == 250
        assert len((await left(w, gone))[1]) == 250
        await asyncio.sleep(20)
        assert await left(w, gone) == (0, [])
        assert str(gone.topic_id) not in await w.names("/topics/t")
        assert w.store.get(deleted_key("c", gone.topic_id)) is None
        for topic in (kept, again):
            assert await left(w, topic) == (topic.partitions, [str(p) for p in range(topic.partitions)])
            stored = await read_topic(w.fs, topic.name)
            assert stored is not None
            assert stored.topic_id == topic.topic_id
        await cleaner.close()


async def test_the_folder_of_a_name_without_topics_is_removed() -> None:
    async with world() as w:
        gone = await w.admin.create_topic("t", 3, configs={"file.delete.delay.ms": "0"})
        await fill(w, gone)
        await w.admin.delete_topic("t")
        assert await TopicCleaner(w.kv, "c", w.files, LoopClock(), guard=list).clean() == 10.0
        assert await w.names("/topics") == []


class Dying(StoredTopics):
    """Fails at a step, once: what a crash there leaves."""

    def __init__(self, w: AdminWorld, step: int) -> None:
        super().__init__(w.fs)
        self.step = step

    def _count(self) -> None:
        self.step -= 1
        if self.step == 0:
            raise asyncio.CancelledError  # the process is gone

    async def withdraw(self, name: str, revision: int) -> None:
        self._count()
        await super().withdraw(name, revision)

    async def remove_some(self, name: str, topic_id: uuid.UUID, limit: int) -> bool:
        self._count()
        done = await super().remove_some(name, topic_id, 2)
        self._count()
        return done


@pytest.mark.parametrize("step", range(1, 12))
async def test_a_removal_that_crashes_at_any_step_is_finished_after_the_next_start(step: int) -> None:
    async with world() as w:
        gone = await w.admin.create_topic("t", 7, configs={"file.delete.delay.ms": "0"})
        await fill(w, gone)
        await w.admin.delete_topic("t")
        crashed = False
        try:
            await TopicCleaner(w.kv, "c", Dying(w, step), LoopClock(), guard=list).clean()
        except asyncio.CancelledError:
            crashed = True
            assert w.store.get(deleted_key("c", gone.topic_id)) is not None
        assert crashed == (step <= 9), "seven partitions take four calls, two chances each, after the first step"
        await TopicCleaner(w.kv, "c", w.files, LoopClock(), guard=list).clean()
        assert await left(w, gone) == (0, [])
        assert w.store.get(deleted_key("c", gone.topic_id)) is None


@pytest.mark.slow
def test_two_cleaners_under_faults_end_with_nothing_left() -> None:
    async def main(seed: int) -> None:
        store, storage = MemoryStore(), MemoryStorage()
        async with world(store, storage) as w:
            topics = [await w.admin.create_topic(f"t{n}", 3, configs={"file.delete.delay.ms": "0"}) for n in range(4)]
            for topic in topics:
                await fill(w, topic)
                await w.admin.delete_topic(topic.name)
            faults = KvFaults(latency_s=0.1, unavailable=0.1, unknown_applied=0.2, unknown_lost=0.1, unknown_late=0.1)
            cleaners = [
                TopicCleaner(
                    MemoryKeyValue(store, random=Random(seed + n), faults=faults), "c", w.files, LoopClock(), guard=list
                )
                for n in range(2)
            ]
            for cleaner in cleaners:
                await cleaner.start()
            await asyncio.sleep(300)
            for cleaner in cleaners:
                await cleaner.close()
            for topic in topics:
                assert await left(w, topic) == (0, [])
                assert store.get(deleted_key("c", topic.topic_id)) is None

    for seed in range(0, 50, 10):
        run(main(seed), seed)


async def test_a_record_that_is_still_written_is_not_removed_under_its_writer() -> None:
    """Write the record between the cleaner's read and its commit, as an owner that does not see the deletion yet."""

    async with world() as w:
        gone = await w.admin.create_topic("t", 1, configs={"file.delete.delay.ms": "0"})
        await fill(w, gone)
        await w.admin.delete_topic("t")
        key = partition_key("c", PartitionKey(gone.topic_id, 0))

        class Racing(MemoryKeyValue):
            """Writes the record between the cleaner's look and its commit, once."""

            is_done = False

            async def commit(self, compares, writes):  # type: ignore[no-untyped-def]
                if not self.is_done and compares[0].key == key:
                    self.is_done = True
                    await super().commit([], [Put(key, encode(PartitionRecord(epoch=2)))])
                return await super().commit(compares, writes)

        cleaner = TopicCleaner(Racing(w.store), "c", w.files, LoopClock(), guard=list)
        await cleaner.clean()
        assert await left(w, gone) == (1, ["0"])
        await cleaner.clean()
        assert await left(w, gone) == (0, [])


async def test_a_removal_that_storage_refuses_is_tried_again() -> None:
    async with world() as w:
        gone = await w.admin.create_topic("t", 1, configs={"file.delete.delay.ms": "0"})
        await fill(w, gone)
        await w.admin.delete_topic("t")

        class Failing(StoredTopics):
            async def remove_some(self, name: str, topic_id: uuid.UUID, limit: int) -> bool:
                raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, "storage is away")

        await TopicCleaner(w.kv, "c", Failing(w.fs), LoopClock(), guard=list).clean()
        assert w.store.get(deleted_key("c", gone.topic_id)) is not None
        await TopicCleaner(w.kv, "c", w.files, LoopClock(), guard=list).clean()
        assert w.store.get(deleted_key("c", gone.topic_id)) is None


async def test_a_topic_that_cannot_be_removed_holds_up_no_other() -> None:
    """A folder without permission, or with a snapshot; and a record that this version cannot read.  Each is tried
    again, less and less often."""

    async with world() as w:
        topics = [await w.admin.create_topic(f"t{n}", 1, configs={"file.delete.delay.ms": "0"}) for n in range(5)]
        for topic in topics:
            await fill(w, topic)
            await w.admin.delete_topic(topic.name)
        first = min(topics, key=lambda topic: str(topic.topic_id))
        tries = 0

        class Kept(StoredTopics):
            async def remove_some(self, name: str, topic_id: uuid.UUID, limit: int) -> bool:
                nonlocal tries
                if topic_id == first.topic_id:
                    tries += 1
                    raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, "Permission denied")
                return await super().remove_some(name, topic_id, limit)

        unknown = deleted_key("c", uuid.UUID(int=0))
        await w.kv.commit([], [Put(unknown, b'{"format": 99}')])
        cleaner = TopicCleaner(MemoryKeyValue(w.store), "c", Kept(w.fs), LoopClock(), guard=list)
        await cleaner.clean()
        for topic in topics:
            assert (w.store.get(deleted_key("c", topic.topic_id)) is None) == (topic is not first)
        assert (cleaner.waiting, cleaner.failing) == (2, 2)
        await cleaner.start()
        await asyncio.sleep(3_600)
        await cleaner.close()
        assert 8 <= tries <= 14, "after 10 s, 20 s, ... and then every ten minutes"
        await w.kv.commit([], [Delete(unknown), Delete(deleted_key("c", first.topic_id))])
        await cleaner.clean()
        assert (cleaner.waiting, cleaner.failing) == (0, 0)


async def test_a_bug_in_the_removal_of_deleted_topics_is_reported_at_once() -> None:
    reported: list[dict[str, Any]] = []
    async with world() as w:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))

        class Broken(StoredTopics):
            async def withdraw(self, name: str, revision: int) -> None:
                raise AssertionError("bug")

        topic = await w.admin.create_topic("t", 1, configs={"file.delete.delay.ms": "0"})
        await fill(w, topic)
        await w.admin.delete_topic("t")
        cleaner = TopicCleaner(w.kv, "c", Broken(w.fs), LoopClock(), guard=list)
        await cleaner.start()
        await asyncio.sleep(1)
        assert [context["message"] for context in reported] == ["task removal of deleted topics failed"]
        await cleaner.close()
