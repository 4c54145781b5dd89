"""A folder as a root: ``file:///dir``, one machine, any number of processes.

``bmq.storage.local.file`` says which process may write, and why an acknowledged byte survives a fence.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
import stat
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TypeVar

from bmq.core.descriptors import FAILURES
from bmq.core.file_access import NO_ACCESS, Access
from bmq.storage.access import REFUSALS
from bmq.storage.filesystem import (
    BlockPlace,
    CreateOptions,
    FileStatus,
    Lease,
    LeaseLost,
    NoSuchFile,
    OutOfSpace,
    RootLock,
    StorageError,
    StorageUnavailable,
    Unsupported,
)
from bmq.storage.fresh_memory import allocate, cut, fill
from bmq.storage.health import StorageHealth
from bmq.storage.local.file import (
    Folders,
    OpenFile,
    check_fence,
    fence_open,
    has_name,
    is_open,
    lower_fence,
    raise_fence,
    take_lock,
    translate,
)
from bmq.storage.local.ownership import give, give_folder, give_like, give_new, group_name, mode_of, owner_name
from bmq.storage.local.root_lock import lock_root
from bmq.storage.local.system_calls import NOT_SUPPORTED, copy_bytes, remove_tree, rename_without_overwriting
from bmq.storage.local.writer import LocalAppender, WriterThread
from bmq.storage.paths import check_concat, join, split

T = TypeVar("T")

LIST_PAGE = 1000  # names looked up at a time
READ_INLINE_BYTES_MAX = 128 << 10  # copied from the page cache on the loop in 12 µs; a thread costs 50 µs
FENCE_SCANS = 3  # of the names a file may have, while another process renames it

_DEFAULT = CreateOptions()
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_WRITE = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class LocalFileSystem:
    """The ``FileSystem`` of a folder (``bmq.storage.filesystem``).

    The folder is made if it is missing, and locked as ``lock`` says until ``close``; raises StorageError if that fails.
    The object belongs to the event loop that first uses it.
    """

    def __init__(self, root_dir: str | Path, holder: str, *, lock: RootLock = RootLock.NONE) -> None:
        self._root = os.path.realpath(root_dir)
        self._holder = holder
        self._folders = Folders()
        self._writer: WriterThread | None = None
        try:
            os.makedirs(self._root, exist_ok=True)
        except FileExistsError as error:
            raise Unsupported(f"{self._root} is a file; a root is a folder") from error
        except OSError as error:
            raise translate(error, self._root) from error
        self._lock_fd = -1 if lock is RootLock.NONE else lock_root(self._root, lock)

    @property
    def url(self) -> str:
        return Path(self._root).as_uri()

    @property
    def holder(self) -> str:
        return self._holder

    def __repr__(self) -> str:
        return f"<LocalFileSystem {self._root} as {self._holder}>"

    async def create(self, path: str, options: CreateOptions = _DEFAULT) -> LocalAppender:
        return await self._open(partial(self._create, sync=options.sync, access=options.access), path)

    async def append(self, path: str, options: CreateOptions = _DEFAULT) -> LocalAppender:
        if self._writer is not None:
            await self._writer.barrier()  # late closes of this process must not look like another one's lease
        return await self._open(self._append, path)

    async def _open(self, function: Callable[[str], OpenFile], path: str) -> LocalAppender:
        handoff = _Handoff()
        try:
            file = await self._do(path, lambda: handoff.offer(_or_no_room(function, path)))
        except asyncio.CancelledError:
            handoff.abandon()
            raise
        if self._writer is None:
            self._writer = WriterThread(self._folders)
        return LocalAppender(self._writer, file, self._holder)

    async def fence(self, lease: Lease, *, sync: bool = False) -> int:
        return await self._do(str(lease.paths), lambda: self._fence(lease, sync=sync))

    async def read(self, path: str, position: int, length: int) -> bytes:
        if length <= READ_INLINE_BYTES_MAX:
            try:
                data = self._read_cached(path, position, length)
            except OSError as error:
                raise translate(error, path) from error
            if data is not None:
                return data
        return await self._do(path, lambda: self._read(path, position, length))

    async def read_parts(self, path: str, position: int, lengths: Sequence[int]) -> Sequence[memoryview]:
        """Read as ``bmq.storage.filesystem.read_parts``."""
        return await self._do(path, lambda: self._read_parts(path, position, lengths))

    async def status(self, path: str) -> FileStatus:
        return await self._do(path, lambda: _status(path, os.lstat(self._real(path))))

    async def visible_length(self, path: str) -> int:
        status = await self.status(path)
        if status.is_dir:
            raise NoSuchFile(f"{path} is a folder")
        return status.length

    async def list(self, path: str, *, after: str = "") -> AsyncIterator[FileStatus]:
        names = await self._do(path, lambda: self._names(path, after))
        for start in range(0, len(names), LIST_PAGE):
            page = names[start : start + LIST_PAGE]
            for status in await self._do(path, lambda page=page: self._statuses(path, page)):  # type: ignore[misc]
                yield status

    async def rename(self, source: str, target: str) -> None:
        await self._do(f"{source} to {target}", lambda: self._rename(source, target))

    async def replace(self, source: str, target: str) -> None:
        await self._do(f"{source} to {target}", lambda: self._replace(source, target))

    async def delete(self, path: str, *, recursive: bool = False) -> bool:
        return await self._do(path, lambda: self._delete(path, recursive=recursive))

    async def make_folder(self, path: str, access: Access = NO_ACCESS) -> None:
        await self._do(path, lambda: self._make_folder(self._real(path), access))

    async def set_access(self, path: str, access: Access) -> bool:
        return await self._do(path, lambda: give(self._real(path), access))

    async def concat(self, target: str, sources: Sequence[str], target_bytes: int | None = None) -> None:
        """Join files as ``FileSystem.concat``; this copies bytes, unlike HDFS.

        It is atomic all the same.  See ``_concat`` for what a crash leaves.  The thread of a cancelled call goes on:
        until its end, the next call of these files raises LeaseLost, or NoSuchFile.
        """
        check_concat(target, sources)
        await self._do(target, lambda: self._concat(target, sources, target_bytes))

    async def delete_joined(self, target: str, sources: Sequence[str], joined_bytes: int) -> None:
        """Delete files as ``bmq.storage.filesystem.delete_joined``."""
        await self._do(target, lambda: self._delete_joined(target, sources, joined_bytes))

    async def probe(self, node: str) -> bool:
        """Return True: a folder has no nodes."""
        return True

    async def replicas_max(self) -> int:
        return 1

    async def health(self) -> StorageHealth:
        """Return the room of the folder's disk, as far as this user may use it."""
        try:
            usage = await asyncio.to_thread(shutil.disk_usage, self._root)
        except OSError as error:
            raise translate(error, "disk usage") from error
        return StorageHealth(capacity_bytes=usage.total, remaining_bytes=usage.free)

    async def block_places(self, path: str) -> Sequence[BlockPlace]:
        await self.status(path)
        return ()

    async def copies(self, path: str) -> int:
        if (await self.status(path)).is_dir:
            raise NoSuchFile(f"{path} is a folder")
        return 1

    async def close(self) -> None:
        """Abort the open files, end the writer thread, and unlock the root.

        The files are not closed: that is up to their owners, which may be other processes by now.
        """
        if self._writer is not None:
            await self._writer.stop()
            self._writer = None
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    # In threads from here on

    async def _do(self, what: str, function: Callable[[], T]) -> T:
        """Run ``function`` in a thread, and raise its OSErrors as StorageErrors."""

        def translated() -> T:
            try:
                return function()
            except OSError as error:
                raise translate(error, what) from error

        return await asyncio.to_thread(translated)

    def _real(self, path: str) -> str:
        return os.path.join(self._root, *split(path))

    def _create(self, path: str, *, sync: bool, access: Access) -> OpenFile:
        real = self._real(path)
        folder = os.path.dirname(real)
        self._make_folder(folder, access)
        self._folders.make_room(folder)
        fd = os.open(real, _WRITE | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            if access.is_given:
                give_new(fd, access, path)
            take_lock(fd, path)
            check_fence(fd, path)
            self._folders.changed(folder)
            if sync:
                self._folders.sync(real)
            return OpenFile(path, (fd,), real)
        except LeaseLost:  # another process has the file, and perhaps bytes in it
            os.close(fd)
            raise
        except BaseException:
            try:
                if has_name(fd, real):  # no caller gets the file, and a repeat needs its name
                    os.unlink(real)
            finally:
                os.close(fd)
            raise

    def _make_folder(self, folder: str, access: Access = NO_ACCESS) -> None:
        """Make a folder, and those above it, with ``access``; not the root's own children, which are of all topics."""
        made = []
        step = folder
        while not os.path.isdir(step):
            made.append(step)
            step = os.path.dirname(step)
        if made:
            parents = [os.path.dirname(step) for step in made]
            self._folders.make_room(*parents)
            try:
                os.makedirs(folder, exist_ok=True)
            finally:
                self._folders.changed(*parents)  # some may be made although the call failed
            for step in made if access.is_given else ():
                if os.path.dirname(step) not in (self._root, os.path.dirname(self._root)):
                    self._give_made(step, access)

    def _give_made(self, folder: str, access: Access) -> None:
        try:
            give_folder(folder, access)
        except (StorageError, OSError) as error:
            REFUSALS.note(folder, error)

    def _append(self, path: str) -> OpenFile:
        """Check under the lock that the file is closed, and open it.

        The lock has its own descriptor, since a closed file cannot be opened for writing (unless by root), and a lock
        does not move between descriptors.
        """
        real = self._real(path)
        with ExitStack() as stack:
            lock = _opened(stack, real, _READ)
            take_lock(lock, path)
            status = os.fstat(lock)
            if not stat.S_ISREG(status.st_mode):
                raise NoSuchFile(f"{path} is a folder")
            if is_open(status):
                raise LeaseLost(f"{path} is open: fence it first")
            lower_fence(lock)
            try:
                fd = _opened(stack, real, _WRITE)
                if os.fstat(fd).st_ino != status.st_ino:
                    raise LeaseLost(f"{path} was replaced meanwhile")
                file = OpenFile(path, (fd, lock), real)
            except BaseException:
                raise_fence(lock)
                raise
            stack.pop_all()
            return file

    def _fence(self, lease: Lease, *, sync: bool) -> int:
        """Fence the file with the lease's id under any of its names, and return its length.

        The names are scanned several times, since a rename may move the file from a name not yet checked to one that
        was.  In a root that was copied or restored no file has its old inode.  So at last the name is enough, since the
        log gives no name twice; but a file that a process writes to is another one.
        """
        for _ in range(FENCE_SCANS):
            for path in lease.paths:
                length = self._fence_name(path, lambda fd: lease.file_id in (0, os.fstat(fd).st_ino), sync=sync)
                if length is not None:
                    return length
        for path in lease.paths:
            length = self._fence_name(path, _has_no_writer, sync=sync)
            if length is not None:
                return length
        raise NoSuchFile(f"{', '.join(lease.paths)}: no such file with id {lease.file_id}")

    def _fence_name(self, path: str, is_meant: Callable[[int], bool], *, sync: bool) -> int | None:
        """Fence the file of this name, and return its length; None if there is none, or it is not the one meant."""
        try:
            fd = os.open(self._real(path), _READ)
        except FileNotFoundError:
            return None
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode) or not is_meant(fd):
                return None
            length = fence_open(fd)
            if sync:
                os.fdatasync(fd)
                self._sync_names(path)
            return length
        finally:
            os.close(fd)

    def _sync_names(self, path: str) -> None:
        """Sync the folders above ``path``: its writer may have died before it synced those that it made or changed."""
        real = step = self._real(path)
        above = []
        while step != self._root:
            step = os.path.dirname(step)
            above.append(step)
        self._folders.make_room(*above)
        self._folders.changed(*above)
        self._folders.sync(real)

    def _read_cached(self, path: str, position: int, length: int) -> bytes | None:
        """Read from the page cache without waiting for the disk; None if some of the bytes are not there."""
        fd = os.open(self._real(path), _READ)
        try:
            buffer = bytearray(length)
            try:
                count = os.preadv(fd, [buffer], position, os.RWF_NOWAIT)
            except BlockingIOError:
                return None
            except OSError as error:
                if error.errno in NOT_SUPPORTED:
                    return None
                raise
            if count < length and position + count < os.fstat(fd).st_size:
                return None
            return bytes(buffer) if count == length else bytes(memoryview(buffer)[:count])
        finally:
            os.close(fd)

    def _read(self, path: str, position: int, length: int) -> bytes:
        fd = os.open(self._real(path), _READ)
        try:
            end = min(position + length, os.fstat(fd).st_size)  # never allocate for bytes that are not there
            parts: list[bytes] = []
            while position < end and (part := os.pread(fd, end - position, position)):
                parts.append(part)
                position += len(part)
            return parts[0] if len(parts) == 1 else b"".join(parts)
        finally:
            os.close(fd)

    def _read_parts(self, path: str, position: int, lengths: Sequence[int]) -> Sequence[memoryview]:
        fd = os.open(self._real(path), _READ)
        try:
            end = min(position + sum(lengths), os.fstat(fd).st_size)  # never allocate for bytes that are not there
            parts = []
            at = position
            for length in lengths:
                parts.append(allocate(max(0, min(length, end - at))))
                at += length
            filled = 0
            while filled < end - position:
                got = os.preadv(fd, cut(parts, filled, end - position), position + filled)
                if not got:
                    break
                filled += got
            return fill(parts, filled)
        finally:
            os.close(fd)

    def _names(self, path: str, after: str) -> Sequence[bytes]:
        """Return the names after ``after``, sorted as bytes, as ``FileSystem.list`` promises.

        All are read: a local folder cannot be listed from the middle.
        """
        first = os.fsencode(after)
        try:
            with os.scandir(os.fsencode(self._real(path))) as entries:
                return sorted(entry.name for entry in entries if entry.name > first)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _statuses(self, path: str, names: Iterable[bytes]) -> Sequence[FileStatus]:
        folder = self._real(path)
        found = []
        for raw in names:
            name = os.fsdecode(raw)
            try:
                found.append(_status(join(path, name), os.lstat(os.path.join(folder, name))))
            except FileNotFoundError:
                continue  # deleted since the names were read
        return found

    def _rename(self, source: str, target: str) -> None:
        old, new = self._real(source), self._real(target)
        folders = os.path.dirname(old), os.path.dirname(new)
        self._folders.make_room(*folders)
        rename_without_overwriting(old, new)
        self._folders.changed(*folders)

    def _replace(self, source: str, target: str) -> None:
        old, new = self._real(source), self._real(target)
        if os.path.lexists(new) and is_open(os.lstat(new)) and not os.path.samefile(old, new):
            raise LeaseLost(f"{target} is open")
        folders = os.path.dirname(old), os.path.dirname(new)
        self._folders.make_room(*folders)
        os.replace(old, new)
        self._folders.changed(*folders)

    def _delete(self, path: str, *, recursive: bool) -> bool:
        real = self._real(path)
        if real == self._root:
            raise StorageError("the root of a file system cannot be deleted")
        self._folders.make_room(os.path.dirname(real))
        try:
            if not stat.S_ISDIR(os.lstat(real).st_mode):
                os.unlink(real)
            elif recursive:
                remove_tree(real)
            else:
                os.rmdir(real)
        except (FileNotFoundError, NotADirectoryError):
            return False
        self._folders.changed(os.path.dirname(real))
        return True

    def _concat(self, target: str, sources: Sequence[str], target_bytes: int | None = None) -> None:
        """Join into a temporary file, put it in the target's place in one step, then delete the sources.

        All files are locked meanwhile, so that no append is acknowledged into a file that is being replaced, and no
        other concat or ``delete_joined`` of these files is under way.  A lock counts only if the name still has the
        locked file: a lock of a file that was replaced keeps no other call away.

        ===================  =======================================================================================
        a crash              leaves
        ===================  =======================================================================================
        before that step     ``.<name>.<random>.concat``, removed by the target's next concat and by the sweeper
        after it             the last of the sources, each a copy of a part of the target
        ===================  =======================================================================================

        An error leaves as much, and behind the step it is StorageUnavailable: ``delete_joined`` ends the call.

        Segments tolerate a copy of a part of the target.  A segment ends at the next segment's base, which is in its
        name (rule 5), so the target is read up to the first source left, then the sources.  The result is right only if
        no source is missing *before* a source that is left, so sources are deleted first to last.  A caller that joins
        again must leave out sources that begin inside the target.
        """
        real, folder = self._real(target), os.path.dirname(self._real(target))
        joined = os.path.join(folder, f".{os.path.basename(real)}.{secrets.token_hex(8)}.concat")
        self._folders.make_room(folder)
        with ExitStack() as stack:
            parts = [_opened_closed_file(stack, self._real(path), path) for path in (target, *sources)]
            if target_bytes is not None:
                _check_length(parts[0], target, target_bytes)
            for crashed in _temporary_copies(real):
                crashed.unlink(missing_ok=True)
            try:
                # Without O_APPEND, which copy_file_range refuses.
                fd = _opened(stack, joined, (_WRITE | os.O_CREAT | os.O_EXCL) & ~os.O_APPEND, 0o644)
                give_like(fd, os.fstat(parts[0]), target)
                for part in parts:
                    copy_bytes(part, fd)
                raise_fence(fd)
                os.fsync(fd)
                _check_name(parts[0], real, target)  # retention needs no lock to delete the target
                os.replace(joined, real)
            except BaseException:
                Path(joined).unlink(missing_ok=True)  # the sweeper may have come first
                raise
            try:
                self._folders.changed(folder)
                self._folders.sync(real)  # before the sources are deleted
                for source in sources:
                    os.unlink(self._real(source))
                self._folders.changed(folder)
            except OSError as error:  # no refusal: the target has changed
                cause = translate(error, target)
                raise StorageUnavailable(f"joined, but its sources are not yet deleted: {cause}") from error

    def _delete_joined(self, target: str, sources: Sequence[str], joined_bytes: int) -> None:
        with ExitStack() as stack:
            fd = _locked_file(stack, self._real(target), target)
            _check_length(fd, target, joined_bytes)
            for source in sources:
                _locked_file(stack, self._real(source), source)
            raise_fence(fd)
            os.fdatasync(fd)
            self._sync_names(target)  # before the sources are deleted
            for source in sources:
                os.unlink(self._real(source))
            self._folders.changed(os.path.dirname(self._real(target)))


