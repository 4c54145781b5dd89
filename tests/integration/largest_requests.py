"""The largest legal requests of each API and version, in some shapes, from Kafka's own schemas."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator
from typing import Any

from bmq.core.aio.turns import ELEMENTS_A_TURN
from bmq.core.records.batch import Record, build_batch
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.header import is_flexible
from bmq.core.wire.limits import elements_max
from bmq.core.wire.messages import request_class
from bmq.core.wire.primitives import array_size, string, uvarint

TOPIC = "orders"
WRITTEN = 10_000
"""Batches that one request has written: more take as long in each turn, and minutes in all."""
EVEN = ELEMENTS_A_TURN - 1
"""Elements in each of many arrays."""
BODY_MAX = 100 << 20
"""socket.request.max.bytes."""
ACL_CODES = {
    "resource_type": 2, "resource_type_filter": 2, "resource_pattern_type": 3, "pattern_type_filter": 3,
    "operation": 3, "permission_type": 3,
}  # fmt: skip
"""Topic, literal, read, allow: an ACL request with the code of "unknown" ends its connection."""


def largest(api_key: int, version: int, share: float = 1.0) -> Iterator[tuple[str, bytes]]:
    """Yield (shape, frame): as many elements of the first array as the API's limit allows ("wide"), one element with as
    many in its own first array ("deep"), and many elements of which none fills a turn of the loop ("even").  ``share``
    of the limit."""
    message = request_class(api_key)
    assert message is not None
    count = int(elements_max(api_key) * share)
    for name, field in _arrays(message, version):
        yield f"wide {name}", _frame(api_key, version, message, {name: _many(field, version, count)})
        if not field.is_struct_array():
            continue
        for inner_name, inner in _arrays(field, version):
            one = _element(field, version, 0, {inner_name: _many(inner, version, count - 1)})
            yield f"deep {name}.{inner_name}", _frame(api_key, version, message, {name: [one]})
            inners = {inner_name: _many(inner, version, EVEN)}
            even = [_element(field, version, number, inners, "n{}") for number in range(count // (EVEN + 1))]
            yield f"even {name}.{inner_name}", _frame(api_key, version, message, {name: even})
            for innermost_name, innermost in _arrays(inner, version) if inner.is_struct_array() else ():
                one = _element(inner, version, 0, {innermost_name: _many(innermost, version, count - 2)})
                one = _element(field, version, 0, {inner_name: [one]})
                yield f"deep {name}.{inner_name}.{innermost_name}", _frame(api_key, version, message, {name: [one]})


def largest_fetches(version: int, topic_id: uuid.UUID, share: float = 1.0) -> Iterator[tuple[str, bytes]]:
    """Yield (shape, frame) of Fetch: TOPIC alone, and many topics that do not exist, with a session and without."""
    count, flexible = int(elements_max(ApiKey.FETCH) * share) - 1, version >= 12

    def partition(number: int) -> bytes:
        return b"".join((
            struct.pack(">i", number),
            struct.pack(">i", -1) if version >= 9 else b"",
            struct.pack(">q", 0),
            struct.pack(">i", -1) if version >= 12 else b"",
            struct.pack(">q", -1) if version >= 5 else b"",
            struct.pack(">i", 1 << 20),
            b"\0" if flexible else b"",
        ))  # fmt: skip

    shapes = {
        "one topic": [(TOPIC, topic_id, list(map(partition, range(count))))],
        "many topics": [(f"n{each}", uuid.UUID(int=each + 1), [partition(0)]) for each in range(count // 2)],
    }
    for shape, topics in shapes.items():
        for session in (None, 0) if version >= 7 else (None,):
            head = struct.pack(">i", -1) if version < 15 else b""
            head += struct.pack(">iiib", 100, 1, 50 << 20, 0)
            if version >= 7:
                head += struct.pack(">ii", 0, -1 if session is None else session)
            tail = array_size(0, flexible=flexible) if version >= 7 else b""
            tail += string("", flexible=flexible) if version >= 11 else b""
            body = head + _topics(topics, flexible=flexible, by_id=version >= 13) + tail + (b"\0" if flexible else b"")
            yield f"{shape}{'' if session is None else ', session'}", _head(ApiKey.FETCH, version) + body


def largest_produces(
    version: int, topic_id: uuid.UUID, partitions: int, share: float = 1.0
) -> Iterator[tuple[str, bytes]]:
    """Yield (shape, frame) of Produce: a batch for each of TOPIC's ``partitions``, again and again; partitions without
    records; many topics that do not exist."""
    count, flexible = int(elements_max(ApiKey.PRODUCE) * share) - 1, version >= 9
    batch = bytes(build_batch([Record(value=b"x")]))

    def partition(number: int, records: bytes) -> bytes:
        size = uvarint(len(records) + 1) if flexible else struct.pack(">i", len(records))
        return struct.pack(">i", number) + size + records + (b"\0" if flexible else b"")

    shapes = {
        "batches": [(TOPIC, topic_id, [partition(each % partitions, batch) for each in range(min(count, WRITTEN))])],
        "no records": [(TOPIC, topic_id, [partition(each, b"") for each in range(count)])],
        "many topics": [(f"n{each}", uuid.UUID(int=each + 1), [partition(0, batch)]) for each in range(count // 2)],
    }
    for shape, topics in shapes.items():
        head = string(None, flexible=flexible) + struct.pack(">hi", -1, 20_000)
        body = head + _topics(topics, flexible=flexible, by_id=version >= 13) + (b"\0" if flexible else b"")
        yield shape, _head(ApiKey.PRODUCE, version) + body


def _topics(topics: list[tuple[str, uuid.UUID, list[bytes]]], *, flexible: bool, by_id: bool) -> bytes:
    parts = [array_size(len(topics), flexible=flexible)]
    for name, topic_id, partitions in topics:
        parts += (topic_id.bytes if by_id else string(name, flexible=flexible),)
        parts += (array_size(len(partitions), flexible=flexible), *partitions, b"\0" if flexible else b"")
    return b"".join(parts)


def _arrays(holder: Any, version: int) -> Iterator[tuple[str, Any]]:
    for name, field in holder.fields.items():
        if field.for_version_q(version) and (field.is_array() or field.is_struct_array()):
            yield name, field


def _many(field: Any, version: int, count: int) -> list[Any]:
    if field.is_struct_array():
        return [_element(field, version, number, {}) for number in range(count)]
    return [_value(field.array_of.type_str, number) for number in range(count)]


def _element(field: Any, version: int, number: int, given: dict[str, Any], name_of: str = TOPIC) -> Any:
    """One element: numbers and names that are all different.

    ``name_of``, with the element's number, is the name of an element whose arrays are ``given``: a topic that exists,
    where there is one element.
    """
    values = dict(given)
    is_numbered = False
    for name, each in field.fields.items():
        if name in values or not each.for_version_q(version) or each.is_array() or each.is_struct_array():
            continue
        if name == "principal":
            values[name] = f"User:n{number}"
        elif each.type_str == "string":
            values[name] = name_of.format(number) if given else f"n{number}"
        elif each.type_str == "int32" and not is_numbered:
            values[name], is_numbered = number, True
        elif each.type_str == "uuid":
            values[name] = uuid.UUID(int=number + 1)
        elif each.type_str == "bytes":
            values[name] = b""
        elif each.type_str == "int8" and name in ACL_CODES:
            values[name] = ACL_CODES[name]
    return field.data_class(**values)


def _value(kind: str, number: int) -> Any:
    if kind == "string":
        return f"n{number}"
    return uuid.UUID(int=number + 1) if kind == "uuid" else number % 120 if kind == "int8" else number


def _frame(api_key: int, version: int, message: Any, arrays: dict[str, Any]) -> bytes:
    values = dict(arrays)
    for name, field in message.fields.items():
        if name in values or not field.for_version_q(version):
            continue
        if field.is_struct_array() or field.is_array():
            values[name] = []
        elif name in ("timeout_ms", "session_timeout_ms", "rebalance_timeout_ms"):
            values[name] = 20_000
        elif field.type_str == "string" and not field.nullable_for_version_q(version):
            values[name] = "g"
    body: bytes = message(**values).encode(version=version)
    assert len(body) < BODY_MAX
    return _head(api_key, version) + body


def _head(api_key: int, version: int) -> bytes:
    return struct.pack(">hhihs", api_key, version, 1, 1, b"t") + (b"\0" if is_flexible(api_key, version) else b"")
