"""Merging: the choice of small files of a table to merge.  Pure.

Files of one folder below three quarters of the wanted size are merged when there are ``files_min`` of them.  The result
stays small until it reaches that size, so a record is written again a few times at most: each time the merged file has
grown by ``files_min - 1`` others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

FOLDERS_MAX = 16
"""Folders merged in one run; the rest waits for the next."""


@dataclass(frozen=True, slots=True)
class Merging:
    """One merge: ``paths`` become ``count`` files in ``folder``."""

    folder: str
    paths: tuple[str, ...]
    count: int


def choose(files: Mapping[str, int], *, files_min: int, file_bytes: int) -> list[Merging]:
    """Return the merges for a table of ``files`` (path to size); folders with the most small files first."""
    small: dict[str, list[str]] = {}
    for path, size in files.items():
        if size < file_bytes * 3 // 4:
            small.setdefault(path.rpartition("/")[0], []).append(path)
    crowded = sorted(
        ((folder, sorted(paths)) for folder, paths in small.items() if len(paths) >= max(2, files_min)),
        key=lambda each: (-len(each[1]), each[0]),
    )
    return [
        Merging(folder, tuple(paths), -(-sum(files[path] for path in paths) // file_bytes) or 1)
        for folder, paths in crowded[:FOLDERS_MAX]
    ]
