"""The types of the internal messages' fields, with their encoding, and the codec of messages made of them.

A message is its fields in the order of their declaration, in Kafka's flexible encoding (big-endian numbers, lengths as
unsigned varints plus one), and a set of tagged fields at the end: a later version adds fields there, and an earlier one
skips them.  ``Message`` encodes and decodes from the types of a dataclass's fields, which are the ones below.

Large bytes are never joined with their neighbours: ``encode`` returns them as buffers of their own, and ``decode`` as a
slice of the body where the type says ``Slice``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Annotated, Any, NamedTuple, Protocol, Self, get_type_hints
from uuid import UUID

from bmq.core.errors import ErrorCode, FormatError
from bmq.core.net.request import Buffer
from bmq.core.wire.primitives import (
    CUT_SHORT,
    ELEMENTS_MAX,
    read_count,
    read_size,
    read_string,
    read_tags,
    read_uuid,
    string,
    uvarint,
)

APART_LEAST = 4 << 10
"""Bytes from this size on stay a buffer of their own: below, a copy costs less than one more element of a write."""


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


class Field(Protocol):
    """One type of field.  ``read`` returns the value and the position behind it, or raises FormatError or CUT_SHORT."""

    def write(self, out: Out, value: Any) -> None: ...

    def read(self, data: memoryview, pos: int) -> tuple[Any, int]: ...


class Fixed:
    """A number of one size; ``make`` converts it to the message's type, and raises ValueError for an illegal value."""

    def __init__(self, layout: str, make: Callable[[int], Any] = int) -> None:
        self._struct = struct.Struct(">" + layout)
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

    _struct = struct.Struct(">hh")

    def write(self, out: Out, value: tuple[int, int]) -> None:
        out.small += self._struct.pack(*value)

    def read(self, data: memoryview, pos: int) -> tuple[tuple[int, ...], int]:
        return self._struct.unpack_from(data, pos), pos + self._struct.size


class _Id:
    def write(self, out: Out, value: UUID) -> None:
        out.small += value.bytes

    def read(self, data: memoryview, pos: int) -> tuple[UUID, int]:
        return read_uuid(data, pos)


class _Text:
    def write(self, out: Out, value: str) -> None:
        out.small += string(value, flexible=True)

    def read(self, data: memoryview, pos: int) -> tuple[str, int]:
        return read_string(data, pos, flexible=True)


class _Slice:
    """Bytes that stay where they arrived: they keep the frame alive, and their receiver may write into them."""

    def write(self, out: Out, value: Buffer) -> None:
        out.small += uvarint(len(value) + 1)
        out.add(value)

    def read(self, data: memoryview, pos: int) -> tuple[memoryview, int]:
        size, pos = read_size(data, pos, flexible=True)
        if not 0 <= size <= len(data) - pos:
            raise FormatError(f"{size} bytes where {len(data) - pos} are left")
        return data[pos : pos + size], pos + size


class _Copy(_Slice):
    def read(self, data: memoryview, pos: int) -> tuple[Any, int]:
        value, pos = super().read(data, pos)
        return bytes(value), pos


_SLICE = _Slice()


class _Pieces:
    """Bytes that are written from several buffers, none of them joined; read, they are one."""

    def write(self, out: Out, value: Sequence[Buffer]) -> None:
        out.small += uvarint(sum(map(len, value)) + 1)
        for piece in value:
            out.add(piece)

    def read(self, data: memoryview, pos: int) -> tuple[Any, int]:
        value, pos = _SLICE.read(data, pos)
        return (value,), pos


class Rows:
    """An array of rows of one size; ``make`` converts each from its numbers.  A first column ``16s`` is a uuid."""

    def __init__(self, layout: str, make: Callable[[tuple[Any, ...]], Any] = tuple) -> None:
        self._struct = struct.Struct(">" + layout)
        self._has_id = layout.startswith("16s")
        self._make = make

    def write(self, out: Out, value: Sequence[Any]) -> None:
        assert len(value) <= ELEMENTS_MAX, f"{len(value)} elements: ask for fewer at a time"
        out.small += uvarint(len(value) + 1)
        pack = self._struct.pack
        if self._make is _only:
            value = [(each,) for each in value]
        for row in value:
            out.small += pack(row[0].bytes, *row[1:]) if self._has_id else pack(*row)

    def read(self, data: memoryview, pos: int) -> tuple[tuple[Any, ...], int]:
        count, pos = read_count(data, pos, self._struct.size, flexible=True)
        if count > ELEMENTS_MAX:
            raise FormatError(f"{count} elements, more than {ELEMENTS_MAX}")
        end = pos + count * self._struct.size
        rows = self._struct.iter_unpack(data[pos:end])
        make = self._make
        if self._has_id:
            return tuple(make((UUID(bytes=row[0]), *row[1:])) for row in rows), end
        return tuple(map(make, rows)), end


