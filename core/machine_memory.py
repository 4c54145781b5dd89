"""Memory of this machine, or of the container around this process, and what the caches take of it by default.

A container's memory is the least limit of its control group and of the groups above (cgroups(7)).  A process reads its
own group from ``/proc/self/cgroup``, and the limits from files below ``/sys/fs/cgroup``: ``memory.max`` in version 2,
``memory.limit_in_bytes`` in version 1.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

SHARE = 8
"""Divisor of the memory: the part that caches take.  The rest is for other processes of the machine, datanodes and
further ones of this kind among them, and for the kernel's page cache."""
LEAST_BYTES = 512 << 20
"""Part that all workers take together at least: below it, readers a few seconds behind read from storage."""
LEAST_SHARE = 2
"""Divisor of the memory: the part that ``LEAST_BYTES`` may be at most.  A small container needs the rest for code,
requests and open segments."""
MOST_BYTES = 4 << 30
"""Most bytes that a process takes: a single core, at 300 MB/s, fills them in 13 s."""
WORKER_BYTES = 16 << 20
"""Part that one worker takes at least, the least legal value of ``cache_bytes``."""
_TEXT_BYTES = 64 << 10
_PROC, _SYS = "proc/self/cgroup", "sys/fs/cgroup"


def cache_share(memory: int, workers: int = 1) -> int:
    """Return the default of ``cache_bytes``, for each of ``workers`` processes of a machine with ``memory`` bytes.

    ``memory`` 0: unknown.
    """
    least = min(LEAST_BYTES, memory // LEAST_SHARE) if memory else LEAST_BYTES
    share = max(memory // SHARE, least) // workers
    return max(WORKER_BYTES, min(share, MOST_BYTES))


def limit_files(groups: str) -> list[str]:
    """Return the files, below ``/sys/fs/cgroup``, that may limit a process with this ``/proc/self/cgroup``.

    In a container a group's path may be the one outside, where its files are not seen: the root's file has the limit
    then.  A path that leaves the visible tree (``/../x``) stands for the root.
    """
    files = []
    for line in groups.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            folder, name = "", "memory.max"
        elif "memory" in controllers.split(","):
            folder, name = "memory", "memory.limit_in_bytes"
        else:
            continue
        group = PurePosixPath("/" if ".." in path.split("/") else path or "/")
        files += [str(PurePosixPath(folder, *each.parts[1:], name)) for each in (group, *group.parents)]
    return files


def least_limit(machine: int, limits: Iterable[str]) -> int:
    """Return the least of a machine's bytes and of the texts of limits; "max", and what is no number, is none.

    ``machine`` 0: unknown.  Version 1 has a number near 2^63 for "none", more than any machine has.
    """
    known = [int(text) for text in (each.strip() for each in limits) if text.isascii() and text.isdigit()]
    known = [each for each in known if 0 < each < 1 << 60]
    return min([machine, *known] if machine > 0 else known, default=0)


def available_memory(root: Path = Path("/")) -> int:
    """Return the bytes of memory that this process may use, 0 if unknown.  ``root``: the folder of ``/proc``."""
    files = limit_files(_text(root / _PROC))
    return least_limit(_physical(), [_text(root / _SYS / each) for each in files])


def _physical() -> int:
    """Return the machine's bytes of memory, 0 if unknown."""
    try:
        return max(0, os.sysconf("SC_PHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not this system's
        return 0


def _text(path: Path) -> str:
    """Return a small file's text, "" if there is no such file or it may not be read."""
    try:
        with path.open("rb") as stream:
            return stream.read(_TEXT_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
