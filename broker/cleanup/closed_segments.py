"""The closed segments of a compacted log, as its cleaner finds them on storage."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import NamedTuple

from bmq.broker.cleanup.cleaning_status import LastCleaning
from bmq.broker.cleanup.retention import read_idx
from bmq.broker.cleanup.segment_swap import HiddenNames
from bmq.broker.partition.driver import PartitionDriver
from bmq.core.model import SegmentName
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.cleaning.plan import SegmentFacts
from bmq.storage.filesystem import FileSystem
from bmq.storage.index import ENTRY
from bmq.storage.log_segments import ListedSegment, walk

ROOM = 1.125
"""Bytes of a draft in bytes of its sources: Kafka's codecs and levels may need more than the producers' did, and delete
horizons take some bytes."""
MORE_ROOM = 4.0
"""The same after a draft was full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedSegment:
    """A closed segment that no ownership record names, and its index without entries.

    ``length``: bytes of the file, more than the index covers if a write failed at its end.  ``modified_ms``: wall time
    of the last write by storage's clock, of a cleaned segment about the end of its round.  ``first_timestamp``: the
    largest of the first records, as far as the index tells it; else the segment's largest timestamp stands for it.
    """

    name: SegmentName
    index: Checkpoint
    length: int
    modified_ms: int
    first_timestamp: int

    @classmethod
    def of(cls, listed: ListedSegment, index: Checkpoint) -> ClosedSegment:
        """Return the segment with this index."""
        first = next((t for t in index.index[2::ENTRY] if t >= 0), index.max_timestamp)
        return cls(
            name=listed.name,
            index=replace(index, index=index.index[:0]),
            length=listed.length,
            modified_ms=listed.modified_ms,
            first_timestamp=first,
        )

    @property
    def facts(self) -> SegmentFacts:
        """The facts that a plan needs."""
        index, cleaned = self.index, self.index.cleaned
        return SegmentFacts(
            base=self.name.base,
            end_offset=index.end_offset,
            bytes=index.position,
            max_timestamp=index.max_timestamp,
            first_timestamp=self.first_timestamp,
            cleaned_up_to=-1 if cleaned is None else cleaned.clean_to,
            earliest_horizon=-1 if cleaned is None else cleaned.horizon,
        )


class Closed(NamedTuple):
    """The result of one look at a log.

    ``segments``: for a round, in order.  ``later``: indexes behind them, which have the ends of transactions.
    ``damaged_at``: the base of the first segment that no round may take; None without any.  ``has_hidden``: whether
    sources of an earlier round are left.
    """

    segments: list[ClosedSegment]
    later: list[Checkpoint]
    damaged_at: int | None
    has_hidden: bool

    @property
    def last_cleaning(self) -> LastCleaning | None:
        """The last round whose cleaned segments are left, by whatever owner; None without any."""
        cleaned = [(each.index.cleaned, each.modified_ms) for each in self.segments if each.index.cleaned is not None]
        clean_to = max((facts.clean_to for facts, _ in cleaned), default=-1)
        results = [(facts, modified_ms) for facts, modified_ms in cleaned if facts.clean_to == clean_to >= 0]
        if not results:
            return None
        before, after = [facts.bytes_before for facts, _ in results], [facts.bytes_after for facts, _ in results]
        return LastCleaning(
            ended_ms=max(modified_ms for _, modified_ms in results),
            bytes_before=sum(before) if min(before) >= 0 else -1,
            bytes_after=sum(after) if min(after) >= 0 else -1,
        )


class ClosedSegments:
    """The closed segments of one partition.  An index is read once: a closed segment never changes under its name.

    ``room``: bytes of a draft in bytes of its sources (``cleaned_file``).
    """

    def __init__(self, fs: FileSystem, driver: PartitionDriver, failed: Callable[[str, Exception], None]) -> None:
        self._fs = fs
        self._driver = driver
        self._failed = failed
        self._known: dict[SegmentName, ClosedSegment] = {}
        self.room = ROOM

    async def look(self) -> Closed:
        """List the log, and read the indexes that are new.  Raises StorageError.

        A segment is not taken without an index that covers it, nor is any behind it.  Segments that the record names
        may be open, or a successor needs them.
        """
        driver = self._driver
        entries = driver.machine.record.segments
        found, later = list[ClosedSegment](), list[Checkpoint]()
        if not entries:
            return Closed(found, later, None, False)
        floor = min(entry.name.order for entry in entries)
        damaged_at: int | None = None
        has_hidden = False
        hidden = HiddenNames()
        async with aclosing(walk(self._fs, driver.path)) as listing:
            async for listed in listing:
                is_behind = listed.name.order >= floor
                if not is_behind:
                    has_hidden |= len(hidden.take(listed)) > 0
                if not listed.is_live:
                    continue
                if listed.end is not None and listed.end <= driver.machine.log_start:
                    continue
                if is_behind or damaged_at is not None:
                    index = await self._read(listed.name)
                    later += [index] if index is not None else []
                elif (segment := await self._closed(listed)) is not None:
                    found.append(segment)
                else:
                    damaged_at = listed.name.base
        if damaged_at is not None:  # the markers of transactions that are open there may be in what cannot be read
            while found and found[-1].index.first_open_txn >= 0:
                damaged_at = found.pop().name.base
        self._known = {segment.name: segment for segment in found}
        return Closed(found, later, damaged_at, has_hidden)

    async def _closed(self, listed: ListedSegment) -> ClosedSegment | None:
        """Return the segment; None without an index that covers it.

        Bytes behind the end of the index are leftover of a failed write.
        """
        known = self._known.get(listed.name)
        if known is not None and known.length == listed.length and known.index.end_offset == listed.end:
            return known
        index = await self._read(listed.name)
        if index is None or index.end_offset != listed.end or index.position > listed.length:
            return None
        return ClosedSegment.of(listed, index)

    async def _read(self, name: SegmentName) -> Checkpoint | None:
        return await read_idx(self._fs, self._driver.path.idx(name), self._failed)
