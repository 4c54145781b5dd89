"""Traces of requests, from produce to flush and of fetches: what the server's parts know of them.

A request is traced if it is drawn by lot (``ratio``) when it arrives; record headers are not looked at.  Nothing here
knows OpenTelemetry: ``server.otel`` makes the spans.  A process without a ``Tracer`` has none of the objects that
trace, and one with a tracer draws a random number for a request and does nothing more for those that are not drawn.

Between processes a trace goes with the request that carries the traced batches, as a tagged field of its header, which
an earlier version skips.  Entries, one for each traced batch::

    topic id (16)   partition (int32)   trace id (16)   span id (8)   flags (1)
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from enum import Enum
from typing import Protocol
from uuid import UUID

from bmq.core.model import PartitionKey
from bmq.core.wire.primitives import read_tags, tags

TRACE_TAG = 10_003
ENTRIES_MAX = 100
"""Batches of one request whose traces are carried on; those past it end at the sender."""
_ENTRY = struct.Struct(">16si25s")
Value = str | int | bool


class Kind(Enum):
    """OpenTelemetry's ``SpanKind``, as far as it is used."""

    SERVER = "a request that has come in"
    CLIENT = "a request to another process"
    INTERNAL = "work of this process"


class Span(Protocol):
    """A part of a trace that has begun."""

    @property
    def context(self) -> bytes:
        """Trace id, span id and flags: 25 bytes, for whoever continues the trace."""

    def set(self, name: str, value: Value) -> None: ...

    def fail(self, error: str) -> None:
        """Note why the work has failed; it ends all the same."""

    def end(self) -> None:
        """Once."""


class Tracer(Protocol):
    """One process's."""

    @property
    def ratio(self) -> float:
        """Share of client requests that are traced, 0 to 1."""

    def start(
        self, name: str, kind: Kind, parent: Span | bytes | None = None, attributes: Mapping[str, Value] | None = None
    ) -> Span:
        """Begin a span: a trace of its own, or a part of the trace of ``parent``."""

    def stage(self, name: str, seconds: float, attributes: Mapping[str, Value] | None = None) -> None:
        """Tell of work that ends now and took ``seconds``, if it was done for a traced request (``CURRENT``)."""

    def close(self) -> None:
        """Export what is left.  Blocks for a moment."""


CURRENT: ContextVar[Span | None] = ContextVar("bmq_span", default=None)
"""The span of the request for which this code runs; only a process that traces sets it."""


class SampledRecords:
    """Batches under way to other processes that belong to a trace, by the buffer that carries them."""

    __slots__ = ("_contexts",)

    def __init__(self) -> None:
        self._contexts: dict[int, tuple[memoryview, bytes]] = {}  # the buffer is held, so that its id stays its own

    def __len__(self) -> int:
        return len(self._contexts)

    def add(self, records: memoryview, context: bytes) -> None:
        self._contexts[id(records)] = (records, context)

    def remove(self, records: memoryview) -> None:
        self._contexts.pop(id(records), None)

    def header(self, topics: Iterable[tuple[UUID, Sequence[tuple[int, memoryview]]]]) -> bytes:
        """Return the tagged fields of the header of a request with these batches; nothing if none is traced."""
        if not self._contexts:
            return b""
        entries = [
            _ENTRY.pack(topic_id.bytes, partition, found[1])
            for topic_id, partitions in topics
            for partition, records in partitions
            if (found := self._contexts.get(id(records))) is not None
        ]
        return tags([(TRACE_TAG, b"".join(entries[:ENTRIES_MAX]))]) if entries else b""


def parse_entries(frame: memoryview, tags_at: int) -> dict[PartitionKey, bytes]:
    """Return the contexts that a request's header carries, by partition; of one with two batches the last one's.

    Raises FormatError, or what ``core.wire.primitives.CUT_SHORT`` lists, if these are no tagged fields.
    """
    found: dict[PartitionKey, bytes] = {}
    for tag, start, end in read_tags(frame, tags_at)[0]:
        if tag == TRACE_TAG and (end - start) % _ENTRY.size == 0:
            for topic_id, partition, context in _ENTRY.iter_unpack(bytes(frame[start:end])):
                found[PartitionKey(UUID(bytes=topic_id), partition)] = context
    return found
