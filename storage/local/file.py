"""A file of a local root: its fence, its lock, its descriptors, its errors.

**The fence is the owner's write bit of the inode.**  Set: the file is open.  Cleared: it is closed or fenced.  Since
the bit is the inode's, it follows a file through every rename, and needs no file of its own.  Besides, a process that
has a file open for writing holds its ``flock``.  The rules are:

1. A process writes only through a descriptor taken while it held the file's lock, and holds the lock until the
   descriptor is closed (``kill -9`` closes both).
2. The bit is set by ``O_CREAT | O_EXCL``, and again only by an append that holds the lock and found the bit cleared.
   The mode of a new file is set before any lease names it, and of others only while the bit is cleared
   (``local.ownership``).
3. A fence clears the bit, *then* reads the length.  It needs no lock, so no process can delay it.
4. A writer reads the bit after its write and before it acknowledges: cleared means LeaseLost, and no acknowledgement.

Every acknowledged byte is inside the fenced length.  The writer saw the bit set *after* its write was done (4).  So the
bit was cleared later still, and the length was read even later (3).  No byte past the fenced length is ever
acknowledged.  Its write ended after the length was read, so the bit was cleared before the writer read it (4).  The bit
cannot have been set again in between: setting it takes the lock, which the writer still holds (1, 2).  The writer reads
the bit *before* the write too.  The early read keeps a fenced writer's bytes out of the file almost always.  If the
fence comes between this read and the write, bytes without acknowledgement may be left, as on a datanode.  Linux orders
write, fchmod and fstat of one inode across processes of one machine; a network file system may not, so a ``file:`` root
has to be a local disk.

**Inodes.** A lease names the inode, so that a fence finds its file under any name.  A copy of a root has other inodes;
there a file without a writer is identified by its name.

**What survives.**  A flush is in the page cache: it outlives the process, not a loss of power.  A sync flush is on the
disk, and so are the names made or changed by this process before it (folders are synced then, not at each rename).  A
folder that cannot be synced fails only the flushes of files below it.  A sync fence does the same as a sync flush, for
a writer that died before its own.  Without sync, a loss of power may also leave a journal whose checkpoint describes
records that are gone.  Such a partition goes OFFLINE, where Kafka would truncate.  So ``flush.mode=hsync`` is for
machines whose power fails.  The bit itself is never synced: after a loss of power there is no writer left, and recovery
fences again.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import pwd
import stat
import threading
import time
from collections.abc import Sequence

from bmq.core.descriptors import FAILURES
from bmq.core.logging.fields import fields
from bmq.storage.filesystem import (
    AlreadyExists,
    CorruptData,
    LeaseLost,
    NoSuchFile,
    NotAllowed,
    OutOfSpace,
    StorageError,
    StorageUnavailable,
    Unsupported,
)

_log = logging.getLogger(__name__)

IOV_MAX = os.sysconf("SC_IOV_MAX")
FOLDERS_MAX = 1024  # changed and not synced; the call that is about to add one more syncs them
FENCE_GRACE_S = 0.02  # for a live writer to detect the fence, so that its last bytes are inside the length

_ERRORS: dict[int, type[StorageError]] = {
    errno.ENOENT: NoSuchFile,
    errno.ENOTDIR: NoSuchFile,
    errno.EISDIR: NoSuchFile,
    errno.ELOOP: NoSuchFile,
    errno.EEXIST: AlreadyExists,
    errno.ENOSPC: OutOfSpace,
    errno.EDQUOT: OutOfSpace,
    errno.EIO: CorruptData,
    errno.EMFILE: StorageUnavailable,
    errno.ENFILE: StorageUnavailable,
    errno.ENOMEM: StorageUnavailable,
    errno.EROFS: Unsupported,
    errno.EACCES: NotAllowed,
    errno.EPERM: NotAllowed,
    errno.ENAMETOOLONG: Unsupported,
}


def translate(error: OSError, what: str) -> StorageError:
    """Return the storage error for ``error``; ``what`` names the file or the call in its text."""
    FAILURES.note(error)
    kind = _ERRORS.get(error.errno or 0, StorageError)
    user = f" (user {_own_user()})" if kind is NotAllowed else ""
    return kind(f"{what}: {error.strerror or error}{user}")


def _own_user() -> str:
    """Return the name of this process's user, or its number if it has none here."""
    uid = os.geteuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def is_open(status: os.stat_result) -> bool:
    """Return whether the fence is down: the file has, or may have, a writer."""
    return stat.S_ISREG(status.st_mode) and bool(status.st_mode & stat.S_IWUSR)


def raise_fence(fd: int) -> None:
    """Clear the owner's write bit of the inode."""
    os.fchmod(fd, stat.S_IMODE(os.fstat(fd).st_mode) & ~stat.S_IWUSR)


def lower_fence(fd: int) -> None:
    """Set the owner's write bit again: only for an append, which must hold the file's lock."""
    os.fchmod(fd, stat.S_IMODE(os.fstat(fd).st_mode) | stat.S_IWUSR)


