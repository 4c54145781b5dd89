"""Indexes that the segments of a taken over log lack.

| the segment                                     | its index                                                       |
| ----------------------------------------------- | --------------------------------------------------------------- |
| was read from its beginning, or from a whole    | is written at once                                              |
| checkpoint                                      |                                                                 |
| was read in part, or not at all: a checkpoint   | is made from the whole segment after ``LOOK_MS``, unless it is  |
| covers it, and its owner may yet write the      | there by then                                                   |
| index                                           |                                                                 |
| has a damaged index, or one that ends too early | takes the other index's place                                   |

While storage does not take an index, the work goes on, with longer and longer pauses. Without the index, readers of
committed records cannot read transactions of the segment, and compaction ends before the segment. The work ends if
``ATTEMPTS`` rounds have found the segment damaged, or storage has refused the index so often.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, NamedTuple

from bmq.broker.files.context import FileContext
from bmq.broker.files.deferred_indexes import LOOK_MS
from bmq.broker.files.segment_files import SegmentFiles
from bmq.broker.partition.older_producers import producers_before
from bmq.broker.partition.producer_state import ProducerTable
from bmq.core.aio.backoff import Backoff
from bmq.core.errors import FormatError
from bmq.core.model import PartitionKey, SegmentName
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.filesystem import CorruptData, NoSuchFile, StorageError, Unsupported
from bmq.storage.index import SegmentIndex
from bmq.storage.log_segments import walk
from bmq.storage.recovery import RecoveredSegment, index_again, read_whole

Work = Coroutine[Any, Any, None]
ATTEMPTS = 3
"""Attempts to write an index at once; rounds after which its failure is reported; and rounds that find damage after
which it is given up. A replica that cannot be read may be sound: its datanode comes back after an outage."""
PAUSES_MS = Backoff(LOOK_MS, 30 * LOOK_MS)
"""Pauses before the rounds. A round may read a whole segment again, so the later pauses are long."""


class UnreadSegment(NamedTuple):
    """A segment of the record that a recovery did not read.

    If its owner died before it had closed the segment, ``length`` is the file's, and ``end_offset`` an upper bound.
    """

    name: SegmentName
    length: int
    end_offset: int
    is_length_known: bool = True


class _Due(NamedTuple):
    """A segment whose index is due, and a function that reads everything for the index."""

    segment: UnreadSegment | RecoveredSegment
    read: Callable[[], Awaitable[RecoveredSegment]]


class MissingIndexes:
    """The work on the missing indexes of one takeover.

    ``recovered``: segments that the recovery has read. ``ended`` is called with each name that needs no more work.
    ``begin`` starts a task of the partition, unless the partition has ended. Between the rounds there is no task: a
    death leaves work to thousands of partitions.
    """

    __slots__ = (
        "_begin", "_context", "_damage", "_due", "_ended", "_failed", "_index_interval_bytes", "_key", "_log_start",
        "_made", "_recovered", "_rounds", "_segments", "_unread",
    )  # fmt: skip

    def __init__(
        self,
        context: FileContext,
        segments: SegmentFiles,
        key: PartitionKey,
        index_interval_bytes: int,
        log_start: int,
        recovered: Sequence[RecoveredSegment],
        unread: Sequence[UnreadSegment],
        ended: Callable[[SegmentName], None],
        begin: Callable[[Callable[[], Work]], asyncio.Task[None] | None],
    ) -> None:
        self._begin = begin
        self._context = context
        self._segments = segments
        self._key = key
        self._index_interval_bytes = index_interval_bytes
        self._log_start = log_start
        self._ended = ended
        self._recovered = recovered
        self._unread = unread
        self._due: list[_Due] = []
        self._rounds = 0
        self._made: Checkpoint | None = None  # the last index made from a whole segment
        self._damage = Counter[SegmentName]()  # rounds that found a segment damaged, or its index refused
        self._failed: tuple[int, Exception] | None = None  # end offset of the last segment that failed, and the error

    async def write(self) -> None:
        """Write the indexes whose content is known; do the other work later, and go on while storage takes no index."""
        self._due = await self._at_once()
        self._go_on_later()

    def _go_on_later(self) -> None:
        if self._due:
            self._rounds += 1
            pause_ms = PAUSES_MS.pause(self._rounds)
            self._context.index_rounds.later(pause_ms, lambda: self._begin(self._round))

    async def _round(self) -> None:
        self._failed = None
        self._due = [each for each in self._due if not await self._is_done(each, self._rounds)]
        self._made = None  # it may be large, and the pause long
        self._go_on_later()

    async def _at_once(self) -> list[_Due]:
        """Write the indexes whose content is known; return the other work, and keep nothing else."""
        recovered, self._recovered = self._recovered, ()
        due = [_Due(each, partial(self._read_whole, each)) for each in self._unread]
        for segment in recovered:
            if not segment.has_whole_index:
                due.append(_Due(segment, partial(self._read_again, segment)))
            elif await self._is_written(segment):
                self._ended(segment.name)
            else:
                due.append(_Due(segment, partial(_itself, segment)))
        return due

    async def _is_written(self, segment: RecoveredSegment) -> bool:
        for _ in range(ATTEMPTS):
            try:
                await self._publish(self._index_of(segment))
                return True
            except StorageError:
                continue
        return False

    async def _is_done(self, due: _Due, rounds: int) -> bool:
        """Write the index if it is still missing; return whether no more work is due on it."""
        try:
            async with self._context.late_indexes:  # held across the read: it bounds how many run at once
                if not await self._has_index(due.segment):
                    await self._publish(self._index_of(await due.read()))
        except NoSuchFile:
            pass  # deleted meanwhile
        except (StorageError, FormatError) as error:
            self._damage[due.segment.name] += isinstance(error, FormatError | CorruptData | Unsupported)
            is_given_up = self._damage[due.segment.name] >= ATTEMPTS
            if rounds == ATTEMPTS or is_given_up:
                text = "could not write the index of a segment; readers scan the segment"
                path = self._segments.path
                self._context.report(text, **path.log_fields, path=path.idx(due.segment.name), error=repr(error))
            if not is_given_up:
                return False
        self._ended(due.segment.name)
        return True

    async def _publish(self, index: Checkpoint) -> None:
        await self._segments.write_idx(index.segment, index)

    async def _has_index(self, segment: UnreadSegment | RecoveredSegment) -> bool:
        """Return whether the segment has a sound index up to its end."""
        indexed_to = await self._segments.idx_end(segment.name)
        if indexed_to >= segment.end_offset or indexed_to < 0:
            return indexed_to >= 0
        return isinstance(segment, UnreadSegment) and indexed_to >= await self._end_of(segment)

    async def _read_again(self, segment: RecoveredSegment) -> RecoveredSegment:
        """Read a segment again from its beginning: an index without its first entries would be believed."""
        return await index_again(self._context.fs, self._segments.path, segment, self._index_interval_bytes)

    async def _read_whole(self, entry: UnreadSegment) -> RecoveredSegment:
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


async def _itself(segment: RecoveredSegment) -> RecoveredSegment:
    return segment
