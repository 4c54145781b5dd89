"""The writer thread of a local root: what it acknowledges, when it syncs, and how it ends."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bmq.storage.filesystem import (
    CorruptData,
    CreateOptions,
    Lease,
    LeaseLost,
    OutOfSpace,
    PipelineFailed,
    StorageError,
    StorageUnavailable,
)
from bmq.storage.local import file as local_file
from bmq.storage.local import writer as local_writer
from bmq.storage.local.filesystem import LocalFileSystem
from tests.unit.storage.local.roots import noted_calls, opened

pytestmark = [pytest.mark.slow, pytest.mark.loops("asyncio")]


async def test_a_write_that_ends_after_a_fence_is_not_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of events that proves the fence: the write ends after the fence, and the writer gets LeaseLost."""
    looked, fenced = threading.Event(), threading.Event()

    def stalled(fd: int, buffers: Sequence[memoryview]) -> None:
        looked.set()
        assert fenced.wait(10)
        local_file.write_all(fd, buffers)

    async with opened(tmp_path) as fs:
        appender = await fs.create("/f")
        appender.write(b"acked")
        await appender.flush()
        monkeypatch.setattr(local_writer, "write_all", stalled)
        appender.write(b"late")
        flush = appender.flush()
        await asyncio.to_thread(looked.wait, 10)
        assert await LocalFileSystem(tmp_path, "other").fence(appender.lease) == 5
        fenced.set()
        with pytest.raises(LeaseLost):
            await flush
        assert appender.flushed == 5
        assert await fs.visible_length("/f") == 9, "leftovers, never acknowledged"


async def test_closing_the_file_system_leaves_open_files_to_the_fence(tmp_path: Path) -> None:
    async with opened(tmp_path) as fs:
        before = set(threading.enumerate())
        other = LocalFileSystem(tmp_path, "other")
        appender = await other.create("/f")
        appender.write(b"12345")
        await appender.flush()
        appender.write(b"lost")
        await other.close()
        await other.close()
        with pytest.raises(PipelineFailed):
            await appender.flush()
        assert await fs.fence(appender.lease) == 5
        left = set(threading.enumerate()) - before
        assert all(thread.name.startswith("asyncio") for thread in left), left


def test_a_loop_that_ended_without_close_ends_the_thread_and_its_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    threads = []

    def stalled(fd: int, buffers: Sequence[memoryview]) -> None:
        assert ended.wait(10)

    async def careless() -> None:
        fs = LocalFileSystem(tmp_path, "careless")
        (await fs.create("/f")).flush()
        assert fs._writer is not None
        threads.append(fs._writer._thread)

    async def body() -> None:
        async with opened(tmp_path) as fs:
            assert await fs.fence(Lease(paths=("/f",), holder="careless", file_id=0)) == 0
            assert await (await fs.append("/f")).close() == 0

    monkeypatch.setattr(local_writer, "write_all", stalled)
    asyncio.run(careless())
    ended.set()
    threads[0].join(10)
    assert not threads[0].is_alive()
    monkeypatch.undo()
    asyncio.run(body())


async def test_more_buffers_than_one_system_call_takes_are_all_written(tmp_path: Path) -> None:
    async with opened(tmp_path) as fs:
        appender = await fs.create("/f")
        lines = [b"%d," % n for n in range(3 * local_file.IOV_MAX + 7)]
        for line in lines:
            appender.write(line)
        data = b"".join(lines)
        assert await appender.flush() == len(data)
        assert await fs.read("/f", 0, len(data) + 1) == data
        await appender.close()


async def test_all_flushes_of_one_drain_are_acknowledged_by_one_wake_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as fs:
        appenders = [await fs.create(f"/{n}") for n in range(10)]
        held = threading.Event()
        wakes = 0
        response = local_writer.WriterThread._deliver

        def counted(self: Any, *args: Any) -> None:
            nonlocal wakes
            wakes += 1
            response(self, *args)

        def blocked(fd: int, buffers: Sequence[memoryview]) -> None:
            assert held.wait(10)
            local_file.write_all(fd, buffers)

        monkeypatch.setattr(local_writer.WriterThread, "_deliver", counted)
        monkeypatch.setattr(local_writer, "write_all", blocked)
        flushes = []
        for _ in range(20):
            for appender in appenders:
                appender.write(b"x" * 10)
                flushes.append(appender.flush())
        held.set()
        await asyncio.gather(*flushes)
        assert wakes <= 2, "what was queued while the first waited is one drain"
        for n in range(10):
            assert await fs.read(f"/{n}", 0, 1000) == b"x" * 200