class _Handoff:
    """The transfer of open descriptors from a thread to a task, which may have been cancelled meanwhile.

    Descriptors that reach no task are closed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_abandoned = False
        self._file: OpenFile | None = None

    def offer(self, file: OpenFile) -> OpenFile:
        """Pass the file to the task; close it if the task is gone.  Called by the thread."""
        with self._lock:
            self._file = file
            if self._is_abandoned:
                file.close()
        return file

    def abandon(self) -> None:
        """Close the file, now or when it is offered.  Called by the task when it is cancelled."""
        with self._lock:
            self._is_abandoned = True
            if self._file is not None:
                self._file.close()


def _or_no_room(function: Callable[[str], OpenFile], path: str) -> OpenFile:
    """Open a file to be written.

    Raises OutOfSpace if no descriptor is left, so that the caller closes other files to make room for it.
    """
    try:
        return function(path)
    except OSError as error:
        if FAILURES.note(error):
            raise OutOfSpace(f"{path}: {error.strerror} (LimitNOFILE, ulimit -n)") from error
        raise


def _has_no_writer(fd: int) -> bool:
    try:
        take_lock(fd, "")
    except LeaseLost:
        return False
    return True


def _opened(stack: ExitStack, real: str, flags: int, mode: int = 0) -> int:
    fd = os.open(real, flags, mode)
    stack.callback(os.close, fd)
    return fd


def _locked_file(stack: ExitStack, real: str, path: str) -> int:
    """Open and lock the file that has this name.

    Raises LeaseLost while another call or a writer has its lock, and if the file was replaced or deleted before it was
    locked.  While it is locked, concats leave the name alone.
    """
    fd = _opened(stack, real, _READ)
    take_lock(fd, path)
    _check_name(fd, real, path)
    return fd


def _check_name(fd: int, real: str, path: str) -> None:
    """Raise LeaseLost if the open file does not have this name any more."""
    if not has_name(fd, real):
        raise LeaseLost(f"{path} was replaced or deleted meanwhile")


def _check_length(fd: int, path: str, length: int) -> None:
    """Raise LeaseLost if the locked file has another length: a call that has ended since may have joined files to it.

    Its sources, or some of them, may still be there: a second join would append their bytes twice.
    """
    size = os.fstat(fd).st_size
    if size != length:
        raise LeaseLost(f"{path} is {size} bytes long, not {length}")


def _temporary_copies(real: str) -> list[Path]:
    """Return the temporary files of concats of this target: while it is locked, they are left by crashes."""
    folder, name = os.path.split(real)
    temporary = re.compile(rf"\.{re.escape(name)}\.[0-9a-f]{{16}}\.concat")
    return [Path(folder, entry) for entry in os.listdir(folder) if temporary.fullmatch(entry)]


def _opened_closed_file(stack: ExitStack, real: str, path: str) -> int:
    """Open and lock a closed file.  Raises LeaseLost as ``_locked_file``."""
    fd = _locked_file(stack, real, path)
    if is_open(os.fstat(fd)):  # not a LeaseLost: it has no writer whose end ends the refusal
        raise StorageError(f"{path} is not closed, and has no writer: take the owner's right to write it (chmod u-w)")
    return fd


def _status(path: str, status: os.stat_result) -> FileStatus:
    is_dir = stat.S_ISDIR(status.st_mode)
    return FileStatus(
        path=path,
        length=0 if is_dir else status.st_size,
        is_dir=is_dir,
        modified_ms=status.st_mtime_ns // 1_000_000,
        file_id=status.st_ino,
        owner=owner_name(status.st_uid),
        group=group_name(status.st_gid),
        mode=mode_of(status),
    )
