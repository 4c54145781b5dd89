"""The bytes of a cleaned batch.  Pure.

A cleaned batch keeps its base offset, last offset delta, producer id, epoch, sequence, leader epoch, codec, timestamp
type and transactional bits.  So its offsets and its last sequence stay the same for its producer and its readers.
Records stay as their producer encoded them. But a new delete horizon becomes the base timestamp of its batch (KIP-534):
then timestamp deltas are encoded again.

=====================  =================================================================================
records that stay      bytes
=====================  =================================================================================
all, no new horizon    the batch as it is
some, or a new one     a new body by the same codec; largest timestamp, count and CRC are computed again
none, header needed    61 bytes (``empty_batch``)
none                   the writer joins its offsets with its neighbours' (``build_gap``)
=====================  =================================================================================

The largest timestamp is computed from the records that stay, as in Kafka. With LogAppendTime it does not change.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from bmq.core.errors import FormatError
from bmq.core.records.batch import (
    CODEC_MASK,
    CODECS,
    CRC_START,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    Batch,
    encode_varint,
    wrap_long,
)
from bmq.core.records.compression import Compression, repack
from bmq.core.records.reader import RECORDS_BYTES_MAX, decompress, read_varint
from bmq.storage.cleaning.retention import DELETE_HORIZON, NO_HORIZON

_LENGTH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_TIMESTAMPS = struct.Struct(">qq")
_COUNT = struct.Struct(">i")
_LENGTH_AT, _CRC_AT, _ATTRIBUTES_AT, _TIMESTAMPS_AT, _COUNT_AT = 8, 17, 21, 27, 57
_VARINT_BYTES, _VARLONG_BYTES = 5, 10
_LEVELS = {"gzip": -1, "lz4": 9, "zstd": 3}
"""Kafka's default levels, which its cleaner takes whatever the topic's are."""


class CleanedRecord(NamedTuple):
    """A record in its bytes: ``data`` begins with the record's length."""

    offset: int
    timestamp_delta: int
    key: bytes | None
    has_value: bool
    data: bytes

    @property
    def is_tombstone(self) -> bool:
        """True if the record deletes its key."""
        return self.key is not None and not self.has_value


class KeptRecords:
    """The kept records of a batch, one behind the other in their bytes.

    A batch of a megabyte may have millions of records, so no object of a record is kept.
    """

    __slots__ = ("_base_timestamp", "count", "data", "max_timestamp", "tombstones")

    def __init__(self, batch: Batch) -> None:
        self._base_timestamp = batch.base_timestamp
        self.max_timestamp = NO_TIMESTAMP
        self.data = bytearray()
        self.count = 0
        self.tombstones = 0

    def add(self, record: CleanedRecord) -> None:
        """Keep the batch's next record."""
        self.data += record.data
        self.count += 1
        self.tombstones += record.is_tombstone
        self.max_timestamp = max(self.max_timestamp, wrap_long(self._base_timestamp + record.timestamp_delta))


def cut_records(batch: Batch, *, bytes_max: int = RECORDS_BYTES_MAX) -> Iterator[CleanedRecord]:
    """Yield the batch's records.

    Raises FormatError with the offset of the batch if the records need more than ``bytes_max`` bytes, are damaged, or
    do not agree with the header.  The last records may show the damage.
    """
    if not batch.count:
        return
    try:
        data = decompress(batch.attributes & CODEC_MASK, batch.data[HEADER_BYTES : batch.size], bytes_max)
        yield from _cut(batch, bytes(data))
    except (FormatError, IndexError) as error:
        detail = "a record's bytes end first" if isinstance(error, IndexError) else str(error)
        raise FormatError(f"the batch at offset {batch.base_offset} cannot be cleaned: {detail}") from error


def _cut(batch: Batch, data: bytes) -> Iterator[CleanedRecord]:
    at, last_delta = 0, -1
    base_offset, largest_delta = batch.base_offset, batch.last_offset_delta
    for _ in range(batch.count):
        start = at
        length, at = _number(data, at)
        end = at + length
        if length < 0 or end > len(data):
            raise FormatError(f"a record of {length} bytes, {len(data) - at} are left")
        timestamp_delta, at = _number(data, at + 1, _VARLONG_BYTES)
        delta, at = _number(data, at)
        if not last_delta < delta <= largest_delta:
            raise FormatError(f"offset delta {delta} is not in ({last_delta}, {largest_delta}]")
        size, at = _number(data, at)
        key = None if size < 0 else data[at : _field_end(at, size, end)]
        size, at = _number(data, at + max(size, 0))
        _field_end(at, size, end)
        yield CleanedRecord(base_offset + delta, timestamp_delta, key, size >= 0, data[start:end])
        at, last_delta = end, delta
    if at != len(data):
        raise FormatError(f"{len(data) - at} bytes follow the last of {batch.count} records")


