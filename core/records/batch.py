"""Kafka's record batch, version 2: header, checks, numbering, and a plain builder.

::

     0  baseOffset            i64   assigned by the partition's owner, outside the CRC
     8  batchLength           i32   bytes after this field
    12  partitionLeaderEpoch  i32   assigned by the owner, outside the CRC
    16  magic                 i8    2
    17  crc                   u32   CRC-32C of everything from attributes on
    21  attributes            i16   0-2 codec, 3 LogAppendTime, 4 transactional, 5 control, 6 delete horizon
    23  lastOffsetDelta       i32
    27  baseTimestamp         i64
    35  maxTimestamp          i64
    43  producerId            i64
    51  producerEpoch         i16
    53  baseSequence          i32
    57  recordsCount          i32
    61  records

The checks are those of Kafka's ``UnifiedLog.analyzeAndValidateRecords`` and ``LogValidator`` that need only the header;
``core.records.check`` checks single records.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from crc32c import crc32c

from bmq.core.errors import ErrorCode, RequestError

HEADER_BYTES = 61
LENGTH_OVERHEAD = 12  # baseOffset and batchLength themselves
MAGIC_AT = 16
CRC_START = 21
MAGIC = 2

CODEC_MASK = 0x07
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
ATTRIBUTES_LOW = 22
"""Position of the low byte of a batch's attributes, which are two bytes at 21."""
CONTROL = 0x20
DELETE_HORIZON = 0x40
"""KIP-534: the base timestamp is the time from which on the batch's tombstones, or its marker, may be removed."""

NO_PRODUCER_ID = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1
MAX_SEQUENCE = 0x7FFFFFFF

_HEADER = struct.Struct(">qiibIhiqqqhii")
_OFFSET = struct.Struct(">q")
_INT = struct.Struct(">i")
_UINT = struct.Struct(">I")
assert _HEADER.size == HEADER_BYTES


class Batch:
    """A batch's header beside its bytes.  A plain slotted class: there is one for each batch of the hot path."""

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "count",
        "crc",
        "data",
        "last_offset_delta",
        "leader_epoch",
        "magic",
        "max_timestamp",
        "producer_epoch",
        "producer_id",
        "size",
    )

    def __init__(self, data: memoryview) -> None:
        """Parse the header of ``data``: exactly one batch, at least ``HEADER_BYTES`` long."""
        (
            self.base_offset,
            length,
            self.leader_epoch,
            self.magic,
            self.crc,
            self.attributes,
            self.last_offset_delta,
            self.base_timestamp,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.count,
        ) = _HEADER.unpack_from(data)
        self.size = length + LENGTH_OVERHEAD
        self.data = data

    @property
    def last_offset(self) -> int:
        """Offset of the last record."""
        return int(self.base_offset + self.last_offset_delta)

    @property
    def next_offset(self) -> int:
        """Offset after the batch: the next one's base."""
        return int(self.base_offset + self.last_offset_delta + 1)

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; wraps to 0 after 2^31-1, as Kafka's ``DefaultRecordBatch`` does."""
        return increment_sequence(self.base_sequence, self.last_offset_delta)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def missing_records(self) -> int:
        """The number of offsets of the batch that have no record any more: compaction took it, or it was lost."""
        return int(self.last_offset_delta + 1 - self.count)

    @property
    def first_timestamp(self) -> int | None:
        """The time of the record at ``base_offset`` (ms); None if the header does not show it.

        A batch that compaction has rewritten may have lost this record, and its base timestamp may be another record's
        or a delete horizon.
        """
        if self.missing_records:
            return None
        if self.attributes & LOG_APPEND_TIME:
            return int(self.max_timestamp)
        return None if self.attributes & DELETE_HORIZON else int(self.base_timestamp)

    @property
    def has_valid_crc(self) -> bool:
        """True if the CRC-32C matches.  Computed at each call, over the whole batch."""
        return bool(crc32c(self.data[CRC_START : self.size]) == self.crc)

    def assign(self, base_offset: int, leader_epoch: int) -> None:
        """Set the batch's offset and epoch in place (the CRC does not cover these fields).

        ``data`` must be writable.
        """
        _OFFSET.pack_into(self.data, 0, base_offset)
        _INT.pack_into(self.data, 12, leader_epoch)
        self.base_offset = base_offset
        self.leader_epoch = leader_epoch

    def set_append_time(self, now_ms: int) -> None:
        """Turn the batch into LogAppendTime: attribute, maximum timestamp and CRC change in place."""
        self.attributes |= LOG_APPEND_TIME
        struct.pack_into(">h", self.data, 21, self.attributes)
        self.set_max_timestamp(now_ms)

    def set_max_timestamp(self, timestamp: int) -> None:
        """Correct the maximum timestamp, and the CRC, in place."""
        self.max_timestamp = timestamp
        _OFFSET.pack_into(self.data, 35, timestamp)
        self.crc = int(crc32c(self.data[CRC_START : self.size]))
        _UINT.pack_into(self.data, 17, self.crc)

    def __repr__(self) -> str:
        return (
            f"<Batch {self.base_offset}..{self.last_offset} epoch={self.leader_epoch} {self.size}B "
            f"{CODECS[self.attributes & CODEC_MASK] if self.attributes & CODEC_MASK < len(CODECS) else '?'}"
            f" pid={self.producer_id}/{self.producer_epoch} seq={self.base_sequence}>"
        )


