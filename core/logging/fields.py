"""Fields of a log line: its subject, under names that a log store can search for.

A call gives them beside its text, ``log.warning("shard not loaded", extra=fields(shard=3, error=error))``.  The names
are these and no others, so that one query finds a partition's lines whichever part of the server wrote them;
docs/logging.md has the same list.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from typing import Protocol, TypedDict, Unpack

FIELDS: Mapping[str, str] = {
    "topic": "topic's name; its id where the name is not known",
    "partition": "partition's number",
    "shard": "partition of `__consumer_offsets`, or of the `topic` that the line names",
    "epoch": "leader epoch of the partition or shard",
    "member": "process of the cluster that the line is about, by its incarnation",
    "worker": "process of `bmq serve --workers`, by its number",
    "listener": "address or name of a listener",
    "connection": "client's address and port",
    "connections": "number of connections",
    "client_id": "name that the client gave itself",
    "path": "file or folder on storage",
    "block": "HDFS block's id",
    "nodes": "datanodes, comma-separated",
    "key": "key or prefix in the metadata store",
    "revision": "revision of the metadata store",
    "error": "reason, as the operation that failed gave it",
    "left_out": "lines of this event that were not written since the last one that was",
}


class Fields(TypedDict, total=False):
    """Types of ``FIELDS``.  ``error`` and ``path`` may be any object whose ``str`` is the text."""

    topic: str
    partition: int
    shard: int
    epoch: int
    member: str
    worker: int
    listener: str
    connection: str
    connections: int
    client_id: str | None
    path: object
    block: int
    nodes: str
    key: object
    revision: int
    error: object
    left_out: int


class PartitionFields(TypedDict):
    """The fields that name a partition."""

    topic: str
    partition: int


class ConnectionFields(TypedDict):
    """The fields that name a client's connection."""

    connection: str
    client_id: str | None


class Report(Protocol):
    """A function that logs an event for operators: its text, the text's arguments, and its fields."""

    def __call__(self, text: str, /, *arguments: object, **about: Unpack[Fields]) -> None: ...


FIELD_MAX = 1_000
"""Characters of one field at most: paths, errors."""
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that begin a line, reverse text or drive a terminal, and surrogates, which are not text."""
_BARE = re.compile(r"[^\s\"'=\\]+")
_ATTRIBUTE = "bmq_fields"
_OF_THE_CAUSE = frozenset({"error", "left_out", "revision"})


def fields(**values: Unpack[Fields]) -> dict[str, object]:
    """Return the ``extra`` of a log call.  A field that is None is left out."""
    return {_ATTRIBUTE: values}


def set_fields(record: logging.LogRecord, given: Mapping[str, object]) -> None:
    """Replace the fields of ``record``."""
    record.__dict__[_ATTRIBUTE] = given


def fields_of(record: logging.LogRecord) -> Mapping[str, object]:
    """Return the fields of the call, as texts and integers, without fields that are None."""
    given: Mapping[str, object] = record.__dict__.get(_ATTRIBUTE) or {}
    return {name: _plain(value) for name, value in given.items() if value is not None}


def subject_of(given: Mapping[str, object], message: str) -> tuple[object, ...]:
    """Return the key that tells lines of an event apart: their fields, except the fields about the cause.

    A connection counts by its address and the cause: a client that comes again and again, and fails in the same way, is
    one subject.  The whole ``message`` is the key of a line without such fields.
    """
    about = tuple(value for name, value in given.items() if name not in _OF_THE_CAUSE and name != "connection")
    if "connection" in given:
        about += (_address(given["connection"]), given.get("error"))
    return about or (message,)


def in_text(given: Mapping[str, object]) -> str:
    """Return the fields as they follow a text, `` name=value`` each: bare, or as a JSON string (logfmt)."""
    return "".join(f" {name}={_in_text(_plain(value))}" for name, value in given.items() if value is not None)


def cut(text: str, longest: int) -> str:
    """Return at most ``longest`` characters of ``text``, and the number of those left out."""
    return text if len(text) <= longest else f"{text[:longest]}... ({len(text) - longest} characters left out)"


def escaped_json(value: object) -> str:
    """Return JSON of ``value`` on one line.

    Characters that may drive a terminal are escaped as JSON escapes them, so it parses to ``value``.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _address(connection: object) -> str:
    """Return the address of ``address:port``.  An IPv6 address has brackets if a port follows."""
    address, _, port = str(connection).rpartition(":")
    return address if address.endswith("]") or (port.isdigit() and ":" not in address) else str(connection)


def _plain(value: object) -> str | int:
    if isinstance(value, int):
        return value
    nameless = type(value).__name__ if isinstance(value, BaseException) else ""
    return cut(str(value) or nameless, FIELD_MAX)


def _in_text(value: str | int) -> str:
    if isinstance(value, int):
        return str(value)
    return value if _BARE.fullmatch(value) and not CONTROL.search(value) else escaped_json(value)
