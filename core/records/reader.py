"""The records inside a batch: decompress, then parse.

A produce decompresses what it checks (``core.records.check``); only tools and internal readers parse here.

A batch's records, after decompression::

    length          varint    bytes after this field
    attributes      i8        unused
    timestamp delta varlong   from the batch's base timestamp, milliseconds
    offset delta    varint    from the batch's base offset
    key             varint length (-1: null), bytes
    value           varint length (-1: null), bytes
    headers         varint count, each: name (varint length, UTF-8), value (varint length, -1: null, bytes)

Varints are zig-zag encoded.  Codecs: gzip; snappy, as a raw block or in the framing of Kafka's Java client (``xerial``:
16 bytes of head, then blocks with their i32 lengths in front); lz4 frames; zstd frames.

A few bytes can decompress to gigabytes, so output goes into a buffer that has a limit: what does not fit is an error.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import cramjam

from bmq.core.errors import FormatError
from bmq.core.records.batch import CODEC_MASK, CODECS, HEADER_BYTES, LOG_APPEND_TIME, Batch, wrap_long

RECORDS_BYTES_MAX = 256 << 20
"""Decompressed bytes of one batch: 256 times Kafka's default ``max.message.bytes``; text compresses 10 to 20 times."""

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEAD_BYTES = 16
_GZIP = 31  # zlib's number for "gzip framing, largest window"
_GZIP_PIECE_BYTES = 64 << 10
_GZIP_MEMBERS_MAX = 1024
"""Members of one gzip stream at most.  Kafka's clients write one.  Each costs a decompressor, so empty ones would be
work for nothing."""
_SNAPPY_RATIO = 64 / 3
"""The most that raw snappy compresses: a copy of 64 bytes takes 3."""
_LZ4_RATIO = 255
_FRAME_BYTES = 64
"""Room beyond the ratio, which does not hold for short data."""
_FIRST_BUFFER_BYTES = 64 << 10
_VARINT_BYTES_MAX = 5
_VARLONG_BYTES_MAX = 10
_LONG_MASK = (1 << 64) - 1


class StoredRecord(NamedTuple):
    """One record.  ``timestamp`` in milliseconds, -1 for none; a header's name is text, all else is bytes or null."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class TimestampAndOffset(NamedTuple):
    """The result of a search by timestamp: an offset, and the timestamp there (milliseconds)."""

    offset: int
    timestamp: int


def read_records(batch: Batch, *, bytes_max: int = RECORDS_BYTES_MAX) -> Iterator[StoredRecord]:
    """Yield the batch's records in order.

    Raises FormatError, which names the record, its place in the (decompressed) bytes and the fault.  The CRC is not
    checked here: it covers the compressed bytes, and the code that found the batch has checked it.
    """
    data = decompress(batch.attributes & CODEC_MASK, batch.data[HEADER_BYTES : batch.size], bytes_max)
    is_append_time = bool(batch.attributes & LOG_APPEND_TIME)
    at, last_delta = 0, -1
    for number in range(batch.count):
        try:
            delta, time_delta, key, value, headers, at = _read_record(data, at)
        except (IndexError, FormatError) as error:
            detail = "the bytes end first" if isinstance(error, IndexError) else str(error)
            raise FormatError(f"record {number} of {batch.count}, at byte {at} of {len(data)}: {detail}") from error
        if not last_delta < delta <= batch.last_offset_delta:
            raise FormatError(
                f"record {number} of {batch.count}: offset delta {delta} is not in"
                f" ({last_delta}, {batch.last_offset_delta}]"
            )
        last_delta = delta
        timestamp = batch.max_timestamp if is_append_time else wrap_long(batch.base_timestamp + time_delta)
        yield StoredRecord(batch.base_offset + delta, timestamp, key, value, headers)
    if at != len(data):
        raise FormatError(f"{len(data) - at} bytes follow the last of {batch.count} records")


def first_not_older(batch: Batch, timestamp: int, start_offset: int, *, bytes_max: int) -> TimestampAndOffset | None:
    """Return the first record at or past ``start_offset`` that is not older than ``timestamp``; None if all are older.

    Records that compaction took are passed over.  If the batch cannot be decoded, or is larger than ``bytes_max`` once
    decompressed, it is the batch's first offset at or past ``start_offset``, with the batch's largest timestamp.  This
    offset is at or before the right record, so nothing is skipped.
    """
    if not batch.count:  # its codec may be set, and some brokers leave the largest time of what was removed
        return None
    try:
        for record in read_records(batch, bytes_max=bytes_max):
            if record.timestamp >= timestamp and record.offset >= start_offset:
                return TimestampAndOffset(record.offset, record.timestamp)
    except FormatError:
        return TimestampAndOffset(max(batch.base_offset, start_offset), batch.max_timestamp)
    return None


def _read_record(
    data: memoryview, at: int
) -> tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int]:
    length, at = read_varint(data, at)
    end = at + length
    if length < 0 or end > len(data):
        raise FormatError(f"its length is {length}, {len(data) - at} bytes are left")
    record = data[:end]  # what lies behind belongs to the next record
    time_delta, at = read_varint(record, at + 1, _VARLONG_BYTES_MAX)
    delta, at = read_varint(record, at)
    key, at = _read_bytes(record, at, "key")
    value, at = _read_bytes(record, at, "value")
    count, at = read_varint(record, at)
    if not 0 <= count <= end - at:
        raise FormatError(f"{count} headers in {end - at} bytes")
    headers = []
    for _ in range(count):
        name, at = _read_bytes(record, at, "header name")
        if name is None:
            raise FormatError("a header without a name")
        header_value, at = _read_bytes(record, at, "header value")
        headers.append((name.decode("utf-8", "backslashreplace"), header_value))
    if at != end:
        raise FormatError(f"its length is {length}, but its fields end {end - at} bytes before that")
    return delta, time_delta, key, value, tuple(headers), end


def _read_bytes(data: memoryview, at: int, name: str) -> tuple[bytes | None, int]:
    length, at = read_varint(data, at)
    if length == -1:
        return None, at
    if not 0 <= length <= len(data) - at:
        raise FormatError(f"{name} of {length} bytes, {len(data) - at} are left")
    return bytes(data[at : at + length]), at + length


def read_varint(data: memoryview | bytes, at: int, bytes_max: int = _VARINT_BYTES_MAX) -> tuple[int, int]:
    """Return a zig-zag number, of 64 bits at most, and the position behind it.

    Raises IndexError if the bytes end first, FormatError if the number is longer than ``bytes_max``.
    """
    value = shift = 0
    for index in range(at, at + bytes_max):
        byte = data[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            value &= _LONG_MASK  # ten bytes have room for 70 bits
            return (value >> 1) ^ -(value & 1), index + 1
        shift += 7
    raise FormatError(f"a number of over {bytes_max} bytes at byte {at}")


# ------------------------------------------------------------------------------------------------- decompression


def decompress(codec: int, data: memoryview, bytes_max: int) -> memoryview:
    """Return ``data`` decompressed.  Raises FormatError if it is damaged or would exceed ``bytes_max`` bytes."""
    if codec >= len(CODECS):
        raise FormatError(f"unknown codec {codec}")
    name = CODECS[codec]
    try:
        return _DECOMPRESS[name](data, bytes_max)
    except (cramjam.DecompressionError, zlib.error) as error:
        raise FormatError(f"{name} data of {len(data)} bytes is damaged: {error}") from error


def _none(data: memoryview, bytes_max: int) -> memoryview:
    return data


def _gzip(data: memoryview, bytes_max: int) -> memoryview:
    """Decompress one or more members, fed in pieces: a member's unused rest is copied, so it must be short."""
    out = bytearray()
    at = 0
    for _ in range(_GZIP_MEMBERS_MAX):
        member = zlib.decompressobj(_GZIP)
        while not member.eof:
            if at >= len(data):
                raise zlib.error("the data ends early")
            piece = data[at : at + _GZIP_PIECE_BYTES]
            out += member.decompress(piece, bytes_max - len(out) + 1)
            if len(out) > bytes_max:
                raise _too_large("gzip", bytes_max)
            at += len(piece)
        at -= len(member.unused_data)
        if at == len(data):
            return memoryview(out)
    raise FormatError(f"gzip data of over {_GZIP_MEMBERS_MAX} members")


