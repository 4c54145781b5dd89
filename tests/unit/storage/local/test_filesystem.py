"""The local root: fences between processes, ``kill -9``, batches of buffers, full disks, crash windows of concat."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bmq.storage.filesystem import (
    AlreadyExists,
    Appender,
    CorruptData,
    Lease,
    LeaseLost,
    NoSuchFile,
    OutOfSpace,
    PipelineFailed,
    StorageError,
    StorageUnavailable,
    Unsupported,
    write_once,
)
from bmq.storage.local import file as local_file
from bmq.storage.local import filesystem, system_calls
from bmq.storage.local import writer as local_writer
from bmq.storage.local.filesystem import LocalFileSystem
from bmq.storage.open import open_filesystem

pytestmark = [pytest.mark.slow, pytest.mark.loops("asyncio")]

# Writes numbered lines until it is fenced; prints the position of every acknowledgement, then what ended it.
WRITER = """
import asyncio, sys
from bmq.storage.filesystem import StorageError
from bmq.storage.local.filesystem import LocalFileSystem

async def main():
    fs = LocalFileSystem(sys.argv[1], "writer")
    appender = await fs.create("/d/.spare")
    print("created", appender.lease.file_id, flush=True)
    n = 0
    try:
        while True:
            appender.write(b"%09d\\n" % n)
            n += 1
            print("acked", await appender.flush(), flush=True)
    except StorageError as error:
        print(type(error).__name__, flush=True)
    await fs.close()

