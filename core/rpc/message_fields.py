"""The types of the internal messages' fields, with their encoding; ``core.rpc.message`` makes messages of them.

The encoding is Kafka's flexible one: big-endian numbers, lengths as unsigned varints plus one.

Large bytes are never joined with their neighbours: they are encoded as buffers of their own, and decoded as a slice of
the body where the type says ``Slice``.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Annotated, Any, Protocol, Self, get_type_hints
from uuid import UUID

from bmq.core.errors import ErrorCode, FormatError
from bmq.core.net.request import Buffer
from bmq.core.wire.primitives import (
    ELEMENTS_MAX,
    read_count,
    read_nullable_string,
    read_size,
    read_string,
    read_uuid,
    string,
    uvarint,
)

APART_LEAST = 4 << 10
"""Bytes from this size on stay a buffer of their own: below, a copy costs less than one more element of a write."""

_NULL = b"\0"


class Out:
    """A message being encoded: small fields together, large bytes between them."""

    __slots__ = ("_done", "small")

    def __init__(self) -> None:
        self.small = bytearray()
        self._done: list[Buffer] = []

    def add(self, data: Buffer) -> None:
        """Append bytes; large ones become a buffer of their own, and are not copied."""
        if len(data) < APART_LEAST:
            self.small += data
            return
        self._done += (self.small, data)
        self.small = bytearray()

    def buffers(self) -> list[Buffer]:
        return [*self._done, self.small]


class Unencoded:
    """A message in place of its bytes, for a field of bytes.

    ``encode`` returns the bytes; they are made when the field is sent to another process.  A receiver in this process
    takes ``message``.
    """

    __slots__ = ("encode", "message")

    def __init__(self, message: Any, encode: Callable[[], Buffer]) -> None:
        self.message = message
        self.encode = encode


def encoded(value: Buffer | Unencoded) -> Buffer:
    """Return the bytes of a field that may hold a message in their place."""
    return value.encode() if isinstance(value, Unencoded) else value


class Field(Protocol):
    """One type of field.  ``read`` returns the value and the position behind it, or raises FormatError or CUT_SHORT.

    ``least`` is the least number of bytes of a value.
    """

    @property
    def least(self) -> int: ...

    def write(self, out: Out, value: Any) -> None: ...

    def read(self, data: memoryview, pos: int) -> tuple[Any, int]: ...


class Fixed:
    """A number of one size; ``make`` converts it to the message's type, and raises ValueError for an illegal value."""

    def __init__(self, layout: str, make: Callable[[Any], Any] = int) -> None:
        self.layout = layout
        self.is_plain = make is int
        self._struct = struct.Struct(">" + layout)
        self.least = self._struct.size
        self._make = make

    def write(self, out: Out, value: int) -> None:
        out.small += self._struct.pack(value)

    def read(self, data: memoryview, pos: int) -> tuple[Any, int]:
        (value,) = self._struct.unpack_from(data, pos)
        try:
            return self._make(value), pos + self._struct.size
        except ValueError as error:
            raise FormatError(str(error)) from None


class _Pair:
    """A least and a most number."""

    least = 4
    _struct = struct.Struct(">hh")

    def write(self, out: Out, value: tuple[int, int]) -> None:
        out.small += self._struct.pack(*value)

    def read(self, data: memoryview, pos: int) -> tuple[tuple[int, ...], int]:
        return self._struct.unpack_from(data, pos), pos + self._struct.size


class _Id:
    least = 16

    def write(self, out: Out, value: UUID) -> None:
        out.small += value.bytes

    def read(self, data: memoryview, pos: int) -> tuple[UUID, int]:
        return read_uuid(data, pos)


class _NullableId(_Id):
    """A uuid; zeros are None, as in Kafka."""

    def write(self, out: Out, value: UUID | None) -> None:
        out.small += bytes(16) if value is None else value.bytes

    def read(self, data: memoryview, pos: int) -> tuple[Any, int]:
        value, pos = super().read(data, pos)
        return (value if value.int else None), pos


class _Text:
    least = 1

    def write(self, out: Out, value: str) -> None:
        out.small += string(value, flexible=True)

    def read(self, data: memoryview, pos: int) -> tuple[str, int]:
        return read_string(data, pos, flexible=True)


class _NullableText:
    least = 1

    def write(self, out: Out, value: str | None) -> None:
        out.small += string(value, flexible=True)

    def read(self, data: memoryview, pos: int) -> tuple[str | None, int]:
        return read_nullable_string(data, pos, flexible=True)


class _Slice:
    """Bytes that stay where they arrived: they keep the frame alive, and their receiver may write into them."""

    least = 1

    def write(self, out: Out, value: Buffer) -> None:
        out.small += uvarint(len(value) + 1)
        out.add(value)

    def read(self, data: memoryview, pos: int) -> tuple[memoryview, int]:
        size, pos = read_size(data, pos, flexible=True)
        if not 0 <= size <= len(data) - pos:
            raise FormatError(f"{size} bytes where {len(data) - pos} are left")
        return data[pos : pos + size], pos + size


