"""Reads of indexes, which tell a lost file from an outage of storage.

A lost file is damage: the job goes on without the index.  An outage passes: the job is tried again.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Collection
from contextlib import aclosing
from functools import partial
from typing import NamedTuple

from bmq.core.aio.steps import run_in_steps
from bmq.core.errors import FormatError
from bmq.core.model import SegmentName
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.filesystem import CorruptData, FileSystem, NoSuchFile, StorageError, StorageUnavailable
from bmq.storage.layout import JOURNALS, PartitionPath
from bmq.storage.log_segments import walk
from bmq.storage.segment import decode_idx_steps

NAMES_MAX = 500
"""Most names before a segment, and most names behind it, among which logs are chosen to tell an outage by: with their
indexes about a page of a listing."""
JOURNALS_MAX = 3
"""Most journals of which a byte is read to tell an outage from lost files."""
AGAIN_MS = 3_600_000
"""Milliseconds until an index that cannot be read is read again: a failing read may take ten seconds."""


_File = tuple[int, int, int]
"""The id, the length and the time of a file: a repair changes one of them."""


class Unread(NamedTuple):
    """An index that cannot be read.

    ``looks``: failed reads in a row, one to two ``AGAIN_MS`` apart, while storage served other files; 0 for a missing
    or damaged index.  ``again_ms``: the time (monotonic) of the next read.  ``error``: the error of the last read.
    """

    looks: int
    again_ms: int
    error: Exception | None = None


class IndexReads:
    """Reads of a log's indexes, with a memory of the unreadable ones.

    An unreadable index is read again after ``again_ms``, or once its file is another, as after a repair.  ``failed`` is
    called at each of these reads, with the path and the error.
    """

    def __init__(
        self,
        fs: FileSystem,
        path: PartitionPath,
        now_ms: Callable[[], int],
        failed: Callable[[str, Exception], None],
        again_ms: int = AGAIN_MS,
    ) -> None:
        self._fs = fs
        self._path = path
        self._now_ms = now_ms
        self._failed = failed
        self._again_ms = again_ms
        self._unread: dict[str, tuple[_File, Unread]] = {}
        self._served = ""  # the last file that showed that storage serves reads; "" without any

    async def read(self, name: SegmentName, draft: str = "") -> Checkpoint | Unread:
        """Return the index of a segment, or the index in its ``draft``.  Raises StorageError, as in an outage."""
        idx = draft or self._path.idx(name)
        try:
            status = await self._fs.status(idx)
        except NoSuchFile:
            self._unread.pop(idx, None)
            return Unread(0, self._now_ms())
        file = status.file_id, status.length, status.modified_ms
        before, known = self._unread.get(idx, (None, None))
        if before != file:
            known = None
        elif known is not None and self._now_ms() < known.again_ms:
            return known
        failures: list[Exception] = []

        def failed(path: str, error: Exception) -> None:
            failures.append(error)
            self._failed(path, error)

        index = await _read_in_service(
            partial(_read, self._fs, idx, status.length, failed), idx, failed, partial(self._is_outage, name)
        )
        if index is not None or not failures:
            self._unread.pop(idx, None)
            return Unread(0, self._now_ms()) if index is None else index
        now_ms = self._now_ms()
        # An index that was not read for long may have been back meanwhile.
        earlier = 0 if known is None or now_ms >= known.again_ms + self._again_ms else known.looks
        looks = 0 if isinstance(failures[0], FormatError) else earlier + 1
        unread = Unread(looks, now_ms + self._again_ms, failures[0])
        self._unread[idx] = file, unread
        return unread

    def keep(self, paths: Collection[str]) -> None:
        """Forget all other files."""
        for idx in self._unread.keys() - set(paths):
            del self._unread[idx]

    async def _is_outage(self, name: SegmentName) -> bool:
        """Return whether storage serves no reads now.

        The file of the last time is asked first: twenty lost indexes cost one search for a readable file.
        """
        if not self._served or not await _is_readable(self._fs, self._served):
            self._served = await find_readable(self._fs, self._path, name, self._path.log(name)) or ""
        return not self._served


async def read_idx(fs: FileSystem, path: str, failed: Callable[[str, Exception], None]) -> Checkpoint | None:
    """Return the checkpoint in an index file; None if the file is missing or damaged.

    For a damaged one ``failed`` is called with the path and the error.  Raises StorageError, for a lost file too.
    """
    try:
        length = (await fs.status(path)).length
    except NoSuchFile:
        return None
    return await _read(fs, path, length, failed)


async def _read(fs: FileSystem, path: str, length: int, failed: Callable[[str, Exception], None]) -> Checkpoint | None:
    """Do as ``read_idx`` for a file of this length."""
    try:
        return await run_in_steps(decode_idx_steps(await fs.read(path, 0, length)))
    except NoSuchFile:
        return None
    except FormatError as error:
        failed(path, error)
        return None


async def read_segment_idx(
    fs: FileSystem, path: PartitionPath, name: SegmentName, failed: Callable[[str, Exception], None]
) -> Checkpoint | None:
    """Do the same as ``read_idx`` for the index of a segment; return None also if storage has lost the file.

    ``failed`` is called for a lost file, too, with the StorageError.  Raises StorageError, as in an outage.
    """
    idx, is_away = path.idx(name), partial(is_outage, fs, path, name, path.log(name))
    return await _read_in_service(partial(read_idx, fs, idx, failed), idx, failed, is_away)


async def _read_in_service(
    read: Callable[[], Awaitable[Checkpoint | None]],
    idx: str,
    failed: Callable[[str, Exception], None],
    is_away: Callable[[], Awaitable[bool]],
) -> Checkpoint | None:
    """Return the result of ``read``, None if storage has lost the file; ``is_away``: storage serves no reads now."""
    try:
        return await read()
    except CorruptData as error:
        failed(idx, error)
    except StorageUnavailable as error:
        if await is_away():
            raise
        failed(idx, error)
    return None


async def is_outage(fs: FileSystem, path: PartitionPath, name: SegmentName, twin: str) -> bool:
    """Return whether storage serves no reads now, after a file of a segment was unavailable."""
    return await find_readable(fs, path, name, twin) is None


async def find_readable(fs: FileSystem, path: PartitionPath, name: SegmentName, twin: str) -> str | None:
    """Return a file that storage serves now, after a file of a segment was unavailable; None in an outage.

    An outage fails reads of all files; the blocks of a single file may be without a live replica for ever.  ``twin``:
    the other file of the segment ``name``.  It may be lost too, as may neighbours that were written to the same nodes,
    or all other logs of the partition.  So logs far from the segment and journals are read as well, all at once: a
    failing read takes long.  Raises StorageError if a folder cannot be listed.
    """
    if await _is_readable(fs, twin):
        return twin
    others = [*await _logs_around(fs, path, name), *await _journals(fs)]
    readable = await asyncio.gather(*(_is_readable(fs, other) for other in others))
    return next(itertools.compress(others, readable), None)


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