asyncio.run(main())
"""


class Writer:
    """Another process on the same root."""

    def __init__(self, root: Path) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", WRITER, str(root)], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self._out = self.process.stdout
        created, file_id = self._out.readline().split()
        assert created == "created"
        self.lease = Lease(paths=("/d/.spare", "/d/final"), holder="writer", file_id=int(file_id))
        self.acked = 0

    def read_until(self, position: int) -> None:
        while self.acked < position:
            self.acked = int(self._out.readline().split()[1])

    def rest(self) -> str:
        """Read to the end of the process and return its last word, empty if it was killed."""
        last = ""
        for line in self._out:
            word = line.split()
            if word[0] == "acked":
                self.acked = int(word[1])
            else:
                last = word[0]
        self._out.close()
        self.process.wait()
        return last


@pytest.fixture
def writer(tmp_path: Path) -> Any:
    made = Writer(tmp_path)
    yield made
    made.process.kill()
    made.rest() if not made._out.closed else None


@asynccontextmanager
async def opened(root: Path, holder: str = "me") -> AsyncIterator[LocalFileSystem]:
    fs = LocalFileSystem(root, holder)
    try:
        yield fs
    finally:
        await fs.close()


async def put(fs: LocalFileSystem, path: str, data: bytes) -> None:
    appender = await fs.create(path)
    appender.write(data)
    await appender.close()


def numbered(length: int) -> bytes:
    return b"".join(b"%09d\n" % n for n in range(length // 10 + 1))[:length]


# Two processes


async def test_a_fence_stops_another_process_which_acks_nothing_after(tmp_path: Path, writer: Writer) -> None:
    async with opened(tmp_path) as fs:
        writer.read_until(500)
        await fs.rename("/d/.spare", "/d/final")
        length = await fs.fence(writer.lease)
        assert await asyncio.to_thread(writer.rest) == "LeaseLost"
        assert 500 <= writer.acked <= length
        assert await fs.read("/d/final", 0, length) == numbered(length)
        appender = await fs.append("/d/final")  # the other process has ended
        appender.write(b"mine")
        assert await appender.close() == await fs.visible_length("/d/final")


async def test_a_paused_process_wakes_up_fenced(tmp_path: Path, writer: Writer) -> None:
    async with opened(tmp_path) as fs:
        writer.read_until(500)
        writer.process.send_signal(signal.SIGSTOP)
        length = await fs.fence(writer.lease)
        with pytest.raises(LeaseLost):
            await fs.append("/d/.spare")  # not while it could still write: its lock says so
        writer.process.send_signal(signal.SIGCONT)
        assert await asyncio.to_thread(writer.rest) == "LeaseLost"
        assert writer.acked <= length


async def test_a_killed_process_leaves_every_acked_byte_and_no_lock(tmp_path: Path, writer: Writer) -> None:
    async with opened(tmp_path) as fs:
        writer.read_until(1000)
        writer.process.kill()
        assert await asyncio.to_thread(writer.rest) == ""
        with pytest.raises(LeaseLost):
            await fs.append("/d/.spare")  # open until it is fenced
        length = await fs.fence(writer.lease)
        assert length >= writer.acked >= 1000
        assert await fs.read("/d/.spare", 0, length) == numbered(length)
        appender = await fs.append("/d/.spare")
        appender.write(b"mine")
        assert await appender.close() == length + 4


# The fence


async def test_a_zombie_caught_between_its_look_and_its_write_is_not_answered(
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


async def test_a_deleted_file_tells_its_writer(tmp_path: Path) -> None:
    async with opened(tmp_path) as fs:
        appender = await fs.create("/f")
        await fs.delete("/f")
        with pytest.raises(LeaseLost):
            await appender.flush()
        with pytest.raises(NoSuchFile):
            await fs.fence(appender.lease)


async def test_the_fence_is_the_write_bit(tmp_path: Path) -> None:
    async with opened(tmp_path) as fs:
        appender = await fs.create("/f")
        assert (tmp_path / "f").stat().st_mode & 0o777 == 0o644
        await appender.close()
        assert (tmp_path / "f").stat().st_mode & 0o777 == 0o444


@pytest.mark.parametrize("name", [".spare", "final"])
async def test_a_fence_finds_the_file_in_a_copied_root(tmp_path: Path, name: str) -> None:
    """Restore a root from a backup, for example: no file has the inode that it had."""

    async with opened(tmp_path):
        (tmp_path / "original").mkdir()
        original = LocalFileSystem(tmp_path / "original", "dead")
        appender = await original.create("/a/.spare")
        appender.write(b"bytes")
        await appender.flush()
        if name != ".spare":
            await original.rename("/a/.spare", f"/a/{name}")
        await original.close()
        await asyncio.to_thread(shutil.copytree, tmp_path / "original", tmp_path / "copy")
        copy = LocalFileSystem(tmp_path / "copy", "next")
        lease = replace(appender.lease, paths=("/a/final", "/a/.spare"))
        assert (await copy.status(f"/a/{name}")).file_id != lease.file_id
        assert await copy.fence(lease, sync=True) == 5
        assert not os.stat(tmp_path / "copy" / "a" / name).st_mode & 0o200, "fenced"
        await copy.close()


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


# Writing


async def test_more_buffers_than_one_call_takes(tmp_path: Path) -> None:
    async with opened(tmp_path) as fs:
        appender = await fs.create("/f")
        lines = [b"%d," % n for n in range(3 * local_file.IOV_MAX + 7)]
        for line in lines:
            appender.write(line)
        data = b"".join(lines)
        assert await appender.flush() == len(data)
        assert await fs.read("/f", 0, len(data) + 1) == data
        await appender.close()


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def three_bytes(fd: int, buffers: Sequence[memoryview]) -> int:
        return os.write(fd, b"".join(buffers)[:3])

    monkeypatch.setattr(os, "writev", three_bytes)
    parts = [b"a", b"bcdef", b"gh", b"i", b"jklmnopqrstu"]
    fd = os.open(tmp_path / "f", os.O_WRONLY | os.O_CREAT)
    local_file.write_all(fd, [memoryview(part) for part in parts])
    os.close(fd)
    assert (tmp_path / "f").read_bytes() == b"".join(parts)


async def test_a_drain_answers_all_its_flushes_by_one_wake_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path) as fs:
        appenders = [await fs.create(f"/{n}") for n in range(10)]
        held = threading.Event()
        wakes = 0
        answer = local_writer.WriterThread._deliver

        def counted(self: Any, *args: Any) -> None:
            nonlocal wakes
            wakes += 1
            answer(self, *args)

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


async def test_a_file_to_write_without_a_descriptor_left_lacks_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A create without a descriptor gets OutOfSpace, for which other segments are closed; a read StorageUnavailable,
    and may be repeated."""

    async with opened(tmp_path) as fs:
        await (await fs.create("/f")).close()
        plain = os.open

        def refused(*arguments: Any, **options: Any) -> int:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        monkeypatch.setattr(os, "open", refused)
        with pytest.raises(OutOfSpace, match="LimitNOFILE"):
            await fs.create("/g")
        with pytest.raises(StorageUnavailable):
            await fs.read("/f", 0, 1 << 20)
        monkeypatch.setattr(os, "open", plain)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (errno.ENOSPC, OutOfSpace),
        (errno.EACCES, Unsupported),
        (errno.EROFS, Unsupported),
        (errno.EMFILE, StorageUnavailable),
        (errno.EIO, CorruptData),
        (errno.EXDEV, StorageError),
    ],
)
def test_the_systems_errors_are_translated(code: int, error: type[StorageError]) -> None:
    assert type(local_file.translate(OSError(code, os.strerror(code)), "/f")) is error


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


