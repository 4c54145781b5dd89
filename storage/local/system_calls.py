"""Calls to the kernel that Python's own do not offer, or not as the log needs them."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import stat
from collections.abc import Callable

from bmq.storage.local.file import write_all

REMOVALS_MAX = 100
"""Attempts to remove one folder, while other processes put files into it."""

NOT_SUPPORTED = {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EXDEV}
"""Errors of a call that this kernel or file system lacks."""

_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
_libc = ctypes.CDLL(None, use_errno=True)


def rename_without_overwriting(source: str, target: str) -> None:
    """Rename by renameat2 where the kernel has it, else by a link and an unlink.

    A crash between these two leaves the file with both names.
    """
    renameat2 = getattr(_libc, "renameat2", None)
    if renameat2 is not None:
        if renameat2(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), _RENAME_NOREPLACE) == 0:
            return
        code = ctypes.get_errno()
        if code not in NOT_SUPPORTED:
            raise OSError(code, os.strerror(code), source)
    if stat.S_ISDIR(os.lstat(source).st_mode):
        os.mkdir(target)  # claims the name; a folder may replace an empty one
        os.rename(source, target)
    else:
        os.link(source, target, follow_symlinks=False)
        os.unlink(source)


def copy_bytes(source: int, target: int) -> None:
    """Append all bytes of ``source`` to ``target``.

    The kernel does it if it can: file systems that share blocks then copy nothing.
    """
    try:
        while os.copy_file_range(source, target, 1 << 30):
            pass
    except OSError as error:
        if error.errno not in NOT_SUPPORTED:
            raise
        while data := os.read(source, 4 << 20):
            write_all(target, [memoryview(data)])


def remove_tree(real: str) -> None:
    """Remove a folder with all its files, although other processes may add or remove some meanwhile.

    HDFS does it in one step.  Here the folder's removal fails if another process adds a file meanwhile, and a file's
    removal fails if another process removes the file first: both are tried again.  Raises OSError if anything else
    fails, or if files are still added after ``REMOVALS_MAX`` attempts.
    """

    def passed_over(_: Callable[..., object], __: str, what: tuple[type[BaseException], BaseException, object]) -> None:
        error = what[1]
        if not (isinstance(error, OSError) and error.errno in (errno.ENOENT, errno.ENOTEMPTY)):
            raise error

    for _ in range(REMOVALS_MAX):
        shutil.rmtree(real, onerror=passed_over)
        if not os.path.lexists(real):
            return
    raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), real)
