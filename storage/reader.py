"""Reading a log from storage: ranged reads in aligned blocks, shared by all who wait for the same block.

``ReadPool`` is a process's: reads in flight, the block cache and the segment indexes, each under its own bound.
``LogReader`` is one partition's, and small.  What a read may show (rules 2 and 5):

* A segment's bytes count up to the first batch at or past its end (the next one's base) and the ``end_offset`` that
  the caller gives, a high watermark.  Whatever lies behind was never acknowledged, or is written again elsewhere.
* ``Known`` is how far a segment is certain in bytes: from its ``.idx``, from its owner, or because the headers up to
  there were stepped over under a watermark that was known before the read.  Only bytes below it are kept.  A block
  read past it is shared only by those who asked under the same watermark: an older read may have seen other bytes.

The answer is whole batches, the first of which holds the offset asked for.  Headers are checked (size, magic, dense
offsets), record CRCs are not: the consumer checks those.
"""

from __future__ import annotations

import asyncio
import struct
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

from bmq.core.errors import FormatError
from bmq.core.model import SegmentName
from bmq.core.record_reader import read_records
from bmq.core.records import HEADER_BYTES, LENGTH_OVERHEAD, LOG_APPEND_TIME, MAGIC, Batch
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.filesystem import CorruptData, FileSystem, NoSuchFile
from bmq.storage.index import ENTRY, SegmentIndex
from bmq.storage.layout import PartitionPath
from bmq.storage.log import Extent, LogSegments
from bmq.storage.segment import BATCH_BYTES_MAX, decode_idx

T = TypeVar("T")
_HEAD = struct.Struct(">qiibIhiqq")  # base offset ... max timestamp: see core.records
_IDX_READ_BYTES = 256 << 10
_STREAMS_MAX = 64
_NEVER = -1
_FACTS_BYTES = 400  # a Facts without its entries
REFRESHES_MAX = 2
"""Second looks of one read: the segment it is sent to by the first may be joined or deleted in the same moment."""
REFINE_BYTES_MAX = 1 << 20
"""Batches up to this size are searched record by record."""
REFINE_INFLATED_MAX = 4 << 20
"""And up to this size once decompressed: some 50 ms at 100 bytes a record, once a search."""


class OffsetNotFound(LookupError):
    """Storage has no segment for the offset: it was deleted, or never was.  Ask the owner before telling a client."""

    def __init__(self, path: PartitionPath, offset: int, first_offset: int | None) -> None:
        super().__init__(f"{path}: no segment holds offset {offset}, the first begins at {first_offset}")
        self.offset = offset
        self.first_offset = first_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadConfig:
    """Bounds of one process's reads from storage."""

    block_bytes: int = 1 << 20
    """A read's unit.  Large enough that a seek (0.7 ms) is small beside the transfer, small enough to waste little."""
    cache_bytes: int = 256 << 20
    index_bytes: int = 64 << 20
    """Segment indexes kept: 24 bytes for each 64 KB of log, so this covers about 170 GB."""
    reads_max: int = 32
    """Reads in flight; the others wait."""
    ahead_max: int = 8
    """How many of them may be reading ahead."""
    parallel_indexes: int = 8
    """Indexes read at once by one search for a timestamp."""

    def validate(self) -> None:
        """ValueError naming the setting."""
        if self.block_bytes < HEADER_BYTES:
            raise ValueError(f"block_bytes={self.block_bytes} is less than a batch header")
        if self.reads_max < 1 or self.ahead_max < 0 or self.parallel_indexes < 1:
            raise ValueError("reads_max and parallel_indexes must be at least 1, ahead_max at least 0")


@dataclass(frozen=True, slots=True)
class LiveSegment:
    """What the owner (or a checkpoint) says of a segment without ``.idx``: flushed to ``position``, which is
    ``end_offset``.  The index is only read."""

    name: SegmentName
    position: int
    end_offset: int
    index: SegmentIndex


class Found(NamedTuple):
    """An answer to a search by timestamp."""

    offset: int
    timestamp: int