class PartitionLoad(NamedTuple):
    """A partition's load since the last request for it."""

    topic_id: UUID
    partition: int
    bytes_in: int
    bytes_out: int
    requests: int


class PartitionQuestion(NamedTuple):
    """A question about a partition: a ``core.rpc.messages.Question``, or one of a later version."""

    topic_id: UUID
    partition: int
    question: int
    argument: int


class OwnerAnswer(NamedTuple):
    """An answer: an error, or the first ``size`` numbers; ``size`` is -1 if there was no answer in time."""

    error: int
    size: int
    first: int = 0
    second: int = 0
    third: int = 0
    fourth: int = 0

    @property
    def is_answered(self) -> bool:
        """False if the owner gave no answer in time."""
        return self.size >= 0

    @property
    def values(self) -> tuple[int, ...]:
        """The numbers of the answer; none if it is an error, or missing."""
        return self[2 : 2 + self.size]


class NotServedPartition(NamedTuple):
    """A partition that its broker cannot serve, with the reason."""

    topic: str
    partition: int
    why: str


class PartitionTraffic(NamedTuple):
    """The traffic of one partition in a window; of a whole topic if `partition` is -1."""

    topic_id: UUID
    partition: int
    records_in: int
    bytes_in: int
    bytes_out: int


def _only(row: tuple[Any, ...]) -> Any:
    return row[0]


class Release(NamedTuple):
    """Release note: what the outgoing owner of a partition sends to its successor.

    The partition's record and its revision in the store, and the last segment's index, empty if storage has it.
    """

    revision: int
    record: bytes
    last_index: bytes


class _Releases:
    _revision = struct.Struct(">q")
    _copy = _Copy()

    def write(self, out: Out, value: Sequence[Release]) -> None:
        assert len(value) <= ELEMENTS_MAX, f"{len(value)} elements: send fewer at a time"
        out.small += uvarint(len(value) + 1)
        for each in value:
            out.small += self._revision.pack(each.revision)
            self._copy.write(out, each.record)
            self._copy.write(out, each.last_index)

    def read(self, data: memoryview, pos: int) -> tuple[tuple[Release, ...], int]:
        count, pos = read_count(data, pos, self._revision.size + 2, flexible=True)
        found = []
        for _ in range(count):
            (revision,) = self._revision.unpack_from(data, pos)
            record, pos = self._copy.read(data, pos + self._revision.size)
            index, pos = self._copy.read(data, pos)
            found.append(Release(revision, record, index))
        return tuple(found), pos


class _Reasons:
    """Numbers, each with a text."""

    _number = struct.Struct(">i")
    _text = _Text()

    def write(self, out: Out, value: Sequence[tuple[int, str]]) -> None:
        assert len(value) <= ELEMENTS_MAX, f"{len(value)} elements: send fewer at a time"
        out.small += uvarint(len(value) + 1)
        for number, text in value:
            out.small += self._number.pack(number)
            self._text.write(out, text)

    def read(self, data: memoryview, pos: int) -> tuple[tuple[tuple[int, str], ...], int]:
        count, pos = read_count(data, pos, self._number.size + 1, flexible=True)
        found = []
        for _ in range(count):
            (number,) = self._number.unpack_from(data, pos)
            text, pos = self._text.read(data, pos + self._number.size)
            found.append((number, text))
        return tuple(found), pos


class _NotServed:
    """Partitions by the names of their topics, each with a text."""

    _number = struct.Struct(">i")
    _text = _Text()

    def write(self, out: Out, value: Sequence[NotServedPartition]) -> None:
        assert len(value) <= ELEMENTS_MAX, f"{len(value)} elements: send fewer at a time"
        out.small += uvarint(len(value) + 1)
        for topic, partition, why in value:
            self._text.write(out, topic)
            out.small += self._number.pack(partition)
            self._text.write(out, why)

    def read(self, data: memoryview, pos: int) -> tuple[tuple[NotServedPartition, ...], int]:
        count, pos = read_count(data, pos, self._number.size + 2, flexible=True)
        found = []
        for _ in range(count):
            topic, pos = self._text.read(data, pos)
            (partition,) = self._number.unpack_from(data, pos)
            why, pos = self._text.read(data, pos + self._number.size)
            found.append(NotServedPartition(topic, partition, why))
        return tuple(found), pos


class Unregistered(NamedTuple):
    """A finding that a process has no member key in the store, at ``revision`` or later.

    ``roles``: those of the members that work may be assigned to, as the finder's view shows them.
    """

    revision: int
    roles: frozenset[str]


