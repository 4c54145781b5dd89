"""Reading one partition's log: whole batches by offset, and the search for a timestamp.

A ``LogReader`` belongs to one partition and is small; its reads go through the process's ``BlockCache``.  These are the
bounds of a read (rules 2 and 5):

* A segment's bytes count up to the first batch that reaches its end (the next segment's base) or the ``end_offset``
  that the caller gives, a high watermark.  Bytes behind were never acknowledged, or are written again elsewhere.
* Bytes are kept for other readers only as far as they are certain: see ``storage/block_cache.py``.

The result is whole batches, the first of which holds the requested offset.  Compaction leaves empty batches; a client
that gets only these takes them for the end, or asks for more bytes.  So a read passes over them.  Headers are
checked (size, magic, dense offsets), record CRCs are not: the consumer checks those.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol

from bmq.core.aio.lru import LruCache
from bmq.core.aio.turns import Turns, next_turn
from bmq.core.model import SegmentName
from bmq.core.records.batch import HEADER_BYTES, TRANSACTIONAL, Batch
from bmq.core.records.cursor import BatchCheck, BatchCursor, CursorStep, read_batches
from bmq.core.records.reader import TimestampAndOffset, first_not_older
from bmq.storage.aborted import RecentAborted, SegmentTransactions
from bmq.storage.block_cache import BlockCache, SegmentKnowledge
from bmq.storage.checkpoint import AbortedTransaction
from bmq.storage.filesystem import Buffer, CorruptData, NoSuchFile, StorageError
from bmq.storage.index import SegmentIndex
from bmq.storage.layout import PartitionPath
from bmq.storage.log_segments import Extent, LogSegments

_STREAMS_MAX = 64
KEPT_SHARE = 4
"""Divisor: records that are less of their blocks than this share are copied, since views keep whole blocks alive."""
REFRESHES_MAX = 2
"""Listings after which a read tries again: a segment that the first listing shows may be merged or deleted, too."""
REFINE_BYTES_MAX = 1 << 20
"""Batches up to this size are searched record by record."""
REFINE_INFLATED_MAX = 4 << 20
"""The bound of their size once decompressed: some 50 ms at 100 bytes a record, once a search."""


class OffsetNotFound(LookupError):
    """Storage has no segment for the offset: it was deleted, or never existed.

    A caller must ask the owner before it reports this to a client.
    """

    def __init__(self, path: PartitionPath, offset: int, first_offset: int | None) -> None:
        super().__init__(f"{path}: no segment holds offset {offset}, the first begins at {first_offset}")
        self.offset = offset
        self.first_offset = first_offset


class MissingRecords(CorruptData):
    """A segment ends before the offset that its name and the watermark promise: bytes are gone."""


class SegmentReplaced(StorageError):
    """The segment that was read has been merged or cleaned, and its index is gone: read its records again."""


class TransactionsUnknown(StorageError):
    """The index of a closed segment is missing, so it is not known which of its transactions were aborted."""


@dataclass(frozen=True, slots=True)
class ActiveSegment:
    """The active segment, Kafka's word for the one being written: from its owner, or from a checkpoint.

    Its bytes are flushed up to ``position``, where the batch of ``end_offset`` will begin.  ``index`` is only read.
    """

    name: SegmentName
    position: int
    end_offset: int
    index: SegmentIndex


class HeldRecords(Protocol):
    """The newest records of a partition, which the caller has in memory: whole batches without gaps, from ``start`` on.

    Batches may be added, and the oldest removed, while a read is under way.
    """

    @property
    def start(self) -> int:
        """The first offset."""

    def size_until(self, offset: int) -> int | None:
        """Return the bytes of the batches [``start``, ``offset``); None if no batch of them ends at ``offset``."""


@dataclass(frozen=True, slots=True)
class LogSlice:
    """Whole batches, one after another, of ``size`` bytes: views of blocks, or a copy.

    ``kept_bytes`` is the memory that they keep alive, also when the blocks are cached no longer.  ``end_offset`` is the
    offset behind the last of them; ``aborted`` are the aborted transactions that a reader needs, if it asked for them.
    ``segment`` is their segment; None if there are no batches.
    """

    buffers: Sequence[Buffer] = ()
    size: int = 0
    kept_bytes: int = 0
    end_offset: int = 0
    aborted: Sequence[AbortedTransaction] = ()
    segment: SegmentName | None = None


# ---------------------------------------------------------------------------------------------------- one segment


class SegmentCursor:
    """A cursor that steps from batch to batch of one segment, by headers, as far as the segment may be read.

    ``start`` is (offset, position) of the first batch.  ``stop`` is the first offset that must not be shown;
    ``watermark`` is the high watermark of the caller, under which reads of uncertain bytes are shared.  Blocks are read
    as far as ``until``, a position, while that suffices; None: as far as is certain.  After a ``step`` the current
    batch is [``position``, ``end``).
    """

    def __init__(
        self,
        pool: BlockCache,
        path: str,
        facts: SegmentKnowledge,
        start: tuple[int, int],
        stop: int,
        watermark: int,
        until: int | None = None,
    ):
        self.facts = facts
        self._until = until
        self.kept_from: int | None = None  # bytes from here on stay in the buffer; None: from the batch's beginning
        self.run = 1  # blocks to read at once
        self._cursor = BatchCursor(start[1], start[0], check=BatchCheck.HEADER, stop=stop)
        self._pool = pool
        self._path = path
        self._stop = stop
        self._watermark = watermark
        self._pieces: deque[tuple[int, memoryview]] = deque()  # of blocks, in order and without gaps
        self._reached = start[1]  # where the last piece ends
        self._opened: dict[int, Buffer] = {}
        self._data, self._data_at = memoryview(b""), 0  # the current batch's header

    @property
    def header(self) -> Batch:
        """The current batch's header: a view of that alone."""
        return Batch(self._data[self._data_at : self._data_at + HEADER_BYTES])

    @property
    def position(self) -> int:
        """The position of the current batch."""
        return self._cursor.start

    @property
    def end(self) -> int:
        """The position behind the current batch."""
        return self._cursor.position

    @property
    def next_offset(self) -> int:
        """The offset behind the current batch."""
        return self._cursor.next_offset

    async def step(self) -> bool:
        """Step to the next batch that lies wholly below ``stop``; return False if there is none.

        Raises CorruptData if no right header stands there, MissingRecords if the file ends first.
        """
        cursor = self._cursor
        data, at = self._at(cursor.position)
        while (step := cursor.step(data, at)) is CursorStep.MORE:
            await self._fill(cursor.position, cursor.wanted)
            data, at = self._at(cursor.position)
        if step is CursorStep.DAMAGED:
            raise CorruptData(f"{self._path} at {cursor.position}, offset {cursor.next_offset}: {cursor.fault}")
        if step is CursorStep.END or cursor.next_offset > self._stop:
            return False
        self._data, self._data_at = data, at
        if cursor.start == self.facts.known_position and self.facts.is_ours:
            self.facts.extend(self.header)
        return True

    @property
    def is_loaded(self) -> bool:
        """True if the whole current batch was read, not only its header."""
        return self._cursor.position <= self._reached

    async def load(self) -> None:
        """Read the whole current batch."""
        await self._fill(self.position, self._cursor.size)

    def copy(self, start: int, end: int) -> bytes:
        """Return the bytes of [start, end), which must have been loaded and kept."""
        return b"".join(self.views(start, end))

    def views(self, start: int, end: int) -> list[memoryview]:
        """Return the bytes of [start, end), which must have been loaded and kept, as views of their blocks."""
        return [
            piece[max(0, start - at) : end - at] for at, piece in self._pieces if start < at + len(piece) and at < end
        ]

    def finish(self) -> None:
        """Give the bytes and the index entries that have become certain to the cache."""
        if not self.facts.is_ours:
            return
        block = self._pool.config.block_bytes
        for number, data in self._opened.items():
            certain = self.facts.known_position - number * block
            if certain > 0:
                self._pool.keep(self._path, number, data if certain >= len(data) else data[:certain])
        self._pool.keep_facts(self._path, self.facts)

    def _at(self, position: int) -> tuple[memoryview, int]:
        """Return the header at ``position``, as far as ``_fill`` has read it, as (bytes, position in these)."""
        for at, piece in reversed(self._pieces):
            if at <= position:
                if position + HEADER_BYTES <= at + len(piece):
                    return piece, position - at
                break
        return memoryview(self.copy(position, position + HEADER_BYTES)), 0

    async def _fill(self, position: int, length: int) -> None:
        """Read the pieces of [position, position + length), and drop those before the kept bytes."""
        if position + length <= self._reached:
            return
        kept_from = position if self.kept_from is None else self.kept_from
        pieces = self._pieces
        while pieces and pieces[0][0] + len(pieces[0][1]) <= kept_from:
            pieces.popleft()
        if not pieces:
            self._reached = kept_from
        block = self._pool.config.block_bytes
        while self._reached < position + length:
            reached = self._reached
            number = reached // block
            data = await self._block(number, reached)
            piece = memoryview(data)[reached - number * block :]
            if not piece:
                raise MissingRecords(
                    f"{self._path} ends at {reached}: offset {self.next_offset} is missing, {self._stop} is promised"
                )
            pieces.append((reached, piece))
            self._reached += len(piece)

    @property
    def wanted_until(self) -> int:
        """The position as far as blocks are read, and read ahead."""
        known = self.facts.known_position
        return known if self._until is None else min(known, self._until)

    async def _block(self, number: int, reached: int) -> Buffer:
        known = self.facts.known_position
        if reached < known:
            wanted = self.wanted_until
            certain = wanted if reached < wanted else known
            return await self._pool.certain_block(self._path, number, certain, self.run)
        data = await self._pool.open(self._path, number, self._watermark)
        self._opened[number] = data
        return data