class Appended(NamedTuple):
    """The place of an accepted batch.  ``append_time`` (ms) is -1 unless the topic stamps LogAppendTime."""

    base_offset: int
    append_time: int
    log_start: int


class Ends(NamedTuple):
    """A partition's ends at one moment, from its owner: ``log_start <= last_stable_offset <= high_watermark``."""

    epoch: int
    log_start: int
    last_stable_offset: int
    high_watermark: int


def wrap_long(value: int) -> int:
    """Return ``value`` as a 64-bit number: sums wrap, as Java's ``long`` does.

    A batch's base timestamp and a record's delta are 64 bits each; so is their sum for all Kafka clients.
    """
    return ((value + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)


def increment_sequence(sequence: int, by: int) -> int:
    """Return ``sequence + by``, wrapped to 0 after 2^31-1."""
    return (sequence + by) & MAX_SEQUENCE


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRules:
    """The topic settings that a produced batch is checked against; names and defaults are Kafka's."""

    max_message_bytes: int = 1_048_588
    log_append_time: bool = False
    timestamp_before_max_ms: int = 0x7FFFFFFFFFFFFFFF
    timestamp_after_max_ms: int = 3_600_000
    needs_key: bool = False
    """True if ``cleanup.policy`` has ``compact``: a record without a key could not be compacted."""


def parse_batch(data: memoryview) -> Batch:
    """Return the one batch in ``data``, copied if it is read-only.

    Raises RequestError CORRUPT_MESSAGE if it is cut short, INVALID_RECORD if its magic is that of an old format, or if
    more than one batch is there: Kafka takes one batch a partition in a produce request.
    """
    fault = header_fault(data)
    if fault is not None:
        raise fault
    batch = Batch(memoryview(bytearray(data)) if data.readonly else data)
    if batch.size > len(data) or batch.size < HEADER_BYTES:
        raise RequestError(ErrorCode.CORRUPT_MESSAGE, f"batch length {batch.size} does not fit {len(data)} bytes")
    if batch.size < len(data):
        raise _invalid(f"{len(data) - batch.size} bytes follow the one batch that a produce request may hold")
    return batch


def header_fault(data: memoryview) -> RequestError | None:
    """Return the error of a client's bytes that no batch header can be read from; None if they have one.

    The magic is judged before the length, as its place is the same in each format, and a message of an old format may
    be shorter than a batch header. No client retries INVALID_RECORD, but all retry CORRUPT_MESSAGE.
    """
    if len(data) > MAGIC_AT and data[MAGIC_AT] != MAGIC:
        return _wrong_magic(data[MAGIC_AT])
    if len(data) < HEADER_BYTES:
        return RequestError(ErrorCode.CORRUPT_MESSAGE, f"{len(data)} bytes are too few for a batch header")
    return None


def check_batch(batch: Batch, rules: BatchRules) -> None:
    """Check header and CRC of a batch that a client sent, as Kafka does.

    Timestamps are judged with the records (``core.records.check``), which the error then names.  Raises RequestError,
    with Kafka's code for each fault.
    """
    if batch.magic != MAGIC:
        raise _wrong_magic(batch.magic)
    if batch.size > rules.max_message_bytes:
        raise RequestError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {batch.size} bytes exceeds max.message.bytes={rules.max_message_bytes}",
        )
    if not batch.has_valid_crc:
        raise RequestError(ErrorCode.CORRUPT_MESSAGE, f"batch CRC does not match {batch.crc:#010x}")
    if batch.attributes & CODEC_MASK >= len(CODECS):
        raise RequestError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown codec {batch.attributes & CODEC_MASK}")
    if batch.count <= 0 or batch.last_offset_delta != batch.count - 1:
        raise _invalid(f"{batch.count} records do not agree with last offset delta {batch.last_offset_delta}")
    if batch.base_offset != 0:
        raise _invalid(f"base offset {batch.base_offset} of a produced batch must be 0")
    if batch.is_control:
        raise _invalid("clients may not write control batches")
    if batch.attributes & DELETE_HORIZON:  # Kafka takes it, and its cleaner removes the tombstones at once
        raise _invalid("only a cleaner of the log may set a delete horizon")
    if batch.producer_id < NO_PRODUCER_ID:
        raise _invalid(f"producer id {batch.producer_id}: ids below -1 are internal")
    if batch.producer_id != NO_PRODUCER_ID:
        if batch.base_sequence < 0 or batch.producer_epoch < 0:
            raise _invalid(f"producer {batch.producer_id} sent epoch {batch.producer_epoch}/{batch.base_sequence}")
    elif batch.is_transactional:
        raise _invalid("a transactional batch needs a producer id")
    if batch.attributes & LOG_APPEND_TIME:  # also where the topic says so: the broker sets it, from its own clock
        raise RequestError(ErrorCode.INVALID_TIMESTAMP, "only the broker may set LogAppendTime")