class _Unregistered:
    _revision = struct.Struct(">q")
    _text = _Text()

    def write(self, out: Out, value: Unregistered) -> None:
        out.small += self._revision.pack(value.revision) + uvarint(len(value.roles) + 1)
        for role in sorted(value.roles):
            self._text.write(out, role)

    def read(self, data: memoryview, pos: int) -> tuple[Unregistered, int]:
        (revision,) = self._revision.unpack_from(data, pos)
        count, pos = read_count(data, pos + self._revision.size, 1, flexible=True)
        roles = []
        for _ in range(count):
            role, pos = self._text.read(data, pos)
            roles.append(role)
        return Unregistered(revision, frozenset(roles)), pos


class Added:
    """A field that an earlier version does not have: tagged, last in its message, and absent when it is empty."""

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


Bool = Annotated[bool, Fixed("b", bool)]
Int16 = Annotated[int, Fixed("h")]
Int32 = Annotated[int, Fixed("i")]
Int64 = Annotated[int, Fixed("q")]
Code = Annotated[ErrorCode, Fixed("h", ErrorCode)]
Id = Annotated[UUID, _Id()]
Text = Annotated[str, _Text()]
Bytes = Annotated[bytes, _Copy()]
Slice = Annotated[Buffer, _Slice()]
Pieces = Annotated[Sequence[Buffer], _Pieces()]
Range = Annotated[tuple[int, int], _Pair()]
Int64s = Annotated[tuple[int, ...], Rows("q", _only)]
Numbers = Annotated[tuple[tuple[int, int], ...], Rows("iq")]
Partitions = Annotated[tuple[tuple[UUID, int], ...], Rows("16si")]
Loads = Annotated[tuple[PartitionLoad, ...], Rows("16siqqq", PartitionLoad._make)]
PartitionQuestions = Annotated[Sequence[PartitionQuestion], Rows("16sibq", PartitionQuestion._make)]
OwnerAnswers = Annotated[Sequence[OwnerAnswer], Rows("hb4q", OwnerAnswer._make)]
Traffics = Annotated[tuple[PartitionTraffic, ...], Rows("16siqqq", PartitionTraffic._make)]
TopicSizes = Annotated[tuple[tuple[UUID, int], ...], Rows("16sq")]
"""Bytes by the topic's id."""
NotServedPartitions = Annotated[tuple[NotServedPartition, ...], _NotServed()]
Reasons = Annotated[tuple[tuple[int, str], ...], _Reasons()]
Releases = Annotated[tuple[Release, ...], Added(0, _Releases())]
UnregisteredCaller = Annotated[Unregistered | None, Added(0, _Unregistered(), None)]


class Message:
    """A dataclass whose fields have the types above."""

    __slots__ = ()

    def encode(self) -> list[Buffer]:
        """Return the body, in buffers to be sent one after another."""
        out = Out()
        added: list[tuple[Added, Any]] = []
        for name, field in _fields(type(self)):
            value = getattr(self, name)
            if not isinstance(field, Added):
                field.write(out, value)
            elif value != field.empty:
                added.append((field, value))
        out.small += uvarint(len(added))
        for tagged, value in added:
            tagged.write(out, value)
        return out.buffers()

    @classmethod
    def decode(cls, body: memoryview) -> Self:
        """Parse ``body``.  Raises FormatError if it is not such a message."""
        try:
            pos = 0
            values: list[Any] = []
            added: dict[int, tuple[int, Added]] = {}
            for _, field in _fields(cls):
                if isinstance(field, Added):
                    added[field.tag] = (len(values), field)
                    values.append(field.empty)
                else:
                    value, pos = field.read(body, pos)
                    values.append(value)
            tags, end = read_tags(body, pos)
            for tag, at, tag_end in tags:
                if tag in added:
                    index, tagged = added[tag]
                    values[index], _ = tagged.read(body[:tag_end], at)
        except (*CUT_SHORT, FormatError) as error:
            raise FormatError(f"{cls.__name__}: {error}") from None
        if end != len(body):
            raise FormatError(f"{cls.__name__}: {len(body) - end} bytes behind its end")
        return cls(*values)


_Fields = tuple[tuple[str, Field], ...]
_known: dict[type[Message], _Fields] = {}


def _fields(kind: type[Message]) -> _Fields:
    """Return the names and types of a message class's fields."""
    found = _known.get(kind)
    if found is None:
        hints = get_type_hints(kind, include_extras=True)
        names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
        found = _known[kind] = tuple((name, hints[name].__metadata__[0]) for name in names)
    return found
