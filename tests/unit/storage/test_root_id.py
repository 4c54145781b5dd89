"""The id of a root: made once, by one of several processes, and refused if it is damaged."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from bmq.core.errors import FormatError
from bmq.storage.filesystem import CreateOptions, OutOfSpace, StorageError, write_once
from bmq.storage.memory import Faults, MemoryFileSystem, MemoryStorage
from bmq.storage.memory.appender import MemoryAppender
from bmq.storage.root_id import make_root_id, read_root_id


async def test_of_several_processes_that_make_an_id_at_once_one_wins() -> None:
    storage = MemoryStorage(Random(1), Faults(call_s=(0.0, 0.1)))
    processes = [MemoryFileSystem(storage, f"p{n}") for n in range(5)]
    assert await read_root_id(processes[0]) == ""
    made = await asyncio.gather(*(make_root_id(fs) for fs in processes))
    assert len(set(made)) == 1
    assert made[0]
    assert await read_root_id(processes[0]) == made[0]
    assert await make_root_id(processes[0]) == made[0]
    assert [each.path async for each in processes[0].list("/")] == ["/root.json"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b'{"format":1}',
        b'{"format":2,"root_id":"a"}',
        b'{"format":1,"root_id":""}',
        b'{"format":1,"root_id":7}',
    ],
)
async def test_a_file_that_holds_no_id_is_refused_and_not_replaced(data: bytes) -> None:
    fs = MemoryFileSystem(MemoryStorage(), "one")
    await write_once(fs, "/root.json", data)
    for call in (read_root_id, make_root_id):
        with pytest.raises(FormatError):
            await call(fs)
    assert await fs.read("/root.json", 0, 100) == data


OPTIONS = CreateOptions(block_bytes=1 << 20)


class FullDisk(MemoryFileSystem):
    """Makes files and can write nothing into them; or (``refuses_renames``) write, and not rename."""

    refuses_renames = False

    async def create(self, path: str, options: CreateOptions = OPTIONS) -> MemoryAppender:
        appender = await super().create(path, options)
        self.storage.is_full = not self.refuses_renames
        return appender

    async def rename(self, source: str, target: str) -> None:
        if self.refuses_renames:
            raise OutOfSpace(f"{target}: the quota of names is used up")
        await super().rename(source, target)


@pytest.mark.parametrize("refuses_renames", [False, True])
async def test_failed_attempts_to_make_an_id_leave_nothing_on_a_full_root(refuses_renames: bool) -> None:
    """A server tries again and again to give a full root its id."""

    fs = FullDisk(MemoryStorage(), "one")
    fs.refuses_renames = refuses_renames
    try:
        for _ in range(3):
            fs.storage.is_full = False
            with pytest.raises(StorageError):
                await make_root_id(fs)
        assert [each.path async for each in fs.list("/")] == []
    finally:
        await fs.close()
