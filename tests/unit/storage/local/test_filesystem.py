"""The local root: fences between processes, ``kill -9``, full disks, crash windows of concat."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bmq.core.file_access import Access
from bmq.storage.filesystem import (
    Appender,
    CreateOptions,
    Lease,
    LeaseLost,
    NoSuchFile,
    OutOfSpace,
    StorageError,
    StorageUnavailable,
    delete_joined,
)
from bmq.storage.local import file as local_file
from bmq.storage.local import filesystem, system_calls
from bmq.storage.local.filesystem import LocalFileSystem
from tests.harness.waiting import until
from tests.unit.storage.local.roots import noted_calls, opened, put

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


def numbered(length: int) -> bytes:
    return b"".join(b"%09d\n" % n for n in range(length // 10 + 1))[:length]


async def test_a_fence_stops_another_process_which_acknowledges_nothing_after_it(
    tmp_path: Path, writer: Writer
) -> None:
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


async def test_a_killed_process_leaves_every_acknowledged_byte_and_no_lock(tmp_path: Path, writer: Writer) -> None:
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


async def test_the_writer_of_a_deleted_file_gets_lease_lost(tmp_path: Path) -> None:
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


async def test_without_a_descriptor_left_a_create_is_out_of_space_and_a_read_unavailable(
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


@pytest.mark.parametrize("call", ["create", "rename", "replace", "delete", "make_folder"])
async def test_no_call_that_was_carried_out_fails_for_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """A call changes nothing if there is no room to note its folder: its caller takes a failure for "not done"."""
    async with opened(tmp_path) as fs:
        for name in ("/t/old", "/t/new", "/other/f"):
            await put(fs, name, b"")
        fsync, other = os.fsync, (tmp_path / "other").stat()
        fs._folders.sync(f"{tmp_path}/t/old")
        await fs.delete("/other/f")  # notes one folder, which is as many as there may be

        def failing(fd: int) -> None:
            if os.path.samestat(os.fstat(fd), other):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            fsync(fd)

        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "create": lambda: fs.create("/t/made"),
            "rename": lambda: fs.rename("/t/old", "/t/renamed"),
            "replace": lambda: fs.replace("/t/old", "/t/new"),
            "delete": lambda: fs.delete("/t/old"),
            "make_folder": lambda: fs.make_folder("/t/made"),
        }
        with monkeypatch.context() as patch:
            patch.setattr(local_file, "FOLDERS_MAX", 1)
            patch.setattr(os, "fsync", failing)
            with pytest.raises(StorageUnavailable):
                await calls[call]()
        assert sorted(os.listdir(tmp_path / "t")) == ["new", "old"]
        await calls[call]()


async def test_a_create_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last descriptor goes to the file, and none is left to sync its folder.  The same name may be tried again."""
    async with opened(tmp_path) as fs:
        await put(fs, "/t/f", b"")
        plain, folder = os.open, str(tmp_path / "t")

        def refused(real: Any, *rest: Any, **options: Any) -> int:
            if real == folder:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return plain(real, *rest, **options)

        with monkeypatch.context() as patch:
            patch.setattr(os, "open", refused)
            for _ in range(2):
                with pytest.raises(OutOfSpace):
                    await fs.create("/t/.spare", CreateOptions(sync=True))
        assert os.listdir(tmp_path / "t") == ["f"]


