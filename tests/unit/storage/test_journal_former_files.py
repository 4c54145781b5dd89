"""A journal's former files: closed and deleted once the open file repeats their checkpoints."""

from __future__ import annotations

import asyncio
import math
import uuid

import pytest

from bmq.core.model import PartitionKey, SegmentName
from bmq.storage import layout
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.filesystem import CreateOptions, Lease, StorageUnavailable
from bmq.storage.journal_writer import JournalWriter
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from bmq.storage.memory.appender import MemoryAppender
from tests.harness.journals import JournalWorld, full, key, restart_all
from tests.harness.waiting import until


async def test_a_file_that_was_left_is_closed_in_the_end() -> None:
    """A broker that is alive renews its lease: a file that it left would stay open, and its block reserved, as long as
    it lives."""

    storage = MemoryStorage()
    journal = JournalWriter(MemoryFileSystem(storage, "b"), "b", list)
    task = asyncio.get_running_loop().create_task(journal.run())
    await asyncio.sleep(1)
    (appender,) = storage.appenders
    storage.kill_datanode(appender.nodes[0])
    await asyncio.sleep(0)
    segment = SegmentName(0, 1, 0)
    key = PartitionKey(uuid.UUID(int=1), 0)
    await journal.append(Checkpoint(key=key, segment=segment, position=1, end_offset=1, log_start=0))
    assert len(storage.open_files()) == 2
    await journal.seal_left_files()
    assert list(storage.open_files()) == [layout.journal("b", 2)]
    await journal.seal_left_files()
    journal.close()
    await task


async def test_files_that_were_left_are_deleted_once_others_hold_their_checkpoints() -> None:
    """A journal that is hardly written never rolls; datanodes restart all the same."""

    world = JournalWorld()
    async with world.running():
        for n in range(1, 11):
            await world.append(full(n))
            restart_all(world.storage)
            world.journal.check_file()
            await asyncio.sleep(1)
            await world.journal.seal_left_files()
            assert len(await world.files()) == 1
            assert (await world.read())[key()] == full(n)


async def test_a_journal_file_that_cannot_be_closed_delays_no_other() -> None:
    """Fail one file's close each time, as when its datanodes are dead: it is tried again, and the others are closed
    meanwhile."""

    storage = MemoryStorage()
    fs = MemoryFileSystem(storage, "b")
    journal = JournalWriter(fs, "b", list)
    bad = ""
    for n in range(20):
        appender = await fs.create(f"/journals/b-{n:08d}.jnl")
        bad = bad or appender.lease.paths[0]
        journal._leave(appender)
    fence, tries = fs.fence, 0

    async def failing(lease: Lease, *, sync: bool = False) -> int:
        nonlocal tries
        if bad in lease.paths:
            tries += 1
            raise StorageUnavailable("its datanodes are dead")
        return await fence(lease, sync=sync)

    fs.fence = failing  # type: ignore[method-assign]
    for _ in range(3):
        await journal.seal_left_files()
        assert list(storage.open_files()) == [bad]
    assert tries == 3
    fs.fence = fence  # type: ignore[method-assign]
    await journal.seal_left_files()
    assert storage.open_files() == {}


@pytest.mark.parametrize("copies", [1, 2, 3])
async def test_a_file_on_dead_datanodes_is_deleted_once_the_next_one_has_all_its_copies(copies: int) -> None:
    """A file on dead datanodes can be neither read nor sealed, and takeovers would wait for what the next one
    repeats."""

    world = JournalWorld(MemoryStorage(datanodes=6))
    names = list(world.storage.datanodes)
    for name in names[copies:]:
        world.storage.stop_datanode(name)
    async with world.running():
        await world.append(full(5))
        (first,) = world.storage.appenders
        assert set(first.nodes) == set(names[:copies])
        for name in names[copies:]:
            world.storage.resume_datanode(name)
        for name in names[:copies]:
            world.storage.kill_datanode(name)
        await world.append(full(6))
        await asyncio.sleep(1)
        assert await world.files() == [2]
        assert (await world.read())[key()].end_offset == 6


async def test_a_file_that_was_left_stays_while_the_next_one_has_fewer_copies() -> None:
    """The left file is closed soon after, and may be the only one that a failed datanode leaves readable."""

    world = JournalWorld(MemoryStorage(datanodes=4))
    async with world.running():
        await world.append(full(5))
        world.storage.kill_datanode("dn0")
        world.storage.stop_datanode("dn3")
        await world.append(full(6))
        await world.journal.seal_left_files()
        await asyncio.sleep(1)
        assert [len(each.nodes) for each in world.storage.appenders] == [2]
        assert await world.files() == [1, 2]
        assert (await world.read())[key()].end_offset == 6
        world.storage.resume_datanode("dn3")
        await asyncio.sleep(6)
        assert [len(each.nodes) for each in world.storage.appenders] == [3]
        assert len(await world.files()) == 1
        assert (await world.read())[key()].end_offset == 6


async def test_a_second_cancellation_leaves_no_deletion_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancel while old files are deleted and the next file is created, and again while that creation is given up."""

    world = JournalWorld()
    create = world.fs.create

    async def create_stubbornly(path: str, options: CreateOptions) -> MemoryAppender:
        try:
            await asyncio.sleep(math.inf)
        except asyncio.CancelledError:
            await asyncio.sleep(60)
        return await create(path, options)

    async def delete_never(path: str, *, recursive: bool = False) -> bool:
        await asyncio.sleep(math.inf)
        return False

    monkeypatch.setattr(world.fs, "delete", delete_never)
    task = asyncio.create_task(world.journal.run())
    for n in range(1, 4):
        await world.append(full(n))
        await world.journal.renew()
    monkeypatch.setattr(world.fs, "create", create_stubbornly)
    world.journal.renew()
    await asyncio.sleep(1)
    deletions = [each for each in asyncio.all_tasks() if each.get_name() == "deletion of old journal files"]
    assert [each.done() for each in deletions] == [False]
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(1)
    assert (task.cancelled(), deletions[0].cancelled()) == (True, True)
    await until(lambda: list(world.storage.appenders) == [], 100)
