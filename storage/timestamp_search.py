"""The search of a partition's log for the first record that is not older than a timestamp."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import islice

from bmq.core.records.batch import Batch
from bmq.core.records.reader import TimestampAndOffset, first_not_older
from bmq.storage.filesystem import NoSuchFile
from bmq.storage.log_reader import REFRESHES_MAX, ActiveSegment, LogReader
from bmq.storage.log_segments import Extent
from bmq.storage.segment_cursor import SegmentCursor

REFINE_BYTES_MAX = 1 << 20
"""Batches up to this size are searched record by record."""
REFINE_INFLATED_MAX = 4 << 20
"""The bound of their size once decompressed: some 50 ms at 100 bytes a record, once a search."""


class TimestampSearch:
    """The searches of one partition's log by timestamp."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._pool = reader.pool
        self._path = reader.path
        self._segments = reader.segments
        self._maxima: dict[Extent, int] = {}  # largest timestamp of a closed segment

    async def find(
        self, timestamp: int, end_offset: int, *, start_offset: int = 0, active: ActiveSegment | None = None
    ) -> TimestampAndOffset | None:
        """Return the first record in [start_offset, end_offset) whose timestamp is at least ``timestamp``, or None.

        The result is exact, except in batches that are too large to search (``REFINE_BYTES_MAX``,
        ``REFINE_INFLATED_MAX``) or cannot be decoded.  For such a batch it is the batch's base offset (or
        ``start_offset``), with the batch's largest timestamp.  This offset is at or before the right record, so nothing
        is skipped.  The search costs a small read for every segment that was not searched before, since timestamps need
        not rise from segment to segment.  Raises what ``LogReader.read`` raises, except OffsetNotFound.
        """
        for attempt in range(REFRESHES_MAX + 1):
            await self._segments.cover(end_offset, active.name if active is not None else None)
            missing = None
            async for extent in self._candidates(timestamp, start_offset, end_offset):
                missing = extent.name
                try:
                    found = await self._search(extent, timestamp, start_offset, end_offset, active)
                except NoSuchFile:
                    if attempt == REFRESHES_MAX:
                        raise
                    break
                if found is not None:
                    return found
            else:
                return None
            assert missing is not None
            await self._segments.refresh(missing)
        raise AssertionError("the last attempt returns or raises")

    async def _candidates(self, timestamp: int, start: int, end: int) -> AsyncIterator[Extent]:
        """Give the segments that may hold a record of ``timestamp`` or later; a few indexes are read at once."""
        extents = self._segments.between(start, end)
        if len(self._maxima) > 2 * len(self._segments) + 16:
            self._maxima.clear()  # segments deleted or merged since
        while window := list(islice(extents, self._pool.config.parallel_indexes)):
            outcomes = await asyncio.gather(*map(self._maximum, window), return_exceptions=True)
            for extent, outcome in zip(window, outcomes, strict=True):
                if isinstance(outcome, BaseException):
                    raise outcome
                if outcome is None or outcome >= timestamp:
                    yield extent

    async def _maximum(self, extent: Extent) -> int | None:
        """Return the largest timestamp of a closed segment; None if its index is missing or ends elsewhere."""
        known = self._maxima.get(extent)
        if known is not None or extent.end is None:
            return known
        checkpoint = await self._pool.index(self._path.idx(extent.name))
        if checkpoint is None or checkpoint.end_offset != extent.end:
            return None
        self._maxima[extent] = checkpoint.max_timestamp
        return checkpoint.max_timestamp

    async def _search(
        self, extent: Extent, timestamp: int, start_offset: int, end_offset: int, active: ActiveSegment | None
    ) -> TimestampAndOffset | None:
        facts = await self._reader.facts(extent, max(extent.name.base, start_offset), active)
        start = facts.start_for_timestamp(timestamp, extent.name.base)
        if start_offset > start[0]:
            start = max(start, facts.start_for(start_offset, extent.name.base))
        walk = self._reader.walk(extent, facts, start, end_offset)
        try:
            while await walk.step():
                if walk.next_offset > start_offset and walk.header.max_timestamp >= timestamp:
                    found = await _refine(walk, timestamp, start_offset)
                    if found is not None:
                        return found
            return None
        finally:
            walk.finish()


async def _refine(walk: SegmentCursor, timestamp: int, start_offset: int) -> TimestampAndOffset | None:
    """Search the current batch for the record; None if it has none.  See ``TimestampSearch.find``."""
    head = walk.header
    if not head.count:
        return None
    first = head.first_timestamp
    if first is not None and first >= timestamp and head.base_offset >= start_offset:
        return TimestampAndOffset(head.base_offset, first)
    if head.size > REFINE_BYTES_MAX:
        return TimestampAndOffset(max(head.base_offset, start_offset), head.max_timestamp)
    await walk.load()
    batch = Batch(memoryview(walk.copy(walk.position, walk.end)))
    return first_not_older(batch, timestamp, start_offset, bytes_max=REFINE_INFLATED_MAX)
