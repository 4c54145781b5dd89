"""The shared part of a process's readers: reads in flight, cached blocks and segment indexes, each under its own bound.

Reads are in aligned blocks, one read for all readers that wait for the same block.  ``SegmentKnowledge`` has the
position up to which a segment's bytes are certain.  The position comes from the ``.idx``, from the owner, or from
headers that were stepped over under a watermark known before the read.  Only bytes below that position are kept.  A
block read past it is shared only by readers with the same watermark: an older read may have seen other bytes.

A reader that goes on where it ended gets several blocks by one read, and the next blocks are read before it needs them.
The number of blocks follows from the fate of earlier blocks. If blocks are evicted unused, because there are more
readers than room, fewer are read at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from bmq.core.aio.lru import LruCache
from bmq.core.aio.subscribers import no_op
from bmq.core.aio.tasks import cancel_and_wait
from bmq.core.aio.turns import run_in_turns
from bmq.core.errors import FormatError
from bmq.core.records.batch import HEADER_BYTES, Batch
from bmq.storage.aborted import ENTRY_BYTES, SegmentTransactions
from bmq.storage.block_claim import BlockClaim
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.filesystem import Buffer, FileSystem, NoSuchFile, StorageError, read_parts
from bmq.storage.index import SegmentIndex
from bmq.storage.read_progress import ReadProgress
from bmq.storage.segment import decode_idx_steps

T = TypeVar("T")
_IDX_READ_BYTES = 256 << 10
_NEVER = -1
_FACTS_BYTES = 400  # a SegmentKnowledge without its entries
_RUN_SHARE = 16
"""Divisor of the cache's bytes: one read has no more blocks than this share of them."""
_READING_SHARE = 2
"""The same of the blocks of all reads: past it nothing is read ahead, and each reader gets one block by a read."""
_RUN_GROWTH = 1 / 8
"""Growth of the longest read, in blocks, for every block that was read ahead and used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadConfig:
    """The bounds of one process's reads from storage."""

    block_bytes: int = 1 << 20
    """Unit of reads.  Large enough that a seek (0.7 ms) is small beside the transfer, small enough to waste little."""
    cache_bytes: int = 256 << 20
    index_bytes: int = 64 << 20
    """Memory for segment indexes: 24 bytes for each 64 KB of log, so this covers about 170 GB."""
    reads_max: int = 32
    """Reads in flight; the others wait."""
    run_blocks: int = 4
    """Blocks of one read, at most, for a reader that goes on where it ended.  A read of 4 MB costs half of four of 1 MB
    on HDFS, most of it the datanodes' (docs/design/hdfs-client.md)."""
    ahead_max: int = 16
    """Reads ahead under way, at most: as many as the HDFS client has threads."""
    parallel_indexes: int = 8
    """Indexes read at once by one search for a timestamp."""
    block_age_s: float = 600.0
    """A block is read again when it is older: segments never change, unless ``bmq segment repair`` replaces one."""

    def validate(self) -> None:
        """Check the bounds.  Raises ValueError naming the setting that is out of range."""
        if self.block_bytes < HEADER_BYTES:
            raise ValueError(f"block_bytes={self.block_bytes} is less than a batch header")
        if min(self.reads_max, self.run_blocks, self.parallel_indexes) < 1 or self.ahead_max < 0:
            raise ValueError("reads_max, run_blocks and parallel_indexes must be at least 1, ahead_max at least 0")


class SegmentKnowledge:
    """The knowledge of one segment: a sparse index, and the position up to which its bytes are certain.

    Bytes below ``known_position`` are flushed and hold the offsets below ``known_offset``.
    """

    __slots__ = ("asked_end", "entries", "index", "is_ours", "known_offset", "known_position", "transactions")

    def __init__(self, index: SegmentIndex, known_offset: int, known_position: int, *, is_ours: bool) -> None:
        self.index = index
        self.entries = index.entries
        self.known_offset = known_offset
        self.known_position = known_position
        self.is_ours = is_ours  # False: the index is the owner's, and is only read
        self.asked_end: int | None = _NEVER  # the segment's end when its .idx was last read
        self.transactions: SegmentTransactions | None = None  # from its .idx; None: not read

    @property
    def cost(self) -> int:
        """The memory that it takes, in bytes."""
        aborted = 0 if self.transactions is None else len(self.transactions.aborted)
        return _FACTS_BYTES + len(self.entries) * self.entries.itemsize + aborted * ENTRY_BYTES

    def start_for(self, offset: int, base: int) -> tuple[int, int]:
        """Return (offset, position) of a batch at or before the one that holds ``offset``.

        ``base`` is the segment's first offset; the result is (``base``, 0) if no entry precedes the batch.
        """
        if offset >= self.known_offset:
            return self.known_offset, self.known_position
        return self.index.place_of(offset, base)

    def start_for_timestamp(self, timestamp: int, base: int) -> tuple[int, int]:
        """Return (offset, position) at or before the first batch whose largest timestamp is at least ``timestamp``.

        ``base`` as in ``start_for``.
        """
        if self.index.max_timestamp < timestamp:
            return self.known_offset, self.known_position
        return self.index.place_of_timestamp(timestamp, base)

    def extend(self, batch: Batch) -> None:
        """Add the flushed batch at ``known_position``, which a reader has stepped over: what is certain includes it."""
        self.index.add(batch.base_offset, self.known_position, batch.max_timestamp)
        self.known_offset, self.known_position = batch.next_offset, self.known_position + batch.size