def check_fence(fd: int, what: str) -> None:
    """Raise LeaseLost if the open file was fenced, or deleted under its last name."""
    status = os.fstat(fd)
    if not is_open(status):
        raise LeaseLost(f"{what} was fenced")
    if status.st_nlink == 0:
        raise LeaseLost(f"{what} was deleted")


def take_lock(fd: int, path: str) -> None:
    """Take the file's lock without waiting.  Raises LeaseLost if a live process holds it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise LeaseLost(f"{path} has a writer") from error


def has_name(fd: int, real: str) -> bool:
    """Return whether the open file still has this name: it may have been replaced or deleted before it was locked."""
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(real))
    except FileNotFoundError:
        return False


def fence_open(fd: int) -> int:
    """Clear the write bit, then return the length.

    A live writer releases the lock once it finds the bit cleared.  Waiting a moment for that avoids bytes in the file
    behind its length.  Safety does not depend on it.
    """
    raise_fence(fd)
    deadline = time.monotonic() + FENCE_GRACE_S
    while time.monotonic() < deadline:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            time.sleep(0.001)
    return os.fstat(fd).st_size


def write_all(fd: int, buffers: Sequence[memoryview]) -> None:
    """Write all buffers, in order, with as few system calls as the kernel allows."""
    for start in range(0, len(buffers), IOV_MAX):
        batch = list(buffers[start : start + IOV_MAX])
        while batch:
            written = os.writev(fd, batch)
            done = 0
            while done < len(batch) and written >= len(batch[done]):
                written -= len(batch[done])
                done += 1
            batch = batch[done:]
            if batch:
                batch[0] = batch[0][written:]


class OpenFile:
    """A file open for writing.

    ``fds`` has the descriptor for writes, and after it the descriptor that holds the lock, if the two differ.
    ``position`` is the file's length when it was opened.  ``path`` is its name then, and ``real`` the same name outside
    the root: a file may be renamed while it is open, but stays in its folder.
    """

    __slots__ = ("fds", "file_id", "path", "position", "real")

    def __init__(self, path: str, fds: tuple[int, ...], real: str) -> None:
        status = os.fstat(fds[0])
        self.path = path
        self.real = real
        self.fds = fds
        self.file_id = status.st_ino
        self.position = status.st_size

    def close(self) -> None:
        """Close the descriptors, which releases the lock.  Idempotent."""
        fds, self.fds = self.fds, ()
        for fd in fds:
            os.close(fd)


class Folders:
    """The folders whose entries changed since they were last synced.  Its methods block: they are called in threads.

    A folder that cannot be synced stays among them until a sync succeeds, and fails only the files below it: the
    folder of a topic must not stop another topic.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held while syncing: a later call must not return before the sync is done
        self._changed: dict[str, bool] = {}  # whether the folder's last sync failed

    def make_room(self, *folders: str) -> None:
        """Sync all folders if ``FOLDERS_MAX`` are noted, and some of ``folders``, which are about to change, are not.

        To be called before a change: behind it, a failure would hide that the change was carried out.  Raises
        StorageUnavailable if as many folders cannot be synced.  Calls at the same time may note a few more.
        """
        with self._lock:
            if len(self._changed) < FOLDERS_MAX or self._changed.keys() >= set(folders):
                return
            failures = self._sync()
            if len(self._changed) >= FOLDERS_MAX:
                folder, error = next(iter(failures.items()))
                text = f"{len(failures)} folders with changed names cannot be synced, the first is {folder}: {error}"
                raise StorageUnavailable(text) from error

    def changed(self, *folders: str) -> None:
        """Note folders whose entries changed."""
        with self._lock:
            for folder in folders:
                self._changed.setdefault(folder, False)

    def sync(self, real: str) -> None:
        """Put the entries of the changed folders on the disk.

        Raises OSError if a folder above the file ``real`` is not synced.  Other folders may have failed.
        """
        with self._lock:
            for folder, error in self._sync().items():
                if real.startswith(os.path.join(folder, "")):
                    raise error

    def _sync(self) -> dict[str, OSError]:
        """Sync each folder; return the errors, by folder."""
        failures: dict[str, OSError] = {}
        for folder in list(self._changed):
            try:
                _sync_folder(folder)
            except OSError as error:
                failures[folder] = error
            else:
                del self._changed[folder]
        for folder in [folder for folder in failures if not self._changed[folder]]:
            text = (
                "cannot sync a folder whose names changed: a loss of power may undo them, and sync flushes of files"
                " below it fail; mend its disk or its rights"
            )
            _log.warning(text, extra=fields(path=folder, error=failures[folder]))
        self._changed.update(dict.fromkeys(failures, True))
        return failures


def _sync_folder(folder: str) -> None:
    """Put a folder's entries on the disk; do nothing if it was deleted, with its entries.  Raises OSError."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