class _Late(_Slice):
    """Bytes, or a message in their place."""

    def write(self, out: Out, value: Buffer | Unencoded) -> None:
        super().write(out, encoded(value))


class _Copy(_Slice):
    def read(self, data: memoryview, pos: int) -> tuple[Any, int]:
        value, pos = super().read(data, pos)
        return bytes(value), pos


_SLICE = _Slice()


class _Pieces:
    """Bytes that are written from several buffers, none of them joined; read, they are one."""

    least = 1

    def write(self, out: Out, value: Sequence[Buffer]) -> None:
        out.small += uvarint(sum(map(len, value)) + 1)
        for piece in value:
            out.add(piece)

    def read(self, data: memoryview, pos: int) -> tuple[Any, int]:
        value, pos = _SLICE.read(data, pos)
        return (value,), pos


class Row:
    """Fields one after another, as a tuple that ``make`` converts.  They end without tagged fields."""

    def __init__(self, *types: Any, make: Callable[[tuple[Any, ...]], Any] = tuple) -> None:
        self._fields: list[Field] = [each.__metadata__[0] for each in types]
        self.least = sum(field.least for field in self._fields)
        self.make = make

    @classmethod
    def of(cls, kind: type[Any]) -> Self:
        """Return the row that is the named tuple ``kind``, whose fields have the types of messages' fields."""
        return cls(*get_type_hints(kind, include_extras=True).values(), make=kind._make)

    @property
    def layout(self) -> struct.Struct | None:
        """The row as numbers after at most one uuid of 16 bytes; None if it is anything else."""
        numbers = self._fields[self.has_id :]
        layouts = [each.layout for each in numbers if isinstance(each, Fixed) and each.is_plain]
        return struct.Struct(">" + "16s" * self.has_id + "".join(layouts)) if len(layouts) == len(numbers) else None

    @property
    def has_id(self) -> bool:
        """True if the first field is a uuid."""
        return isinstance(self._fields[0], _Id)

    def write(self, out: Out, value: tuple[Any, ...]) -> None:
        for field, each in zip(self._fields, value, strict=True):
            field.write(out, each)

    def read(self, data: memoryview, pos: int) -> tuple[Any, int]:
        values = []
        for field in self._fields:
            value, pos = field.read(data, pos)
            values.append(value)
        return self.make(tuple(values)), pos


class Array:
    """An array of elements of one type."""

    least = 1

    def __init__(self, element: Field) -> None:
        self._element = element

    def write(self, out: Out, value: Collection[Any]) -> None:
        out.small += _count(value)
        for each in value:
            self._element.write(out, each)

    def read(self, data: memoryview, pos: int) -> tuple[Any, int]:
        count, pos = _read_count(data, pos, self._element.least)
        found = []
        for _ in range(count):
            each, pos = self._element.read(data, pos)
            found.append(each)
        return tuple(found), pos


class NullableArray(Array):
    """An array, or None."""

    def write(self, out: Out, value: Collection[Any] | None) -> None:
        if value is None:
            out.small += _NULL
        else:
            super().write(out, value)

    def read(self, data: memoryview, pos: int) -> tuple[Any, int]:
        return (None, pos + 1) if data[pos] == 0 else super().read(data, pos)


class Rows:
    """An array of rows of one size, which are packed and unpacked at once; encoded as ``Array`` does."""

    least = 1

    def __init__(self, row: Row) -> None:
        assert row.layout is not None, "its rows have different sizes"
        self._struct, self._has_id, self._make = row.layout, row.has_id, row.make

    def write(self, out: Out, value: Collection[Any]) -> None:
        out.small += _count(value)
        pack = self._struct.pack
        for row in value:
            out.small += pack(row[0].bytes, *row[1:]) if self._has_id else pack(*row)

    def read(self, data: memoryview, pos: int) -> tuple[Any, int]:
        count, pos = _read_count(data, pos, self._struct.size)
        end = pos + count * self._struct.size
        return tuple(self._unpack(data[pos:end])), end

    def _unpack(self, data: memoryview) -> Iterator[Any]:
        rows, make = self._struct.iter_unpack(data), self._make
        if self._has_id:
            return (make((UUID(bytes=row[0]), *row[1:])) for row in rows)
        return map(make, rows)


class PackedRows(Collection[Any]):
    """Packed rows of a received message.  Each iteration unpacks the rows, so a receiver can unpack them in turns."""

    __slots__ = ("_count", "_data", "_unpack")

    def __init__(self, data: memoryview, row_bytes: int, unpack: Callable[[memoryview], Iterator[Any]]) -> None:
        self._data = data
        self._count = len(data) // row_bytes
        self._unpack = unpack

    def __repr__(self) -> str:
        return f"<PackedRows {len(self)}>"

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        return self._unpack(self._data)

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        """Return whether ``other`` has the same rows, packed or not: messages are compared by their fields."""
        return isinstance(other, tuple | PackedRows) and tuple(self) == tuple(other)

    def __contains__(self, row: object) -> bool:
        return any(each == row for each in self)


