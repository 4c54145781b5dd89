"""Records as ``bmq consume`` writes them: text with separators, fields, JSON lines, or values as they are.  Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Protocol

from bmq.cli.output import format_time, printable, text_bytes
from bmq.cli.records.text import Encoding, encode, to_json


class Consumed(Protocol):
    """A record as kafka-python's consumer returns it."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]: ...


Writer = Callable[[Consumed], bytes]
"""A function from a record to the bytes that are written for it."""


def text_writer(
    *,
    key_separator: bytes | None,
    delimiter: bytes,
    key_encoding: Encoding,
    value_encoding: Encoding,
    null: bytes,
    is_terminal: bool,
) -> Writer:
    """Return a writer of the value, with ``key_separator`` also of the key before it.

    On a terminal control characters but tabs and line ends are escaped: anybody may have produced them.
    """

    def shown(data: bytes | None, encoding: Encoding) -> bytes:
        if data is None:
            return null
        return for_terminal(encode(data, encoding)) if is_terminal else encode(data, encoding)

    def write(record: Consumed) -> bytes:
        value = shown(record.value, value_encoding) + delimiter
        return value if key_separator is None else shown(record.key, key_encoding) + key_separator + value

    return write


def for_terminal(data: bytes) -> bytes:
    """Return text with characters that could act on a terminal escaped."""
    text = data.decode(errors="backslashreplace")
    if not text.isprintable():
        text = "".join(each if each in "\n\t" else printable(each) for each in text)
    return text.encode()


def raw_writer(record: Consumed) -> bytes:
    """Return the value's bytes, without a delimiter; none for null."""
    return record.value or b""


def fields_writer(*, has_topic: bool, key_encoding: Encoding, value_encoding: Encoding) -> Writer:
    """Return a writer of a line of fields with tabs between: partition, offset, time, key, value, headers.

    ``bmq segment cat`` writes the same.
    """

    def cell(data: bytes | None, encoding: Encoding) -> str:
        return text_bytes(data if data is None else encode(data, encoding))

    def write(record: Consumed) -> bytes:
        headers = ",".join(f"{text_bytes(name.encode())}={text_bytes(value)}" for name, value in record.headers)
        cells = [str(record.partition), str(record.offset), format_time(record.timestamp)]
        cells += [cell(record.key, key_encoding), cell(record.value, value_encoding), headers]
        if has_topic:
            cells.insert(0, record.topic)
        return ("\t".join(cells) + "\n").encode()

    return write


def json_writer(*, key_encoding: Encoding, value_encoding: Encoding) -> Writer:
    """Return a writer of one JSON object a line, as ``bmq segment cat --json`` writes; ``bmq produce --format json``
    reads it."""

    def write(record: Consumed) -> bytes:
        fields: dict[str, object] = {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": to_json(record.key, key_encoding),
            "value": to_json(record.value, value_encoding),
            "headers": [{"key": name, "value": to_json(value, Encoding.TEXT)} for name, value in record.headers],
        }
        return (json.dumps(fields, separators=(",", ":")) + "\n").encode()

    return write