def _number(data: bytes, at: int, bytes_max: int = _VARINT_BYTES) -> tuple[int, int]:
    byte = data[at]
    return ((byte >> 1) ^ -(byte & 1), at + 1) if byte < 0x80 else read_varint(data, at, bytes_max)


def _field_end(at: int, size: int, end: int) -> int:
    """Return the position behind a key or value of ``size`` bytes, -1 for null; ``end`` is the record's."""
    if size > end - at or at > end:
        raise FormatError(f"a key or value of {size} bytes, {end - at} are left")
    return at + max(size, 0)


def write_batch(batch: Batch, kept: KeptRecords, horizon: int = NO_HORIZON) -> bytearray:
    """Return the batch with its kept records, at least one, and a new delete horizon unless it is NO_HORIZON."""
    is_moved = horizon not in (NO_HORIZON, batch.base_timestamp)
    data = _with_base(batch, kept, horizon) if is_moved else kept.data
    return pack_records(batch, memoryview(data), kept.count, kept.max_timestamp, horizon)


def pack_records(batch: Batch, plain: memoryview, count: int, max_timestamp: int, horizon: int) -> bytearray:
    """Return the batch with ``count`` decompressed records, whose deltas count from ``horizon`` if it is given.

    ``max_timestamp``: the largest of these records; with LogAppendTime the batch's stays.
    """
    attributes, base_timestamp = batch.attributes, batch.base_timestamp
    if horizon != NO_HORIZON:
        attributes, base_timestamp = attributes | DELETE_HORIZON, horizon
    largest = batch.max_timestamp if attributes & LOG_APPEND_TIME else max_timestamp
    header = bytearray(batch.data[:HEADER_BYTES])
    _ATTRIBUTES.pack_into(header, _ATTRIBUTES_AT, attributes)
    _TIMESTAMPS.pack_into(header, _TIMESTAMPS_AT, base_timestamp, largest)
    _COUNT.pack_into(header, _COUNT_AT, count)
    codec = CODECS[attributes & CODEC_MASK]
    return repack(Batch(memoryview(header)), plain, Compression(codec, _LEVELS.get(codec, 0)))


def _with_base(batch: Batch, kept: KeptRecords, base_timestamp: int) -> bytearray:
    """Return the kept records with deltas from another base timestamp, of 64 bits: the sums wrap to the same times."""
    moved = bytearray()
    data, at = bytes(kept.data), 0
    for _ in range(kept.count):
        length, at = _number(data, at)
        end = at + length
        delta, rest_at = _number(data, at + 1, _VARLONG_BYTES)
        encoded = encode_varint(wrap_long(batch.base_timestamp + delta - base_timestamp))
        moved += encode_varint(1 + len(encoded) + end - rest_at)
        moved += data[at : at + 1] + encoded + data[rest_at:end]
        at = end
    return moved


def empty_batch(batch: Batch) -> bytearray:
    """Return the batch without records: its header, by which its producer's sequence and epoch stay known.

    Codec and base timestamp go, as in Kafka's ``DefaultRecordBatch.writeEmptyHeader``; a delete horizon goes with them.
    """
    header = bytearray(batch.data[:HEADER_BYTES])
    _LENGTH.pack_into(header, _LENGTH_AT, HEADER_BYTES - LENGTH_OVERHEAD)
    _ATTRIBUTES.pack_into(header, _ATTRIBUTES_AT, batch.attributes & ~CODEC_MASK & ~DELETE_HORIZON)
    _TIMESTAMPS.pack_into(header, _TIMESTAMPS_AT, NO_TIMESTAMP, batch.max_timestamp)
    _COUNT.pack_into(header, _COUNT_AT, 0)
    _CRC.pack_into(header, _CRC_AT, crc32c(memoryview(header)[CRC_START:]))
    return header