class UnreadRows(Rows):
    """An array like ``Rows``, for messages with very many rows: the receiver unpacks the rows itself."""

    def read(self, data: memoryview, pos: int) -> tuple[Any, int]:
        size = self._struct.size
        count, pos = _read_count(data, pos, size)
        end = pos + count * size
        return PackedRows(data[pos:end], size, self._unpack), end


class _Int64s:
    """An array of numbers, packed and unpacked at once."""

    least = 1

    def write(self, out: Out, value: Collection[int]) -> None:
        out.small += _count(value) + struct.pack(f">{len(value)}q", *value)

    def read(self, data: memoryview, pos: int) -> tuple[tuple[int, ...], int]:
        count, pos = _read_count(data, pos, 8)
        return struct.unpack_from(f">{count}q", data, pos), pos + 8 * count


class _TextSet(Array):
    """Texts in any order, none of them twice."""

    def __init__(self) -> None:
        super().__init__(_Text())

    def write(self, out: Out, value: Collection[str]) -> None:
        super().write(out, sorted(value))

    def read(self, data: memoryview, pos: int) -> tuple[frozenset[str], int]:
        texts, pos = super().read(data, pos)
        return frozenset(texts), pos


def _count(value: Collection[Any]) -> bytes:
    assert len(value) <= ELEMENTS_MAX, f"{len(value)} elements: send fewer at a time"
    return uvarint(len(value) + 1)


def _read_count(data: memoryview, pos: int, least: int) -> tuple[int, int]:
    count, pos = read_count(data, pos, least, flexible=True)
    if count > ELEMENTS_MAX:
        raise FormatError(f"{count} elements, more than {ELEMENTS_MAX}")
    return count, pos


class Added:
    """A field that an earlier version does not have: tagged, last in its message, and absent when it is empty."""

    least = 0

    def __init__(self, tag: int, field: Field, empty: Any = ()) -> None:
        self.tag = tag
        self.empty = empty
        self._field = field

    def write(self, out: Out, value: Any) -> None:
        inner = Out()
        self._field.write(inner, value)
        pieces = inner.buffers()
        out.small += uvarint(self.tag) + uvarint(sum(map(len, pieces)))
        for piece in pieces:
            out.add(piece)

    def read(self, data: memoryview, pos: int) -> tuple[Any, int]:
        value, end = self._field.read(data, pos)
        if end != len(data):
            raise FormatError(f"tag {self.tag}: {len(data) - end} bytes behind its end")
        return value, end


def _finite(value: float) -> float:
    """Return a number.  Raises ValueError if it is infinite, or none at all."""
    if not math.isfinite(value):
        raise ValueError(f"{value} where a number is expected")
    return value


Bool = Annotated[bool, Fixed("b", bool)]
Int8 = Annotated[int, Fixed("b")]
Int16 = Annotated[int, Fixed("h")]
Int32 = Annotated[int, Fixed("i")]
Int64 = Annotated[int, Fixed("q")]
Float64 = Annotated[float, Fixed("d", _finite)]
Code = Annotated[ErrorCode, Fixed("h", ErrorCode)]
Id = Annotated[UUID, _Id()]
NullableId = Annotated[UUID | None, _NullableId()]
Text = Annotated[str, _Text()]
LaterText = Annotated[str, Added(0, _Text(), "")]
"""A text that a process of an earlier version neither sends nor reads."""
LaterTopicIds = Annotated[tuple[tuple[str, UUID], ...], Added(1, Array(Row(Text, Id)))]
"""Names of topics with ids, which a process of an earlier version neither sends nor reads."""
NullableText = Annotated[str | None, _NullableText()]
BYTES = _Copy()
Bytes = Annotated[bytes, BYTES]
Slice = Annotated[Buffer, _Slice()]
Late = Annotated[Buffer | Unencoded, _Late()]
"""Bytes as ``Slice``, or a message that is encoded only for another process."""
Pieces = Annotated[Sequence[Buffer], _Pieces()]
Range = Annotated[tuple[int, int], _Pair()]
TextSet = Annotated[frozenset[str], _TextSet()]
Int64s = Annotated[tuple[int, ...], _Int64s()]
Numbers = Annotated[tuple[tuple[int, int], ...], Rows(Row(Int32, Int64))]
Partitions = Annotated[tuple[tuple[UUID, int], ...], Rows(Row(Id, Int32))]
Reasons = Annotated[tuple[tuple[int, str], ...], Array(Row(Int32, Text))]
