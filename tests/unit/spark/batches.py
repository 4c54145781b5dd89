"""Batches built by kafka-python, and read again by it: what the decoder is compared with."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from crc32c import crc32c

from bmq.core.records.batch import Batch

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of importlib's, while kafka-python loads its schemas
    from kafka.record.default_records import DefaultRecordBatchBuilder
    from kafka.record.memory_records import MemoryRecords

NOW = 1_700_000_000_000
TOPIC = "orders"
PARTITION = 3

Headers = Sequence[tuple[str, bytes | None]]


class Item(NamedTuple):
    """A record to be; ``delta`` from the batch's base offset."""

    delta: int
    key: bytes | None = b"k"
    value: bytes | None = b"v"
    headers: Headers = ()
    timestamp: int = NOW


class Row(NamedTuple):
    """A record as Spark shows it; the time in microseconds."""

    key: bytes | None
    value: bytes | None
    topic: str
    partition: int
    offset: int
    timestamp: int
    timestampType: int
    headers: tuple[tuple[str, bytes | None], ...] | None


def built(
    items: Sequence[Item],
    base_offset: int = 0,
    codec: int = 0,
    *,
    producer_id: int = -1,
    is_transactional: bool = False,
    append_time: int | None = None,
) -> bytes:
    """One batch of one item at least."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=is_transactional,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=0 if producer_id >= 0 else -1,
        batch_size=1 << 30,
    )
    for item in items:
        assert builder.append(item.delta, item.timestamp, item.key, item.value, list(item.headers)) is not None
    data = bytearray(builder.build())
    batch = Batch(memoryview(data))
    batch.assign(base_offset, 1)
    if append_time is not None:
        batch.set_append_time(append_time)
    return bytes(data)


def plain(base_offset: int, count: int = 3, codec: int = 0, **options: Any) -> bytes:
    """Return a batch of records that differ."""
    items = [Item(i, b"k%d" % (base_offset + i), b"v" * 20, (), NOW + base_offset + i) for i in range(count)]
    return built(items, base_offset, codec, **options)


def marker(base_offset: int, producer_id: int, *, is_commit: bool) -> bytes:
    """Return the control batch that ends a transaction, as Kafka's coordinator writes it."""
    data = built([Item(0, struct.pack(">hh", 0, is_commit), bytes(6))], base_offset, producer_id=producer_id)
    return changed(data, attributes=0x30)


def empty(base_offset: int, last_delta: int) -> bytes:
    """Return the rest of a batch that compaction emptied, whose last sequence is still needed."""
    return changed(built([Item(0)], base_offset)[:61], last_delta=last_delta, count=0)


def changed(
    data: bytes, *, attributes: int | None = None, last_delta: int | None = None, count: int | None = None
) -> bytes:
    """Return the batch with other fields, and the length and CRC that belong to it."""
    out = bytearray(data)
    for layout, at, value in ((">h", 21, attributes), (">i", 23, last_delta), (">i", 57, count)):
        if value is not None:
            struct.pack_into(layout, out, at, value)
    struct.pack_into(">i", out, 8, len(out) - 12)
    struct.pack_into(">I", out, 17, crc32c(memoryview(out)[21:]))
    return bytes(out)


def read_by_kafka(data: bytes) -> list[Row]:
    """All records but those of control batches, whatever became of their transactions."""
    return [
        Row(
            record.key,
            record.value,
            TOPIC,
            PARTITION,
            record.offset,
            record.timestamp * 1000,
            record.timestamp_type,
            tuple(record.headers) or None,
        )
        for batch in MemoryRecords(data)
        if not batch.is_control_batch
        for record in batch
    ]


def rows_of(batches: pa.Table | Sequence[pa.RecordBatch]) -> list[Row]:
    """Return the rows of batches with all columns, in the order of ``COLUMNS``."""
    parts = batches.to_batches() if isinstance(batches, pa.Table) else batches
    rows: list[Row] = []
    for part in parts:
        part.validate(full=True)
        times = part.column("timestamp").cast(pa.int64())
        columns = [times if field.name == "timestamp" else part.column(field.name) for field in part.schema]
        rows += (
            Row._make((*fields, headers and tuple((entry["key"], entry["value"]) for entry in headers)))
            for *fields, headers in zip(*(column.to_pylist() for column in columns), strict=True)
        )
    return rows