# -------------------------------------------------------------------------------------------------- one partition


class _Search:
    """The search of a read for the first batch with records, from segment to segment.

    ``offset`` is the place where it goes on.  With ``takes_gaps`` it ends at any batch.
    """

    __slots__ = ("_first", "active", "end_offset", "held", "max_bytes", "offset", "takes_gaps")

    def __init__(
        self, offset: int, max_bytes: int, end_offset: int, active: ActiveSegment | None, held: HeldRecords | None
    ) -> None:
        self.offset = self._first = offset
        self.max_bytes = max_bytes
        self.end_offset = end_offset
        self.active = active
        self.held = held
        self.takes_gaps = False

    def take_gaps(self) -> bool:
        """Go back to the beginning and take the batches there; return False if none was passed over."""
        if self.offset == self._first:
            return False
        self.offset, self.takes_gaps = self._first, True
        return True


class LogReader:
    """A reader of one partition's log.  It serves any number of reads at once; a cancelled one disturbs no other."""

    def __init__(self, pool: BlockCache, path: PartitionPath, segments: LogSegments | None = None) -> None:
        self.pool = pool
        self.path = path
        self.segments = segments or LogSegments(pool.fs, path, pool.progress)
        # Where sequential reads go on, each with the number of blocks that it may have read at once.
        self._streams: LruCache[tuple[SegmentName, int], int] = LruCache(_STREAMS_MAX)
        self._maxima: dict[Extent, int] = {}  # largest timestamp of a closed segment

    def __repr__(self) -> str:
        return f"<LogReader {self.segments!r} streams={len(self._streams)}>"

    async def read(self, offset: int, max_bytes: int, end_offset: int, *, active: ActiveSegment | None = None) -> bytes:
        """Return what ``read_slice`` returns, as one copy."""
        return b"".join((await self.read_slice(offset, max_bytes, end_offset, active=active)).buffers)

    async def read_slice(
        self,
        offset: int,
        max_bytes: int,
        end_offset: int,
        *,
        active: ActiveSegment | None = None,
        held: HeldRecords | None = None,
    ) -> LogSlice:
        """Return whole batches of one segment, the first of which holds ``offset``.

        Empty batches there are passed over, up to the next batch with records, in this segment or a later segment.  If
        only empty batches are left below ``end_offset``, they are the result.

        They are at most ``max_bytes`` long, but at least one batch.  None reaches ``end_offset``, a high watermark that
        the caller got from the owner before this call; the result is empty if the batch at ``offset`` is not wholly
        below it.  ``active_segment`` saves the listing and the scan of the owner's newest segment.  If ``held`` begins
        behind ``offset``, its records are neither returned nor, where their position is known, read from storage.

        Raises OffsetNotFound if no segment holds the offset, CorruptData if the batch is damaged or missing, NoSuchFile
        if files are gone in each of several listings, and other StorageErrors as storage does.
        """
        if offset >= end_offset:
            return LogSlice()
        search = _Search(offset, max_bytes, end_offset, active, held)
        for attempt in range(REFRESHES_MAX + 1):
            await self.segments.cover(end_offset, active.name if active is not None else None)
            extent = self.segments.find(search.offset)
            if extent is None:
                break
            try:
                while (records := await self._read_extent(extent, search)) is None:
                    extent = self.segments.find(search.offset) or extent
                return records
            except NoSuchFile:
                if attempt == REFRESHES_MAX:
                    raise
                await self.segments.refresh(extent.name)
            except CorruptData:  # a repair may have replaced the file since it was read
                if attempt == REFRESHES_MAX or not self.pool.forget(self.path.log(extent.name)):
                    if not search.take_gaps():
                        raise
                    first = self.segments.find(offset)  # the read at the damage, behind the gaps, raises
                    return (first and await self._read_extent(first, search)) or LogSlice()
        raise OffsetNotFound(self.path, offset, self.segments.first_offset)

    async def _read_extent(self, extent: Extent, search: _Search) -> LogSlice | None:
        """Return batches of one segment; None if the search is to go on at the offset that it then has."""
        offset, end_offset, active, held = search.offset, search.end_offset, search.active, search.held
        facts = await self._facts(extent, offset, active)
        start = facts.start_for(offset, extent.name.base)
        if held is None or held.start <= offset:
            walk = self._walk(extent, facts, start, end_offset)
        else:
            walk = self._walk(extent, facts, start, end_offset, held.start, _position_of(held, facts))
        turns, asked = Turns(), -1
        try:
            while await walk.step():
                if walk.next_offset > offset:
                    if asked < 0:
                        asked = walk.position
                    if walk.header.count or search.takes_gaps:
                        return await self._collect(extent, walk, search.max_bytes, asked)
                    search.offset = walk.next_offset
                    if turns.is_over():
                        await next_turn()
        finally:
            walk.finish()
        search.held = None  # a record behind the gaps may be held only: it is on storage, too
        is_over = search.offset == offset or search.offset >= end_offset
        return None if not is_over or search.take_gaps() else LogSlice()

    async def _collect(self, extent: Extent, walk: SegmentCursor, max_bytes: int, asked: int) -> LogSlice:
        """Return the walk's current batch and those behind it.  ``asked`` is the position of the offset asked for."""
        start = walk.kept_from = walk.position
        run = self._streams.pop((extent.name, asked))
        is_next = asked == 0 or run is not None
        walk.run = run or 1
        await walk.load()
        end, end_offset = walk.end, walk.next_offset
        with contextlib.suppress(CorruptData):  # the batches before the damage are returned; the next read raises
            while end - start + HEADER_BYTES <= max_bytes and await walk.step() and walk.end - start <= max_bytes:
                if not walk.is_loaded:
                    await walk.load()
                end, end_offset = walk.end, walk.next_offset
        next_run = min(2 * walk.run, self.pool.config.run_blocks) if is_next else 1
        # A second reader at the same place, which finds the stream taken, does not begin it again.
        self._streams.put((extent.name, end), max(next_run, self._streams.peek((extent.name, end)) or 1))
        if is_next:
            number = -(-end // self.pool.config.block_bytes)
            self.pool.read_ahead(self.path.log(extent.name), number, walk.wanted_until, walk.run)
        return _slice(walk.views(start, end), end - start, end_offset, extent.name)

    def _walk(
        self,
        extent: Extent,
        facts: SegmentKnowledge,
        start: tuple[int, int],
        end_offset: int,
        held_from: int | None = None,
        until: int | None = None,
    ) -> SegmentCursor:
        """Return a walk from ``start``, as far as the segment and the caller's records go.

        ``held_from`` is the first offset that the caller holds, ``until`` its position; None: unknown.
        """
        stop = min(each for each in (end_offset, extent.end, held_from) if each is not None)
        return SegmentCursor(self.pool, self.path.log(extent.name), facts, start, stop, end_offset, until)

    async def _facts(self, extent: Extent, offset: int, active: ActiveSegment | None) -> SegmentKnowledge:
        """Return what is known of the segment, from its ``.idx`` too if that may reach further, to ``offset``.

        The ``.idx`` is read again when the segment's end has changed (it was closed, or merged with its neighbour).
        That of a closed segment is read again for as long as it is missing: the owner may be about to write it.
        """
        if active is not None and active.name == extent.name:
            return SegmentKnowledge(active.index, active.end_offset, active.position, is_ours=False)
        path = self.path.log(extent.name)
        facts = self.pool.facts(path) or SegmentKnowledge(SegmentIndex(), extent.name.base, 0, is_ours=True)
        if offset < facts.known_offset or facts.asked_end == extent.end:
            return facts
        checkpoint = await self.pool.index(self.path.idx(extent.name))
        if checkpoint is not None and checkpoint.end_offset > facts.known_offset:
            index = SegmentIndex(entries=checkpoint.index)
            index.max_timestamp = checkpoint.max_timestamp
            facts = SegmentKnowledge(index, checkpoint.end_offset, checkpoint.position, is_ours=True)
        if checkpoint is not None:
            facts.transactions = SegmentTransactions.of(checkpoint)
        if checkpoint is not None or extent.end is None:
            facts.asked_end = extent.end
        self.pool.keep_facts(path, facts)
        return facts

    # Aborted transactions

    async def read_with_aborted(
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
        """Return the batches of ``read_slice``, with the aborted transactions that their reader needs.

        If the segment was replaced meanwhile, the batches are read again.  See ``read_slice`` and ``with_aborted`` for
        the arguments and the exceptions.
        """
        for attempt in range(REFRESHES_MAX + 1):
            records = await self.read_slice(offset, max_bytes, end_offset, active=active, held=held)
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
                await self.segments.cover(until, active.name if active is not None else None)
            aborted, missing = await self._collect_aborted(start, records.end_offset, until, recent)
            if missing is None:
                self._check_segment(records)
                return replace(records, aborted=aborted) if aborted else records
            if not _have_transactions(records):
                return records
            if attempt < REFRESHES_MAX:
                await self.segments.refresh(missing)  # it may have been merged, or indexed meanwhile
        assert missing is not None
        raise TransactionsUnknown(
            f"{self.path.idx(missing)} is missing, and offsets {start} to {records.end_offset} hold transactions:"
            " `bmq segment repair TOPIC PARTITION --all --yes` writes the index again"
        )

    def _check_segment(self, records: LogSlice) -> None:
        """Raise SegmentReplaced if transactions of the records may be listed in indexes that are gone.

        The index of a cleaned segment lists only transactions with data in the round's sources.  Cached bytes may be
        older than several rounds.
        """
        extent = self.segments.find(records.end_offset - 1)
        if extent is not None and extent.name != records.segment and _have_transactions(records):
            raise SegmentReplaced(f"{self.path.log(extent.name)} has replaced the segment that was read")

    async def _collect_aborted(
        self, start: int, end: int, until: int, recent: RecentAborted | None
    ) -> tuple[list[AbortedTransaction], SegmentName | None]:
        """Return the aborted transactions of [start, end), and the segment whose index is missing; None: all are known.

        The walk ends at the offset ``until``, or where no transaction is open that began below ``end``.
        """
        found: list[AbortedTransaction] = []
        reached = start  # every marker below it was looked at
        for extent in self.segments.between(start, until):
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
        path = self.path.log(extent.name)
        facts = self.pool.facts(path)
        if facts is None:
            facts = await self._facts(extent, extent.name.base, None)
        if facts.transactions is None or facts.transactions.end < wanted:
            checkpoint = await self.pool.index(self.path.idx(extent.name))
            if checkpoint is None or checkpoint.end_offset < wanted:
                return None
            facts.transactions = SegmentTransactions.of(checkpoint)
            self.pool.keep_facts(path, facts)
        return facts.transactions

    # By timestamp

    async def offset_for_timestamp(
        self, timestamp: int, end_offset: int, *, start_offset: int = 0, active: ActiveSegment | None = None
    ) -> TimestampAndOffset | None:
        """Return the first record in [start_offset, end_offset) whose timestamp is at least ``timestamp``, or None.

        The result is exact, except in batches that are too large to search (``REFINE_BYTES_MAX``,
        ``REFINE_INFLATED_MAX``) or cannot be decoded: there it is the batch's base offset (or ``start_offset``) with
        the batch's largest timestamp, at or before the right record, so that nothing is skipped.  The search costs one
        small read for each segment that was not searched before, since timestamps need not rise from segment to
        segment.  Raises what ``read`` raises, except OffsetNotFound.
        """
        for attempt in range(REFRESHES_MAX + 1):
            await self.segments.cover(end_offset, active.name if active is not None else None)
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
            await self.segments.refresh(missing)
        raise AssertionError("the last attempt returns or raises")

    async def _candidates(self, timestamp: int, start: int, end: int) -> AsyncIterator[Extent]:
        """Give the segments that may hold a record of ``timestamp`` or later; a few indexes are read at once."""
        extents = self.segments.between(start, end)
        if len(self._maxima) > 2 * len(self.segments) + 16:
            self._maxima.clear()  # segments deleted or merged since
        while window := list(islice(extents, self.pool.config.parallel_indexes)):
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
        checkpoint = await self.pool.index(self.path.idx(extent.name))
        if checkpoint is None or checkpoint.end_offset != extent.end:
            return None
        self._maxima[extent] = checkpoint.max_timestamp
        return checkpoint.max_timestamp

    async def _search(
        self, extent: Extent, timestamp: int, start_offset: int, end_offset: int, active: ActiveSegment | None
    ) -> TimestampAndOffset | None:
        facts = await self._facts(extent, max(extent.name.base, start_offset), active)
        start = facts.start_for_timestamp(timestamp, extent.name.base)
        if start_offset > start[0]:
            start = max(start, facts.start_for(start_offset, extent.name.base))
        walk = self._walk(extent, facts, start, end_offset)
        try:
            while await walk.step():
                if walk.next_offset > start_offset and walk.header.max_timestamp >= timestamp:
                    found = await _refine(walk, timestamp, start_offset)
                    if found is not None:
                        return found
            return None
        finally:
            walk.finish()


def _have_transactions(records: LogSlice) -> bool:
    """Return whether a batch of these belongs to a transaction, or ends one."""
    data = memoryview(records.buffers[0] if len(records.buffers) == 1 else b"".join(records.buffers))
    return any(batch.attributes & TRANSACTIONAL for batch in read_batches(data))


def _position_of(held: HeldRecords, facts: SegmentKnowledge) -> int | None:
    """Return the segment's position at which ``held`` begins, or of the next index entry; None if neither is known."""
    size = held.size_until(facts.known_offset)
    if size is not None:
        return facts.known_position - size
    return facts.index.next_position(held.start)


def _slice(views: Sequence[memoryview], size: int, end_offset: int, segment: SegmentName) -> LogSlice:
    """Return the views, or a copy of their bytes if they would keep far more alive."""
    blocks = {id(view.obj): memoryview(view.obj).nbytes for view in views}
    kept = sum(blocks.values())
    if kept > KEPT_SHARE * size:
        return LogSlice((b"".join(views),), size, size, end_offset, segment=segment)
    return LogSlice(views, size, kept, end_offset, segment=segment)


async def _refine(walk: SegmentCursor, timestamp: int, start_offset: int) -> TimestampAndOffset | None:
    """Search the current batch for the record; None if it has none.  See ``offset_for_timestamp``."""
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