def _noted(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[tuple[str, int]]:
    """Return a list that collects the calls of these functions of ``os`` from now on, each with the inode that it was
    made for."""
    calls: list[tuple[str, int]] = []

    def note(name: str) -> None:
        call = getattr(os, name)

        def noted(first: Any, *rest: Any) -> Any:
            calls.append((name, (os.fstat(first) if isinstance(first, int) else os.stat(first)).st_ino))
            return call(first, *rest)

        monkeypatch.setattr(os, name, noted)

    for name in names:
        note(name)
    return calls


async def test_a_sync_flush_puts_the_bytes_on_disk_before_it_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as fs:
        appender = await fs.create("/f")
        calls = _noted(monkeypatch, "writev", "fdatasync")
        inode = (tmp_path / "f").stat().st_ino
        appender.write(b"page cache")
        await appender.flush()
        assert calls == [("writev", inode)]
        appender.write(b"disk")
        await appender.flush(sync=True)
        assert calls[1:] == [("writev", inode), ("fdatasync", inode)]
        await appender.close()


@pytest.mark.parametrize("is_closed", [False, True])
async def test_a_sync_fence_puts_bytes_and_names_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_closed: bool
) -> None:
    """Kill the writer, or a first fence, between write and sync: the folders that the writer made are not synced
    either."""

    async with opened(tmp_path) as fs:
        zombie = LocalFileSystem(tmp_path, "zombie")
        appender = await zombie.create("/a/b/.spare")
        appender.write(b"tail")
        await appender.flush()
        await zombie.rename("/a/b/.spare", "/a/b/final")
        await zombie.close()
        if is_closed:
            await fs.fence(replace(appender.lease, paths=("/a/b/final",)))
        calls = _noted(monkeypatch, "fdatasync", "fsync")
        lease = replace(appender.lease, paths=("/a/b/.spare", "/a/b/final"))
        assert await fs.fence(lease) == 4
        assert calls == []
        assert await fs.fence(lease, sync=True) == 4
        assert calls[0] == ("fdatasync", (tmp_path / "a/b/final").stat().st_ino)
        assert {inode for _, inode in calls[1:]} == {(tmp_path / name).stat().st_ino for name in (".", "a", "a/b")}