class Facts:
    """What is known of one segment: a sparse index, and how far its bytes are certain (``Known``)."""

    __slots__ = ("asked_end", "counted", "entries", "index", "is_ours", "known_offset", "known_position")

    def __init__(self, index: SegmentIndex, known_offset: int, known_position: int, *, is_ours: bool) -> None:
        self.index = index
        self.entries = index.entries
        self.known_offset = known_offset
        self.known_position = known_position
        self.is_ours = is_ours  # else the owner's: not to be added to
        self.asked_end: int | None = _NEVER  # the segment's end when its .idx was asked for last
        self.counted = 0  # of its cost, in the pool

    @property
    def cost(self) -> int:
        return _FACTS_BYTES + len(self.entries) * self.entries.itemsize

    def start_for(self, offset: int, base: int) -> tuple[int, int]:
        """(offset, position) of a batch at or before the one that holds ``offset``."""
        if offset >= self.known_offset:
            return self.known_offset, self.known_position
        return self._entry(bisect_right(range(len(self.index)), offset, key=self._offset) - 1, base)

    def start_for_timestamp(self, timestamp: int, base: int) -> tuple[int, int]:
        """(offset, position) at or before the first batch whose largest timestamp is at least ``timestamp``."""
        if self.index.max_timestamp < timestamp:
            return self.known_offset, self.known_position
        return self._entry(bisect_left(range(len(self.index)), timestamp, key=self._timestamp) - 1, base)

    def _entry(self, at: int, base: int) -> tuple[int, int]:
        return (base, 0) if at < 0 else (self.entries[at * ENTRY], self.entries[at * ENTRY + 1])

    def _offset(self, at: int) -> int:
        return self.entries[at * ENTRY]

    def _timestamp(self, at: int) -> int:
        return self.entries[at * ENTRY + 2]

    def passed(self, walk: Walk) -> None:
        """``walk`` stands behind a batch that is flushed."""
        if self.is_ours and walk.position == self.known_position:
            self.index.add(walk.base_offset, walk.position, walk.max_timestamp)
            self.known_offset, self.known_position = walk.next_offset, walk.position + walk.size


# ------------------------------------------------------------------------------------------------------ the pool


