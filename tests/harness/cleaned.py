"""Batches and logs as compaction leaves them: records missing within batches, batches without records between them.

A naive model of a cleaner.  It follows Kafka's ``MemoryRecords.filterTo``: a batch that loses records keeps its first
and last offset, its producer and its attributes.  Offsets stay dense between batches.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from crc32c import crc32c

from bmq.core.records.batch import (
    CODEC_MASK,
    CRC_START,
    DELETE_HORIZON,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    Batch,
    Record,
    build_gap,
    encode_record,
    encode_varint,
)
from bmq.core.records.cursor import read_batches
from bmq.core.records.reader import StoredRecord, read_records
from bmq.storage.index import SegmentIndex
from bmq.storage.segment import decode_idx, encode_idx


@dataclass(frozen=True, slots=True)
class Survivor:
    """A record that a reader of the log must get."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


def cleaned_batch(data: bytes, kept: Collection[int], *, horizon: int | None = None) -> bytes:
    """Return the batch with its records at the offsets in ``kept``, uncompressed; without any, an empty batch.

    ``horizon`` (ms): the batch gets a delete horizon (KIP-534).
    """
    batch = Batch(memoryview(data))
    left = [record for record in read_records(batch) if record.offset in kept]
    return rewritten(batch, left, horizon=horizon)


def rewritten(batch: Batch, left: Sequence[StoredRecord], *, horizon: int | None = None) -> bytes:
    """Return the batch with the records ``left``, as ``cleaned_batch`` does."""
    attributes = batch.attributes & ~CODEC_MASK
    base_time = batch.base_timestamp
    if horizon is not None:
        attributes, base_time = attributes | DELETE_HORIZON, horizon
    elif left and not attributes & LOG_APPEND_TIME:
        base_time = left[0].timestamp
    body = bytearray(batch.data[:HEADER_BYTES])
    for record in left:
        delta = record.timestamp - base_time
        made = Record(key=record.key, value=record.value, headers=record.headers, timestamp_delta=delta)
        encoded = encode_record(record.offset - batch.base_offset, made)
        body += encode_varint(len(encoded)) + encoded
    largest = batch.max_timestamp
    if left and not attributes & LOG_APPEND_TIME:
        largest = max(record.timestamp for record in left)
    struct.pack_into(">i", body, 8, len(body) - LENGTH_OVERHEAD)
    struct.pack_into(">hiqq", body, CRC_START, attributes, batch.last_offset_delta, base_time, largest)
    struct.pack_into(">i", body, 57, len(left))
    struct.pack_into(">I", body, 17, crc32c(memoryview(body)[CRC_START:]))
    return bytes(body)


def cleaned_log(
    batches: Iterable[bytes],
    kept: Collection[int],
    *,
    horizon: int | None = None,
    keeps_empty: bool = False,
) -> list[bytes]:
    """Return the batches of a log with the records at the offsets in ``kept``.

    A run of batches that lose all their records is one gap.  ``keeps_empty``: each of them stays, as Kafka keeps a
    producer's last batch, with its producer and its largest timestamp.
    """
    made: list[bytes] = []
    gap: tuple[int, int, int] | None = None
    for data in batches:
        batch = Batch(memoryview(data))
        left = [record for record in read_records(batch) if record.offset in kept]
        if not left and not keeps_empty:
            first = batch.base_offset if gap is None else gap[0]
            gap = (first, batch.next_offset, batch.leader_epoch)
            continue
        if gap is not None:
            made += map(bytes, build_gap(*gap))
            gap = None
        is_whole = len(left) == batch.last_offset_delta + 1 and horizon is None
        made.append(data if is_whole else rewritten(batch, left, horizon=horizon))
    if gap is not None:
        made += map(bytes, build_gap(*gap))
    return made


def survivors(batches: Iterable[bytes]) -> list[Survivor]:
    """Return the records of the batches, one after another: the model of every reader."""
    return [
        Survivor(record.offset, record.timestamp, record.key, record.value)
        for batch in read_batches(memoryview(b"".join(batches)))
        if batch.count and not batch.is_control
        for record in read_records(batch)
    ]


def first_not_older_of(records: Iterable[Survivor], timestamp: int, start: int = 0) -> Survivor | None:
    """Return the first record at or past ``start`` that is not older than ``timestamp`` (ms)."""
    return next((each for each in records if each.timestamp >= timestamp and each.offset >= start), None)


def clean_segment(log: Path, kept: Collection[int], *, horizon: int | None = None, keeps_empty: bool = False) -> None:
    """Clean a closed segment of a stopped server on a local folder: its ``.log`` and its ``.idx``, under their names.

    No partition record may name the segment: its length changes.
    """
    idx = log.with_suffix(".idx")
    before = decode_idx(idx.read_bytes())
    full = [bytes(batch.data) for batch in read_batches(memoryview(log.read_bytes())[: before.position])]
    made = cleaned_log(full, kept, horizon=horizon, keeps_empty=keeps_empty)
    index, position = SegmentIndex(256), 0
    for batch in read_batches(memoryview(b"".join(made))):
        index.add(batch.base_offset, position, batch.max_timestamp if batch.count else NO_TIMESTAMP)
        position += batch.size
    after = replace(
        before,
        position=position,
        index=index.entries,
        max_timestamp=index.max_timestamp,
        max_timestamp_offset=index.max_timestamp_offset,
    )
    for path, data in ((log, b"".join(made)), (idx, encode_idx(after))):
        path.chmod(0o644)
        path.write_bytes(data)