def _snappy(data: memoryview, bytes_max: int) -> memoryview:
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return memoryview(_snappy_block(data, 0, bytes_max))
    out = bytearray()
    at = _XERIAL_HEAD_BYTES
    while at < len(data):
        if len(data) - at < 4:
            raise FormatError(f"snappy data ends early: {len(data) - at} bytes where a block's length is due")
        (size,) = struct.unpack_from(">i", data, at)
        at += 4
        if not 0 <= size <= len(data) - at:
            raise FormatError(f"a snappy block of {size} bytes, {len(data) - at} are left")
        out += _snappy_block(data[at : at + size], len(out), bytes_max)
        at += size
    return memoryview(out)


def _snappy_block(block: memoryview, before: int, bytes_max: int) -> bytearray:
    """Decompress a raw block, which begins with its size; ``before`` bytes of the batch were decompressed already."""
    size = cramjam.snappy.decompress_raw_len(block)
    if size > len(block) * _SNAPPY_RATIO + _FRAME_BYTES:
        raise FormatError(f"a snappy block of {len(block)} bytes promises {size}, which it cannot hold")
    if before + size > bytes_max:
        raise _too_large("snappy", bytes_max)
    out = bytearray(size)
    written = cramjam.snappy.decompress_raw_into(block, out)
    if written != size:
        raise FormatError(f"a snappy block promised {size} bytes and held {written}")
    return out


def _lz4(data: memoryview, bytes_max: int) -> memoryview:
    bytes_max = min(bytes_max, len(data) * _LZ4_RATIO + _FRAME_BYTES)
    return _into_buffer("lz4", cramjam.lz4.decompress_into, data, bytes_max)


def _zstd(data: memoryview, bytes_max: int) -> memoryview:
    return _into_buffer("zstd", cramjam.zstd.decompress_into, data, bytes_max)


def _into_buffer(
    name: str, decompress_into: Callable[[memoryview, bytearray], int], data: memoryview, bytes_max: int
) -> memoryview:
    """Decompress a frame, whose size may be unknown: retry with a buffer that grows fourfold, up to the limit."""
    size = min(max(4 * len(data), _FIRST_BUFFER_BYTES), bytes_max)
    while True:
        out = bytearray(size)
        try:
            return memoryview(out)[: decompress_into(data, out)]
        except cramjam.DecompressionError as error:
            if "whole buffer" not in str(error):  # its only word for "the output does not fit"; the tests rely on it
                raise
        if size >= bytes_max:
            raise _too_large(name, bytes_max)
        size = min(size * 4, bytes_max)


class TooLarge(FormatError):
    """Data that decompresses to more than the limit."""


def _too_large(name: str, bytes_max: int) -> TooLarge:
    return TooLarge(f"{name} data decompresses to more than the limit of {bytes_max} bytes for a batch")


_DECOMPRESS: dict[str, Callable[[memoryview, int], memoryview]] = {
    "none": _none,
    "gzip": _gzip,
    "snappy": _snappy,
    "lz4": _lz4,
    "zstd": _zstd,
}