class ReadPool:
    """Shared by all readers of a process.  ``close`` ends what is under way."""

    def __init__(self, fs: FileSystem, config: ReadConfig | None = None) -> None:
        self.fs = fs
        self.config = config or ReadConfig()
        self.config.validate()
        self._turn = asyncio.Semaphore(self.config.reads_max)
        self._blocks: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._facts: OrderedDict[str, Facts] = OrderedDict()
        self._shared: dict[Hashable, _Shared[Any]] = {}
        self.cached_bytes = 0
        self.facts_bytes = 0
        self.ahead = 0
        self.reads = 0
        self.hits = 0
        self.bad_indexes = 0

    def __repr__(self) -> str:
        return (
            f"<ReadPool {len(self._blocks)} blocks of {self.cached_bytes} bytes, {len(self._facts)} indexes,"
            f" {len(self._shared)} under way, {self.reads} reads, {self.hits} hits>"
        )

    async def close(self) -> None:
        """Cancel the reads under way; their waiters hear it."""
        tasks = [shared.task for shared in self._shared.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def once(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of ``work``, done once for all who wait under ``key``; ends early only when all have left."""
        shared: _Shared[T] | None = self._shared.get(key)
        if shared is None:
            shared = self._start(key, work)
        shared.waiters += 1
        try:
            return await asyncio.shield(shared.task)
        finally:
            shared.waiters -= 1
            if not shared.waiters and not shared.task.done():
                self._forget(key, shared)
                shared.task.cancel()

    def _start(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]]) -> _Shared[T]:
        shared = _Shared(asyncio.get_running_loop().create_task(work()))
        self._shared[key] = shared
        shared.task.add_done_callback(lambda task: self._ended(key, shared))
        return shared

    def _ended(self, key: Hashable, shared: _Shared[T]) -> None:
        self._forget(key, shared)
        if not shared.task.cancelled():
            shared.task.exception()  # read ahead for nobody: whoever wants the block meets the fault himself

    def _forget(self, key: Hashable, shared: _Shared[T]) -> None:
        if self._shared.get(key) is shared:
            del self._shared[key]

    # Blocks

    def cached(self, path: str, number: int, length: int) -> bytes | None:
        """The block, if at least ``length`` bytes of it are kept."""
        data = self._blocks.get((path, number))
        if data is None or len(data) < length:
            return None
        self._blocks.move_to_end((path, number))
        return data

    async def settled(self, path: str, number: int, length: int) -> bytes:
        """The first ``length`` bytes of a block, all certain (at least, fewer only if storage has no more)."""
        data = self.cached(path, number, length)
        if data is not None:
            self.hits += 1
            return data
        return await self.once((path, number, length), lambda: self._read_settled(path, number, length))

    async def open(self, path: str, number: int, end_offset: int) -> bytes:
        """Whatever is visible of a block now; shared only with those who know the same watermark."""
        position = number * self.config.block_bytes
        key = (path, number, "open", end_offset)
        return await self.once(key, lambda: self._read(path, position, self.config.block_bytes))

    async def _read_settled(self, path: str, number: int, length: int) -> bytes:
        data = await self._read(path, number * self.config.block_bytes, length)
        self.keep(path, number, data)
        return data

    async def _read(self, path: str, position: int, length: int) -> bytes:
        async with self._turn:  # held across the read on purpose: it bounds the reads in flight
            self.reads += 1
            return await self.fs.read(path, position, length)

    def read_ahead(self, path: str, number: int, length: int) -> None:
        """Begin to read a block that is certain, if there is room for such reads."""
        key = (path, number, length)
        if self.ahead >= self.config.ahead_max or key in self._shared or self.cached(path, number, length) is not None:
            return
        self.ahead += 1
        shared = self._start(key, lambda: self._read_settled(path, number, length))
        shared.waiters += 1  # the pool itself: not cancelled because a reader who joined has left
        shared.task.add_done_callback(self._ahead_ended)

    def _ahead_ended(self, task: asyncio.Task[Any]) -> None:
        self.ahead -= 1

    def keep(self, path: str, number: int, data: bytes) -> None:
        """Cache the certain bytes of a block; the least recently used ones make room."""
        key = (path, number)
        old = self._blocks.get(key)
        if len(data) > self.config.cache_bytes or (old is not None and len(old) >= len(data)):
            return
        self.cached_bytes += len(data) - len(self._blocks.pop(key, b""))
        self._blocks[key] = data
        while self.cached_bytes > self.config.cache_bytes:
            self.cached_bytes -= len(self._blocks.popitem(last=False)[1])

    # Indexes

    def facts(self, path: str) -> Facts | None:
        facts = self._facts.get(path)
        if facts is not None:
            self._facts.move_to_end(path)
        return facts

    def keep_facts(self, path: str, facts: Facts) -> None:
        """Remember, or count again after it has grown; one that knows less gives way."""
        old = self._facts.get(path)
        if old is not None and old is not facts:
            if old.known_offset >= facts.known_offset:
                return
            self.facts_bytes -= old.counted
            facts.counted = 0
        self._facts[path] = facts
        self._facts.move_to_end(path)
        self.facts_bytes += facts.cost - facts.counted
        facts.counted = facts.cost
        while self.facts_bytes > self.config.index_bytes:
            _, gone = self._facts.popitem(last=False)
            self.facts_bytes -= gone.counted
            gone.counted = 0

    async def index(self, path: str) -> Checkpoint | None:
        """A segment's ``.idx``; None when there is none, or it is damaged: then its segment is scanned instead."""
        return await self.once((path, "idx"), lambda: self._read_index(path))

    async def _read_index(self, path: str) -> Checkpoint | None:
        parts: list[bytes] = []
        try:
            while not parts or len(parts[-1]) == _IDX_READ_BYTES:
                parts.append(await self._read(path, len(parts) * _IDX_READ_BYTES, _IDX_READ_BYTES))
        except NoSuchFile:
            return None
        try:
            return decode_idx(b"".join(parts))
        except FormatError:
            self.bad_indexes += 1
            return None


class _Shared(Generic[T]):
    """One piece of work and how many wait for it."""

    __slots__ = ("task", "waiters")

    def __init__(self, task: asyncio.Task[T]) -> None:
        self.task = task
        self.waiters = 0


# ---------------------------------------------------------------------------------------------------- one segment


class Walk:
    """Steps from batch to batch of one segment, by headers, as far as it may be read.

    ``stop`` is the first offset that does not count; ``end_offset`` the watermark that promises what lies below it.
    After a ``step`` the fields describe the batch at ``position``.
    """

    def __init__(self, pool: ReadPool, path: str, facts: Facts, start: tuple[int, int], stop: int, watermark: int):
        self.facts = facts
        self.next_offset, self.position = start
        self.size = 0
        self.base_offset = self.max_timestamp = self.base_timestamp = -1
        self.attributes = 0
        self.kept_from: int | None = None  # bytes from here on stay in the buffer; None: from ``position``
        self._pool = pool
        self._path = path
        self._stop = stop
        self._watermark = watermark
        self._buffer = bytearray()
        self._start = self.position  # of the buffer in the file
        self._opened: dict[int, bytes] = {}

    @property
    def end(self) -> int:
        return self.position + self.size

    async def step(self) -> bool:
        """To the next batch that lies wholly below ``stop``; False when there is none.  CorruptData."""
        if self.next_offset >= self._stop:
            return False
        position = self.end
        await self._fill(position, HEADER_BYTES)
        head = _HEAD.unpack_from(self._buffer, position - self._start)
        base_offset, length, _, magic, _, attributes, last_delta, base_timestamp, max_timestamp = head
        size = length + LENGTH_OVERHEAD
        if base_offset != self.next_offset or magic != MAGIC or not HEADER_BYTES <= size <= BATCH_BYTES_MAX:
            raise CorruptData(
                f"{self._path} at {position}: expected a batch at offset {self.next_offset}, found offset"
                f" {base_offset}, {size} bytes, magic {magic}"
            )
        if last_delta < 0:
            raise CorruptData(f"{self._path} at {position}: a batch whose last offset delta is {last_delta}")
        if base_offset + last_delta >= self._stop:
            return False
        self.position, self.size = position, size
        self.base_offset, self.next_offset = base_offset, base_offset + last_delta + 1
        self.base_timestamp, self.max_timestamp, self.attributes = base_timestamp, max_timestamp, attributes
        self.facts.passed(self)
        return True

    async def load(self) -> None:
        """Have the whole batch, not only its header."""
        await self._fill(self.position, self.size)

    def copy(self, start: int, end: int) -> bytes:
        """Bytes that were loaded and kept."""
        with memoryview(self._buffer) as view:
            return bytes(view[start - self._start : end - self._start])

    def finish(self) -> None:
        """Keep what has turned out to be certain."""
        if not self.facts.is_ours:
            return
        block = self._pool.config.block_bytes
        for number, data in self._opened.items():
            certain = self.facts.known_position - number * block
            if certain > 0:
                self._pool.keep(self._path, number, data if certain >= len(data) else data[:certain])
        self._pool.keep_facts(self._path, self.facts)

    async def _fill(self, position: int, length: int) -> None:
        """Have [position, position + length) in the buffer, and nothing before what is kept."""
        reached = self._start + len(self._buffer)
        if position + length <= reached:
            return
        kept_from = position if self.kept_from is None else self.kept_from
        if kept_from >= reached:
            self._buffer.clear()
            self._start = reached = kept_from
        else:
            del self._buffer[: kept_from - self._start]
            self._start = kept_from
        block = self._pool.config.block_bytes
        while reached < position + length:
            number = reached // block
            data = await self._block(number, reached)
            piece = memoryview(data)[reached - number * block :]
            if not piece:
                raise CorruptData(
                    f"{self._path} ends at {reached}: offset {self.next_offset} is missing, {self._stop} is promised"
                )
            self._buffer += piece
            reached += len(piece)

    async def _block(self, number: int, reached: int) -> bytes:
        block, known = self._pool.config.block_bytes, self.facts.known_position
        if reached < known:
            return await self._pool.settled(self._path, number, min(block, known - number * block))
        data = await self._pool.open(self._path, number, self._watermark)
        self._opened[number] = data
        return data


# -------------------------------------------------------------------------------------------------- one partition


class LogReader:
    """Reads one partition's log.  Any number of reads at once; a cancelled one disturbs no other."""

    def __init__(self, pool: ReadPool, path: PartitionPath, segments: LogSegments | None = None) -> None:
        self.pool = pool
        self.path = path
        self.segments = segments or LogSegments(pool.fs, path)
        self._streams: OrderedDict[tuple[SegmentName, int], None] = OrderedDict()  # where a sequential read goes on
        self._maxima: dict[Extent, int] = {}  # largest timestamp of a closed segment

    def __repr__(self) -> str:
        return f"<LogReader {self.segments!r} streams={len(self._streams)}>"

    async def read(self, offset: int, max_bytes: int, end_offset: int, *, live: LiveSegment | None = None) -> bytes:
        """Whole batches of one segment, the first of which holds ``offset``: at most ``max_bytes``, but at least one.

        Nothing at or past ``end_offset``, a high watermark that the caller had from the owner before this call; empty
        when the batch at ``offset`` is not wholly below it.  ``live`` saves the listing and the scan of the owner's
        newest segment.  OffsetNotFound, CorruptData, NoSuchFile (after a second look), StorageError.
        """
        if offset >= end_offset:
            return b""
        for attempt in range(REFRESHES_MAX + 1):
            await self.segments.cover(end_offset, live.name if live is not None else None)
            extent = self.segments.find(offset)
            if extent is None:
                break
            try:
                return await self._read_extent(extent, offset, max_bytes, end_offset, live)
            except NoSuchFile:
                if attempt == REFRESHES_MAX:
                    raise
                await self.segments.refresh(extent.name)
        raise OffsetNotFound(self.path, offset, self.segments.first_offset)

    async def _read_extent(
        self, extent: Extent, offset: int, max_bytes: int, end_offset: int, live: LiveSegment | None
    ) -> bytes:
        facts = await self._facts(extent, offset, live)
        walk = self._walk(extent, facts, facts.start_for(offset, extent.name.base), end_offset)
        try:
            while await walk.step():
                if walk.next_offset > offset:
                    return await self._collect(extent, walk, max_bytes)
            return b""
        finally:
            walk.finish()

    async def _collect(self, extent: Extent, walk: Walk, max_bytes: int) -> bytes:
        start = walk.kept_from = walk.position
        is_next = start == 0 or (extent.name, start) in self._streams
        self._streams.pop((extent.name, start), None)
        await walk.load()
        end = walk.end
        while end - start + HEADER_BYTES <= max_bytes and await walk.step() and walk.end - start <= max_bytes:
            await walk.load()
            end = walk.end
        self._streams[extent.name, end] = None
        if len(self._streams) > _STREAMS_MAX:
            self._streams.popitem(last=False)
        if is_next:
            self._read_ahead(extent, walk.facts, end)
        return walk.copy(start, end)

    def _read_ahead(self, extent: Extent, facts: Facts, end: int) -> None:
        """Begin with the block after the last one used, as far as it is certain."""
        block = self.pool.config.block_bytes
        number = -(-end // block)
        certain = facts.known_position - number * block
        if certain > 0:
            self.pool.read_ahead(self.path.log(extent.name), number, min(block, certain))

    def _walk(self, extent: Extent, facts: Facts, start: tuple[int, int], end_offset: int) -> Walk:
        stop = end_offset if extent.end is None else min(end_offset, extent.end)
        return Walk(self.pool, self.path.log(extent.name), facts, start, stop, end_offset)

    async def _facts(self, extent: Extent, offset: int, live: LiveSegment | None) -> Facts:
        """What is known of the segment, with its ``.idx`` when that may tell more about ``offset``.

        The index is asked for again when the segment's end has changed (it was closed, or joined with its neighbour),
        and, of a closed segment, as long as it is missing: its owner may be about to write it.
        """
        if live is not None and live.name == extent.name:
            return Facts(live.index, live.end_offset, live.position, is_ours=False)
        path = self.path.log(extent.name)
        facts = self.pool.facts(path) or Facts(SegmentIndex(), extent.name.base, 0, is_ours=True)
        if offset < facts.known_offset or facts.asked_end == extent.end:
            return facts
        checkpoint = await self.pool.index(self.path.idx(extent.name))
        if checkpoint is not None and checkpoint.end_offset > facts.known_offset:
            index = SegmentIndex(entries=checkpoint.index)
            index.max_timestamp = checkpoint.max_timestamp
            facts = Facts(index, checkpoint.end_offset, checkpoint.position, is_ours=True)
        if checkpoint is not None or extent.end is None:
            facts.asked_end = extent.end
        self.pool.keep_facts(path, facts)
        return facts

    # By timestamp

    async def offset_for_timestamp(
        self, timestamp: int, end_offset: int, *, start_offset: int = 0, live: LiveSegment | None = None
    ) -> Found | None:
        """The first record in [start_offset, end_offset) whose timestamp is at least ``timestamp``, or None.

        Exact, but for batches too large to look into (``REFINE_BYTES_MAX``): there it is the batch's base offset with
        the batch's largest timestamp, at or before the right record, so that nothing is skipped.  Costs one small read
        for each segment not asked about before, since timestamps need not rise from segment to segment.  Errors as
        ``read``.
        """
        for attempt in range(REFRESHES_MAX + 1):
            await self.segments.cover(end_offset, live.name if live is not None else None)
            missing = None
            async for extent in self._candidates(timestamp, start_offset, end_offset):
                missing = extent.name
                try:
                    found = await self._search(extent, timestamp, start_offset, end_offset, live)
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
        """The segments that may hold such a record; a few indexes are read at once."""
        extents = self.segments.between(start, end)
        if len(self._maxima) > 2 * len(self.segments) + 16:
            self._maxima.clear()  # segments deleted or joined since
        while window := list(islice(extents, self.pool.config.parallel_indexes)):
            outcomes = await asyncio.gather(*map(self._maximum, window), return_exceptions=True)
            for extent, outcome in zip(window, outcomes, strict=True):
                if isinstance(outcome, BaseException):
                    raise outcome
                if outcome is None or outcome >= timestamp:
                    yield extent

    async def _maximum(self, extent: Extent) -> int | None:
        """The largest timestamp of a closed segment; None when its index does not tell."""
        known = self._maxima.get(extent)
        if known is not None or extent.end is None:
            return known
        checkpoint = await self.pool.index(self.path.idx(extent.name))
        if checkpoint is None or checkpoint.end_offset != extent.end:
            return None
        self._maxima[extent] = checkpoint.max_timestamp
        return checkpoint.max_timestamp

    async def _search(
        self, extent: Extent, timestamp: int, start_offset: int, end_offset: int, live: LiveSegment | None
    ) -> Found | None:
        facts = await self._facts(extent, max(extent.name.base, start_offset), live)
        start = facts.start_for_timestamp(timestamp, extent.name.base)
        if start_offset > start[0]:
            start = max(start, facts.start_for(start_offset, extent.name.base))
        walk = self._walk(extent, facts, start, end_offset)
        try:
            while await walk.step():
                if walk.max_timestamp >= timestamp and walk.next_offset > start_offset:
                    found = await _refine(walk, timestamp, start_offset)
                    if found is not None:
                        return found
            return None
        finally:
            walk.finish()


async def _refine(walk: Walk, timestamp: int, start_offset: int) -> Found | None:
    """The record within the batch; see ``offset_for_timestamp``."""
    if walk.base_timestamp >= timestamp and walk.base_offset >= start_offset and not walk.attributes & LOG_APPEND_TIME:
        return Found(walk.base_offset, walk.base_timestamp)
    if walk.size <= REFINE_BYTES_MAX:
        await walk.load()
        batch = Batch(memoryview(walk.copy(walk.position, walk.end)))
        try:
            records = read_records(batch, bytes_max=REFINE_INFLATED_MAX)
            hits = (record for record in records if record.timestamp >= timestamp and record.offset >= start_offset)
            hit = next(hits, None)
        except FormatError:  # too large when inflated, or not as Kafka writes them: the batch itself is the answer
            return Found(max(walk.base_offset, start_offset), walk.max_timestamp)
        return Found(hit.offset, hit.timestamp) if hit is not None else None
    return Found(max(walk.base_offset, start_offset), walk.max_timestamp)
