"""Bytes of the data transfer protocol that are built by hand: lengths, packets, acknowledgements.  No I/O.

A packet (PacketReceiver.java)::

    +-------------+---------------+--------------+------------------+------------------+
    | length  u32 | header   u16  | PacketHeader | a CRC-32C a chunk | data            |
    +-------------+---------------+--------------+------------------+------------------+
      4 + CRCs + data

All chunks except the last are full.  A packet may begin inside a chunk only if it ends inside it (or at its end).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Protocol

from crc32c import crc32c

OP_VERSION = 28
OP_WRITE_BLOCK = 80
OP_READ_BLOCK = 81

HEARTBEAT_SEQNO = -1
STATUS_SUCCESS = 0
STATUS_ACCESS_TOKEN = 5
STATUS_CHECKSUM_OK = 6
STATUS_NAMES = (
    *("SUCCESS", "ERROR", "ERROR_CHECKSUM", "ERROR_INVALID", "ERROR_EXISTS", "ERROR_ACCESS_TOKEN", "CHECKSUM_OK"),
    *("ERROR_UNSUPPORTED", "OOB_RESTART", "OOB_RESERVED1", "OOB_RESERVED2", "OOB_RESERVED3", "IN_PROGRESS"),
    "ERROR_BLOCK_PINNED",
)

CHECKSUM_CRC32C = 2
CRC_BYTES = 4

# PacketHeader's fields have fixed width, so the whole header has (tags 1: sfixed64, 2: sfixed64, 3: bool, 4: sfixed32).
_HEADER = struct.Struct("<BqBqBBBi")
_HEADER_SYNC = struct.Struct("<BqBqBBBiBB")
_LENGTHS = struct.Struct(">IH")


class WireError(Exception):
    """The server sent bytes that the protocol does not allow.  Never leaves this package."""


class ProtobufMessage(Protocol):
    """A protobuf message, as far as it is needed to send it."""

    def SerializeToString(self) -> bytes: ...


def encode_varint(value: int) -> bytes:
    """Return protobuf's encoding of a length."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_varint(data: bytes | memoryview, start: int) -> tuple[int, int]:
    """Return (value, position after it); the position is -1 if the bytes end too early.

    Raises WireError for a value of more than 64 bits.
    """
    value = shift = 0
    for position in range(start, len(data)):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7
        if shift > 63:
            raise WireError("a length longer than 64 bits")
    return 0, -1


def delimited(message: ProtobufMessage) -> bytes:
    """Return a message with its length before it."""
    body = message.SerializeToString()
    return encode_varint(len(body)) + body


def operation(code: int, message: ProtobufMessage) -> bytes:
    """Return the request that opens a data transfer."""
    return struct.pack(">HB", OP_VERSION, code) + delimited(message)


def packet_head(seqno: int, offset: int, data_length: int, crc_length: int, *, last: bool, sync: bool) -> bytes:
    """Return lengths and header of a packet.  ``sync`` is sent only if set, as by Hadoop's client."""
    if sync:
        header = _HEADER_SYNC.pack(0x09, offset, 0x11, seqno, 0x18, last, 0x25, data_length, 0x28, 1)
    else:
        header = _HEADER.pack(0x09, offset, 0x11, seqno, 0x18, last, 0x25, data_length)
    return _LENGTHS.pack(4 + crc_length + data_length, len(header)) + header


def chunk_crcs(data: bytes | memoryview, chunk_bytes: int) -> list[int]:
    """Return a CRC-32C for each chunk of ``data``, which begins on a chunk boundary (or is less than a chunk)."""
    length = len(data)
    if length <= chunk_bytes:
        return [crc32c(data)] if length else []
    return [crc32c(data[start : start + chunk_bytes]) for start in range(0, length, chunk_bytes)]


def pack_crcs(crcs: Sequence[int]) -> bytes:
    """Return the CRCs as they are in a packet."""
    return struct.pack(f">{len(crcs)}I", *crcs)


def unpack_crcs(data: bytes | memoryview) -> tuple[int, ...]:
    """Return the CRCs of a packet, whose bytes are ``data``."""
    return struct.unpack(f">{len(data) // CRC_BYTES}I", data)


def decode_ack(body: bytes | memoryview) -> tuple[int, int]:
    """Return (seqno, index of the first node whose status is not SUCCESS, or -1) of a PipelineAck.

    Every flush needs an acknowledgement to be decoded, hence by hand.  The flags (field 4: congestion, slow) are
    ignored.  Raises WireError if it is cut off, or has a field that a PipelineAck cannot have.
    """
    seqno = 0
    bad = -1
    index = 0
    position, end = 0, len(body)
    while position < end:
        tag = body[position]
        position += 1
        if tag == 0x10:  # reply: one byte, there are no more than 14 of them
            if position == end:
                raise WireError("a PipelineAck that is cut off")
            if body[position] != STATUS_SUCCESS and bad < 0:
                bad = index
            index += 1
            position += 1
            continue
        value, position = decode_varint(body, position)
        if position < 0:
            raise WireError("a PipelineAck that is cut off")
        if tag == 0x08:  # seqno, zigzag
            seqno = (value >> 1) ^ -(value & 1)
        elif tag & 7 == 2:  # a length-delimited field: skip it
            position += value
        elif tag & 7:
            raise WireError(f"a PipelineAck with a field of tag {tag:#x}")
    if position > end:
        raise WireError("a PipelineAck that is cut off")
    return seqno, bad


def status_name(status: int) -> str:
    """Return Hadoop's name of a data transfer status."""
    return STATUS_NAMES[status] if 0 <= status < len(STATUS_NAMES) else f"status {status}"
