"""The shared part of a process's readers: reads in flight, cached blocks and segment indexes, each under its own bound.

Reads are in aligned blocks, one read for all readers that wait for the same block.  ``SegmentKnowledge`` has the
position up to which a segment's bytes are certain: by its ``.idx``, by its owner, or because the headers up to there
were stepped over under a watermark that was known before the read.  Only bytes below that position are kept.  A block
read past it is shared only by readers with the same watermark: an older read may have seen other bytes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from bmq.core.aio.lru import LruCache
from bmq.core.aio.tasks import cancel_and_wait
from bmq.core.aio.turns import run_in_turns
from bmq.core.errors import FormatError
from bmq.core.records.batch import HEADER_BYTES, Batch
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.filesystem import FileSystem, NoSuchFile
from bmq.storage.index import SegmentIndex
from bmq.storage.read_progress import ReadProgress
from bmq.storage.segment import decode_idx_steps

T = TypeVar("T")
_IDX_READ_BYTES = 256 << 10
_NEVER = -1
_FACTS_BYTES = 400  # a SegmentKnowledge without its entries


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
    ahead_max: int = 8
    """Blocks read ahead at once, at most."""
    parallel_indexes: int = 8
    """Indexes read at once by one search for a timestamp."""
    block_age_s: float = 600.0
    """A block is read again when it is older: segments never change, unless `bmq segment repair` replaces one."""

    def validate(self) -> None:
        """Check the bounds.  Raises ValueError naming the setting that is out of range."""
        if self.block_bytes < HEADER_BYTES:
            raise ValueError(f"block_bytes={self.block_bytes} is less than a batch header")
        if self.reads_max < 1 or self.ahead_max < 0 or self.parallel_indexes < 1:
            raise ValueError("reads_max and parallel_indexes must be at least 1, ahead_max at least 0")


class SegmentKnowledge:
    """The knowledge of one segment: a sparse index, and the position up to which its bytes are certain.

    Bytes below ``known_position`` are flushed and hold the offsets below ``known_offset``.
    """

    __slots__ = ("asked_end", "entries", "index", "is_ours", "known_offset", "known_position")

    def __init__(self, index: SegmentIndex, known_offset: int, known_position: int, *, is_ours: bool) -> None:
        self.index = index
        self.entries = index.entries
        self.known_offset = known_offset
        self.known_position = known_position
        self.is_ours = is_ours  # False: the index is the owner's, and is only read
        self.asked_end: int | None = _NEVER  # the segment's end when its .idx was last read

    @property
    def cost(self) -> int:
        """The memory that it takes, in bytes."""
        return _FACTS_BYTES + len(self.entries) * self.entries.itemsize

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
        # Each block with the time at which it was read.
        self._blocks: LruCache[tuple[str, int], tuple[bytes, float]] = LruCache(self.config.cache_bytes)
        self._facts: LruCache[str, SegmentKnowledge] = LruCache(self.config.index_bytes)
        self._shared: dict[Hashable, _Shared[Any]] = {}
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
            shared.task.exception()  # read ahead without a reader: one that wants the block reads it, and fails itself

    def _forget(self, key: Hashable, shared: _Shared[T]) -> None:
        if self._shared.get(key) is shared:
            del self._shared[key]

    # Blocks

    def cached(self, path: str, number: int, length: int) -> bytes | None:
        """Return the block if at least ``length`` bytes of it are kept and not too old, else None."""
        block = self._blocks.get((path, number))
        if block is None or len(block[0]) < length:
            return None
        data, read_s = block
        if self._monotonic() - read_s > self.config.block_age_s:
            self._blocks.pop((path, number))
            return None
        return data

    async def certain_block(self, path: str, number: int, length: int) -> bytes:
        """Return at least the first ``length`` bytes of a block, all certain; fewer only if storage has no more."""
        data = self.cached(path, number, length)
        if data is not None:
            self.hits += 1
            self.hit_bytes += len(data)
            return data
        return await self.once((path, number, length), lambda: self._read_certain(path, number, length))

    async def open(self, path: str, number: int, end_offset: int) -> bytes:
        """Read what is visible of a block now; the read is shared only with callers of the same watermark."""
        position = number * self.config.block_bytes
        key = (path, number, "open", end_offset)
        return await self.once(key, lambda: self._read(path, position, self.config.block_bytes))

    async def _read_certain(self, path: str, number: int, length: int) -> bytes:
        data = await self._read(path, number * self.config.block_bytes, length)
        self.keep(path, number, data)
        return data

    async def _read(self, path: str, position: int, length: int) -> bytes:
        async with self._turn:  # held across the read on purpose: it bounds the reads in flight
            self.reads += 1
            self.reading_bytes += length
            self._shrink()
            try:
                with self.progress.waiting():
                    data = await self.fs.read(path, position, length)
                self.progress.succeeded()
                self.read_bytes += len(data)
                return data
            finally:
                self.reading_bytes -= length
                self._shrink()

    def read_ahead(self, path: str, number: int, length: int) -> None:
        """Begin to read a block whose bytes are certain, unless ``ahead_max`` such reads are under way."""
        key = (path, number, length)
        if self.ahead >= self.config.ahead_max or key in self._shared or self.cached(path, number, length) is not None:
            return
        self.ahead += 1
        shared = self._start(key, lambda: self._read_certain(path, number, length))
        shared.waiters += 1  # the cache itself: the read goes on when a reader that joined it is cancelled
        shared.task.add_done_callback(self._ahead_ended)

    def _ahead_ended(self, task: asyncio.Task[Any]) -> None:
        self.ahead -= 1

    def keep(self, path: str, number: int, data: bytes) -> None:
        """Cache the certain bytes of a block; the least recently used blocks make room."""
        old = self._blocks.peek((path, number))
        if old is None or len(old[0]) < len(data):
            self._blocks.put((path, number), (data, self._monotonic()), len(data))

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
        self._blocks.resize(max(0, self.cache_bytes - self.reading_bytes))

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
    """One piece of work and the number of callers that wait for it."""

    __slots__ = ("task", "waiters")

    def __init__(self, task: asyncio.Task[T]) -> None:
        self.task = task
        self.waiters = 0
