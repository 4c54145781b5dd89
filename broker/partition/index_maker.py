"""Indexes that are made again from closed segments of a taken over log (``broker.partition.missing_indexes``)."""

from __future__ import annotations

from contextlib import aclosing
from typing import NamedTuple

from bmq.broker.files.context import FileContext
from bmq.broker.files.segment_files import SegmentFiles
from bmq.broker.partition.older_producers import producers_before
from bmq.broker.partition.producer_state import ProducerTable
from bmq.core.errors import FormatError
from bmq.core.model import PartitionKey, SegmentName
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.filesystem import NoSuchFile, StorageError
from bmq.storage.index import SegmentIndex
from bmq.storage.layout import PartitionPath
from bmq.storage.log_segments import walk
from bmq.storage.recovery import RecoveredSegment, index_again, read_whole


class UnreadSegment(NamedTuple):
    """A segment of the record that a recovery did not read.

    If its owner died before it had closed the segment, ``length`` is the file's, and ``end_offset`` an upper bound.
    """

    name: SegmentName
    length: int
    end_offset: int
    is_length_known: bool = True


class IndexMaker:
    """The maker of the indexes of one log, whose log start is ``log_start``.

    It keeps what it knows of the segment before: a row of segments is read once.
    """

    __slots__ = ("_context", "_failed", "_index_interval_bytes", "_key", "_log_start", "_made", "_segments")

    def __init__(
        self,
        context: FileContext,
        segments: SegmentFiles,
        key: PartitionKey,
        index_interval_bytes: int,
        log_start: int,
    ) -> None:
        self._context = context
        self._segments = segments
        self._key = key
        self._index_interval_bytes = index_interval_bytes
        self._log_start = log_start
        self._made: Checkpoint | None = None  # the last index made from a whole segment
        self._failed: tuple[int, Exception] | None = None  # end offset of the last segment that failed, and the error

    @property
    def path(self) -> PartitionPath:
        """The partition's folder."""
        return self._segments.path

    async def write(self, segment: RecoveredSegment) -> None:
        """Write the index of a segment that was read from its beginning.  Raises StorageError."""
        index = self._index_of(segment)
        await self._segments.write_idx(index.segment, index)

    def forget(self) -> None:
        """Forget the segment before: its index may be large, and the pause before the next round is long."""
        self._made = self._failed = None

    async def is_indexed_to_end(self, segment: UnreadSegment | RecoveredSegment) -> bool:
        """Return whether the segment has a sound index up to its end.  Raises StorageError.

        The true end of an unread segment may lie before ``end_offset``.  A listing shows it.
        """
        indexed_to = await self._segments.idx_end(segment.name)
        if indexed_to < 0:
            return False
        if indexed_to >= segment.end_offset:
            return True
        return isinstance(segment, UnreadSegment) and indexed_to >= await self._end_of(segment)

    async def read_again(self, segment: RecoveredSegment) -> RecoveredSegment:
        """Read a segment again from its beginning: an index without its first entries would be believed."""
        return await index_again(self._context.fs, self._segments.path, segment, self._index_interval_bytes)

    async def read_whole(self, entry: UnreadSegment) -> RecoveredSegment:
        """Read a closed segment, and what its index needs of the segments before it.

        The index made just before holds the producers. If the segment before has failed, raise the same error again: a
        long row of segments is not read for each of its members. Raises StorageError, and FormatError if the
        segment is damaged, or batches before it are missing.
        """
        end = await self._end_of(entry)  # the next one in the row may lie behind segments that have left the record
        if self._failed is not None and self._failed[0] == entry.name.base:
            self._failed = end, self._failed[1]
            raise self._failed[1]
        try:
            segment = await self._read_from(entry, end)
        except NoSuchFile:
            raise  # deleted meanwhile: the next segment need not fail
        except (StorageError, FormatError) as error:
            self._failed = end, error
            raise
        self._made = self._index_of(segment)
        return segment

    async def _read_from(self, entry: UnreadSegment, end: int) -> RecoveredSegment:
        fs, path, wall_ms = self._context.fs, self._segments.path, self._context.clock.now_ms()
        if self._made is not None and self._made.end_offset == entry.name.base:
            table = ProducerTable(self._made.producers)
        else:
            older = await producers_before(fs, path, None, entry.name.base, wall_ms)
            if not older.is_complete:
                raise FormatError("batches before it are missing")
            table = older.table
        segment = RecoveredSegment(
            name=entry.name,
            length=entry.length,
            end_offset=end,
            index=SegmentIndex(self._index_interval_bytes),
            epochs=[],
        )
        is_known = entry.is_length_known
        await read_whole(fs, path, segment, lambda batch: table.replay(batch, wall_ms), is_length_known=is_known)
        transactions = table.transactions
        segment.aborted += transactions.take_aborted()
        segment.first_open_txn, segment.producers = transactions.first_open, table.snapshot()
        return segment

    async def _end_of(self, entry: UnreadSegment) -> int:
        """Return the end offset of a segment; raise NoSuchFile if its owner did not close it, and it holds no batch.

        The next live segment begins at the end. It may have been closed first, and left the record.
        """
        if entry.is_length_known:
            return entry.end_offset
        async with aclosing(walk(self._context.fs, self._segments.path, entry.name)) as listing:
            async for listed in listing:
                if listed.name == entry.name and listed.is_live:
                    return entry.end_offset if listed.end is None else min(listed.end, entry.end_offset)
                if listed.name.base > entry.name.base:
                    break
        raise NoSuchFile(self._segments.path.log(entry.name))

    def _index_of(self, segment: RecoveredSegment) -> Checkpoint:
        return Checkpoint(
            key=self._key,
            segment=segment.name,
            position=segment.length,
            end_offset=segment.end_offset,
            log_start=self._log_start,
            is_closed=True,
            max_timestamp=segment.index.max_timestamp,
            max_timestamp_offset=segment.index.max_timestamp_offset,
            first_open_txn=segment.first_open_txn,
            index=segment.index.entries,
            epochs=tuple(segment.epochs),
            producers=segment.producers,
            aborted=tuple(segment.aborted),
        )
