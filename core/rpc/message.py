"""The codec of the internal messages: dataclasses whose fields have types of ``core.rpc.message_fields``.

A message is its fields in the order of their declaration, and a set of tagged fields at the end, as in Kafka's flexible
encoding. A later version adds fields there, and an earlier version skips them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Generic, Self, TypeVar, get_args, get_type_hints

from bmq.core.errors import ErrorCode, FormatError
from bmq.core.net.request import Buffer
from bmq.core.rpc.api_keys import InternalKey
from bmq.core.rpc.message_fields import Added, Code, Field, Out
from bmq.core.wire.primitives import CUT_SHORT, read_tags, uvarint

_ERROR = struct.Struct(">h")


class Message:
    """A dataclass whose fields have the types above."""

    __slots__ = ()

    def encode(self) -> list[Buffer]:
        """Return the body, in buffers to be sent one after another."""
        out = Out()
        _write(out, self)
        return out.buffers()

    @classmethod
    def decode(cls, body: memoryview) -> Self:
        """Parse ``body``.  Raises FormatError if it is not such a message."""
        try:
            message, end = _read(cls, body, 0)
        except (*CUT_SHORT, FormatError) as error:
            raise FormatError(f"{cls.__name__}: {error}") from None
        if end != len(body):
            raise FormatError(f"{cls.__name__}: {len(body) - end} bytes behind its end")
        return message


@dataclass(frozen=True, slots=True)
class InternalResponse(Message):
    """A response.  If ``error`` is not NONE, no other field means anything but ``message``, which has the reason."""

    error: Code = ErrorCode.NONE


def leading_error(body: memoryview) -> ErrorCode:
    """Return the error of a response that cannot be parsed further; NONE if it has none, or an unknown one."""
    try:
        return ErrorCode(_ERROR.unpack_from(body)[0])
    except (struct.error, ValueError):
        return ErrorCode.NONE


R = TypeVar("R", bound=InternalResponse)


class InternalRequest(Message, Generic[R]):
    """A request of the API ``KEY``.  The response to it is an R, which ``RESPONSE`` is at run time."""

    __slots__ = ()

    KEY: ClassVar[InternalKey]
    RESPONSE: ClassVar[type[InternalResponse]]
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    """The versions that are served, least and most."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        (cls.RESPONSE,) = get_args(cls.__dict__["__orig_bases__"][0])


M = TypeVar("M", bound=Message)


def _write(out: Out, message: Message) -> None:
    added: list[tuple[Added, Any]] = []
    for name, field in _fields(type(message)):
        value = getattr(message, name)
        if not isinstance(field, Added):
            field.write(out, value)
        elif value != field.empty:
            added.append((field, value))
    out.small += uvarint(len(added))
    for tagged, value in added:
        tagged.write(out, value)


def _read(kind: type[M], data: memoryview, pos: int) -> tuple[M, int]:
    values: list[Any] = []
    added: dict[int, tuple[int, Added]] = {}
    for _, field in _fields(kind):
        if isinstance(field, Added):
            added[field.tag] = (len(values), field)
            values.append(field.empty)
        else:
            value, pos = field.read(data, pos)
            values.append(value)
    tags, end = read_tags(data, pos)
    for tag, at, tag_end in tags:
        if tag in added:
            index, tagged = added[tag]
            values[index], _ = tagged.read(data[:tag_end], at)
    return kind(*values), end


class Struct:
    """A message within another: its fields and, as in Kafka's structs, tagged fields of its own."""

    least = 1

    def __init__(self, kind: type[Message]) -> None:
        self._kind = kind

    def write(self, out: Out, value: Message) -> None:
        _write(out, value)

    def read(self, data: memoryview, pos: int) -> tuple[Message, int]:
        return _read(self._kind, data, pos)


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
