"""Searches in the logs of owned partitions: by timestamp, and by leader epoch.

Nothing is kept for a partition that no request asks about. A partition with searches costs a name per segment, for at
most ``LOGS_MAX`` partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice

from bmq.core.aio.lru import LruCache
from bmq.core.model import PartitionKey
from bmq.core.records.reader import TimestampAndOffset
from bmq.storage.block_cache import BlockCache, SegmentKnowledge
from bmq.storage.filesystem import NoSuchFile
from bmq.storage.index import SegmentIndex
from bmq.storage.layout import PartitionPath
from bmq.storage.log_reader import REFRESHES_MAX, ActiveSegment, LogReader
from bmq.storage.log_segments import Extent
from bmq.storage.segment_cursor import SegmentCursor
from bmq.storage.timestamp_search import TimestampSearch

LOGS_MAX = 1_000
"""Logs kept, those that were searched last."""


class SearchedLog:
    """One partition's log as searches see it.

    In every call ``end`` is a high watermark that the caller has just read from the owner, ``start`` the log start, and
    ``active`` the active segment, None without one. Calls raise StorageError.
    """

    def __init__(self, pool: BlockCache, path: PartitionPath) -> None:
        self._pool = pool
        self._path = path
        self.reader = LogReader(pool, path)
        self.by_timestamp = TimestampSearch(self.reader)
        self._largest: dict[tuple[Extent, int], int] = {}  # timestamps of closed segments, each from an offset on

    async def end_of_epoch(self, epoch: int, end: int, active: ActiveSegment | None) -> tuple[int, int] | None:
        """Return (largest epoch at or below ``epoch``, first offset of the next one); None if no later epoch has one.

        A segment's name carries its epoch, and only segments of one epoch are merged: the names are the history. The
        name of a cleaned segment carries its last epoch, and the index carries its history. Below the oldest name that
        is left, the result names the epoch asked for, as in Kafka's ``LeaderEpochFileCache.endOffsetFor``.
        """
        segments = self.reader.segments
        for attempt in range(REFRESHES_MAX + 1):
            await segments.cover(end, active.name if active is not None else None)
            try:
                return await self._end_of_epoch(epoch, end)
            except NoSuchFile:  # cleaned again or deleted meanwhile: the names were read again
                if attempt == REFRESHES_MAX:
                    raise
        raise AssertionError("not reached")

    async def _end_of_epoch(self, epoch: int, end: int) -> tuple[int, int] | None:
        found = epoch
        for extent in self.reader.segments.between(0, end):
            begun = extent.name.epoch
            if begun > epoch and extent.name.cleaning:
                for begun, start in await self._epochs_of(extent, end):
                    if begun > epoch:
                        return found, start
                    found = begun
            elif begun > epoch:
                return found, extent.name.base
            else:
                found = begun
        return None

    async def _epochs_of(self, extent: Extent, end: int) -> Sequence[tuple[int, int]]:
        """Return the epochs of a cleaned segment with their first offsets: from its index, else from batch headers.

        Raises NoSuchFile if the segment's file is gone, once the names around it were read again.
        """
        checkpoint = await self._pool.index(self._path.idx(extent.name))
        if checkpoint is not None and checkpoint.epochs:
            return checkpoint.epochs
        found: list[tuple[int, int]] = []
        start = extent.name.base
        walk = self._cursor(extent, SegmentKnowledge(SegmentIndex(), start, 0, is_ours=False), start, end)
        try:
            while await walk.step():
                epoch = walk.header.leader_epoch
                if not found or epoch > found[-1][0]:
                    found.append((epoch, start))
                start = walk.next_offset
        except NoSuchFile:
            await self.reader.segments.refresh(extent.name)
            raise
        return found

    async def offset_of_max_timestamp(
        self, start: int, end: int, active: ActiveSegment | None
    ) -> TimestampAndOffset | None:
        """Return the first record with the largest timestamp; None if there is none."""
        for attempt in range(REFRESHES_MAX + 1):
            await self.reader.segments.cover(end, active.name if active is not None else None)
            try:
                largest = await self._largest_in(start, end, active)
            except NoSuchFile:  # merged or deleted meanwhile: read the names again
                if attempt == REFRESHES_MAX:
                    raise
            else:
                break
        if largest < 0:
            return None
        return await self.by_timestamp.find(largest, end, start_offset=start, active=active)

    async def _largest_in(self, start: int, end: int, active: ActiveSegment | None) -> int:
        if len(self._largest) > 2 * len(self.reader.segments) + 16:
            self._largest.clear()  # most of it is of segments that were deleted or merged since
        largest = -1
        extents = self.reader.segments.between(start, end)
        while window := list(islice(extents, self._pool.config.parallel_indexes)):
            found = await asyncio.gather(
                *(self._largest_of(extent, start, end, active) for extent in window), return_exceptions=True
            )
            for extent, outcome in zip(window, found, strict=True):
                if isinstance(outcome, NoSuchFile):
                    await self.reader.segments.refresh(extent.name)
                if isinstance(outcome, BaseException):
                    raise outcome
                largest = max(largest, outcome)
        return largest

    async def _largest_of(self, extent: Extent, start: int, end: int, active: ActiveSegment | None) -> int:
        """Return the largest timestamp in the segment between ``start`` and ``end``.

        Read from the segment's index if that covers exactly these records, else from the batch headers.
        """
        start = max(start, extent.name.base)
        is_whole = start == extent.name.base
        if active is not None and active.name == extent.name:
            if is_whole:
                return active.index.max_timestamp
            return await self._walk(
                extent, SegmentKnowledge(active.index, active.end_offset, active.position, is_ours=False), start, end
            )
        known = self._largest.get((extent, start))
        if known is not None:
            return known
        checkpoint = await self._pool.index(self._path.idx(extent.name))
        if checkpoint is None:
            facts = SegmentKnowledge(SegmentIndex(), extent.name.base, 0, is_ours=False)
            largest = await self._walk(extent, facts, start, end)
        elif is_whole and checkpoint.end_offset == (end if extent.end is None else extent.end):
            largest = checkpoint.max_timestamp
        else:
            index = SegmentIndex(entries=checkpoint.index)
            facts = SegmentKnowledge(index, checkpoint.end_offset, checkpoint.position, is_ours=False)
            largest = await self._walk(extent, facts, start, end)
        if extent.end is not None:
            self._largest[extent, start] = largest
        return largest

    async def _walk(self, extent: Extent, facts: SegmentKnowledge, start: int, end: int) -> int:
        walk = self._cursor(extent, facts, start, end)
        largest = -1
        while await walk.step():
            if walk.next_offset > start and walk.header.count:
                largest = max(largest, walk.header.max_timestamp)
        return largest

    def _cursor(self, extent: Extent, facts: SegmentKnowledge, start: int, end: int) -> SegmentCursor:
        stop = end if extent.end is None else min(end, extent.end)
        begin = facts.start_for(start, extent.name.base)
        return SegmentCursor(self._pool, self._path.log(extent.name), facts, begin, stop, end)


class OffsetLookups:
    """The logs of one process that were searched last."""

    def __init__(self, pool: BlockCache) -> None:
        self._pool = pool
        self._logs: LruCache[PartitionKey, SearchedLog] = LruCache(LOGS_MAX)

    def log(self, key: PartitionKey, path: PartitionPath) -> SearchedLog:
        """Return the partition's log for a search, made if there is none."""
        log = self._logs.get(key)
        if log is None:
            log = SearchedLog(self._pool, path)
            self._logs.put(key, log)
        return log

    def forget(self, key: PartitionKey) -> None:
        """Drop what is kept of the partition."""
        self._logs.pop(key)
