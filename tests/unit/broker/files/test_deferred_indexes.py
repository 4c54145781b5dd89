"""Indexes that are written some time after their segment was closed, by its owner or by the next one."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from bmq.broker.files import deferred_indexes
from bmq.broker.files.deferred_indexes import ATTEMPTS, BEHIND_MS, LOOK_MS
from bmq.broker.files.segment_files import SegmentFiles
from bmq.core.clock import LoopClock
from bmq.core.model import SegmentName
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.storage.filesystem import NoSuchFile, write_once
from bmq.storage.index import ENTRY
from bmq.storage.memory import Faults, MemoryFileSystem, MemoryStorage
from bmq.storage.segment import decode_idx
from tests.harness.members import lone_broker
from tests.simulation.world import PATH
from tests.unit.broker.cluster import cluster
from tests.unit.broker.moves import count_calls, index_of, kinds, later, names, owned, path_of
from tests.unit.broker.world import batch, idempotent

NAME = SegmentName(0, 1, 0)
LENGTH = 10


@pytest.mark.parametrize(
    ("length", "is_written", "reports"),
    [(LENGTH, True, 0), (LENGTH + 5, False, 0), (LENGTH - 1, False, 1), (-1, False, 0)],
    ids=["as it was", "joined with its neighbour", "shorter", "gone"],
)
async def test_an_index_is_written_only_beside_the_file_that_it_describes(
    length: int, is_written: bool, reports: int
) -> None:
    """A longer file has an index of its own, or will have: this index would stand in its way."""

    fs = MemoryFileSystem(MemoryStorage(Random(1)), "b")
    kv = MemoryKeyValue(MemoryStore(), random=Random(1))
    broker = lone_broker(fs, kv, incarnation="b", clock=LoopClock())
    files = SegmentFiles(broker.context, PATH, is_synced=False, replication=3)
    if length >= 0:
        await write_once(fs, PATH.log(NAME), b"x" * length)
    late = broker.context.deferred_indexes
    late.add(files, NAME, LENGTH, b"index", after_ms=LOOK_MS)
    await asyncio.sleep(LOOK_MS / 1000 - 0.1)
    with pytest.raises(NoSuchFile):
        await fs.status(PATH.idx(NAME))
    await asyncio.sleep(1)
    assert len(late) == 0
    found = [status.path async for status in fs.list(PATH.folder) if status.path == PATH.idx(NAME)]
    assert bool(found) is is_written
    if is_written:
        assert await fs.read(PATH.idx(NAME), 0, 99) == b"index"
    assert len(broker.reports) == reports


async def test_an_index_that_cannot_be_written_is_tried_a_few_times_and_then_reported() -> None:
    storage = MemoryStorage(Random(1))
    fs = MemoryFileSystem(storage, "b")
    broker = lone_broker(fs, MemoryKeyValue(MemoryStore(), random=Random(1)), incarnation="b", clock=LoopClock())
    files = SegmentFiles(broker.context, PATH, is_synced=False, replication=3)
    await write_once(fs, PATH.log(NAME), b"x" * LENGTH)
    storage.faults = Faults(unavailable=1.0)
    broker.context.deferred_indexes.add(files, NAME, LENGTH, b"index", after_ms=BEHIND_MS)
    await asyncio.sleep(ATTEMPTS)
    (report,) = broker.reports
    assert "could not write the index" in report
    await asyncio.sleep(LOOK_MS)
    storage.faults = Faults()
    await asyncio.sleep(LOOK_MS)
    assert await fs.read(PATH.idx(NAME), 0, 99) == b"index", "as long as it takes"
    assert len(broker.reports) == 1
    assert len(broker.context.deferred_indexes) == 0


@pytest.mark.parametrize("after_ms", [BEHIND_MS, LOOK_MS])
async def test_a_process_that_ends_does_not_wait_for_storage_to_take_its_indexes(after_ms: int) -> None:
    storage = MemoryStorage(Random(1))
    fs = MemoryFileSystem(storage, "b")
    broker = lone_broker(fs, MemoryKeyValue(MemoryStore(), random=Random(1)), incarnation="b", clock=LoopClock())
    files = SegmentFiles(broker.context, PATH, is_synced=False, replication=3)
    await write_once(fs, PATH.log(NAME), b"x" * LENGTH)
    storage.faults = Faults(unavailable=1.0)
    late, ended = broker.context.deferred_indexes, list[int]()
    late.add(files, NAME, LENGTH, b"index", after_ms=after_ms, ended=lambda: ended.append(1))
    await asyncio.sleep(5)
    async with asyncio.timeout(1):
        await late.finish()
    assert (ended, len(late)) == ([1], 0)


async def test_a_broker_that_cannot_write_its_indexes_in_time_counts_them_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The writing is cancelled then, and still counts."""

    storage = MemoryStorage(Random(1))
    fs = MemoryFileSystem(storage, "b")
    broker = lone_broker(fs, MemoryKeyValue(MemoryStore(), random=Random(1)), incarnation="b", clock=LoopClock())
    files = SegmentFiles(broker.context, PATH, is_synced=False, replication=3)
    await write_once(fs, PATH.log(NAME), b"x" * LENGTH)
    storage.faults = Faults(waits_for_namenode=1.0)
    storage.restart_namenode(1000.0)
    late = broker.context.deferred_indexes
    for _ in range(3):
        late.add(files, NAME, LENGTH, b"index", after_ms=0)
    await broker.close()
    texts = [record.getMessage() for record in caplog.records]
    assert "3 segments' indexes are not written: their partitions' next owners write them" in texts
    assert len(late) == 0