# ----------------------------------------------------------------------------------------------------- the cache


class _Block:
    """A cached block, and the time at which it was read."""

    __slots__ = ("data", "is_used", "read_s")

    def __init__(self, data: Buffer, read_s: float, *, is_used: bool) -> None:
        self.data = data
        self.read_s = read_s
        self.is_used = is_used  # False: it was read ahead, and nobody has needed it yet


@dataclass(frozen=True, slots=True)
class _Run:
    """The blocks of one read, from number ``first`` on."""

    first: int
    blocks: Sequence[Buffer]


class BlockCache:
    """The block cache of a process, shared by all its readers.

    ``close`` ends the reads under way.  ``progress`` counts its reads.  The least recently used blocks and indexes make
    room for others.
    """

    def __init__(
        self,
        fs: FileSystem,
        config: ReadConfig | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        progress: ReadProgress | None = None,
    ) -> None:
        self.fs = fs
        self.progress = progress or ReadProgress()
        self._monotonic = monotonic
        self.config = config or ReadConfig()
        self.config.validate()
        self._turn = asyncio.Semaphore(self.config.reads_max)
        self._blocks: LruCache[tuple[str, int], _Block] = LruCache(self.config.cache_bytes)
        self._claim = BlockClaim(self.config.cache_bytes)
        self.on_claim: Callable[[], None] = no_op
        """Called when more room is claimed than there is; ``limit_cache`` may give it before the call returns."""
        self._run_max = float(self.config.run_blocks)  # what there is room for, as eviction shows
        self._facts: LruCache[str, SegmentKnowledge] = LruCache(self.config.index_bytes)
        self._shared: dict[Hashable, _Shared[Any]] = {}
        self._run_bytes = 0  # of the runs begun and not ended, those that wait for their turn too
        self.reading_bytes = 0
        self.cache_bytes = self.config.cache_bytes
        self.ahead = 0
        self.reads = 0
        self.read_bytes = 0
        self.hits = 0
        self.hit_bytes = 0
        self.bad_indexes = 0

    def __repr__(self) -> str:
        return (
            f"<BlockCache {len(self._blocks)} blocks of {self.cached_bytes} bytes, {len(self._facts)} indexes,"
            f" {len(self._shared)} under way, {self.reads} reads, {self.hits} hits>"
        )

    @property
    def cached_bytes(self) -> int:
        """Bytes of the blocks kept."""
        return self._blocks.used

    @property
    def claimed_bytes(self) -> int:
        """Bytes that the blocks need, as far as blocks that were read again show."""
        return self._claim.at(self._monotonic()) if self._claim.is_any else 0

    @property
    def facts_bytes(self) -> int:
        """Bytes of the indexes kept."""
        return self._facts.used

    async def close(self) -> None:
        """Cancel the reads under way; the calls that wait for them are cancelled too."""
        await cancel_and_wait(*(shared.task for shared in self._shared.values()))

    async def once(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of ``work``, which is done once for all callers that wait under ``key``.

        It is cancelled early only when all callers have been cancelled.
        """
        shared: _Shared[T] | None = self._shared.get(key)
        return await self._join(shared or self._start((key,), work()))

    async def _join(self, shared: _Shared[T]) -> T:
        shared.waiters += 1
        try:
            return await asyncio.shield(shared.task)
        finally:
            shared.waiters -= 1
            if not shared.waiters and not shared.task.done():
                self._forget(shared)
                shared.task.cancel()

    def _start(self, keys: Sequence[Hashable], work: Coroutine[Any, Any, T]) -> _Shared[T]:
        shared = _Shared(asyncio.get_running_loop().create_task(work), keys)
        for key in keys:
            self._shared[key] = shared
        shared.task.add_done_callback(lambda task: self._ended(shared))
        return shared

    def _ended(self, shared: _Shared[T]) -> None:
        self._forget(shared)
        if not shared.task.cancelled():
            shared.task.exception()  # read ahead without a reader: one that wants the block reads it, and fails itself

    def _forget(self, shared: _Shared[T]) -> None:
        for key in shared.keys:
            if self._shared.get(key) is shared:
                del self._shared[key]

    # Blocks

    def cached(self, path: str, number: int, length: int) -> Buffer | None:
        """Return the block if at least ``length`` bytes of it are kept and not too old, else None."""
        block = self._blocks.get((path, number))
        if block is None or len(block.data) < length:
            return None
        if self._monotonic() - block.read_s > self.config.block_age_s:
            self._blocks.pop((path, number))
            return None
        return block.data

    async def certain_block(self, path: str, number: int, certain: int, run: int = 1) -> Buffer:
        """Return a block of the file's first ``certain`` bytes; less of it than is certain only if storage has no more.

        If it must be read, so are the blocks behind it, ``run`` in all at most, for a reader that will go on there.
        """
        length = min(self.config.block_bytes, certain - number * self.config.block_bytes)
        data = self.cached(path, number, length)
        if data is not None:
            self.hits += 1
            self.hit_bytes += len(data)
        else:
            data = await self._read_certain(path, number, length, certain, run)
        self._use(path, number)
        return data

    async def _read_certain(self, path: str, number: int, length: int, certain: int, run: int) -> Buffer:
        key = (path, number, length)
        shared: _Shared[_Run] = self._shared.get(key) or self._start_run(path, number, certain, run)
        try:
            read = await self._join(shared)
        except NoSuchFile:
            raise
        except StorageError:
            if len(shared.keys) == 1:
                raise
            # Another block of the run may be at fault, which this reader does not need, or not yet.
            read = await self._join(self._shared.get(key) or self._start_run(path, number, certain, 1))
        return read.blocks[number - read.first]

    async def open(self, path: str, number: int, end_offset: int) -> bytes:
        """Read what is visible of a block now; the read is shared only with callers of the same watermark."""
        position = number * self.config.block_bytes
        key = (path, number, "open", end_offset)
        return await self.once(key, lambda: self._read(path, position, self.config.block_bytes))

    def _start_run(self, path: str, first: int, certain: int, run: int) -> _Shared[_Run]:
        """Begin to read up to ``run`` blocks, but none that is kept or under way."""
        block = self.config.block_bytes
        room = min(self.cache_bytes // _RUN_SHARE, self.cache_bytes // _READING_SHARE - self._run_bytes) // block
        lengths = [min(block, certain - first * block)]
        for number in range(first + 1, first + max(1, min(run, int(self._run_max), room))):
            length = min(block, certain - number * block)
            if length <= 0 or self._is_here(path, number, length):
                break
            lengths.append(length)
        self._claim_room(path, first, lengths)
        keys = [(path, first + at, length) for at, length in enumerate(lengths)]
        shared = self._start(keys, self._read_run(path, first, lengths))
        size = sum(lengths)
        self._run_bytes += size
        shared.task.add_done_callback(lambda task: self._run_ended(size))
        return shared

    def _claim_room(self, path: str, first: int, lengths: Sequence[int]) -> None:
        """Claim room for the blocks of a read that were evicted shortly before."""
        now_s, room = self._monotonic(), self.cache_bytes
        is_more = [self._claim.is_read((path, number), size, room, now_s) for number, size in enumerate(lengths, first)]
        if any(is_more):
            self.on_claim()

    def _run_ended(self, size: int) -> None:
        self._run_bytes -= size

    def _is_here(self, path: str, number: int, length: int) -> bool:
        """Return whether a block is kept or being read, without using it."""
        block = self._blocks.peek((path, number))
        return (path, number, length) in self._shared or (block is not None and len(block.data) >= length)

    async def _read_run(self, path: str, first: int, lengths: Sequence[int]) -> _Run:
        position = first * self.config.block_bytes
        blocks = await self._bounded(sum(lengths), lambda: read_parts(self.fs, path, position, lengths))
        self.read_bytes += sum(map(len, blocks))
        for number, data in enumerate(blocks, first):
            self._keep(path, number, data, is_used=False)
        return _Run(first, blocks)

    async def _read(self, path: str, position: int, length: int) -> bytes:
        data = await self._bounded(length, lambda: self.fs.read(path, position, length))
        self.read_bytes += len(data)
        return data

    async def _bounded(self, length: int, read: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of a read of ``length`` bytes, once fewer than ``reads_max`` are under way."""
        async with self._turn:  # held across the read on purpose: it bounds the reads in flight
            self.reads += 1
            self.reading_bytes += length
            self._shrink()
            try:
                with self.progress.waiting():
                    data = await read()
                self.progress.succeeded()
                return data
            finally:
                self.reading_bytes -= length
                self._shrink()

    def read_ahead(self, path: str, number: int, certain: int, run: int = 1) -> None:
        """Begin to read the first of the next blocks that is missing, and up to ``run`` in all, as far as is certain.

        Half of ``run`` blocks stand ready before the next read begins.  Nothing is read while ``ahead_max`` such reads
        are under way, or those of all readers take half of the cache.
        """
        block = self.config.block_bytes
        if self.ahead >= self.config.ahead_max:
            return
        for first in range(number, number + max(1, run // 2)):
            length = min(block, certain - first * block)
            if length <= 0:
                return
            if not self._is_here(path, first, length):
                if self._run_bytes and self._run_bytes + run * block > self.cache_bytes // _READING_SHARE:
                    return
                self.ahead += 1
                shared = self._start_run(path, first, certain, run)
                shared.waiters += 1  # the cache itself: the read goes on when a reader that joined it is cancelled
                shared.task.add_done_callback(self._ahead_ended)
                return

    def _ahead_ended(self, task: asyncio.Task[Any]) -> None:
        self.ahead -= 1

    def keep(self, path: str, number: int, data: Buffer) -> None:
        """Cache the certain bytes of a block; the least recently used blocks make room."""
        self._keep(path, number, data, is_used=True)

    def _keep(self, path: str, number: int, data: Buffer, *, is_used: bool) -> None:
        old = self._blocks.peek((path, number))
        if old is None or len(old.data) < len(data):
            block = _Block(data, self._monotonic(), is_used=is_used)
            self._note_evicted(self._blocks.put((path, number), block, len(data)))

    def _use(self, path: str, number: int) -> None:
        block = self._blocks.peek((path, number))
        if block is not None and not block.is_used:
            block.is_used = True
            self._run_max = min(self.config.run_blocks, self._run_max + _RUN_GROWTH)

    def _note_evicted(self, evicted: Sequence[tuple[tuple[str, int], _Block]]) -> None:
        """Read less at once if a block is evicted before it was used."""
        for key, block in evicted:
            self._claim.evicted(key, len(block.data))
        if not all(block.is_used for _, block in evicted):
            self._run_max = max(1.0, self._run_max / 2)

    def forget(self, path: str) -> bool:
        """Drop what is kept of a file that was replaced, and return whether anything was kept."""
        keys = [key for key in self._blocks if key[0] == path]
        for key in keys:
            self._blocks.pop(key)
        facts = self._facts.pop(path)
        return bool(keys) or facts is not None

    def limit_cache(self, cache_bytes: int) -> None:
        """Keep no more than ``cache_bytes`` of blocks from now on, including those being read.

        It lets a caller share a budget between this cache and others.  The bound is never more than
        ``ReadConfig.cache_bytes``.
        """
        self.cache_bytes = max(0, min(cache_bytes, self.config.cache_bytes))
        self._shrink()

    def _shrink(self) -> None:
        self._note_evicted(self._blocks.resize(max(0, self.cache_bytes - self.reading_bytes)))

    # Indexes

    def facts(self, path: str) -> SegmentKnowledge | None:
        """Return what is kept of the segment at ``path``, None if there is nothing."""
        return self._facts.get(path)

    def keep_facts(self, path: str, facts: SegmentKnowledge) -> None:
        """Keep ``facts``, or count them again after they have grown; of two, keep those that reach further."""
        old = self._facts.peek(path)
        if old is None or old is facts or old.known_offset < facts.known_offset:
            self._facts.put(path, facts, facts.cost)

    async def index(self, path: str) -> Checkpoint | None:
        """Read a segment's ``.idx``, without its producers.

        The result is None if there is no ``.idx``, or if it is damaged: the segment is scanned instead.
        """
        return await self.once((path, "idx"), lambda: self._read_index(path))

    async def _read_index(self, path: str) -> Checkpoint | None:
        parts: list[bytes] = []
        try:
            while not parts or len(parts[-1]) == _IDX_READ_BYTES:
                parts.append(await self._read(path, len(parts) * _IDX_READ_BYTES, _IDX_READ_BYTES))
        except NoSuchFile:
            return None
        try:
            return await run_in_turns(decode_idx_steps(b"".join(parts), with_producers=False))
        except FormatError:
            self.bad_indexes += 1
            return None


class _Shared(Generic[T]):
    """A piece of work, the keys under which callers find it, and the number of callers that wait for it."""

    __slots__ = ("keys", "task", "waiters")

    def __init__(self, task: asyncio.Task[T], keys: Sequence[Hashable]) -> None:
        self.task = task
        self.keys = keys
        self.waiters = 0
