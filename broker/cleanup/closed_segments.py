"""The closed segments of a compacted log, as its cleaner finds them on storage."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import NamedTuple

from bmq.broker.cleanup.cleaning_status import LastCleaning
from bmq.broker.cleanup.index_reads import IndexReads, Unread
from bmq.broker.cleanup.retention import largest_timestamp
from bmq.broker.cleanup.segment_swap import HiddenNames
from bmq.broker.partition.driver import PartitionDriver
from bmq.core.model import SegmentName
from bmq.storage.aborted import RecentAborted
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.cleaning.cleaned_file import ROOM
from bmq.storage.cleaning.plan import SegmentFacts
from bmq.storage.filesystem import FileSystem
from bmq.storage.index import ENTRY
from bmq.storage.log_segments import ListedSegment, walk


class FoundFile(NamedTuple):
    """A segment's ``.log`` as a listing shows it: a repair of the file changes its time."""

    name: SegmentName
    length: int
    modified_ms: int

    @classmethod
    def of(cls, listed: ListedSegment) -> FoundFile:
        """Return the file of a listed segment."""
        return cls(listed.name, listed.length, listed.modified_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedSegment:
    """A closed segment that no ownership record names, and its index without entries.

    ``file``: the ``.log``, with more bytes than the index covers if a write failed at its end.  ``first_timestamp``:
    the largest of the first records, as far as the index tells it; else the segment's largest timestamp stands for it.
    """

    file: FoundFile
    index: Checkpoint
    first_timestamp: int

    @classmethod
    def of(cls, file: FoundFile, index: Checkpoint) -> ClosedSegment:
        """Return the segment with this index."""
        first = next((t for t in index.index[2::ENTRY] if t >= 0), index.max_timestamp)
        return cls(file=file, index=replace(index, index=index.index[:0]), first_timestamp=first)

    @property
    def name(self) -> SegmentName:
        """The segment's name."""
        return self.file.name

    @property
    def facts(self) -> SegmentFacts:
        """The facts that a plan needs.

        The file's time stands for records without timestamps, as in Kafka's ``LogSegment.largestTimestamp``.
        """
        index, cleaned = self.index, self.index.cleaned
        return SegmentFacts(
            base=self.name.base,
            end_offset=index.end_offset,
            bytes=index.position,
            max_timestamp=largest_timestamp(index, self.file.modified_ms),
            first_timestamp=self.first_timestamp,
            cleaned_up_to=-1 if cleaned is None else cleaned.clean_to,
            earliest_horizon=-1 if cleaned is None else cleaned.horizon,
        )


@dataclass(slots=True, kw_only=True)
class ClosedLog:
    """The closed segments of a log that a round may take, and facts about later segments.

    ``later``: indexes of later segments, which have the ends of transactions.  ``recent``: the aborted transactions
    that no index has yet.  ``damaged_at``: the base of the first segment that no round may take, None without any.
    ``lacks_markers``: an index that cannot be read may have the end of a transaction; the record may name its segment.
    ``has_hidden``: sources of an earlier cleaned segment are left.  ``newest``: the last segment, if it is closed and
    has a whole index; the record names it, so no round may take it.
    """

    segments: list[ClosedSegment]
    later: list[Checkpoint]
    recent: list[RecentAborted]
    damaged_at: int | None = None
    lacks_markers: bool = False
    has_hidden: bool = False
    newest: ClosedSegment | None = None

    @property
    def last_cleaning(self) -> LastCleaning | None:
        """The last round whose cleaned segments are left, by whatever owner; None without any."""
        cleaned = [(one.index.cleaned, one.file.modified_ms) for one in self.segments if one.index.cleaned is not None]
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

    def end_before(self, damaged: ClosedSegment) -> None:
        """End the log before a segment that cannot be read. Its index can, so no marker is unknown for that."""
        at = self.segments.index(damaged)
        self.later += [segment.index for segment in self.segments[at:]]
        del self.segments[at:]
        self.damaged_at = damaged.name.base
        self.end_before_unknown_markers()

    def end_before_unknown_markers(self) -> None:
        """End the log before the transactions whose markers may be missing."""
        while self.lacks_markers and self.segments and self.segments[-1].index.first_open_txn >= 0:
            last = self.segments.pop()
            self.later.append(last.index)
            self.damaged_at = last.name.base


class ClosedSegments:
    """The closed segments of one partition.  An index is read once: a closed segment never changes under its name.

    An index that cannot be read is read again an hour later, however often the log is looked at.
    ``room``: bytes of a draft in bytes of its sources (``cleaned_file``).  ``damaged``: a file that the last round
    could not read; no round takes it until it changes.  None without any.  ``lost_until_ms``: the time (monotonic) from
    which on rounds may take it again; None if its bytes are damaged, which only a change of the file ends.
    """

    def __init__(
        self,
        fs: FileSystem,
        driver: PartitionDriver,
        now_ms: Callable[[], int],
        failed: Callable[[str, Exception], None],
    ) -> None:
        self._fs = fs
        self._driver = driver
        self._indexes = IndexReads(fs, driver.path, now_ms, failed)
        self._known: dict[SegmentName, ClosedSegment] = {}
        self.room = ROOM
        self.damaged: FoundFile | None = None
        self.lost_until_ms: int | None = None

    def note_damage(self, file: FoundFile, lost_until_ms: int | None) -> None:
        """Note a file that a round could not read: until it changes, or the time has come."""
        self.damaged, self.lost_until_ms = file, lost_until_ms

    def forget_lost(self, now_ms: int) -> None:
        """Forget a file that storage had lost if its time has come: a datanode with a sound replica may be back."""
        if self.lost_until_ms is not None and self.lost_until_ms <= now_ms:
            self.damaged = self.lost_until_ms = None

    async def look(self) -> ClosedLog:
        """List the log, and read the indexes that are new.  Raises StorageError.

        A segment is not taken without an index that covers it, nor is any behind it.  Segments that the record names
        may be open, or a successor needs them.
        """
        machine = self._driver.machine
        entries = machine.record.segments
        found = ClosedLog(segments=[], later=[], recent=[machine.unindexed.recent(machine.high_watermark)])
        if not entries:
            return found
        floor, watermark = min(entry.name.order for entry in entries), machine.high_watermark
        hidden = HiddenNames()
        known: dict[SegmentName, ClosedSegment] = {}
        unread: list[str] = []
        async with aclosing(walk(self._fs, self._driver.path)) as listing:
            async for listed in listing:
                is_behind = listed.name.order >= floor
                if not is_behind:
                    found.has_hidden |= len(hidden.take(listed)) > 0
                if not listed.is_live:
                    continue
                if listed.end is not None and listed.end <= machine.log_start:
                    continue
                segment, index = await self._segment(listed)
                if index is None:
                    unread.append(self._driver.path.idx(listed.name))
                if segment is not None and not is_behind:
                    known[listed.name] = segment
                    if found.damaged_at is None and segment.file != self.damaged:
                        found.segments.append(segment)
                        continue
                if segment is None:
                    # Of a segment that is behind, the owner has the markers until an index has them.
                    is_known = is_behind and _knows_markers(listed, index, found.recent[0], watermark)
                    found.lacks_markers |= not is_known
                if not is_behind and found.damaged_at is None:
                    found.damaged_at = listed.name.base
                found.later += [index] if index is not None else []
                is_whole = index is not None and index.end_offset == watermark and index.position <= listed.length
                if listed.end is None and machine.is_all_closed and index is not None and is_whole:
                    found.newest = ClosedSegment.of(FoundFile.of(listed), index)
        self._known = known
        self._indexes.keep(unread)
        found.end_before_unknown_markers()
        # Once more behind the reading: a list is dropped once its segment has an index.
        found.recent.append(machine.unindexed.recent(machine.high_watermark))
        return found

    async def _segment(self, listed: ListedSegment) -> tuple[ClosedSegment | None, Checkpoint | None]:
        """Return the segment, None without an index that covers it, and its index, None without any.

        Bytes behind the end of the index are leftover of a failed write.
        """
        file, known = FoundFile.of(listed), self._known.get(listed.name)
        if known is not None and known.file == file and known.index.end_offset == listed.end:
            return known, known.index
        index = await self._indexes.read(listed.name)
        if isinstance(index, Unread):
            return None, None
        if index.end_offset != listed.end or index.position > listed.length:
            return None, index
        return ClosedSegment.of(file, index), index


def _knows_markers(listed: ListedSegment, index: Checkpoint | None, recent: RecentAborted, watermark: int) -> bool:
    """Return whether the aborted transactions with their markers in a segment are known.

    Its index has them, or ``recent``, from the oldest segment without an index on. ``watermark`` was the high watermark
    before the listing: the index of the last segment ends there at least.
    """
    if index is not None and (index.end_offset >= watermark if listed.end is None else index.end_offset == listed.end):
        return True
    return listed.name.base >= recent.since
