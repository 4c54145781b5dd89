"""The codec of all messages but Produce and Fetch, between bytes and kafka-python's message classes.

Responses are encoded by kafka-python's compiled encoders.  Requests are decoded here, into the same classes, since
kafka-python's decoders trust their input.  They return a text that is cut short as a shorter text, and an array may
announce two billion elements that take no bytes.  Input from a socket must not be trusted.  A decoder is built once per
API and version, of small functions that mirror the schema.  Every function compares the length that it reads with the
bytes left.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any
from uuid import UUID

from bmq.core.errors import FormatError
from bmq.core.net.request import Buffer
from bmq.core.wire.header import is_flexible, response_is_flexible
from bmq.core.wire.limits import elements_max
from bmq.core.wire.messages import request_class, schema_range
from bmq.core.wire.primitives import CUT_SHORT, INT16, INT32, TAGS_MAX, array_size, read_uvarint, response_header


def decode_request(api_key: int, version: int, body: memoryview) -> Any:
    """Return the message, with its ``API_VERSION`` set.

    Raises FormatError if ``body`` is not a request of this API and version.  Work and memory are bounded by the body's
    size, arrays by ``elements_max``, tagged fields by ``TAGS_MAX``.  Nothing in the message refers to ``body``: texts
    are str, bytes are bytes.  Bytes after the message are ignored, as Kafka does.
    """
    known = schema_range(api_key)
    if known is None or request_class(api_key) is None or not known[0] <= version <= known[1]:
        raise FormatError(f"API {api_key} has no version {version} here")
    read = _request_reader(api_key, version)
    try:
        return read(_Cursor(bytes(body), elements_max(api_key)))
    except CUT_SHORT as error:
        raise FormatError(f"API {api_key} version {version}: {error}") from None


def body_reader(message: Any, version: int, *, flexible: bool, elements_max: int) -> Callable[[memoryview], Any]:
    """Return the decoder of the body of ``message``, a class of kafka-python: see ``decode_request``."""
    read = _struct(list(message.fields.values()), message, version, flexible)

    def read_body(body: memoryview) -> Any:
        try:
            return read(_Cursor(bytes(body), elements_max))
        except CUT_SHORT as error:
            raise FormatError(f"{message.__name__} version {version}: {error}") from None

    return read_body


def encode_response(api_key: int, version: int, correlation_id: int, message: Any) -> list[Buffer]:
    """Return header and body of a response to a request of ``version``, without the size field.

    A value too large for its field raises ``struct.error``: a bug of the code that made the message.  May be called
    from any thread, but not with one message from several at once.
    """
    header = response_header(correlation_id, flexible=response_is_flexible(api_key, version))
    return [header, message.encode(version=version)]


def encode_response_of(
    api_key: int, version: int, correlation_id: int, empty: Any, elements: Sequence[bytes]
) -> list[Buffer]:
    """Return the response ``empty``, whose last field is an empty array, with ``elements`` in that array.

    Each element is a result of ``encode_element``, so a large response does not need all its objects at the same time.
    """
    buffers = encode_response(api_key, version, correlation_id, empty)
    head, tail = _around_last_array(api_key, version, bytes(buffers[1]))
    flexible = is_flexible(api_key, version)
    return [buffers[0], head, array_size(len(elements), flexible=flexible), *elements, tail]


def encode_element(api_key: int, version: int, empty: Any, single: Any) -> bytes:
    """Return the element of ``single``, a response like ``empty`` but with one element in its last field."""
    head, tail = _around_last_array(api_key, version, empty.encode(version=version))
    whole: bytes = single.encode(version=version)
    count = len(array_size(1, flexible=is_flexible(api_key, version)))
    return whole[len(head) + count : len(whole) - len(tail)]


def _around_last_array(api_key: int, version: int, empty: bytes) -> tuple[bytes, bytes]:
    flexible = is_flexible(api_key, version)
    end = len(empty) - flexible  # the tags of the message
    return empty[: end - len(array_size(0, flexible=flexible))], empty[end:]


class _Cursor:
    """The position of a decoder, and how many array elements the message may still have."""

    __slots__ = ("data", "pos", "room")

    def __init__(self, data: bytes, elements_max: int) -> None:
        self.data = data
        self.pos = 0
        self.room = elements_max


_Read = Callable[[_Cursor], Any]

_FIXED = {"int8": "b", "int16": "h", "uint16": "H", "int32": "i", "int64": "q", "float64": "d", "bool": "?"}


@cache
def _request_reader(api_key: int, version: int) -> _Read:
    message = request_class(api_key)
    assert message is not None
    return _struct(list(message.fields.values()), message, version, is_flexible(api_key, version))


# ------------------------------------------------------------------------------------------ building decoders


def _reader(field: Any, version: int, flexible: bool) -> _Read:
    """Return the decoder of one field (kafka-python's description of it)."""
    nullable = field.nullable_for_version_q(version)
    if field.is_struct_array():
        element = _struct(list(field.fields.values()), field.data_class, version, flexible)
        return _array(element, _least_of_struct(field.fields.values(), version, flexible), nullable, flexible)
    if field.is_array():
        inner = field.array_of
        if inner.type_str in _FIXED:
            return _fixed_array(_FIXED[inner.type_str], nullable, flexible)
        return _array(_simple(inner.type_str, False, flexible), _least(inner, version, flexible), nullable, flexible)
    if field.is_struct():
        present = _struct(list(field.fields.values()), field.data_class, version, flexible)
        return _nullable_struct(present) if nullable else present
    return _simple(field.type_str, nullable, flexible)


def _simple(kind: str, nullable: bool, flexible: bool) -> _Read:
    if kind in _FIXED:
        return _fixed(_FIXED[kind])
    if kind == "uuid":
        return _read_uuid
    if kind == "bitfield":
        return _read_bits
    return _sized(kind == "string", nullable, _compact_size if flexible else _SIZES[kind])


def _least(field: Any, version: int, flexible: bool) -> int:
    """Return the least number of bytes of a value of the field."""
    if field.is_struct():
        is_nullable = field.nullable_for_version_q(version)
        return 1 if is_nullable else _least_of_struct(field.fields.values(), version, flexible)
    if not field.is_array():
        if field.type_str in _FIXED:
            return struct.calcsize(">" + _FIXED[field.type_str])
        if field.type_str == "uuid":
            return 16
        if field.type_str == "bitfield":
            return INT32.size
        if field.type_str == "string" and not flexible:
            return 2
    return 1 if flexible else 4


def _least_of_struct(fields: Any, version: int, flexible: bool) -> int:
    untagged = (each for each in fields if each.for_version_q(version) and not each.tagged_field_q(version))
    return sum(_least(each, version, flexible) for each in untagged) + flexible


def _struct(fields: list[Any], data_class: Any, version: int, flexible: bool) -> _Read:
    """Return the decoder of an object of ``data_class``.  Neighbours of fixed size are read at once."""
    present = [each for each in fields if each.for_version_q(version)]
    tagged = {
        each.tag: (each.name, _reader(each, version, flexible)) for each in present if each.tagged_field_q(version)
    }
    untagged = [each for each in present if not each.tagged_field_q(version)]
    steps = _steps(untagged, version, flexible)
    is_message = hasattr(data_class, "API_KEY")
    make = object.__new__  # as kafka-python's decoders do: its constructors walk all fields again

    def read(cursor: _Cursor) -> Any:
        made = make(data_class)
        made._version = version
        made.tags = made.unknown_tags = None
        if is_message:
            made._header = None
        for names, values in steps:
            if isinstance(names, str):
                setattr(made, names, values(cursor))
            else:
                for name, value in zip(names, values(cursor), strict=True):
                    setattr(made, name, value)
        if flexible:
            if cursor.data[cursor.pos]:
                _read_tags(cursor, made, tagged)
            else:
                cursor.pos += 1
        return made

    return read


def _steps(fields: list[Any], version: int, flexible: bool) -> list[tuple[str | tuple[str, ...], _Read]]:
    steps: list[tuple[str | tuple[str, ...], _Read]] = []
    run: list[Any] = []
    for field in [*fields, None]:
        if field is not None and field.type_str in _FIXED:
            run.append(field)
            continue
        if len(run) == 1:
            steps.append((run[0].name, _fixed(_FIXED[run[0].type_str])))
        elif run:
            steps.append((tuple(each.name for each in run), _fixed_run("".join(_FIXED[e.type_str] for e in run))))
        run.clear()
        if field is not None:
            steps.append((field.name, _reader(field, version, flexible)))
    return steps


def _read_tags(cursor: _Cursor, made: Any, tagged: dict[int, tuple[str, _Read]]) -> None:
    """Set the known tagged fields (KIP-482), and skip the unknown ones."""
    data = cursor.data
    count, cursor.pos = read_uvarint(data, cursor.pos)
    if count > TAGS_MAX:
        raise FormatError(f"{count} tagged fields")
    for _ in range(count):
        tag, pos = read_uvarint(data, cursor.pos)
        size, pos = read_uvarint(data, pos)
        end = pos + size
        if end > len(data):
            raise FormatError(f"tag {tag} of {size} bytes where {len(data) - pos} are left")
        if tag in tagged:
            name, read = tagged[tag]
            cursor.pos = pos
            setattr(made, name, read(cursor))
            if cursor.pos != end:
                raise FormatError(f"tag {tag}: {size} bytes, of which {cursor.pos - pos} are its field")
        cursor.pos = end


# ------------------------------------------------------------------------------------------ the small functions


def _fixed(kind: str) -> _Read:
    layout = struct.Struct(">" + kind)
    unpack, size = layout.unpack_from, layout.size

    def read(cursor: _Cursor) -> Any:
        (value,) = unpack(cursor.data, cursor.pos)
        cursor.pos += size
        return value

    return read


def _fixed_run(kinds: str) -> _Read:
    layout = struct.Struct(">" + kinds)
    unpack, size = layout.unpack_from, layout.size

    def read(cursor: _Cursor) -> Any:
        values = unpack(cursor.data, cursor.pos)
        cursor.pos += size
        return values

    return read


def _read_uuid(cursor: _Cursor) -> UUID | None:
    start = cursor.pos
    cursor.pos = end = start + 16
    data = cursor.data[start:end]
    if len(data) < 16:
        raise FormatError("a uuid is cut short")
    return UUID(bytes=data) if any(data) else None


def _read_bits(cursor: _Cursor) -> set[int] | None:
    """Return authorized operations by number; None if only the sign bit is set: they were not requested."""
    (value,) = INT32.unpack_from(cursor.data, cursor.pos)
    cursor.pos += INT32.size
    return None if value == -(1 << 31) else {bit for bit in range(32) if value >> bit & 1}


def _compact_size(cursor: _Cursor) -> int:
    size = cursor.data[cursor.pos]
    if size < 0x80:
        cursor.pos += 1
    else:
        size, cursor.pos = read_uvarint(cursor.data, cursor.pos)
    return size - 1


def _int16_size(cursor: _Cursor) -> int:
    (size,) = INT16.unpack_from(cursor.data, cursor.pos)
    cursor.pos += 2
    return int(size)


def _int32_size(cursor: _Cursor) -> int:
    (size,) = INT32.unpack_from(cursor.data, cursor.pos)
    cursor.pos += 4
    return int(size)


_SIZES = {"string": _int16_size, "bytes": _int32_size}


def _sized(is_text: bool, nullable: bool, read_size: Callable[[_Cursor], int]) -> _Read:
    is_compact = read_size is _compact_size

    def read(cursor: _Cursor) -> str | bytes | None:
        data = cursor.data
        start = cursor.pos + 1
        if is_compact and 0 < (size := data[start - 1]) < 0x80:  # nearly all, so without a call
            size -= 1
        else:
            size = read_size(cursor)
            start = cursor.pos
            if size < 0:
                if nullable:
                    return None
                raise FormatError("null where a value must be")
        end = start + size
        if end > len(data):
            raise FormatError(f"a value of {size} bytes where {len(data) - start} are left")
        cursor.pos = end
        value = data[start:end]
        return value.decode() if is_text else value

    return read


def _count(cursor: _Cursor, least: int, nullable: bool, flexible: bool) -> int | None:
    count = _compact_size(cursor) if flexible else _int32_size(cursor)
    if count < 0:
        if nullable:
            return None
        raise FormatError("null where an array must be")
    left = len(cursor.data) - cursor.pos
    if count * least > left:
        raise FormatError(f"{count} elements of {least} bytes or more where {left} bytes are left")
    cursor.room -= count
    if cursor.room < 0:
        raise FormatError("too many array elements")
    return count


def _array(element: _Read, least: int, nullable: bool, flexible: bool) -> _Read:
    assert least > 0, "an element that takes no bytes would not bound its array"

    def read(cursor: _Cursor) -> list[Any] | None:
        count = _count(cursor, least, nullable, flexible)
        return None if count is None else [element(cursor) for _ in range(count)]

    return read


def _fixed_array(kind: str, nullable: bool, flexible: bool) -> _Read:
    size = struct.calcsize(">" + kind)

    def read(cursor: _Cursor) -> list[Any] | None:
        count = _count(cursor, size, nullable, flexible)
        if count is None:
            return None
        values = struct.unpack_from(f">{count}{kind}", cursor.data, cursor.pos)
        cursor.pos += count * size
        return list(values)

    return read


def _nullable_struct(present: _Read) -> _Read:
    """Return the decoder of a structure that may be null: a byte before it is negative for null (KIP-893)."""

    def read(cursor: _Cursor) -> Any:
        is_null = cursor.data[cursor.pos] >= 0x80
        cursor.pos += 1
        return None if is_null else present(cursor)

    return read
