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
from collections.abc import Sequence
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
_VARLONG_BYTES = 10
_LEVELS = {"gzip": -1, "lz4": 9, "zstd": 3}
"""Kafka's default levels, which its cleaner takes whatever the topic's are."""


class CleanedRecord(NamedTuple):
    """A record in its bytes: ``data`` begins behind the record's length, ``rest_at`` is behind the timestamp delta."""

    offset: int
    timestamp_delta: int
    key: bytes | None
    has_value: bool
    data: memoryview
    rest_at: int

    @property
    def is_tombstone(self) -> bool:
        """True if the record deletes its key."""
        return self.key is not None and not self.has_value


def cut_records(batch: Batch, *, bytes_max: int = RECORDS_BYTES_MAX) -> list[CleanedRecord]:
    """Return the batch's records.

    Raises FormatError with the offset of the batch if the records need more than ``bytes_max`` bytes, are damaged, or
    do not agree with the header.
    """
    if not batch.count:
        return []
    try:
        data = decompress(batch.attributes & CODEC_MASK, batch.data[HEADER_BYTES : batch.size], bytes_max)
        return _cut(batch, data)
    except (FormatError, IndexError) as error:
        detail = "a record's bytes end first" if isinstance(error, IndexError) else str(error)
        raise FormatError(f"the batch at offset {batch.base_offset} cannot be cleaned: {detail}") from error


def _cut(batch: Batch, data: memoryview) -> list[CleanedRecord]:
    records: list[CleanedRecord] = []
    at, last_delta = 0, -1
    for _ in range(batch.count):
        length, at = read_varint(data, at)
        end = at + length
        if length < 0 or end > len(data):
            raise FormatError(f"a record of {length} bytes, {len(data) - at} are left")
        record = data[at:end]
        timestamp_delta, rest_at = read_varint(record, 1, _VARLONG_BYTES)
        delta, next_at = read_varint(record, rest_at)
        key, next_at = _field(record, next_at)
        value, _ = _field(record, next_at)
        if not last_delta < delta <= batch.last_offset_delta:
            raise FormatError(f"offset delta {delta} is not in ({last_delta}, {batch.last_offset_delta}]")
        offset = batch.base_offset + delta
        is_valued = value is not None
        records.append(
            CleanedRecord(offset, timestamp_delta, None if key is None else bytes(key), is_valued, record, rest_at)
        )
        at, last_delta = end, delta
    if at != len(data):
        raise FormatError(f"{len(data) - at} bytes follow the last of {batch.count} records")
    return records


def _field(record: memoryview, at: int) -> tuple[memoryview | None, int]:
    length, at = read_varint(record, at)
    if length < 0:
        return None, at
    if length > len(record) - at:
        raise FormatError(f"a key or value of {length} bytes, {len(record) - at} are left")
    return record[at : at + length], at + length


def write_batch(batch: Batch, records: Sequence[CleanedRecord], horizon: int = NO_HORIZON) -> bytearray:
    """Return the batch with these of its records, at least one, and a new delete horizon unless it is NO_HORIZON."""
    attributes, base_timestamp = batch.attributes, batch.base_timestamp
    if horizon != NO_HORIZON:
        attributes, base_timestamp = attributes | DELETE_HORIZON, horizon
    plain = bytearray()
    for record in records:
        if base_timestamp == batch.base_timestamp:
            plain += encode_varint(len(record.data)) + bytes(record.data)
            continue
        delta = encode_varint(batch.base_timestamp + record.timestamp_delta - base_timestamp)
        plain += encode_varint(1 + len(delta) + len(record.data) - record.rest_at)
        plain += bytes(record.data[:1]) + delta + bytes(record.data[record.rest_at :])
    header = bytearray(batch.data[:HEADER_BYTES])
    _ATTRIBUTES.pack_into(header, _ATTRIBUTES_AT, attributes)
    _TIMESTAMPS.pack_into(header, _TIMESTAMPS_AT, base_timestamp, _max_timestamp(batch, records))
    _COUNT.pack_into(header, _COUNT_AT, len(records))
    codec = CODECS[attributes & CODEC_MASK]
    return repack(Batch(memoryview(header)), memoryview(plain), Compression(codec, _LEVELS.get(codec, 0)))


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


def _max_timestamp(batch: Batch, records: Sequence[CleanedRecord]) -> int:
    if batch.attributes & LOG_APPEND_TIME:
        return int(batch.max_timestamp)
    base_timestamp = int(batch.base_timestamp)
    return max(NO_TIMESTAMP, *(base_timestamp + record.timestamp_delta for record in records))
