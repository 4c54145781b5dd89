"""Kafka's variable-length types on plain buffers, for messages that are parsed and built by hand.

Readers take a buffer and a position and return the value and the position after it.  For bytes that it cannot read, a
reader raises FormatError or an exception of ``CUT_SHORT``.  Parsers turn the latter into FormatError, each in a single
place.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from bmq.core.errors import FormatError

CUT_SHORT = (struct.error, IndexError, UnicodeDecodeError)
"""Exceptions of Python for a buffer that ends too early, and for text that is not UTF-8."""

ELEMENTS_MAX = 500_000
"""Array elements in one message, all arrays together; most APIs have a smaller bound (``core.wire.limits``)."""

TAGS_MAX = 16
"""Tagged fields in one set; Kafka's messages have four at most.

At two bytes a field, the fields of a large frame would keep the process busy for half a minute.
"""


class TooManyPartitions(FormatError):
    """A Produce or Fetch request with more partitions than its parser accepts."""

    def __init__(self, partitions_max: int) -> None:
        super().__init__(f"more than {partitions_max} partitions")


INT16 = struct.Struct(">h")
INT32 = struct.Struct(">i")


class NodeEndpoint(NamedTuple):
    """The address of a leader named in a response (KIP-951)."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


def read_uvarint(data: memoryview | bytes, pos: int) -> tuple[int, int]:
    """Return an unsigned varint of at most five bytes, as Kafka's ``ByteUtils.readUnsignedVarint``."""
    value = data[pos]
    if value < 0x80:
        return value, pos + 1
    value &= 0x7F
    for shift in (7, 14, 21, 28):
        pos += 1
        byte = data[pos]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos + 1
    raise FormatError("a varint of more than five bytes")


def read_size(data: memoryview, pos: int, *, flexible: bool) -> tuple[int, int]:
    """Return the length of bytes or of an array; -1 is null."""
    if flexible:
        size, pos = read_uvarint(data, pos)
        return size - 1, pos
    (size,) = INT32.unpack_from(data, pos)
    return size, pos + 4


def read_count(data: memoryview, pos: int, element_least: int, *, flexible: bool) -> tuple[int, int]:
    """Return the length of an array that must not be null, and whose elements take ``element_least`` bytes or more."""
    count, pos = read_size(data, pos, flexible=flexible)
    if count < 0:
        raise FormatError("null where an array must be")
    if count * element_least > len(data) - pos:
        raise FormatError(f"{count} elements in {len(data) - pos} bytes")
    return count, pos


def read_nullable_string(data: memoryview, pos: int, *, flexible: bool) -> tuple[str | None, int]:
    """Return a text; None if its length is -1 (0 in the compact form)."""
    if flexible:
        size, pos = read_uvarint(data, pos)
        size -= 1
    else:
        (size,) = INT16.unpack_from(data, pos)
        pos += 2
    if size < 0:
        return None, pos
    end = pos + size
    if end > len(data):
        raise FormatError(f"a text of {size} bytes where {len(data) - pos} are left")
    return str(data[pos:end], "utf-8"), end


def read_string(data: memoryview, pos: int, *, flexible: bool) -> tuple[str, int]:
    """Return a text.  Raises FormatError if it is null."""
    text, pos = read_nullable_string(data, pos, flexible=flexible)
    if text is None:
        raise FormatError("null where a text must be")
    return text, pos


def read_uuid(data: memoryview, pos: int) -> tuple[UUID, int]:
    end = pos + 16
    if end > len(data):
        raise FormatError("a uuid is cut short")
    return UUID(bytes=bytes(data[pos:end])), end


def read_tags(data: memoryview, pos: int) -> tuple[list[tuple[int, int, int]], int]:
    """Return (tag, position, end) of each tagged field in the set at ``pos`` (KIP-482)."""
    count, pos = read_uvarint(data, pos)
    if count > TAGS_MAX:
        raise FormatError(f"{count} tagged fields")
    found = []
    for _ in range(count):
        tag, pos = read_uvarint(data, pos)
        size, pos = read_uvarint(data, pos)
        if pos + size > len(data):
            raise FormatError(f"tag {tag} of {size} bytes where {len(data) - pos} are left")
        found.append((tag, pos, pos + size))
        pos += size
    return found, pos


def skip_tags(data: memoryview, pos: int) -> int:
    """Return the position after the set of tagged fields at ``pos``."""
    if data[pos] == 0:
        return pos + 1
    return read_tags(data, pos)[1]


def uvarint(value: int) -> bytes:
    """Return an unsigned varint, seven bits a byte, the lowest first."""
    if value < 0x80:
        return _ONE_BYTE[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_ONE_BYTE = [bytes((value,)) for value in range(0x80)]


def array_size(count: int, *, flexible: bool) -> bytes:
    """Return the length field of an array: a varint plus one, or four bytes."""
    return uvarint(count + 1) if flexible else INT32.pack(count)


def string(text: str | None, *, flexible: bool) -> bytes:
    """Return a text with its length field: a varint plus one, or two bytes.  None is null."""
    if text is None:
        return b"\0" if flexible else b"\xff\xff"
    data = text.encode()
    return (uvarint(len(data) + 1) if flexible else INT16.pack(len(data))) + data


def tags(fields: Sequence[tuple[int, bytes]]) -> bytes:
    """Return a set of tagged fields.  They must be given in the order of their tags."""
    return uvarint(len(fields)) + b"".join(uvarint(tag) + uvarint(len(data)) + data for tag, data in fields)


def node_endpoints(nodes: Sequence[NodeEndpoint]) -> bytes:
    """Return the array of node endpoints that the responses to Produce and Fetch carry under a tag."""
    parts = [uvarint(len(nodes) + 1)]
    for node in nodes:
        parts += (INT32.pack(node.node_id), string(node.host, flexible=True), INT32.pack(node.port))
        parts += (string(node.rack, flexible=True), b"\0")
    return b"".join(parts)


def response_header(correlation_id: int, *, flexible: bool) -> bytes:
    """Return a response header: v1 has an empty set of tags behind the id, v0 nothing."""
    return INT32.pack(correlation_id) + b"\0" if flexible else INT32.pack(correlation_id)
