"""Owner, group and mode of a local root's files and folders.  All of it blocks: it is called in threads.

A file's owner write bit is its fence (``storage.local.file``), so the mode of an open file is left alone: setting it
needs the bits as they were a moment ago, and a fence needs no lock.  A file that was closed has the bit cleared, and
only an append, which needs the lock, sets it again.
"""

from __future__ import annotations

import fcntl
import grp
import os
import pwd
import stat
from functools import lru_cache

from bmq.core.file_access import Access
from bmq.storage.access import REFUSALS
from bmq.storage.filesystem import StorageError, Unsupported
from bmq.storage.local.file import has_name, is_open

_NAMES_MAX = 256
_MODE_BITS = 0o777


@lru_cache(_NAMES_MAX)
def owner_name(uid: int) -> str:
    """Return the user's name, or its number if it has none here."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


@lru_cache(_NAMES_MAX)
def group_name(gid: int) -> str:
    """Return the group's name, or its number if it has none here."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def mode_of(status: os.stat_result) -> int:
    """Return an entry's mode as it was given: a closed file's owner may not write it, which is its fence."""
    mode = stat.S_IMODE(status.st_mode) & _MODE_BITS
    return mode if stat.S_ISDIR(status.st_mode) else mode | stat.S_IWUSR


def give_new(fd: int, access: Access, path: str) -> None:
    """Give a file that was just created its group, owner and mode.

    It keeps its write bit: no lease names it yet, so that no process fences it.  What the kernel refuses is counted.
    """
    try:
        _chown(fd, access)
    except (StorageError, OSError) as error:
        REFUSALS.note(path, error)
    if access.mode is not None:
        os.fchmod(fd, _file_mode(access.mode) | stat.S_IWUSR)


def give_like(fd: int, status: os.stat_result, path: str) -> None:
    """Give a new file the group, owner and mode of the one that it is to replace, but keep it writable."""
    own = os.fstat(fd)
    try:
        if (own.st_uid, own.st_gid) != (status.st_uid, status.st_gid):
            os.fchown(fd, status.st_uid, status.st_gid)
    except OSError as error:
        REFUSALS.note(path, error)
    os.fchmod(fd, stat.S_IMODE(status.st_mode) & _MODE_BITS | stat.S_IWUSR)


def give_folder(real: str, access: Access) -> None:
    """Give a folder its owner, group and mode; files and folders that are made in it have its group from then on.

    Raises OSError if the kernel refuses, Unsupported if it knows no such user or group.
    """
    fd = os.open(real, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _chown(fd, access)
        mode = stat.S_IMODE(os.fstat(fd).st_mode) if access.mode is None else access.mode
        if access.group:
            mode |= stat.S_ISGID
        os.fchmod(fd, mode)
    finally:
        os.close(fd)


def give(real: str, access: Access) -> bool:
    """Give a file or folder its owner, group and mode; return False if it is a file that is open or being replaced.

    Raises OSError if the kernel refuses, Unsupported if it knows no such user or group.
    """
    if stat.S_ISDIR(os.lstat(real).st_mode):
        give_folder(real, access)
        return True
    fd = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # against an append, which sets the write bit
        except BlockingIOError:
            return False
        if is_open(os.fstat(fd)) or not has_name(fd, real):
            return False
        _chown(fd, access)
        if access.mode is not None:
            os.fchmod(fd, _file_mode(access.mode) & ~stat.S_IWUSR)
        return True
    finally:
        os.close(fd)


def _file_mode(mode: int) -> int:
    return mode & 0o666


def _chown(fd: int, access: Access) -> None:
    """Change owner and group where they differ, so that an owner of the right ones needs no right to do so."""
    status = os.fstat(fd)
    uid = _number_of_user(access.owner) if access.owner else status.st_uid
    gid = _number_of_group(access.group) if access.group else status.st_gid
    if (uid, gid) != (status.st_uid, status.st_gid):
        os.fchown(fd, uid if uid != status.st_uid else -1, gid if gid != status.st_gid else -1)


def _number_of_user(name: str) -> int:
    if name.isdecimal():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise Unsupported(
            f"there is no user {name!r} on this machine: make it, or choose another storage.owner"
        ) from None


def _number_of_group(name: str) -> int:
    if name.isdecimal():
        return int(name)
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise Unsupported(
            f"there is no group {name!r} on this machine: make it, or choose another storage.group"
        ) from None
