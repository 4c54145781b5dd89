"""Reads of indexes, which tell a lost file from an outage of storage.

A lost file is damage: the job goes on without the index.  An outage passes: the job is tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import aclosing
from typing import NamedTuple

from bmq.core.aio.steps import run_in_steps
from bmq.core.errors import FormatError
from bmq.core.model import SegmentName
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.filesystem import CorruptData, FileSystem, NoSuchFile, StorageError, StorageUnavailable
from bmq.storage.layout import JOURNALS, PartitionPath
from bmq.storage.log_segments import ListedSegment, walk
from bmq.storage.segment import decode_idx_steps

NAMES_MAX = 500
"""Most names before a segment, and most names behind it, among which logs are chosen to tell an outage by: with their
indexes about a page of a listing."""
JOURNALS_MAX = 3
"""Most journals of which a byte is read to tell an outage from lost files."""
AGAIN_MS = 3_600_000
"""Milliseconds until an index that cannot be read is read again: a failing read may take ten seconds."""


class Unread(NamedTuple):
    """An index that cannot be read.

    ``looks``: failed reads in a row, at least ``AGAIN_MS`` apart, while storage served other files; 0 for a missing or
    damaged index.  ``again_ms``: the time (monotonic) of the next read.
    """

    looks: int
    again_ms: int


class IndexReads:
    """Reads of a log's indexes, with a memory of the unreadable ones.

    ``failed`` is called with the path and the error of an index that cannot be read, not more often than the index is
    read.  A change of the segment's ``.log`` ends the memory of its index, as after a repair.
    """

    def __init__(
        self,
        fs: FileSystem,
        path: PartitionPath,
        now_ms: Callable[[], int],
        failed: Callable[[str, Exception], None],
    ) -> None:
        self._fs = fs
        self._path = path
        self._now_ms = now_ms
        self._failed = failed
        self._unread: dict[SegmentName, tuple[tuple[int, int], Unread]] = {}

    async def read(self, listed: ListedSegment) -> Checkpoint | Unread:
        """Return the index of a segment.  Raises StorageError, as in an outage."""
        known = self.known(listed)
        if known is not None and self._now_ms() < known.again_ms:
            return known
        failures: list[Exception] = []

        def failed(path: str, error: Exception) -> None:
            failures.append(error)
            self._failed(path, error)

        index = await read_segment_idx(self._fs, self._path, listed.name, failed)
        if index is None and failures:
            looks = 0 if isinstance(failures[0], FormatError) else (known.looks if known is not None else 0) + 1
            unread = Unread(looks, self._now_ms() + AGAIN_MS)
            self._unread[listed.name] = (listed.length, listed.modified_ms), unread
            return unread
        self._unread.pop(listed.name, None)
        return Unread(0, self._now_ms()) if index is None else index

    def known(self, listed: ListedSegment) -> Unread | None:
        """Return the result of the last read of the segment's index, if it failed; else None."""
        file, unread = self._unread.get(listed.name, (None, None))
        return unread if file == (listed.length, listed.modified_ms) else None

    def keep(self, names: Collection[SegmentName]) -> None:
        """Forget the indexes of all other segments."""
        for name in self._unread.keys() - set(names):
            del self._unread[name]


async def read_idx(fs: FileSystem, path: str, failed: Callable[[str, Exception], None]) -> Checkpoint | None:
    """Return the checkpoint in an index file; None if the file is missing or damaged.

    For a damaged one ``failed`` is called with the path and the error.  Raises StorageError, for a lost file too.
    """
    try:
        data = await fs.read(path, 0, (await fs.status(path)).length)
        return await run_in_steps(decode_idx_steps(data))
    except NoSuchFile:
        return None
    except FormatError as error:
        failed(path, error)
        return None


async def read_segment_idx(
    fs: FileSystem, path: PartitionPath, name: SegmentName, failed: Callable[[str, Exception], None]
) -> Checkpoint | None:
    """Return the checkpoint in the index of a segment, as ``read_other_idx`` does."""
    return await read_other_idx(fs, path, name, path.idx(name), path.log(name), failed)


async def read_other_idx(
    fs: FileSystem,
    path: PartitionPath,
    name: SegmentName,
    idx: str,
    twin: str,
    failed: Callable[[str, Exception], None],
) -> Checkpoint | None:
    """Do the same as ``read_idx`` for an index of the segment ``name``; return None also if storage has lost the file.

    ``idx``: the path of this index, which may be a draft.  ``twin``: another file, as of ``is_outage``.  ``failed`` is
    called for a lost file, too, with the StorageError.  Raises StorageError, as in an outage.
    """
    try:
        return await read_idx(fs, idx, failed)
    except CorruptData as error:
        failed(idx, error)
    except StorageUnavailable as error:
        if await is_outage(fs, path, name, twin):
            raise
        failed(idx, error)
    return None


async def is_outage(fs: FileSystem, path: PartitionPath, name: SegmentName, twin: str) -> bool:
    """Return whether storage serves no reads now, after a file of a segment was unavailable.

    An outage fails reads of all files; the blocks of a single file may be without a live replica for ever.  ``twin``:
    the other file of the segment ``name``.  It may be lost too, as may neighbours that were written to the same nodes,
    or all other logs of the partition.  So logs far from the segment and journals are read as well, all at once: a
    failing read takes long.  Raises StorageError if a folder cannot be listed.
    """
    if await _is_readable(fs, twin):
        return False
    others = [*await _logs_around(fs, path, name), *await _journals(fs)]
    return not any(await asyncio.gather(*(_is_readable(fs, other) for other in others)))


async def _logs_around(fs: FileSystem, path: PartitionPath, name: SegmentName) -> list[str]:
    """Return up to four logs: the nearest and the farthest name before the segment, and behind it."""
    found: list[str] = []
    for after in (None, name):
        names, side = 0, list[str]()
        async with aclosing(walk(fs, path, after)) as listing:
            async for listed in listing:
                if names == NAMES_MAX or (after is None and listed.name.base >= name.base):
                    break
                names += 1
                if listed.name != name and listed.length > 0:  # an empty file has no block to read
                    side[1:] = [path.log(listed.name)]
        found += side
    return found


async def _journals(fs: FileSystem) -> list[str]:
    """Return the newest journals.  The owner of a partition has one, also if all logs of the partition are lost."""
    found = [status async for status in fs.list(JOURNALS)]
    return [status.path for status in sorted(found, key=lambda status: status.modified_ms)[-JOURNALS_MAX:]]


async def _is_readable(fs: FileSystem, path: str) -> bool:
    """Return whether the first byte of a file can be read."""
    try:
        return len(await fs.read(path, 0, 1)) > 0
    except StorageError:
        return False
