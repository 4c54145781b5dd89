"""One partition's log as storage shows it: its ends, and what indexes tell of a range of it.

A folder's names are its segments (rules 3 and 5).  A segment is registered when all before its base is flushed, so the
log reaches at least to the newest segment's base; further as that one's ``.idx`` says, or as a checkpoint says of it.

Reads are bounded: an index is read for the segments of the range (and, for a timestamp, for those that a binary search
meets), never for all that the folder holds.  A segment whose index is missing or covers only its beginning is stepped
through once, by headers, from where the knowledge ends: it was just closed, or is being joined with its neighbour.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import TypeVar

from bmq.core.errors import FormatError
from bmq.core.records.batch import Batch, split_batches
from bmq.spark.decoding.framing import Framer, Misframed
from bmq.spark.options import LATEST, ByOffset, ByTimestamp, Edge, OffsetLimit, OptionError, ReadOptions
from bmq.spark.planning.index_cache import IndexCache
from bmq.spark.planning.segment_scan import Scan, facts_of, first_in, place_for_timestamp, shortened
from bmq.spark.planning.slices import (
    OFFSET_MAX,
    PartitionLog,
    Range,
    Segment,
    SegmentFacts,
    Slice,
    leave_out,
    resolve,
    slices,
)
from bmq.storage.checkpoint import AbortedTransaction, Checkpoint
from bmq.storage.filesystem import FileSystem, NoSuchFile
from bmq.storage.layout import PartitionPath
from bmq.storage.log_segments import Listed, walk
from bmq.storage.segment import decode_idx

INDEXES_AT_ONCE = 16
DISORDER = 8
"""Segments looked at before the one that a search for a timestamp finds: so far may timestamps be out of order."""
DISORDER_ROUNDS = 4
SCAN_BYTES = 1 << 20
_IDX_READ_BYTES = 256 << 10

T = TypeVar("T")
U = TypeVar("U")


class LogView:
    """One partition, as it stood when it was looked at.  ``log`` says what may be read."""

    def __init__(
        self,
        fs: FileSystem,
        path: PartitionPath,
        checkpoint: Checkpoint | None,
        cache: IndexCache | None = None,
        *,
        has_holes: bool = False,
    ) -> None:
        self._fs = fs
        self._cache = cache
        self._checkpoint = checkpoint
        self._newest: SegmentFacts | None = None  # of the last segment, when its end had to be found
        self.path = path
        self.log = PartitionLog(
            topic=path.topic, topic_id=path.topic_id, partition=path.partition, start=0, end=0, has_holes=has_holes
        )
        self.flushed = 0  # where the log ends for whoever reads open transactions too
        self.losses: list[str] = []

    def __repr__(self) -> str:
        return f"<LogView {self.path} [{self.log.start}, {self.log.end}) {len(self.log.segments)} segments>"

    @classmethod
    async def open(
        cls,
        fs: FileSystem,
        path: PartitionPath,
        checkpoint: Checkpoint | None,
        *,
        committed: bool,
        to_visible_end: bool,
        has_holes: bool = False,
    ) -> LogView:
        """List and read what there is of a partition; ``checkpoint`` was read before this call."""
        listed = [each async for each in walk(fs, path) if each.is_live]
        view = cls(fs, path, checkpoint, has_holes=has_holes)
        return await view.over(listed, committed=committed, to_visible_end=to_visible_end)

    async def over(self, listed: Sequence[Listed], *, committed: bool, to_visible_end: bool = False) -> LogView:
        """This view, of these live segments: all that the folder shows, or the newest, the last one among them."""
        checkpoint = self._checkpoint
        known = [checkpoint] if checkpoint is not None else []
        if not listed:
            end = max((each.end_offset for each in known), default=0)
            self.log = replace(self.log, start=end, end=end)
            self.flushed = end
            return self
        last = listed[-1]
        index = None
        if last.has_idx:
            index = await self._read_idx(Segment(name=last.name, end=0, length=last.length, has_idx=True))
            known += [index] if index is not None else []
        newest = max(known, key=lambda each: each.order, default=None)
        end = max([last.name.base, *(each.end_offset for each in known)])
        segments = tuple(
            Segment(name=each.name, end=end if each.end is None else each.end, length=each.length, has_idx=each.has_idx)
            for each in listed
        )
        start = max([segments[0].name.base, *(each.log_start for each in known)])
        self.log = replace(self.log, start=min(start, end), end=end, segments=segments)
        if last.has_idx:
            self._newest = None if index is None or index.end_offset != end else facts_of(segments[-1], index)
        else:
            await self._look_at_open_end(to_visible_end=to_visible_end)
        self.flushed = self.log.end
        if committed:
            if newest is not None and newest.end_offset >= end:
                first_open = newest.first_open_txn
            else:  # the end is the last segment's base: only what lies before it tells of transactions open there
                opened = await self._open_before(segments[-1])
                first_open = min((first for _, first in opened), default=-1)
            if first_open >= 0:
                self._limit(first_open)
        return self

    async def _look_at_open_end(self, *, to_visible_end: bool) -> None:
        """The last segment is open: go on to what is visible, or stop at what this root can show of it."""
        last = self.log.segments[-1]
        facts = self._told(last)
        if to_visible_end:
            visible = await self._fs.visible_length(self.path.log(last.name))
            if visible > (facts.position or 0):
                last = replace(last, end=OFFSET_MAX, length=visible)
                facts = await self._step_through(replace(facts, segment=last, position=None), visible)
            else:
                return
        elif self._fs.url.startswith("webhdfs:") and facts.known_position > last.length:
            facts = await self._step_through(shortened(facts, last.length), last.length)
        else:
            return
        self._newest = facts
        end = facts.segment.end
        self.log = replace(self.log, end=end, segments=(*self.log.segments[:-1], facts.segment))

    def _limit(self, end: int) -> None:
        """The last stable offset: no committed reader sees beyond it."""
        end = max(self.log.start, min(end, self.log.end))
        self.log = replace(self.log, end=end)

    # ---- facts

    async def facts(self, segment: Segment) -> SegmentFacts:
        """All that can be known of a segment, with its end in bytes."""
        if self._newest is not None and self._newest.segment.name == segment.name:
            return self._newest
        index = await self._read_idx(segment) if segment.has_idx else None
        facts = self._told(segment) if index is None else facts_of(segment, index)
        if facts.position is None:
            if not facts.known_position:
                facts = replace(facts, open_txns=await self._open_before(segment))
            facts = await self._step_through(facts)
        return facts

    async def _open_before(self, segment: Segment) -> tuple[tuple[int, int], ...]:
        """Return the transactions that are open where a segment begins: (producer id, first offset).

        Its predecessor's index tells them; one without an index is stepped through, after its own predecessor.
        """
        before = self.log.between(segment.name.base - 1, segment.name.base)
        return (await self.facts(before[-1])).open_txns if before else ()

    def _told(self, segment: Segment) -> SegmentFacts:
        """What the newest checkpoint says of it."""
        if self._checkpoint is not None and self._checkpoint.segment == segment.name:
            return facts_of(segment, self._checkpoint)
        return SegmentFacts(segment=segment, known_offset=segment.name.base)

    async def _read_idx(self, segment: Segment) -> Checkpoint | None:
        """None when it is gone or damaged: the segment is stepped through instead."""
        path = self.path.idx(segment.name)
        if self._cache is not None and (kept := self._cache.get(path, segment.length)) is not None:
            return kept
        parts: list[bytes] = []
        try:
            while not parts or len(parts[-1]) == _IDX_READ_BYTES:
                position = len(parts) * _IDX_READ_BYTES
                parts.append(await self._fs.read(path, position, _IDX_READ_BYTES))
            index = decode_idx(b"".join(parts))
        except (NoSuchFile, FormatError):
            return None
        if self._cache is not None:
            self._cache.put(path, segment.length, index, sum(map(len, parts)))
        return index

    async def _step_through(self, facts: SegmentFacts, length: int | None = None) -> SegmentFacts:
        """Find by headers what no index tells: where the offsets end in bytes, entries, aborted transactions."""
        segment = facts.segment
        scan = Scan(facts)
        try:
            async for batch, position in self._batches(segment, facts.known_offset, facts.known_position, length):
                scan.pass_batch(batch, position)
        except (Misframed, FormatError):  # behind an open end anything may stand that was never acknowledged
            return scan.result(is_open_ended=length is not None, is_damaged=length is None)
        return scan.result(is_open_ended=length is not None)

    async def _batches(
        self, segment: Segment, offset: int, position: int, length: int | None = None
    ) -> AsyncIterator[tuple[Batch, int]]:
        """(batch, position) from ``position`` on, whole ones, nothing past ``length``.  Misframed."""
        framer = Framer(position, offset, start=0, stop=segment.end)
        while not framer.is_done:
            wanted = SCAN_BYTES if length is None else min(SCAN_BYTES, length - position)
            data = await self._fs.read(self.path.log(segment.name), position, wanted) if wanted > 0 else b""
            if not data:
                return
            position += len(data)
            for run in framer.feed(data):
                where = run.position
                for piece in split_batches(run.data):
                    yield Batch(piece), where
                    where += len(piece)

    # ---- offsets

    async def offset_of(self, limit: OffsetLimit, *, is_start: bool, latest_if_none: bool) -> int:
        """``limit`` for this partition; ``EARLIEST`` and ``LATEST`` stay what they are.  OptionError."""
        match limit:
            case Edge(offset=offset):
                return offset
            case ByOffset(offsets=offsets):
                return offsets[self.path.topic][self.path.partition]
            case ByTimestamp(everywhere=timestamp, timestamps=timestamps):
                if timestamps is not None:
                    timestamp = timestamps[self.path.topic][self.path.partition]
                found = await self.offset_for_timestamp(timestamp)
                if found is None and is_start and not latest_if_none:
                    raise OptionError(
                        f"{self.log.label}: no record is as young as {timestamp};"
                        " startingOffsetsByTimestampStrategy=latest would read nothing of it"
                    )
                return LATEST if found is None else found

    async def wanted(self, options: ReadOptions) -> Range:
        """What of this partition is to be read."""
        strategy = options.start_at_latest_if_none
        start = await self.offset_of(options.starting, is_start=True, latest_if_none=strategy)
        end = await self.offset_of(options.ending, is_start=False, latest_if_none=True)
        return resolve(self.log, start, end)

    async def offset_for_timestamp(self, timestamp: int) -> int | None:
        """The first record that is not older; None when all are.

        A binary search over segments by their largest timestamps, which therefore must rise from segment to segment,
        give or take ``DISORDER`` segments.  A segment that does not tell counts as young: it is looked into.
        """
        segments = self.log.between(self.log.start, self.log.end)
        low, high = 0, len(segments)
        while low < high:
            middle = (low + high) // 2
            if await self._may_reach(segments[middle], timestamp):
                high = middle
            else:
                low = middle + 1
        for _ in range(DISORDER_ROUNDS):
            near = segments[max(0, low - DISORDER) : low]
            young = await in_windows(near, lambda each: self._may_reach(each, timestamp), DISORDER)
            if True not in young:
                break
            low += young.index(True) - len(near)
        for segment in segments[low:]:
            found = await self._search(segment, timestamp)
            if found is not None:
                return found if found < self.log.end else None
        return None

    async def _may_reach(self, segment: Segment, timestamp: int) -> bool:
        if self._newest is not None and self._newest.segment.name == segment.name:
            facts = self._newest
        elif segment.has_idx:
            index = await self._read_idx(segment)
            facts = self._told(segment) if index is None else facts_of(segment, index)
        else:
            facts = self._told(segment)
        return facts.position is None or facts.max_timestamp is None or facts.max_timestamp >= timestamp

    async def _search(self, segment: Segment, timestamp: int) -> int | None:
        facts = await self.facts(segment)
        if facts.max_timestamp is not None and facts.max_timestamp < timestamp:
            return None
        offset, position = place_for_timestamp(facts, timestamp, self.log.start)
        try:
            async for batch, _ in self._batches(segment, offset, position, facts.position):
                found = first_in(batch, timestamp, self.log.start) if batch.max_timestamp >= timestamp else None
                if found is not None:
                    return found
        except Misframed as error:  # damaged: the read that follows says so, or skips it
            return max(error.offset, self.log.start)
        return None

    # ---- slices

    def reaching(self, piece: Slice) -> Range:
        """The offsets of ``piece``, which were once read as flushed: the last segment holds them whatever we know."""
        end = max(self.log.end, piece.end)
        if self.log.segments:
            last = replace(self.log.segments[-1], end=end)
            self.log = replace(self.log, end=end, segments=(*self.log.segments[:-1], last))
        return Range(max(piece.start, self.log.start), piece.end)

    async def slices(self, wanted: Range, *, committed: bool, spacing: int = OFFSET_MAX) -> list[Slice]:
        """The byte ranges of ``wanted``, with the transactions to be left out; ``losses`` says what is not there.

        ``spacing``: bytes between cuts.
        """
        segments = iter(self.log.between(wanted.start, wanted.end))
        found: list[Slice] = []
        aborted: list[AbortedTransaction] = []
        last: SegmentFacts | None = None
        while window := list(islice(segments, INDEXES_AT_ONCE)):  # entries of a window are dropped with it
            for facts in await asyncio.gather(*map(self.facts, window)):
                self._check(facts, wanted)
                found += slices(self.log, wanted, [facts], spacing=spacing)
                aborted += facts.aborted
                last = facts
        if not committed or last is None:
            return found
        for segment in self.log.between(last.segment.end, OFFSET_MAX):  # where what began in the range was aborted
            if not 0 <= last.first_open_txn < wanted.end:
                break
            last = await self.facts(segment)
            aborted += last.aborted
        return leave_out(found, aborted)

    def _check(self, facts: SegmentFacts, wanted: Range) -> None:
        end = min(facts.segment.end, wanted.end)
        if facts.known_offset < end:
            self.losses.append(
                f"{self.log.label}: {self.path.log(facts.segment.name)} ends at offset {facts.known_offset}, but"
                f" should reach {end}"
            )


async def in_windows(items: Sequence[T], work: Callable[[T], Awaitable[U]], at_once: int) -> list[U]:
    """``work`` on each, in order, some at once."""
    done: list[U] = []
    rest = iter(items)
    while window := list(islice(rest, at_once)):
        done += await asyncio.gather(*map(work, window))
    return done