async def test_writers_wait_when_the_disk_is_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path) as fs:
        monkeypatch.setattr(local_writer, "QUEUED_BYTES_MAX", 100)
        appender = await fs.create("/f")
        appender.write(b"x" * 150)  # alone it may be larger than the bound
        with pytest.raises(StorageUnavailable):
            appender.write(b"y")
        assert await appender.flush() == 150
        assert appender.write(b"y") == 151
        assert await appender.close() == 151


@pytest.mark.parametrize(
    ("code", "error"), [(errno.ENOSPC, OutOfSpace), (errno.EDQUOT, OutOfSpace), (errno.EIO, PipelineFailed)]
)
async def test_a_failed_write_ends_the_appender(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, error: type[StorageError]
) -> None:
    async with opened(tmp_path) as fs:
        appender, well = await fs.create("/f"), await fs.create("/g")

        def failing(fd: int, buffers: Sequence[memoryview]) -> None:
            if os.fstat(fd).st_ino == appender.lease.file_id:
                raise OSError(code, os.strerror(code))
            local_file.write_all(fd, buffers)

        monkeypatch.setattr(local_writer, "write_all", failing)
        appender.write(b"x")
        well.write(b"y")
        outcomes = await asyncio.gather(appender.flush(), appender.flush(), well.flush(), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [error, error, int]
        monkeypatch.undo()
        with pytest.raises(error):
            appender.write(b"more")
        with pytest.raises(error):
            await appender.close()
        assert await fs.fence(appender.lease) == 0
        assert await (await fs.append("/f")).close() == 0


async def test_a_sync_flush_syncs_the_names_made_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path) as fs:
        synced: list[int] = []
        fsync = os.fsync

        def noted(fd: int) -> None:
            synced.append(os.fstat(fd).st_ino)
            fsync(fd)

        monkeypatch.setattr(os, "fsync", noted)
        appender = await fs.create("/a/b/.spare")
        await fs.rename("/a/b/.spare", "/a/b/final")
        await appender.flush()
        assert synced == [], "outliving the process costs nothing"
        await appender.flush(sync=True)
        assert {(tmp_path / name).stat().st_ino for name in (".", "a", "a/b")} == set(synced)
        synced.clear()
        await appender.flush(sync=True)
        assert synced == [], "once"
        await appender.close()


async def test_a_sync_flush_does_not_depend_on_another_topics_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of the refused folder itself is not acknowledged, and neither flushed nor created."""
    async with opened(tmp_path) as fs:
        appender, other = await fs.create("/topics/b/f"), await fs.create("/topics/a/f")
        bad, fsync = (tmp_path / "topics/a").stat(), os.fsync

        def failing(fd: int) -> None:
            if os.path.samestat(os.fstat(fd), bad):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            fsync(fd)

        monkeypatch.setattr(os, "fsync", failing)
        appender.write(b"12345")
        assert await appender.flush(sync=True) == 5
        await (await fs.create("/topics/c/f", CreateOptions(sync=True))).close()
        assert await fs.fence(Lease(paths=("/topics/c/f",), holder="me", file_id=0), sync=True) == 0
        await appender.close()
        other.write(b"12345")
        with pytest.raises(PipelineFailed):
            await other.flush(sync=True)
        with pytest.raises(CorruptData):
            await fs.create("/topics/a/g", CreateOptions(sync=True))


async def test_a_sync_flush_puts_the_bytes_on_disk_before_it_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as fs:
        appender = await fs.create("/f")
        calls = noted_calls(monkeypatch, "writev", "fdatasync")
        inode = (tmp_path / "f").stat().st_ino
        appender.write(b"page cache")
        await appender.flush()
        assert calls == [("writev", inode)]
        appender.write(b"disk")
        await appender.flush(sync=True)
        assert calls[1:] == [("writev", inode), ("fdatasync", inode)]
        await appender.close()
