"""The removal of open files that were never written: closed first, aborted if that fails, then deleted."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from bmq.broker.files.unused_files import remove_unused
from bmq.storage.memory import Faults, MemoryFileSystem, MemoryStorage

PATH = "/topics/t/.spare"


async def test_an_unused_file_is_closed_and_deleted() -> None:
    storage = MemoryStorage(Random(1))
    fs = MemoryFileSystem(storage, "a")
    appender = await fs.create(PATH)
    await remove_unused(fs, appender, 1.0)
    assert appender.failure is not None
    assert storage.open_files() == {}
    assert [each.path async for each in fs.list("/topics/t")] == []


async def test_a_file_that_does_not_close_in_time_is_aborted_and_deleted() -> None:
    storage = MemoryStorage(Random(1))
    fs = MemoryFileSystem(storage, "a")
    appender = await fs.create(PATH)
    storage.kill_datanode(appender.nodes[0])
    await asyncio.sleep(0)
    await remove_unused(fs, appender, 1.0)
    assert list(storage.appenders) == []
    assert [each.path async for each in fs.list("/topics/t")] == []


async def test_while_the_namenode_is_away_the_file_is_aborted_and_left() -> None:
    storage = MemoryStorage(Random(1), Faults(waits_for_namenode=1.0))
    fs = MemoryFileSystem(storage, "a")
    appender = await fs.create(PATH)
    storage.restart_namenode(60.0)
    began = asyncio.get_running_loop().time()
    await remove_unused(fs, appender, 1.0)
    assert asyncio.get_running_loop().time() - began <= 2.0
    assert list(storage.appenders) == []


async def test_a_removal_that_is_cancelled_aborts_the_file() -> None:
    storage = MemoryStorage(Random(1), Faults(waits_for_namenode=1.0))
    fs = MemoryFileSystem(storage, "a")
    appender = await fs.create(PATH)
    storage.restart_namenode(60.0)
    removing = asyncio.ensure_future(remove_unused(fs, appender, 100.0))
    await asyncio.sleep(1.0)
    removing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await removing
    assert list(storage.appenders) == []