def _wrong_magic(magic: int) -> RequestError:
    return _invalid(f"magic {magic}: only record batches of magic 2 are accepted")


def _invalid(message: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_RECORD, message)


# ------------------------------------------------------------------------------------------------- building


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record to be built; ``timestamp_delta`` in milliseconds from the batch's base."""

    key: bytes | None = None
    value: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_delta: int = 0


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    base_timestamp: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int = 0,
    leader_epoch: int = -1,
) -> bytearray:
    """Return an uncompressed batch.  For internal records (barriers, shards), tests and benches: not the hot path."""
    body = bytearray(HEADER_BYTES)
    for delta, record in enumerate(records):
        encoded = encode_record(delta, record)
        body += encode_varint(len(encoded))
        body += encoded
    _HEADER.pack_into(
        body,
        0,
        base_offset,
        len(body) - LENGTH_OVERHEAD,
        leader_epoch,
        MAGIC,
        0,
        attributes,
        len(records) - 1,
        base_timestamp,
        base_timestamp + max([record.timestamp_delta for record in records], default=0),
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    _UINT.pack_into(body, 17, crc32c(memoryview(body)[CRC_START:]))
    return body


def build_gap(base_offset: int, end_offset: int, leader_epoch: int) -> Iterator[bytearray]:
    """Yield batches without records for the offsets [base_offset, end_offset): usually one.

    Kafka's readers accept them, as compacted topics have them (``DefaultRecordBatch.writeEmptyHeader``).
    """
    while base_offset < end_offset:
        delta = min(end_offset - base_offset - 1, MAX_SEQUENCE)
        body = bytearray(HEADER_BYTES)
        _HEADER.pack_into(
            body, 0, base_offset, HEADER_BYTES - LENGTH_OVERHEAD, leader_epoch, MAGIC, 0, 0, delta,
            NO_TIMESTAMP, NO_TIMESTAMP, NO_PRODUCER_ID, -1, -1, 0,
        )  # fmt: skip
        _UINT.pack_into(body, 17, crc32c(memoryview(body)[CRC_START:]))
        yield body
        base_offset += delta + 1


def encode_record(delta: int, record: Record) -> bytes:
    """Return a record behind its length, at ``delta`` offsets from its batch's base."""
    key, value, headers = record.key, record.value, record.headers
    parts = [
        b"\0",
        encode_varint(record.timestamp_delta),
        encode_varint(delta),
        encode_varint(-1 if key is None else len(key)),
        key or b"",
        encode_varint(-1 if value is None else len(value)),
        value or b"",
        encode_varint(len(headers)),
    ]
    for name, data in headers:
        text = name.encode()
        parts += (encode_varint(len(text)), text, encode_varint(-1 if data is None else len(data)), data or b"")
    return b"".join(parts)


_ONE_BYTE = tuple(bytes((value,)) for value in range(128))


def encode_varint(value: int) -> bytes:
    """Return a zig-zag varint, as in Kafka's records."""
    rest = (value << 1) ^ (value >> 63)
    if rest < 128:
        return _ONE_BYTE[rest]
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)