async def test_a_joined_file_is_on_disk_before_it_replaces_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name, too, is on disk before the first part is deleted: whatever a loss of power leaves can be read."""

    async with opened(tmp_path) as fs:
        await put(fs, "/a", b"aa")
        await put(fs, "/b", b"bb")
        old = (tmp_path / "b").stat().st_ino
        calls = _noted(monkeypatch, "fsync", "replace", "unlink")
        await fs.concat("/a", ["/b"])
        joined, folder = (tmp_path / "a").stat().st_ino, os.stat(tmp_path).st_ino
        assert calls == [("fsync", joined), ("replace", joined), ("fsync", folder), ("unlink", old)]


def test_changed_folders_are_bounded_and_deleted_ones_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_file, "FOLDERS_MAX", 3)
    folders = local_file.Folders()
    for n in range(10):
        folders.changed(str(tmp_path / str(n)))  # none of them exists
        assert len(folders._changed) <= 3
    folders.sync()
    assert not folders._changed


async def test_a_create_cancelled_under_way_closes_its_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go, closed = threading.Event(), threading.Event(), threading.Event()
    make_folder, close = LocalFileSystem._make_folder, local_file.OpenFile.close

    def slow(self: LocalFileSystem, folder: str) -> None:
        entered.set()
        assert go.wait(10)
        make_folder(self, folder)

    def noticed(self: local_file.OpenFile) -> None:
        close(self)
        closed.set()

    monkeypatch.setattr(LocalFileSystem, "_make_folder", slow)
    monkeypatch.setattr(local_file.OpenFile, "close", noticed)

    async with opened(tmp_path) as fs:
        task = asyncio.ensure_future(fs.create("/f"))
        await asyncio.to_thread(entered.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go.set()
        assert await asyncio.to_thread(closed.wait, 10)
        assert await fs.fence(Lease(paths=("/f",), holder="me", file_id=0)) == 0
        assert await (await fs.append("/f")).close() == 0


# Reading


async def test_reads_that_miss_the_page_cache_go_to_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cold(*args: Any) -> int:
        raise BlockingIOError(errno.EAGAIN, "not in memory")

    def unable(*args: Any) -> int:
        raise OSError(errno.EOPNOTSUPP, "not on this file system")

    async with opened(tmp_path) as fs:
        await put(fs, "/f", b"0123456789")
        for reader in (cold, unable):
            monkeypatch.setattr(os, "preadv", reader)
            assert await fs.read("/f", 2, 3) == b"234"
            assert await fs.read("/f", 8, 30) == b"89"


# Names


async def test_rename_where_the_kernel_cannot_refuse_to_overwrite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OldLibrary:
        pass

    monkeypatch.setattr(system_calls, "_libc", OldLibrary())

    async with opened(tmp_path) as fs:
        await put(fs, "/d/one", b"1")
        await put(fs, "/d/two", b"2")
        await put(fs, "/e/f", b"")
        with pytest.raises(AlreadyExists):
            await fs.rename("/d/one", "/d/two")
        with pytest.raises(AlreadyExists):
            await fs.rename("/d", "/e")
        with pytest.raises(NoSuchFile):
            await fs.rename("/d/none", "/d/three")
        await fs.rename("/d/one", "/d/three")
        await fs.rename("/d", "/g")
        assert [status.path async for status in fs.list("/g")] == ["/g/three", "/g/two"]
        assert os.stat(tmp_path / "g" / "three").st_nlink == 1


@pytest.mark.parametrize("survivors", [["b", "c", "d"], ["c", "d"], ["d"], []])
async def test_a_concat_that_crashed_leaves_the_last_sources_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survivors: list[str]
) -> None:
    """Read up to the first source left, then the sources: every byte once, wherever it crashed."""
    parts = {"a": b"aa", "b": b"bbb", "c": b"c", "d": b"dddd"}
    unlink = os.unlink

    def crashing(path: Any) -> None:
        if survivors and os.path.basename(path) == survivors[0]:
            raise OSError(errno.EIO, "crash")
        unlink(path)

    async with opened(tmp_path) as fs:
        for name, data in parts.items():
            await put(fs, f"/{name}", data)
        monkeypatch.setattr(os, "unlink", crashing)
        if survivors:
            with pytest.raises(StorageError):
                await fs.concat("/a", ["/b", "/c", "/d"])
        else:
            await fs.concat("/a", ["/b", "/c", "/d"])
        left = [status.path[1:] async for status in fs.list("/")]
        assert left == ["a", *survivors]
        end = sum(len(data) for name, data in parts.items() if name not in survivors)
        log = await fs.read("/a", 0, end) + b"".join([await fs.read(f"/{name}", 0, 99) for name in survivors])
        assert log == b"".join(parts.values())
        assert await fs.read("/a", 0, 99) == b"".join(parts.values())


async def test_a_concat_that_fails_before_it_replaced_anything_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> int:
        raise OSError(errno.ENOSPC, "full")

    async with opened(tmp_path) as fs:
        await put(fs, "/a", b"aa")
        await put(fs, "/b", b"bb")
        (tmp_path / ".a.concat").write_bytes(b"of an earlier crash")
        with monkeypatch.context() as patch:
            patch.setattr(os, "copy_file_range", full)
            with pytest.raises(OutOfSpace):
                await fs.concat("/a", ["/b"])
        assert sorted(os.listdir(tmp_path)) == ["a", "b"]
        with monkeypatch.context() as patch:
            patch.setattr(os, "copy_file_range", lambda *args: (_ for _ in ()).throw(OSError(errno.ENOSYS, "old")))
            await fs.concat("/a", ["/b"])
        assert (tmp_path / "a").read_bytes() == b"aabb"


async def test_nobody_appends_to_a_file_that_is_being_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copying, go = threading.Event(), threading.Event()
    copy = system_calls.copy_bytes

    def slow(source: int, target: int) -> None:
        copying.set()
        assert go.wait(10)
        copy(source, target)

    monkeypatch.setattr(filesystem, "copy_bytes", slow)

    async with opened(tmp_path) as fs:
        await put(fs, "/a", b"aa")
        await put(fs, "/b", b"bb")
        task = asyncio.ensure_future(fs.concat("/a", ["/b"]))
        await asyncio.to_thread(copying.wait, 10)
        for path in ("/a", "/b"):
            with pytest.raises(LeaseLost):
                await fs.append(path)
        go.set()
        await task
        appender: Appender = await fs.append("/a")
        assert appender.position == 4
        await appender.close()


# Opening a root


async def test_urls(tmp_path: Path) -> None:
    async def main() -> None:
        root = tmp_path / "a b" / "root"
        fs = await open_filesystem(root.as_uri(), holder="me")
        assert isinstance(fs, LocalFileSystem)
        assert (fs.url, fs.holder) == (root.as_uri(), "me")
        assert root.is_dir()
        await fs.close()

        shared = [await open_filesystem("memory:shared", holder=name) for name in "ab"]
        await (await shared[0].create("/f")).close()
        assert await shared[1].read("/f", 0, 1) == b""
        alone = await open_filesystem("memory:", holder="c")
        with pytest.raises(NoSuchFile):
            await alone.read("/f", 0, 1)

        for url in ("s3://bucket", "/plain/path", "", "file://host/dir", "file:relative", "file:///a?b"):
            with pytest.raises(Unsupported, match=r"root|path"):
                await open_filesystem(url, holder="me")
        (tmp_path / "file").touch()
        with pytest.raises(StorageError):
            await open_filesystem((tmp_path / "file").as_uri(), holder="me")

    await main()


async def test_a_folder_is_removed_while_others_write_into_it_and_remove_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delete as HDFS does, in one step: files that are written meanwhile go, too, and those that another process has
    removed are not an error."""
    rmdir, unlink = os.rmdir, os.unlink
    late = ["one", "two"]
    removed: list[str] = []

    def rmdir_after_a_write(path: str, *args: Any, **options: Any) -> None:
        if late:
            (tmp_path / "root" / "d" / late.pop()).touch()
        rmdir(path, *args, **options)

    def unlink_after_another(path: str, *args: Any, **options: Any) -> None:
        if not removed:
            removed.append(path)
            unlink(path, *args, **options)
        unlink(path, *args, **options)

    async def test() -> None:
        fs = LocalFileSystem(tmp_path / "root", "deleter")
        await write_once(fs, "/d/e/f", b"x")
        monkeypatch.setattr(os, "rmdir", rmdir_after_a_write)
        monkeypatch.setattr(os, "unlink", unlink_after_another)
        assert await fs.delete("/d", recursive=True)
        assert [child.path async for child in fs.list("/")] == []
        assert not late
        assert removed
        await fs.close()

    await test()


async def test_a_folder_that_is_written_all_the_time_is_not_removed_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rmdir, names = os.rmdir, iter(range(1_000_000))

    def rmdir_after_a_write(path: str, *args: Any, **options: Any) -> None:
        (tmp_path / "root" / "d" / str(next(names))).touch()
        rmdir(path, *args, **options)

    async def test() -> None:
        fs = LocalFileSystem(tmp_path / "root", "deleter")
        await write_once(fs, "/d/f", b"x")
        monkeypatch.setattr(os, "rmdir", rmdir_after_a_write)
        with pytest.raises(StorageError, match="not empty"):
            await fs.delete("/d", recursive=True)
        await fs.close()

    await test()
