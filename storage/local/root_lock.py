"""The lock of a local root: ``<root>/.lock``, held by every process that writes below the root.

Its holders are processes of one cluster with one metadata store.  If the store is a file, the cluster has a single
process, and this process locks the root exclusively.  Otherwise a copy of the store's file would begin a second history
in the same folders.  Processes on etcd share the lock, since etcd orders their claims.

The lock is ``flock``'s, as in Kafka's log directories (``FileLock`` of ``.lock``): the kernel releases it when the
process ends, however it ends.  The file stays: if it were removed, two processes could each hold a lock of that name.
Its text names the process that took the lock last.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import socket
import sys

from bmq.core.urls import without_userinfo
from bmq.storage.filesystem import NotAllowed, RootLock, StorageError, Unsupported
from bmq.storage.local.file import translate

LOCK = ".lock"
"""The file's name, in the root's folder.  Like every name with a dot, it is not a part of the log."""
_TEXT_BYTES_MAX = 400
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


class RootInUse(StorageError):
    """Another process, named in the message, has locked the root."""


def lock_root(folder: str, mode: RootLock) -> int:
    """Lock the root at ``folder`` until the returned descriptor is closed.

    Raises RootInUse if another process holds a lock that does not allow this lock, and Unsupported if the file system
    has no locks. Raises NotAllowed or another StorageError if the file cannot be opened.
    """
    path = os.path.join(folder, LOCK)
    try:
        fd = _open(folder, path)
    except PermissionError as error:
        raise NotAllowed(
            f"{path}: {error.strerror}: all processes that use a root run as one user, its owner. Start this process as"
            " that user, or give the root to the user of this process (`chown -R`)"
        ) from error
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise StorageError(
                f"{path} is a symbolic link, which is not followed: the lock would lie beside another root. Remove it"
            ) from error
        raise translate(error, path) from error
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if mode is RootLock.SHARED else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        os.ftruncate(fd, 0)
        os.pwrite(fd, _holder_text().encode(), 0)
    except BlockingIOError as error:
        holder = os.pread(fd, _TEXT_BYTES_MAX, 0).decode(errors="replace").strip() or "a process that is just starting"
        os.close(fd)
        raise RootInUse(_in_use(folder, path, holder, mode)) from error
    except OSError as error:
        os.close(fd)
        if error.errno in _NO_LOCKS:
            raise Unsupported(
                f"{path}: the file system does not support locks (flock: {error.strerror}), so a second process could"
                " write to this root unnoticed. Mount it with locks (NFS: version 4, or a lock manager, and not"
                " `nolock`), or use another file system or hdfs:// for the root"
            ) from error
        raise translate(error, path) from error
    return fd


def _open(folder: str, path: str) -> int:
    """Open the lock file for writing, and create it if it is missing.

    A new file gets the root's owner and group: a command that the superuser runs must not lock out ``bmq serve``.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return os.open(path, flags)
    with contextlib.suppress(PermissionError):  # only the superuser may give files away
        owner = os.stat(folder)
        os.fchown(fd, owner.st_uid, owner.st_gid)
    return fd


def _holder_text() -> str:
    """Return the line that names this process: its command, without the password of a URL among the arguments."""
    command = " ".join(re.sub(r"(?<==)\S*|^\S*", lambda found: without_userinfo(found[0]), each) for each in sys.argv)
    return f"pid {os.getpid()} on {socket.gethostname()} ({command[:200]})\n"


def _in_use(folder: str, path: str, holder: str, mode: RootLock) -> str:
    why = (
        "a process whose metadata store is a file needs the root for itself"
        if mode is RootLock.EXCLUSIVE
        else "the metadata store of that process is a file, so it needs the root for itself"
    )
    return (
        f"the root {folder} is in use by {holder}: {why}. End that process first (`fuser -v {path}` lists all that hold"
        " the lock), or give this one another --root. Never serve a copy of a metadata store beside the root of the"
        " original: copy both, or rebuild the store by `bmq cluster rebuild`"
    )