async def test_a_create_that_lost_its_file_leaves_it_to_the_other_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process may have appended to the file, and have acknowledged the bytes."""

    def fenced(fd: int, path: str) -> None:
        local_file.raise_fence(fd)
        local_file.take_lock(fd, path)

    monkeypatch.setattr(filesystem, "take_lock", fenced)
    async with opened(tmp_path) as fs:
        with pytest.raises(LeaseLost):
            await fs.create("/f")
        assert os.listdir(tmp_path) == ["f"]


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
        calls = noted_calls(monkeypatch, "fdatasync", "fsync")
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
        calls = noted_calls(monkeypatch, "fsync", "replace", "unlink")
        await fs.concat("/a", ["/b"])
        joined, folder = (tmp_path / "a").stat().st_ino, os.stat(tmp_path).st_ino
        assert calls == [("fsync", joined), ("replace", joined), ("fsync", folder), ("unlink", old)]


async def test_a_create_cancelled_under_way_closes_its_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go, closed = threading.Event(), threading.Event(), threading.Event()
    make_folder, close = LocalFileSystem._make_folder, local_file.OpenFile.close

    def slow(self: LocalFileSystem, folder: str, access: Access) -> None:
        entered.set()
        assert go.wait(10)
        make_folder(self, folder, access)

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
            with pytest.raises(StorageUnavailable, match="joined"):
                await fs.concat("/a", ["/b", "/c", "/d"])
        else:
            await fs.concat("/a", ["/b", "/c", "/d"])
        left = [status.path[1:] async for status in fs.list("/")]
        assert left == ["a", *survivors]
        end = sum(len(data) for name, data in parts.items() if name not in survivors)
        log = await fs.read("/a", 0, end) + b"".join([await fs.read(f"/{name}", 0, 99) for name in survivors])
        assert log == b"".join(parts.values())
        assert await fs.read("/a", 0, 99) == b"".join(parts.values())


async def test_a_concat_whose_folder_is_not_synced_is_no_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target has changed: the caller must not take the files for unchanged."""
    fsync, folder = os.fsync, os.stat(tmp_path).st_ino

    def failing(fd: int) -> None:
        if os.fstat(fd).st_ino == folder:
            raise OSError(errno.EIO, "bad sector")
        fsync(fd)

    async with opened(tmp_path) as fs:
        await put(fs, "/a", b"aa")
        await put(fs, "/b", b"bb")
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", failing)
            with pytest.raises(StorageUnavailable, match="joined"):
                await fs.concat("/a", ["/b"])
        assert sorted(os.listdir(tmp_path)) == ["a", "b"]
        assert (tmp_path / "a").read_bytes() == b"aabb"
        await delete_joined(fs, "/a", ["/b"], 4)
        assert os.listdir(tmp_path) == ["a"]


async def test_a_concat_that_fails_before_it_replaced_anything_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> int:
        raise OSError(errno.ENOSPC, "full")

    async with opened(tmp_path) as fs:
        await put(fs, "/a", b"aa")
        await put(fs, "/b", b"bb")
        (tmp_path / ".a.0123456789abcdef.concat").write_bytes(b"of an earlier crash")
        with monkeypatch.context() as patch:
            patch.setattr(os, "copy_file_range", full)
            with pytest.raises(OutOfSpace):
                await fs.concat("/a", ["/b"])
        assert sorted(os.listdir(tmp_path)) == ["a", "b"]
        with monkeypatch.context() as patch:
            patch.setattr(os, "copy_file_range", lambda *args: (_ for _ in ()).throw(OSError(errno.ENOSYS, "old")))
            await fs.concat("/a", ["/b"])
        assert (tmp_path / "a").read_bytes() == b"aabb"


async def test_a_cancelled_concat_holds_its_files_until_its_thread_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A close does not wait for a disk that hangs, and no second call copies beside the first."""
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
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(LeaseLost):
            await fs.concat("/a", ["/b"])
        go.set()
        await until(lambda: os.listdir(tmp_path) == ["a"])
        assert await fs.read("/a", 0, 9) == b"aabb"


async def test_a_file_that_is_open_without_a_writer_is_refused_for_what_it_is(tmp_path: Path) -> None:
    """A restore may have given the file another mode.  Nobody's end would end a LeaseLost."""
    async with opened(tmp_path) as fs:
        await put(fs, "/a", b"aa")
        await put(fs, "/b", b"bb")
        (tmp_path / "b").chmod(0o644)
        with pytest.raises(StorageError, match="chmod u-w") as refusal:
            await fs.concat("/a", ["/b"])
        assert not isinstance(refusal.value, LeaseLost)


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
