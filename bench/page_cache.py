"""The page cache: drop what it holds of a folder's files, and tell how much of them it still holds."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)


def drop(folder: Path) -> float:
    """Write the folder's files to disk and ask the kernel to forget them; return the share of their bytes that it still
    holds.

    Nothing but this folder's files is dropped, and no privilege is needed.  Some file systems (tmpfs) keep files in
    memory only, and pages that a process has mapped stay: the result tells.  A file that is removed meanwhile is passed
    over.
    """
    total = held = 0
    for path in _files(folder):
        try:
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            size = path.stat().st_size
            held += resident_bytes(path)
        except FileNotFoundError:
            continue
        total += size
    return held / total if total else 0.0


def resident_bytes(path: Path) -> int:
    """Return how many bytes of a file the page cache holds.  Raises OSError if the kernel does not tell."""
    size = path.stat().st_size
    if not size:
        return 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as mapped:
        flags = (ctypes.c_ubyte * -(-size // PAGE))()
        start = ctypes.c_char.from_buffer(mapped)
        try:
            if _libc.mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), flags):
                raise OSError(ctypes.get_errno(), "mincore", str(path))
        finally:
            del start
        return min(size, sum(flag & 1 for flag in bytes(flags)) * PAGE)


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
