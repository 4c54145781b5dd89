"""Records as ``bmq produce`` reads them: text with separators, JSON lines, or one value as it is.  Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from bmq.cli.records.text import Encoding, NotEncoded, decode, from_json

RECORD_BYTES_MAX = 100 << 20
"""Kafka's ``socket.request.max.bytes``: no server takes more in one request."""
TIMESTAMP_MAX = (1 << 63) - 1
_FIELDS = {"key", "value", "headers", "partition", "timestamp"}
_IGNORED = {"topic", "offset"}
"""Fields that are ignored: ``bmq consume --json`` and ``bmq segment cat --json`` write them."""
Headers = list[tuple[str, bytes]]


class InputError(Exception):
    """A record cannot be read; ``str`` says why."""


class InputRecord(NamedTuple):
    """One record to be produced; the producer chooses a partition or timestamp of None."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int | None = None
    timestamp: int | None = None


class RecordFormat(Protocol):
    """A format's rules."""

    def read(self, data: bytes) -> InputRecord | None:
        """Return the record that ``data`` holds, None if there is none to produce.  Raises InputError."""


def split(chunks: Iterable[bytes], delimiter: bytes, *, bytes_max: int = RECORD_BYTES_MAX) -> Iterator[bytes]:
    """Yield the bytes between delimiters.  The last record needs no delimiter; after the last one, no bytes are no
    record.

    Raises InputError for more than ``bytes_max`` without a delimiter.
    """
    rest = bytearray()
    for chunk in chunks:
        begin = max(0, len(rest) - len(delimiter) + 1)
        rest += chunk
        if rest.find(delimiter, begin) >= 0:
            *whole, last = bytes(rest).split(delimiter)
            yield from whole
            rest = bytearray(last)
        if len(rest) > bytes_max:
            raise InputError(f"more than {bytes_max} bytes without a delimiter")
    if rest:
        yield bytes(rest)


def join(chunks: Iterable[bytes], *, bytes_max: int = RECORD_BYTES_MAX) -> Iterator[bytes]:
    """Yield all of the input as one record.  Raises InputError if it is larger than ``bytes_max``."""
    data = bytearray()
    for chunk in chunks:
        data += chunk
        if len(data) > bytes_max:
            raise InputError(f"more than {bytes_max} bytes")
    yield bytes(data)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedFields:
    """The fields of every record that the command line sets."""

    key: bytes | None = None
    headers: Headers = field(default_factory=list)
    partition: int | None = None
    timestamp: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextReader:
    """A reader of a key, a separator and a value; or of a value only."""

    fixed: FixedFields
    key_separator: bytes | None = None
    key_encoding: Encoding = Encoding.TEXT
    value_encoding: Encoding = Encoding.TEXT
    null: bytes | None = None
    """The text that stands for null."""

    def read(self, data: bytes) -> InputRecord:
        key, value = self.fixed.key, data
        if self.key_separator is not None:
            first, found, value = data.partition(self.key_separator)
            if not found:
                raise InputError(f"no key separator {self.key_separator!r}")
            key = self._decode("key", first, self.key_encoding)
        fixed = self.fixed
        return _checked(
            InputRecord(
                key, self._decode("value", value, self.value_encoding), fixed.headers, fixed.partition, fixed.timestamp
            )
        )

    def _decode(self, what: str, data: bytes, encoding: Encoding) -> bytes | None:
        if data == self.null:
            return None
        try:
            return decode(data, encoding)
        except NotEncoded as error:
            raise InputError(f"{what}: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonReader:
    """A reader of one JSON object a record, as ``bmq consume --json`` writes it; the command line's fields override
    it."""

    fixed: FixedFields
    key_encoding: Encoding = Encoding.TEXT
    value_encoding: Encoding = Encoding.TEXT
    ignores_partition: bool = False
    ignores_timestamp: bool = False

    def read(self, data: bytes) -> InputRecord | None:
        if not data.strip():
            return None
        try:
            found = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise InputError(f"not JSON: {error}") from None
        if not isinstance(found, dict):
            raise InputError('not a JSON object, as in {"key": "a", "value": "b"}')
        if found.pop("isControl", False):
            return None  # a transaction's marker, which `bmq segment cat` shows, carries no data
        unknown = sorted(found.keys() - _FIELDS - _IGNORED)
        if unknown:
            raise InputError(f"unknown field {unknown[0]!r}: known are {', '.join(sorted(_FIELDS))}")
        partition = None if self.ignores_partition else _number(found, "partition", (1 << 31) - 1)
        timestamp = None if self.ignores_timestamp else _number(found, "timestamp", TIMESTAMP_MAX)
        fixed = self.fixed
        return _checked(
            InputRecord(
                _bytes(found, "key", self.key_encoding) if fixed.key is None else fixed.key,
                _bytes(found, "value", self.value_encoding),
                [*_headers(found.get("headers")), *fixed.headers],
                partition if fixed.partition is None else fixed.partition,
                timestamp if fixed.timestamp is None else fixed.timestamp,
            )
        )


def _bytes(found: dict[str, Any], name: str, encoding: Encoding) -> bytes | None:
    try:
        return from_json(found.get(name), encoding)
    except NotEncoded as error:
        raise InputError(f"{name}: {error}") from None


def _number(found: dict[str, Any], name: str, number_max: int) -> int | None:
    """Return a number from 0 up; None for -1, null, and a missing field.  Raises InputError for anything else."""
    number = found.get(name)
    if number is None or number == -1:
        return None
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= number_max:
        raise InputError(f"{name}: {number!r} is not a whole number from 0 to {number_max}")
    return number


def _headers(found: object) -> Iterator[tuple[str, bytes]]:
    """Yield name and value from ``[{"key": ..., "value": ...}]`` or ``{name: value}``.  Raises InputError."""
    if found is None:
        return
    pairs: Iterable[tuple[object, object]]
    if isinstance(found, dict):
        pairs = found.items()
    elif isinstance(found, list) and all(isinstance(each, dict) and each.keys() <= {"key", "value"} for each in found):
        pairs = [(each.get("key"), each.get("value")) for each in found]
    else:
        raise InputError('headers: expected [{"key": "name", "value": "..."}] or {"name": "..."}')
    for name, value in pairs:
        try:
            data = from_json(value, Encoding.TEXT)
            if isinstance(name, str):
                name.encode()
        except (NotEncoded, UnicodeEncodeError) as error:
            raise InputError(f"header {name!r}: {error}") from None
        if not isinstance(name, str) or data is None:
            raise InputError(f"header {name!r}: a header needs a name and a value that is not null")
        yield name, data


def _checked(record: InputRecord) -> InputRecord:
    if record.key is None and record.value is None:
        raise InputError("key and value are both null: a record needs one of them")
    return record
