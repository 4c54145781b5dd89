"""Traces of requests, from produce to flush and of fetches, without a dependency on OpenTelemetry.

A request is traced if it is drawn at random (``ratio``) when it arrives; record headers are not read.  ``server.otel``
makes the spans of OpenTelemetry.  A process without a ``Tracer`` has none of the objects that trace.  A process with a
tracer draws a random number for each request, and does nothing more for a request that is not drawn.

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
"""Batches of one request whose traces are passed on; traces of those past it end at the sender."""
_ENTRY = struct.Struct(">16si25s")
Value = str | int | bool


class SpanKind(Enum):
    """OpenTelemetry's ``SpanKind``, as far as it is used."""

    SERVER = "a request that has come in"
    CLIENT = "a request to another process"
    INTERNAL = "work of this process"


class Span(Protocol):
    """A part of a trace that has begun."""

    @property
    def context(self) -> bytes:
        """Trace id, span id and flags, 25 bytes: the parent of spans that continue the trace."""

    def set(self, name: str, value: Value) -> None:
        """Set an attribute of the span."""

    def fail(self, error: str) -> None:
        """Mark the span as failed, with the reason.  It must still be ended."""

    def end(self) -> None:
        """End the span.  To be called once."""


class Tracer(Protocol):
    """A process's source of spans."""

    @property
    def ratio(self) -> float:
        """Share of client requests that are traced, 0 to 1."""

    def start(
        self,
        name: str,
        kind: SpanKind,
        parent: Span | bytes | None = None,
        attributes: Mapping[str, Value] | None = None,
    ) -> Span:
        """Begin a span: of a new trace, or of the trace of ``parent`` (a span, or the 25 bytes of its context)."""

    def stage(self, name: str, seconds: float, attributes: Mapping[str, Value] | None = None) -> None:
        """Record a span of ``seconds`` that ends now, if the running code works for a traced request (``CURRENT``)."""

    def close(self) -> None:
        """Export the spans that are left.  Blocks for a moment."""


CURRENT: ContextVar[Span | None] = ContextVar("bmq_span", default=None)
"""The span of the request for which this code runs; only a process that traces sets it."""


class SampledRecords:
    """Batches on their way to other processes that belong to a trace, by the buffer that carries them."""

    __slots__ = ("_contexts",)

    def __init__(self) -> None:
        self._contexts: dict[int, tuple[memoryview, bytes]] = {}  # holding the buffer keeps its id from being reused

    def __len__(self) -> int:
        return len(self._contexts)

    def add(self, records: memoryview, context: bytes) -> None:
        """Note that the batch in ``records`` belongs to the trace of ``context``, until ``remove``."""
        self._contexts[id(records)] = (records, context)

    def remove(self, records: memoryview) -> None:
        """Forget the batch.  Idempotent."""
        self._contexts.pop(id(records), None)

    def header(self, topics: Iterable[tuple[UUID, Sequence[tuple[int, memoryview]]]]) -> bytes:
        """Return the tagged fields for the header of a request with these batches; empty if none is traced."""
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
    """Return the contexts that a request's header carries, by partition: of two batches of one the last one's.

    Raises FormatError, or one of ``core.wire.primitives.CUT_SHORT``, if these are not tagged fields.
    """
    found: dict[PartitionKey, bytes] = {}
    for tag, start, end in read_tags(frame, tags_at)[0]:
        if tag == TRACE_TAG and (end - start) % _ENTRY.size == 0:
            for topic_id, partition, context in _ENTRY.iter_unpack(bytes(frame[start:end])):
                found[PartitionKey(UUID(bytes=topic_id), partition)] = context
    return found
