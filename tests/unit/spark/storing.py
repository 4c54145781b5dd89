"""Topics as brokers leave them on storage, written by the test itself: whatever a broker cannot be made to do."""

from __future__ import annotations

import struct
import uuid
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bmq.core.model import PartitionKey, SegmentName
from bmq.core.records.batch import CONTROL, TRANSACTIONAL, Batch, Record, build_batch
from bmq.core.records.cursor import read_batches
from bmq.storage.checkpoint import AbortedTransaction, Checkpoint, ProducerState, encode
from bmq.storage.cluster_files import StoredTopics
from bmq.storage.filesystem import CreateOptions, FileSystem, write_once
from bmq.storage.index import SegmentIndex
from bmq.storage.journal import CHECKPOINT, SNAPSHOT_BEGIN, SNAPSHOT_END, frame
from bmq.storage.layout import PartitionPath, journal
from bmq.storage.segment import encode_idx

TOPIC_ID = uuid.UUID(int=0x70)
BLOCK = CreateOptions(block_bytes=64 << 20)


def batch(base: int, *values: bytes, timestamp: int = 0, pid: int = -1, attributes: int = 0) -> bytes:
    """One record a value, a millisecond apart."""
    records = [Record(key=b"k%d" % (base + i), value=value, timestamp_delta=i) for i, value in enumerate(values)]
    idempotent = {"producer_id": pid, "producer_epoch": 0, "base_sequence": 0} if pid >= 0 else {}
    return bytes(build_batch(records, base_offset=base, base_timestamp=timestamp, attributes=attributes, **idempotent))


def transactional(base: int, *values: bytes, pid: int, timestamp: int = 0) -> bytes:
    return batch(base, *values, timestamp=timestamp, pid=pid, attributes=TRANSACTIONAL)


def marker(base: int, *, pid: int, is_abort: bool, timestamp: int = 0) -> bytes:
    """Return the control batch that ends a transaction."""
    record = Record(key=struct.pack(">hh", 0, 0 if is_abort else 1), value=struct.pack(">hi", 0, 0))
    return bytes(
        build_batch(
            [record],
            base_offset=base,
            base_timestamp=timestamp,
            producer_id=pid,
            producer_epoch=0,
            attributes=TRANSACTIONAL | CONTROL,
        )
    )


def series(start: int, count: int, *, size: int = 50, timestamp: int = 0, step: int = 1) -> list[bytes]:
    """``count`` batches of one record each, timestamps rising by ``step``."""
    return [batch(start + i, b"%d" % (start + i) + b"." * size, timestamp=timestamp + i * step) for i in range(count)]


@dataclass(slots=True)
class Written:
    """A segment that was written; ``checkpoint`` is what its owner would say of it."""

    name: SegmentName
    data: bytes
    checkpoint: Checkpoint


class Store:
    """One topic under a root."""

    def __init__(self, fs: FileSystem, topic: str = "orders", topic_id: uuid.UUID = TOPIC_ID) -> None:
        self.fs = fs
        self.topic = topic
        self.topic_id = topic_id
        self._open_txns: dict[int, dict[int, int]] = {}

    async def create(self, partitions: int = 1, *, is_compacted: bool = False) -> Store:
        configs = {"cleanup.policy": "compact"} if is_compacted else {}
        await StoredTopics(self.fs).write(self.topic, 1, self.topic_id, partitions, configs)
        return self

    async def resize(self, partitions: int) -> None:
        """More partitions, as CreatePartitions leaves it."""
        await StoredTopics(self.fs).write(self.topic, 2, self.topic_id, partitions, {})

    def path(self, partition: int = 0) -> PartitionPath:
        return PartitionPath(self.topic, str(self.topic_id), partition)

    async def segment(
        self,
        batches: Sequence[bytes],
        *,
        partition: int = 0,
        epoch: int = 1,
        n: int = 0,
        base: int | None = None,
        end: int | None = None,
        has_idx: bool = True,
        interval: int = 200,
        covered: int | None = None,
        leftovers: bytes = b"",
        log_start: int = 0,
    ) -> Written:
        """Write a segment and its index.  The index covers ``covered`` batches; ``leftovers`` follow the batches.

        ``base`` and ``end`` where the first and the last batch have been compacted away.
        """
        data = b"".join(batches)
        name = SegmentName(Batch(memoryview(data)).base_offset if base is None else base, epoch, n)
        open_txns = self._open_txns.setdefault(partition, {})
        key = PartitionKey(self.topic_id, partition)
        contents = _checkpoint(key, name, batches[:covered], interval, open_txns)
        contents = replace(contents, log_start=log_start, end_offset=contents.end_offset if end is None else end)
        await write_once(self.fs, self.path(partition).log(name), data + leftovers, BLOCK)
        if has_idx:
            await write_once(self.fs, self.path(partition).idx(name), encode_idx(replace(contents, is_closed=True)))
        return Written(name, data, contents)

    async def journal(self, *checkpoints: Checkpoint, incarnation: str = "0-aaaa", n: int = 1) -> None:
        payloads = [frame(CHECKPOINT, encode(each)) for each in checkpoints]
        data = b"".join([frame(SNAPSHOT_BEGIN, b""), *payloads, frame(SNAPSHOT_END, b"")])
        await write_once(self.fs, journal(incarnation, n), data)


def _checkpoint(
    key: PartitionKey, name: SegmentName, batches: Sequence[bytes], interval: int, open_txns: dict[int, int]
) -> Checkpoint:
    """``open_txns`` (producer id: first offset) go from segment to segment."""
    index = SegmentIndex(interval)
    position, end = 0, name.base
    aborted = []
    for each in read_batches(memoryview(b"".join(batches))):
        index.add(each.base_offset, position, each.max_timestamp)
        position, end = position + each.size, each.next_offset
        if each.is_control:
            first = open_txns.pop(each.producer_id)
            if (
                bytes(each.data[68:70]) == b"\0\0"
            ):  # the type: behind the batch's head, five bytes of record, the version
                aborted.append(AbortedTransaction(each.producer_id, first, each.last_offset, end))
        elif each.is_transactional:
            open_txns.setdefault(each.producer_id, each.base_offset)
    return Checkpoint(
        key=key,
        segment=name,
        position=position,
        end_offset=end,
        log_start=0,
        max_timestamp=index.max_timestamp,
        index=array("q", index.entries),
        first_open_txn=min(open_txns.values(), default=-1),
        producers=tuple(ProducerState(pid, 0, 0, 0, first, ()) for pid, first in open_txns.items()),
        aborted=tuple(aborted),
    )
