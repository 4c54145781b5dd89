"""One partition's log as storage shows it: its ends, and the facts that indexes hold about a range of it.

The names in a folder are the segments (rules 3 and 5).  A segment is created when all before its base is flushed.  So
the log reaches at least to the newest segment's base, and further as far as its ``.idx`` or a checkpoint covers the
newest segment.

Reads are bounded: an index is read for the segments of the range, and for a timestamp also for the segments of a binary
search.  The indexes of the whole folder are never read.  A segment without an index, or with an index of its beginning
only, is scanned once, by headers, from where the index ends.  It was just closed, or is being merged with its
neighbour.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import TypeVar

from bmq.core.errors import FormatError
from bmq.core.records.batch import Batch
from bmq.core.records.cursor import read_batches
from bmq.core.records.reader import first_not_older
from bmq.spark.decoding.framing import Framer, Misframed
from bmq.spark.options import LATEST, ByOffset, ByTimestamp, Edge, OffsetLimit, OptionError, ReadOptions
from bmq.spark.planning.index_cache import IndexCache
from bmq.spark.planning.segment_scan import Scan, facts_of, place_for_timestamp, shortened
from bmq.spark.planning.slices import (
    OFFSET_MAX,
    IndexedSegment,
    PartitionLog,
    Range,
    Segment,
    Slice,
    absolute,
    leave_out,
    resolve,
    slices,
)
from bmq.storage.checkpoint import AbortedTransaction, Checkpoint
from bmq.storage.filesystem import FileSystem, NoSuchFile
from bmq.storage.layout import PartitionPath
from bmq.storage.log_segments import ListedSegment, walk
from bmq.storage.segment import decode_idx

INDEXES_AT_ONCE = 16
DISORDER = 8
"""Segments checked before the one that a search for a timestamp finds: timestamps may be out of order by as many."""
DISORDER_ROUNDS = 4
SCAN_BYTES = 1 << 20
_IDX_READ_BYTES = 256 << 10
REFINE_INFLATED_MAX = 64 << 20
"""Largest batch, in bytes once decompressed, that is searched record by record for a timestamp."""

T = TypeVar("T")
U = TypeVar("U")


class LogView:
    """A view of one partition as it was when it was listed.  ``log`` is the part that may be read."""

    def __init__(
        self,
        fs: FileSystem,
        path: PartitionPath,
        checkpoint: Checkpoint | None,
        cache: IndexCache | None = None,
    ) -> None:
        self._fs = fs
        self._cache = cache
        self._checkpoint = checkpoint
        self._newest: IndexedSegment | None = None  # of the last segment, if its end had to be found
        self.path = path
        self.log = PartitionLog(topic=path.topic, topic_id=path.topic_id, partition=path.partition, start=0, end=0)
        self.flushed = 0  # the log's end for readers of open transactions (read_uncommitted)
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
        read_committed: bool,
        to_visible_end: bool,
    ) -> LogView:
        """List a partition's segments and find its ends; ``checkpoint`` was read before this call.  Raises
        StorageError."""
        listed = [each async for each in walk(fs, path) if each.is_live]
        view = cls(fs, path, checkpoint)
        return await view.over(listed, read_committed=read_committed, to_visible_end=to_visible_end)

    async def over(
        self, listed: Sequence[ListedSegment], *, read_committed: bool, to_visible_end: bool = False
    ) -> LogView:
        """Return this view with the live segments ``listed``: all that the folder shows, or the newest, with the last
        one.

        With ``read_committed`` the log ends at the last stable offset, with ``to_visible_end`` after the last whole
        batch that storage shows.
        """
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
            Segment(
                name=each.name,
                end=end if each.end is None else each.end,
                length=each.length,
                has_idx=each.has_idx,
                coding=each.coding,
            )
            for each in listed
        )
        start = max([segments[0].name.base, *(each.log_start for each in known)])
        self.log = replace(self.log, start=min(start, end), end=end, segments=segments)
        if last.has_idx:
            self._newest = None if index is None or index.end_offset != end else facts_of(segments[-1], index)
        else:
            await self._check_open_end(to_visible_end=to_visible_end)
        self.flushed = self.log.end
        if read_committed:
            if newest is not None and newest.end_offset >= end:
                first_open = newest.first_open_txn
            else:  # the end is the last segment's base: only segments before it show what is open there
                opened = await self._open_before(segments[-1])
                first_open = min((first for _, first in opened), default=-1)
            if first_open >= 0:
                self._limit(first_open)
        return self

    async def _check_open_end(self, *, to_visible_end: bool) -> None:
        """Find the end of the last segment, which is open.

        With ``to_visible_end`` it is the end of the last whole batch that storage shows.  Otherwise it is the newest
        checkpoint's end; over WebHDFS, which may show fewer bytes, it is the end of the last whole batch shown, if that
        is less.
        """
        last = self.log.segments[-1]
        facts = self._from_checkpoint(last)
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
        """End the log at ``end``, the last stable offset: a committed reader sees nothing beyond it."""
        end = max(self.log.start, min(end, self.log.end))
        self.log = replace(self.log, end=end)

    # ---- facts

    async def facts(self, segment: Segment) -> IndexedSegment:
        """Return all that is known of a segment, with its end in bytes.  Raises StorageError."""
        if self._newest is not None and self._newest.segment.name == segment.name:
            return self._newest
        index = await self._read_idx(segment) if segment.has_idx else None
        facts = self._from_checkpoint(segment) if index is None else facts_of(segment, index)
        if facts.position is None:
            if not facts.known_position:
                facts = replace(facts, open_txns=await self._open_before(segment))
            facts = await self._step_through(facts)
        return facts

    async def _open_before(self, segment: Segment) -> tuple[tuple[int, int], ...]:
        """Return (producer id, first offset) of each transaction that is open where a segment begins.

        Its predecessor's index holds them; a predecessor without an index is scanned, after its own predecessor.
        """
        before = self.log.between(segment.name.base - 1, segment.name.base)
        return (await self.facts(before[-1])).open_txns if before else ()

    def _from_checkpoint(self, segment: Segment) -> IndexedSegment:
        """Return the facts in the newest checkpoint, if it is of this segment."""
        if self._checkpoint is not None and self._checkpoint.segment == segment.name:
            return facts_of(segment, self._checkpoint)
        return IndexedSegment(segment=segment, known_offset=segment.name.base)

    async def _read_idx(self, segment: Segment) -> Checkpoint | None:
        """Return a segment's index; None if it is gone or damaged, and the segment is to be scanned instead."""
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

    async def _step_through(self, facts: IndexedSegment, length: int | None = None) -> IndexedSegment:
        """Scan headers for what no index holds: entries, aborted transactions, and the position where the offsets
        end."""
        segment = facts.segment
        scan = Scan(facts)
        try:
            async for batch, position in self._batches(segment, facts.known_offset, facts.known_position, length):
                scan.pass_batch(batch, position)
        except (Misframed, FormatError):  # An open end may hold anything that was never acknowledged.
            return scan.result(is_open_ended=length is not None, is_damaged=length is None)
        return scan.result(is_open_ended=length is not None)

    async def _batches(
        self, segment: Segment, offset: int, position: int, length: int | None = None
    ) -> AsyncIterator[tuple[Batch, int]]:
        """Yield (batch, position) from ``position`` on: whole batches, none past ``length``.  Raises Misframed."""
        framer = Framer(position, offset, start=0, stop=segment.end)
        while not framer.is_done:
            wanted = SCAN_BYTES if length is None else min(SCAN_BYTES, length - position)
            data = await self._fs.read(self.path.log(segment.name), position, wanted) if wanted > 0 else b""
            if not data:
                return
            position += len(data)
            for run in framer.feed(data):
                where = run.position
                for batch in read_batches(run.data):
                    yield batch, where
                    where += batch.size

    # ---- offsets

    async def offset_of(self, limit: OffsetLimit, *, is_start: bool, latest_if_none: bool) -> int:
        """Return ``limit`` as an offset of this partition, or ``EARLIEST`` or ``LATEST``.

        Raises OptionError if the read is to start at a timestamp and no record is as young as that.
        """
        match limit:
            case Edge(offset=offset):
                return offset
            case ByOffset(offsets=offsets):
                return offsets[self.path.topic][self.path.partition]
            case ByTimestamp():
                timestamp = limit.of(self.path.topic, self.path.partition)
                found = await self.offset_for_timestamp(timestamp)
                if found is None and is_start and not latest_if_none:
                    raise OptionError(
                        f"{self.log.label}: no record is as young as {timestamp};"
                        " startingOffsetsByTimestampStrategy=latest would read nothing of it"
                    )
                return LATEST if found is None else found

    async def wanted(self, options: ReadOptions) -> Range:
        """Return the range of this partition that ``options`` select.

        Raises OptionError, also if the range would end before it starts, and StorageError.
        """
        return resolve(self.log, *await self.places(options))

    async def places(self, options: ReadOptions) -> tuple[int, int]:
        """Return where ``options`` start and end in this partition: offsets, ``EARLIEST`` or ``LATEST``.

        Raises OptionError, also if the starting timestamp is greater than the ending timestamp, and StorageError.
        """
        starting, ending = options.starting, options.ending
        is_by_time = False
        if isinstance(starting, ByTimestamp) and isinstance(ending, ByTimestamp):
            is_by_time = True
            first, last = (each.of(self.path.topic, self.path.partition) for each in (starting, ending))
            if first > last:
                raise OptionError(
                    f"topic {self.path.topic}, partition {self.path.partition}: the starting timestamp {first} is"
                    f" greater than the ending timestamp {last}"
                )
        strategy = options.start_at_latest_if_none
        start = await self.offset_of(starting, is_start=True, latest_if_none=strategy)
        end = await self.offset_of(ending, is_start=False, latest_if_none=True)
        if is_by_time and absolute(self.log, start) > absolute(self.log, end):
            end = start  # the log's timestamps fall, and the search passes over some: nothing is selected
        return start, end

    async def offset_for_timestamp(self, timestamp: int) -> int | None:
        """Return the offset of the first record that is not older than ``timestamp``; None if all are older.

        A binary search over segments by their largest timestamps, which therefore must rise from segment to segment,
        give or take ``DISORDER`` segments.  A segment whose largest timestamp is unknown counts as young: it is
        searched.
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
            facts = self._from_checkpoint(segment) if index is None else facts_of(segment, index)
        else:
            facts = self._from_checkpoint(segment)
        return facts.position is None or facts.max_timestamp is None or facts.max_timestamp >= timestamp

    async def _search(self, segment: Segment, timestamp: int) -> int | None:
        facts = await self.facts(segment)
        if facts.max_timestamp is not None and facts.max_timestamp < timestamp:
            return None
        offset, position = place_for_timestamp(facts, timestamp, self.log.start)
        try:
            async for batch, _ in self._batches(segment, offset, position, facts.position):
                if batch.max_timestamp >= timestamp:
                    hit = first_not_older(batch, timestamp, self.log.start, bytes_max=REFINE_INFLATED_MAX)
                    if hit is not None:
                        return hit.offset
        except Misframed as error:  # damaged: the read that follows fails there, or skips it
            return max(error.offset, self.log.start)
        return None

    # ---- slices

    def reaching(self, piece: Slice) -> Range:
        """Extend the log to the end of ``piece`` and return the offsets of ``piece`` that are still there.

        Its offsets were flushed when they were planned, so the last segment holds them, whatever is known of its end.
        """
        end = max(self.log.end, piece.end)
        if self.log.segments:
            last = replace(self.log.segments[-1], end=end)
            self.log = replace(self.log, end=end, segments=(*self.log.segments[:-1], last))
        return Range(max(piece.start, self.log.start), piece.end)

    async def slices(self, wanted: Range, *, read_committed: bool, spacing: int = OFFSET_MAX) -> list[Slice]:
        """Return the slices of ``wanted``, each with its aborted transactions, and add what is missing to ``losses``.

        ``spacing``: least bytes between cuts.  Raises StorageError.
        """
        segments = iter(self.log.between(wanted.start, wanted.end))
        found: list[Slice] = []
        aborted: list[AbortedTransaction] = []
        last: IndexedSegment | None = None
        while window := list(islice(segments, INDEXES_AT_ONCE)):  # entries of a window are dropped with it
            for facts in await asyncio.gather(*map(self.facts, window)):
                self._check(facts, wanted)
                found += slices(self.log, wanted, [facts], spacing=spacing)
                aborted += facts.aborted
                last = facts
        if not read_committed or last is None:
            return found
        for segment in self.log.between(last.segment.end, OFFSET_MAX):  # segments whose markers may abort them
            if not 0 <= last.first_open_txn < wanted.end:
                break
            last = await self.facts(segment)
            aborted += last.aborted
        return leave_out(found, aborted)

    def _check(self, facts: IndexedSegment, wanted: Range) -> None:
        end = min(facts.segment.end, wanted.end)
        if facts.known_offset < end:
            self.losses.append(
                f"{self.log.label}: {self.path.log(facts.segment.name)} ends at offset {facts.known_offset}, but"
                f" should reach {end}"
            )


async def in_windows(items: Sequence[T], work: Callable[[T], Awaitable[U]], at_once: int) -> list[U]:
    """Call ``work`` on each item, up to ``at_once`` at a time, and return the results in the items' order."""
    done: list[U] = []
    rest = iter(items)
    while window := list(islice(rest, at_once)):
        done += await asyncio.gather(*map(work, window))
    return done
