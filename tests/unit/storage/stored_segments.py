"""Segments of a partition on storage in memory, and readers of them that count what they read."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence

from bmq.core.model import PartitionKey, SegmentName
from bmq.core.records.batch import Batch, Record, build_batch
from bmq.core.records.cursor import read_batches
from bmq.storage.block_cache import BlockCache, ReadConfig
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.filesystem import StorageUnavailable, write_once
from bmq.storage.index import SegmentIndex
from bmq.storage.layout import PartitionPath
from bmq.storage.log_reader import ActiveSegment, LogReader
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from bmq.storage.segment import encode_idx

PATH = PartitionPath("t", "id", 0)
KEY = PartitionKey(uuid.UUID(int=1), 0)
S = SegmentName
BLOCK = 1024


class SlowFileSystem(MemoryFileSystem):
    """Counts reads of logs by (path, position); each takes ten milliseconds."""

    def __init__(self) -> None:
        super().__init__(MemoryStorage(), "h")
        self.log_reads: list[tuple[str, int]] = []
        self.idx_reads = 0
        self.running = 0
        self.running_max = 0
        self.fails = False

    async def read(self, path: str, position: int, length: int) -> bytes:
        if path.endswith(".log"):
            self.log_reads.append((path, position))
        else:
            self.idx_reads += 1
        self.running += 1
        self.running_max = max(self.running, self.running_max)
        try:
            data = await super().read(path, position, length)
            await asyncio.sleep(0.01)  # the answer is on its way: what is written now is not in it
            if self.fails:
                raise StorageUnavailable("not now")
            return data
        finally:
            self.running -= 1


def batch(base: int, count: int = 1, size: int = 100, timestamp: int = 0, step: int = 0) -> bytes:
    records = [Record(value=b"v" * size, timestamp_delta=n * step) for n in range(count)]
    return bytes(build_batch(records, base_offset=base, base_timestamp=timestamp, leader_epoch=1))


def batches(first: int, last: int, **options: int) -> list[bytes]:
    """Return batches of one record each, of offsets [first, last)."""
    return [batch(offset, **options) for offset in range(first, last)]


async def put(fs: MemoryFileSystem, name: SegmentName, content: Sequence[bytes], *, idx: bool = False) -> ActiveSegment:
    """Write a closed segment file, with its index if ``idx``, and return the segment with its index."""
    index, position, end = SegmentIndex(256), 0, name.base
    for data in content:
        head = Batch(memoryview(data))
        index.add(head.base_offset, position, head.max_timestamp)
        position, end = position + len(data), head.next_offset
    await write_once(fs, PATH.log(name), b"".join(content))
    if idx:
        await put_idx(fs, name, position, end, index)
    return ActiveSegment(name, position, end, index)


async def put_idx(fs: MemoryFileSystem, name: SegmentName, position: int, end: int, index: SegmentIndex) -> None:
    checkpoint = Checkpoint(
        key=KEY,
        segment=name,
        position=position,
        end_offset=end,
        log_start=0,
        is_closed=True,
        max_timestamp=index.max_timestamp,
        index=index.entries,
    )
    await write_once(fs, PATH.idx(name), encode_idx(checkpoint))


def reader(fs: MemoryFileSystem, **options: int) -> LogReader:
    return LogReader(BlockCache(fs, ReadConfig(**{"block_bytes": BLOCK, **options})), PATH)


def offsets(data: bytes) -> list[int]:
    return [part.base_offset for part in read_batches(memoryview(data))]


async def read_all(log: LogReader, start: int, end: int, max_bytes: int = 700) -> list[int]:
    found: list[int] = []
    while start < end:
        data = await log.read(start, max_bytes, end)
        assert data
        found += offsets(data)
        start = list(read_batches(memoryview(data)))[-1].next_offset
    return found