async def test_the_old_owner_writes_the_index_once_the_new_one_is_open() -> None:
    async with cluster() as c:
        key = await owned(c)
        created = count_calls(c["b"], "create")
        c.give("b", key)
        await c.write("b", key, idempotent(2))
        assert "idx" not in await kinds(c)
        await later(2 * BEHIND_MS)
        assert (await kinds(c)).count("idx") == 1
        assert not any("idx" in path for path in created)
        data = await c["a"].fs.read(
            path_of(c).folder + "/" + next(n for n in await names(c) if n.endswith("idx")), 0, 4096
        )
        assert decode_idx(data).end_offset == 2
        await later(2 * LOOK_MS)
        assert (await kinds(c)).count("idx") == 1
        assert not c["a"].broker.reports
        assert not c["b"].broker.reports


async def test_a_process_that_ends_writes_its_indexes_first() -> None:
    async with cluster() as c:
        key = await owned(c)
        c.give("b", key)
        await c.write("b", key, idempotent(2))
        await c.nodes.pop("a").stop()
        kept = [status.path async for status in c["b"].fs.list(path_of(c).folder)]
        assert sum(path.endswith(".idx") for path in kept) == 1


@pytest.mark.leaves_tasks
async def test_an_index_whose_writer_died_is_written_by_the_successor() -> None:
    async with cluster() as c:
        key = await owned(c)
        c.give("b", key)
        await c.write("b", key, idempotent(2))
        c["a"].kill()
        c["b"].view.leave("a")
        del c.nodes["a"]
        await later(LOOK_MS + 1000)
        kept = [status.path async for status in c["b"].fs.list(path_of(c).folder)]
        assert sum(path.endswith(".idx") for path in kept) == 1


@pytest.mark.leaves_tasks
@pytest.mark.parametrize("dies", [True, False])
async def test_an_index_is_whole_after_two_moves_before_it_was_written(dies: bool) -> None:
    """The second owner's journal has a checkpoint of the closed segment, without its index."""

    async with cluster("a", "b", "c") as c:
        c.topic()
        (key,) = c.keys()
        c.give("a", key)
        for _ in range(20):
            await c.write("a", key, batch(b"x" * 30_000))
        c.give("b", key)
        await c["b"].assigned.wait(key, 5.0)
        c.give("c", key)
        assert await c.write("c", key, batch()) == 20
        assert await index_of(c, "c") is None
        for name in ("a", "b") if dies else ():
            c[name].kill()
            c["c"].view.leave(name)
            del c.nodes[name]
        await later(2 * BEHIND_MS)
        assert (await index_of(c, "c") is None) == dies
        await later(2 * LOOK_MS)
        found = await index_of(c, "c")
        assert found is not None
        assert found.end_offset == 20
        assert len(found.index) // ENTRY == found.position // (3 * 30_000)
        assert not c["c"].broker.reports


@pytest.mark.leaves_tasks
async def test_no_index_is_made_again_of_what_is_deleted_meanwhile() -> None:
    async with cluster("a", "b", "c") as c:
        c.topic()
        (key,) = c.keys()
        c.give("a", key)
        for _ in range(20):
            await c.write("a", key, batch(b"x" * 30_000))
        c.give("b", key)
        await c["b"].assigned.wait(key, 5.0)
        c.give("c", key)
        await c["c"].assigned.wait(key, 5.0)
        for name in ("a", "b"):
            c[name].kill()
            c["c"].view.leave(name)
            del c.nodes[name]
        async for status in c["c"].fs.list(path_of(c).folder):
            await c["c"].fs.delete(status.path)
        await later(2 * LOOK_MS)
        assert await index_of(c, "c") is None
        assert not c["c"].broker.reports


async def test_an_index_of_what_is_deleted_meanwhile_is_not_written() -> None:
    async with cluster() as c:
        key = await owned(c)
        c.give("b", key)
        await c["b"].assigned.wait(key, 5.0)
        for name in await names(c):
            await c["a"].fs.delete(f"{path_of(c).folder}/{name}")
        await later(2 * LOOK_MS)
        assert await names(c) == []
        assert not c["a"].broker.reports


@pytest.mark.slow
async def test_without_a_successor_the_index_is_written_before_the_release() -> None:
    async with cluster() as c:
        key = await owned(c)
        for node in c.nodes.values():
            node.view.leave("b")
        c["a"].view.assign("b", key)
        await c["a"].assigned.wait_left()
        assert "idx" in await kinds(c)
        assert len(c["a"].broker.context.deferred_indexes) == 0


async def test_if_too_many_indexes_wait_the_next_is_written_before_the_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred_indexes, "BYTES_MAX", 1)

    async with cluster() as c:
        c.topic(2)
        keys = c.keys()
        c.give("a", *keys)
        for key in keys:
            await c.write("a", key, idempotent(0))
        c.give("b", keys[1])
        assert await c.write("b", keys[1], idempotent(1)) == 1
        assert len(c["a"].broker.context.deferred_indexes) == 1
        assert len(c["b"].broker.context.deferred_indexes) == 1
        c.give("b", keys[0])
        assert await c.write("b", keys[0], idempotent(0)) == 0
        assert "idx" in await kinds(c)
        assert len(c["b"].broker.context.deferred_indexes) == 1
