"""Drafts of merges by their names: an append that may still come, however late, has a draft in the partition's folder.

The draft is on storage before the append, and stays until the append is over.  Its name begins with the name of the
target: the segment that the others are appended to.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing

from bmq.core.model import SegmentName
from bmq.storage.filesystem import FileSystem
from bmq.storage.layout import PartitionPath, base_name
from bmq.storage.log_segments import walk

MERGED = ".join-"
PAST_MERGED = f"{MERGED}~"
"""A name behind all drafts of merges, and before all spares."""
_NAME = re.compile(r"\.join-(\d{20})-(\d{8})-(\d{4,})-.")


def draft_name(target: SegmentName, incarnation: str) -> str:
    """Return the name of the draft that a process writes for a merge into the target."""
    return f"{MERGED}{target}-{incarnation}"


def is_merge_draft(path: str) -> bool:
    """Return whether the file is the draft of a merge."""
    return base_name(path).startswith(MERGED)


def target_of(draft: str) -> SegmentName | None:
    """Return the target of the merge with this draft; None for a name that no process writes."""
    name = _NAME.match(base_name(draft))
    return None if name is None else SegmentName(int(name[1]), int(name[2]), int(name[3]))


async def targets_below(fs: FileSystem, folder: str, offset: int) -> frozenset[SegmentName]:
    """Return the targets below ``offset`` of all drafts in the folder.  Raises StorageError."""
    found: set[SegmentName] = set()
    listing = fs.list(folder, after=MERGED)
    try:
        async for status in listing:
            target = target_of(status.path)
            if not is_merge_draft(status.path) or (target is not None and target.base >= offset):
                break
            if target is not None:
                found.add(target)
    finally:
        if isinstance(listing, AsyncGenerator):
            await listing.aclose()
    return frozenset(found)


async def may_gain(
    fs: FileSystem,
    path: PartitionPath,
    target: SegmentName,
    offset: int,
    *,
    floor: tuple[int, int, int] | None,
    most: int,
) -> bool:
    """Return whether a late append may bring records from ``offset`` on into the target, or has brought some already.

    The append may come between two listings; from then on the target shows it, and no source does.

    A draft that storage has lost does not tell its sources.  They follow the target, have its epoch, and are at most
    ``most``; none is a cleaned segment, nor a segment from ``floor`` on, in the order of registration.  Raises
    StorageError.
    """
    count = 0
    async with aclosing(walk(fs, path, target)) as listing:
        async for listed in listing:
            name = listed.name
            if name == target and listed.is_live and (listed.end is None or listed.end > offset):
                return True
            if not listed.is_live or name.base <= target.base:
                continue
            is_named = floor is not None and name.order >= floor
            if name.epoch != target.epoch or name.cleaning or is_named or count == most:
                return False
            if listed.end is None or listed.end > offset:
                return True
            count += 1
    return False
