"""Reads with the aborted transactions that readers of committed records need."""

from __future__ import annotations

from dataclasses import replace

from bmq.core.model import SegmentName
from bmq.core.records.batch import TRANSACTIONAL
from bmq.core.records.cursor import read_batches
from bmq.storage.aborted import RecentAborted, SegmentTransactions
from bmq.storage.checkpoint import AbortedTransaction
from bmq.storage.filesystem import StorageError
from bmq.storage.log_reader import REFRESHES_MAX, ActiveSegment, HeldRecords, LogReader, LogSlice
from bmq.storage.log_segments import Extent


class SegmentReplaced(StorageError):
    """The segment that was read has been merged or cleaned, and its index is gone: read its records again."""


class TransactionsUnknown(StorageError):
    """The index of a closed segment is missing, so it is not known which of its transactions were aborted."""


class AbortedReader:
    """A reader of one partition's log for consumers of committed records.  It keeps nothing of its own."""

    __slots__ = ("_path", "_pool", "_reader", "_segments")

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._pool = reader.pool
        self._path = reader.path
        self._segments = reader.segments

    async def read(
        self,
        offset: int,
        max_bytes: int,
        end_offset: int,
        watermark: int,
        *,
        active: ActiveSegment | None = None,
        recent: RecentAborted | None = None,
        held: HeldRecords | None = None,
    ) -> LogSlice:
        """Return the batches of ``LogReader.read_slice``, with the aborted transactions that their reader needs.

        If the segment was replaced meanwhile, the batches are read again.  See ``LogReader.read_slice`` and
        ``with_aborted`` for the arguments and the exceptions.
        """
        for attempt in range(REFRESHES_MAX + 1):
            records = await self._reader.read_slice(offset, max_bytes, end_offset, active=active, held=held)
            try:
                return await self.with_aborted(records, offset, watermark, active=active, recent=recent)
            except SegmentReplaced:
                if attempt == REFRESHES_MAX:
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def with_aborted(
        self,
        records: LogSlice,
        start: int,
        watermark: int,
        *,
        active: ActiveSegment | None = None,
        recent: RecentAborted | None = None,
    ) -> LogSlice:
        """Return ``records``, read from offset ``start`` on, with the aborted transactions that their reader needs.

        ``recent`` is what the owner has in memory.  The caller got it before this call, when every transaction in the
        range was decided.  Without it ``watermark`` bounds the search.  A segment's index says how far its
        own list suffices, so in a log without transactions nothing more is read.  If an index is missing, records
        without transactions need no list.  Raises TransactionsUnknown for others, SegmentReplaced if the records have
        to be read again, and what storage raises.
        """
        if not records.size:
            return records
        until = watermark if recent is None else recent.since
        for attempt in range(REFRESHES_MAX + 1):
            if until > start:
                await self._segments.cover(until, active.name if active is not None else None)
            aborted, missing = await self._collect_aborted(start, records.end_offset, until, recent)
            if missing is None:
                self._check_segment(records)
                return replace(records, aborted=aborted) if aborted else records
            if not _have_transactions(records):
                return records
            if attempt < REFRESHES_MAX:
                await self._segments.refresh(missing)  # it may have been merged, or indexed meanwhile
        assert missing is not None
        raise TransactionsUnknown(
            f"{self._path.idx(missing)} is missing, and offsets {start} to {records.end_offset} hold transactions:"
            " `bmq segment repair TOPIC PARTITION --all --yes` writes the index again"
        )

    def _check_segment(self, records: LogSlice) -> None:
        """Raise SegmentReplaced if transactions of the records may be listed in indexes that are gone.

        The index of a cleaned segment lists only transactions with data in the round's sources.  Cached bytes may be
        older than several rounds.
        """
        extent = self._segments.find(records.end_offset - 1)
        if extent is not None and extent.name != records.segment and _have_transactions(records):
            raise SegmentReplaced(f"{self._path.log(extent.name)} has replaced the segment that was read")

    async def _collect_aborted(
        self, start: int, end: int, until: int, recent: RecentAborted | None
    ) -> tuple[list[AbortedTransaction], SegmentName | None]:
        """Return the aborted transactions of [start, end), and the segment whose index is missing; None: all are known.

        The walk ends at the offset ``until``, or where no transaction is open that began below ``end``.
        """
        found: list[AbortedTransaction] = []
        reached = start  # every marker below it was looked at
        for extent in self._segments.between(start, until):
            if extent.end is not None and extent.end <= reached:
                continue  # a merge has put it into the segment before
            known = await self._transactions(extent, until)
            if known is None:
                return [], extent.name
            found += known.aborted.overlapping(reached, end)[0]
            if known.are_decided(end):
                return found, None
            reached = max(reached, known.end)
        if recent is not None:
            found += recent.overlapping(reached, end)
        return found, None

    async def _transactions(self, extent: Extent, until: int) -> SegmentTransactions | None:
        """Return the transactions of a closed segment from its index; None if it is missing or ends too early."""
        wanted = until if extent.end is None else min(until, extent.end)
        path = self._path.log(extent.name)
        facts = self._pool.facts(path)
        if facts is None:
            facts = await self._reader.facts(extent, extent.name.base, None)
        if facts.transactions is None or facts.transactions.end < wanted:
            checkpoint = await self._pool.index(self._path.idx(extent.name))
            if checkpoint is None or checkpoint.end_offset < wanted:
                return None
            facts.transactions = SegmentTransactions.of(checkpoint)
            self._pool.keep_facts(path, facts)
        return facts.transactions


def _have_transactions(records: LogSlice) -> bool:
    """Return whether a batch of these belongs to a transaction, or ends one."""
    data = memoryview(records.buffers[0] if len(records.buffers) == 1 else b"".join(records.buffers))
    return any(batch.attributes & TRANSACTIONAL for batch in read_batches(data))
