"""Reading one partition's log: whole batches by offset.

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

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from bmq.core.aio.lru import LruCache
from bmq.core.aio.turns import Turns, next_turn
from bmq.core.model import SegmentName
from bmq.core.records.batch import HEADER_BYTES
from bmq.storage.aborted import SegmentTransactions
from bmq.storage.block_cache import BlockCache, SegmentKnowledge
from bmq.storage.checkpoint import AbortedTransaction
from bmq.storage.filesystem import Buffer, CorruptData, NoSuchFile
from bmq.storage.index import SegmentIndex
from bmq.storage.layout import PartitionPath
from bmq.storage.log_segments import Extent, LogSegments
from bmq.storage.segment_cursor import SegmentCursor

_STREAMS_MAX = 64
KEPT_SHARE = 4
"""Divisor: records that are less of their blocks than this share are copied, since views keep whole blocks alive."""
REFRESHES_MAX = 2
"""Listings after which a read tries again: a segment that the first listing shows may be merged or deleted, too."""


class OffsetNotFound(LookupError):
    """Storage has no segment for the offset: it was deleted, or never existed.

    A caller must ask the owner before it reports this to a client.
    """

    def __init__(self, path: PartitionPath, offset: int, first_offset: int | None) -> None:
        super().__init__(f"{path}: no segment holds offset {offset}, the first begins at {first_offset}")
        self.offset = offset
        self.first_offset = first_offset


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
        facts = await self.facts(extent, offset, active)
        start = facts.start_for(offset, extent.name.base)
        if held is None or held.start <= offset:
            walk = self.walk(extent, facts, start, end_offset)
        else:
            walk = self.walk(extent, facts, start, end_offset, held.start, _position_of(held, facts))
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

    def walk(
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

    async def facts(self, extent: Extent, offset: int, active: ActiveSegment | None) -> SegmentKnowledge:
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
