"""Journals in tests: short checkpoints, the bytes of journals, and a broker's journal on storage in memory."""

from __future__ import annotations

import asyncio
import struct
import uuid
from array import array
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from crc32c import crc32c

from bmq.core.model import PartitionKey, SegmentName
from bmq.storage import layout
from bmq.storage.checkpoint import Checkpoint, ProducerState, encode
from bmq.storage.filesystem import write_once
from bmq.storage.journal import (
    CHECKPOINT,
    SNAPSHOT_BEGIN,
    SNAPSHOT_END,
    JournalView,
    frame,
    read_backwards,
    read_journals,
)
from bmq.storage.journal_writer import JournalWriter
from bmq.storage.memory import Faults, MemoryFileSystem, MemoryStorage

BROKER = "3-0123456789abcdef"
TOPIC = uuid.UUID(int=77)
SEGMENT = SegmentName(0, 1, 0)

HEAD, TAIL = struct.Struct(">4sBI"), struct.Struct(">II4s")


def check(data: memoryview) -> list[str]:
    """Return the faults of a journal's bytes, by a forward reader that shares nothing with the one under test."""
    faults: list[str] = []
    position = 0
    while position < len(data):
        fault, size = record_fault(data, position)
        if fault:
            faults.append(f"at {position}: {fault}")
            following = bytes(data).find(b"JRN1", position + 1)
            size = following - position if following >= 0 else len(data) - position
        position += size
    return faults


def record_fault(data: memoryview, position: int) -> tuple[str, int]:
    """Return the fault of the record at ``position`` ("" if it is right), and its size."""
    left = len(data) - position
    if left < HEAD.size + TAIL.size:
        return f"{left} bytes at the end are not a record (a torn write)", 0
    magic, _, length = HEAD.unpack_from(data, position)
    size = HEAD.size + length + TAIL.size
    if magic != b"JRN1":
        return "no record begins here", 0
    if size > left:
        return "the record is cut short (a torn write)", 0
    crc, again, end = TAIL.unpack_from(data, position + size - TAIL.size)
    is_right = crc == crc32c(data[position + 4 : position + size - TAIL.size]) and (again, end) == (length, b"1NRJ")
    return ("" if is_right else "the record's CRC does not match"), size


def key(partition: int = 0) -> PartitionKey:
    """Return the key of a partition of the one topic of these journals."""
    return PartitionKey(TOPIC, partition)


def full(end: int, partition: int = 0, segment: SegmentName = SEGMENT) -> Checkpoint:
    """Return a full checkpoint of a log that ends at offset ``end``, without an index and producers."""
    return Checkpoint(key=key(partition), segment=segment, position=end * 10, end_offset=end, log_start=0)


def delta(end: int, partition: int = 0, segment: SegmentName = SEGMENT) -> Checkpoint:
    """Return a delta with one index entry, and one producer changed."""
    return replace(
        full(end, partition, segment),
        is_full=False,
        index=array("q", [end - 1, end * 10 - 1, 0]),
        producers=(ProducerState(end, 0, -1, 0, -1, ()),),
    )


def record(checkpoint: Checkpoint) -> bytes:
    """Return the record of a checkpoint."""
    return frame(CHECKPOINT, encode(checkpoint))


def snapshot(*checkpoints: Checkpoint) -> bytes:
    """Return the records of a whole snapshot."""
    return frame(SNAPSHOT_BEGIN, b"") + b"".join(map(record, checkpoints)) + frame(SNAPSHOT_END, b"")


def backwards(data: bytes) -> list[tuple[int, bytes]]:
    """Return the type and payload of each record, the last one first."""
    return [(kind, bytes(payload)) for kind, payload in read_backwards(memoryview(data))]


def parse(data: bytes) -> dict[PartitionKey, Checkpoint]:
    """Return the checkpoints that a reader finds in the bytes of a journal."""
    return JournalView.parse(memoryview(data)).checkpoints


async def put(fs: MemoryFileSystem, n: int, data: bytes, broker: str = BROKER) -> None:
    """Write ``data`` as the file numbered ``n`` of a broker's journal."""
    await write_once(fs, layout.journal(broker, n), data)


class JournalWorld:
    """A journal of one broker on a memory HDFS, and the partitions that it would put into a snapshot."""

    def __init__(self, storage: MemoryStorage | None = None, **options: Any) -> None:
        self.storage = storage or MemoryStorage()
        self.fs = MemoryFileSystem(self.storage, BROKER)
        self.held: dict[PartitionKey, Checkpoint] = {}
        self.journal = JournalWriter(self.fs, BROKER, self._snapshot, **options)

    def _snapshot(self) -> Iterable[Checkpoint]:
        return list(self.held.values())

    def append(self, checkpoint: Checkpoint) -> asyncio.Future[None]:
        """Append as a broker does: what a checkpoint says is true before it is written."""
        self.held[checkpoint.key] = replace(checkpoint, is_full=True)
        return self.journal.append(checkpoint)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        """Run the journal in the ``async with`` block, and kill it at its end."""
        task = asyncio.create_task(self.journal.run())
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def read(self) -> dict[PartitionKey, Checkpoint]:
        """Read as another process does, on storage whose faults have ended."""
        self.storage.faults = Faults()
        return await read_journals(MemoryFileSystem(self.storage, "reader"), BROKER)

    async def files(self) -> list[int]:
        """Return the numbers of the journal's files."""
        found = []
        async for status in MemoryFileSystem(self.storage, "reader").list(layout.JOURNALS):
            parsed = layout.parse_journal(layout.base_name(status.path))
            assert parsed is not None
            found.append(parsed[1])
        return found

    async def data(self, n: int) -> bytes:
        """Return the bytes of the file numbered ``n``."""
        return await MemoryFileSystem(self.storage, "reader").read(layout.journal(BROKER, n), 0, 1 << 30)


def restart_all(storage: MemoryStorage) -> None:
    """Restart all datanodes: every open file loses its pipeline, and cannot be read before it is closed."""
    for name in storage.datanodes:
        storage.kill_datanode(name)
    for name in storage.datanodes:
        storage.start_datanode(name)
