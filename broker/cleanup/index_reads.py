"""Reads of indexes, which tell a lost file from an outage of storage.

A lost file is damage: the job goes on without the index.  An outage passes: the job is tried again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing

from bmq.core.aio.steps import run_in_steps
from bmq.core.errors import FormatError
from bmq.core.model import SegmentName
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.filesystem import CorruptData, FileSystem, NoSuchFile, StorageError, StorageUnavailable
from bmq.storage.layout import PartitionPath
from bmq.storage.log_segments import walk
from bmq.storage.segment import decode_idx_steps

OTHERS_MAX = 3
"""Most other segments of which a byte is read to tell an outage from a lost file."""


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
    """Return whether storage serves no reads of the partition now, after a file of a segment was unavailable.

    An outage fails reads of all files; the blocks of a single file may be without a live replica for ever.  ``twin``:
    the other file of the segment ``name``.  It may be lost too, so up to ``OTHERS_MAX`` logs of other segments are read
    as well, first behind the segment.  Raises StorageError if the folder cannot be listed.
    """
    if await _is_readable(fs, twin):
        return False
    tried = 0
    for after in (name, None):
        async with aclosing(walk(fs, path, after)) as listing:
            async for listed in listing:
                if tried == OTHERS_MAX or (after is None and listed.name.base >= name.base):
                    break
                if listed.name == name or listed.length <= 0:  # an empty file has no block to read
                    continue
                if await _is_readable(fs, path.log(listed.name)):
                    return False
                tried += 1
    return True


async def _is_readable(fs: FileSystem, path: str) -> bool:
    """Return whether the first byte of a file can be read."""
    try:
        await fs.read(path, 0, 1)
    except StorageError:
        return False
    return True
