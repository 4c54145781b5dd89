"""Spans around the parts that serve a request, for requests that are traced.

Everything here wraps: a request that is not sampled goes to the endpoint as without a tracer.  A traced one is served
by the same handlers; a traced Produce has parts of its own, which know the request's spans::

    Produce                          the request, until the kernel has its response
      held                           the wait in its partition's queue, and again each time an owner gives it back
      append                         the append, if the owner is in this process
      flush                          until storage has acknowledged the batch: the wait for a flush, and the flush
      route                          if the owner is in another process: until that has responded, each time
        Produce                      the same there, under the context in the request's header
      acknowledge                    from the response's last part until the kernel has it
    Fetch
      wait                           parked, for records
      read                           from storage
"""

from __future__ import annotations

import asyncio
import math
import random
import struct
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from contextvars import ContextVar
from typing import Any

from bmq.core.errors import FormatError, RequestError
from bmq.core.model import PartitionKey
from bmq.core.net.request import (
    Client,
    CloseConnection,
    Dispatch,
    Outcome,
    PendingResponse,
    Request,
    Response,
    outcome_of,
)
from bmq.core.records.batch import Appended
from bmq.core.tracing import CURRENT, SampledRecords, Span, SpanKind, Tracer, Value, parse_entries
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.header import parse_header
from bmq.core.wire.primitives import CUT_SHORT
from bmq.core.wire.produce import ProduceRequest, Transaction
from bmq.endpoint.api import Api
from bmq.endpoint.dispatch import Endpoint
from bmq.endpoint.partitions import AppendCallback, Owner
from bmq.endpoint.produce.handler import LargeProduce, Produce, begin_large
from bmq.endpoint.produce.partition_produce import PartitionProduce
from bmq.endpoint.produce.queue import Waiting
from bmq.endpoint.scopes import AnyScopes
from bmq.meta.catalog import Catalog
from bmq.proxy.routing.remote_owner import RemoteOwner

CLIENT_ID_MAX = 256
"""Characters of a client id in a span."""
PARTITIONS_MAX = 20
"""Partitions of one request with spans of their own."""
_INT16 = struct.Struct(">h")
_CLIENT_ID_AT = 8  # behind API key, version and correlation id
Parents = Mapping[PartitionKey, bytes]


class Tracing:
    """The wrappers that a process with a tracer puts around its endpoints."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self.sampled = SampledRecords()
        """Traced batches, for the connections to other processes, whose requests carry the traces on."""

    def of_clients(self, endpoint: Endpoint) -> Dispatch:
        """Return the wrapper of an endpoint for clients."""
        return TracedEndpoint(endpoint, self.tracer, self.sampled)

    def of_processes(self, endpoint: Endpoint) -> Dispatch:
        """Return the wrapper of an endpoint for other processes of the cluster."""
        return TracedInternalEndpoint(endpoint, self.tracer)


class TracedEndpoint:
    """A ``Dispatch`` around an ``Endpoint`` for clients; it samples the requests that are traced."""

    def __init__(self, endpoint: Endpoint, tracer: Tracer, sampled: SampledRecords) -> None:
        self._endpoint = endpoint
        self._ratio = tracer.ratio
        self._random = random.Random().random
        self._request = _TracedRequests(endpoint, tracer, sampled)
        self.is_pipelined = endpoint.is_pipelined
        self.expects_response = endpoint.expects_response
        self.may_park = endpoint.may_park

    def __call__(self, frame: memoryview, client: Client) -> Response | Awaitable[Response]:
        if self._random() >= self._ratio:
            return self._endpoint(frame, client)
        return self._request.serve(frame, client, None)


class TracedInternalEndpoint:
    """A ``Dispatch`` around the ``Endpoint`` for other processes; it continues the traces that their requests carry."""

    def __init__(self, endpoint: Endpoint, tracer: Tracer) -> None:
        self._endpoint = endpoint
        self._request = _TracedRequests(endpoint, tracer, SampledRecords())
        self.is_pipelined = endpoint.is_pipelined
        self.expects_response = endpoint.expects_response
        self.may_park = endpoint.may_park

    def __call__(self, frame: memoryview, client: Client) -> Response | Awaitable[Response]:
        parents = _parents_of(frame)
        if not parents:
            return self._endpoint(frame, client)
        return self._request.serve(frame, client, parents)


def _parents_of(frame: memoryview) -> Parents:
    """Return the trace contexts in the header's tagged fields; none if it is malformed, which the endpoint refuses."""
    try:
        (length,) = _INT16.unpack_from(frame, _CLIENT_ID_AT)
        tags_at = _CLIENT_ID_AT + _INT16.size + max(0, length)
        return parse_entries(frame, tags_at) if frame[tags_at] else {}
    except (*CUT_SHORT, FormatError):
        return {}


class _TracedRequests:
    """The service of requests under spans, by an endpoint with the same APIs except for a Produce that is traced."""

    def __init__(self, endpoint: Endpoint, tracer: Tracer, sampled: SampledRecords) -> None:
        scopes = endpoint.scopes
        self._endpoint = Endpoint(scopes.process, scopes.view, scopes.caller, [_traced(api) for api in endpoint.apis])
        self._catalog = scopes.process.catalog
        self._tracer = tracer
        self._sampled = sampled

    def serve(self, frame: memoryview, client: Client, parents: Parents | None) -> Response | Awaitable[Response]:
        """Serve the request under a span.

        ``parents`` has the contexts of the batches that another process traces; None for a client's request.
        """
        span = self._begin(frame, client, parents)
        traced = _TracedPartitions(self._tracer, self._sampled, self._catalog, span, parents)
        token, partitions = CURRENT.set(span), _PARTITIONS.set(traced)
        try:
            response = self._endpoint(frame, client)
        except BaseException as error:
            _fail(span, error)
            raise
        finally:
            CURRENT.reset(token)
            _PARTITIONS.reset(partitions)
        if isinstance(response, Response):
            self._answered(span, response)
        else:
            if isinstance(response, PendingResponse):
                response.on_over(lambda outcome: self._over(span, outcome))
                return response
            future = asyncio.ensure_future(response)
            future.add_done_callback(lambda done: self._over(span, outcome_of(done)))
            return future
        return response

    def _begin(self, frame: memoryview, client: Client, parents: Parents | None) -> Span:
        attributes: dict[str, Value] = {"messaging.system": "kafka", "network.peer.address": client.host}
        try:
            header = parse_header(frame)
        except FormatError:
            return self._tracer.start("request", SpanKind.SERVER, None, attributes)
        attributes["messaging.kafka.api_version"] = header.api_version
        if header.client_id:
            attributes["messaging.client.id"] = header.client_id[:CLIENT_ID_MAX]
        parent = next(iter(parents.values())) if parents else None
        return self._tracer.start(_name(header.api_key), SpanKind.SERVER, parent, attributes)

    def _over(self, span: Span, outcome: Outcome) -> None:
        if isinstance(outcome, Response):
            self._answered(span, outcome)
        elif isinstance(outcome, asyncio.CancelledError):
            _fail(span, asyncio.CancelledError("the client has gone"))
        else:
            _fail(span, outcome)

    def _answered(self, span: Span, response: Response) -> None:
        """End the span when the kernel has the response, or the connection is closed."""
        if not response.size:  # acks=0, for which all requests share a response
            span.end()
            return
        release, acknowledge = response.release, self._tracer.start("acknowledge", SpanKind.INTERNAL, span)

        def sent() -> None:
            acknowledge.end()
            span.end()
            if release is not None:
                release()

        response.release = sent


def _name(api_key: int) -> str:
    try:
        return "".join(word.capitalize() for word in ApiKey(api_key).name.split("_"))
    except ValueError:
        return f"API {api_key}"


def _fail(span: Span, error: BaseException) -> None:
    span.fail(str(error) if isinstance(error, CloseConnection | RequestError) else (str(error) or type(error).__name__))
    span.end()


class _TracedPartitions:
    """The spans of one produce's partitions, no more than PARTITIONS_MAX."""

    def __init__(
        self, tracer: Tracer, sampled: SampledRecords, catalog: Catalog, request: Span, parents: Parents | None
    ) -> None:
        self._tracer = tracer
        self._sampled = sampled
        self._catalog = catalog
        self._request = request
        self._parents = parents
        self._keys: set[PartitionKey] = set()

    def wants(self, key: PartitionKey) -> bool:
        """Return whether the partition's batch is traced."""
        if self._parents is not None:
            return key in self._parents
        if len(self._keys) < PARTITIONS_MAX:
            self._keys.add(key)
        return key in self._keys

    def start(self, name: str, kind: SpanKind, key: PartitionKey) -> Span:
        """Start a span for a partition."""
        topic = self._catalog.by_id(key.topic_id)
        attributes: dict[str, Value] = {
            "messaging.destination.name": topic.name if topic is not None else str(key.topic_id),
            "messaging.destination.partition.id": str(key.partition),
        }
        return self._tracer.start(name, kind, self._parent(key), attributes)

    def _parent(self, key: PartitionKey) -> Span | bytes:
        """Return the parent of a partition's span.

        A request of a proxy carries several clients' batches, each with its own trace.  The request's span belongs to
        the first of these traces.
        """
        parents = self._parents
        if parents is None or parents[key] == next(iter(parents.values())):
            return self._request
        return parents[key]

    def append(
        self, owner: Owner, data: memoryview, callback: AppendCallback, *, acks_all: bool, held_until: float
    ) -> Callable[[], None]:
        """Append to ``owner`` under spans.  See ``Owner.append``."""
        if isinstance(owner, RemoteOwner):
            span = self.start("route", SpanKind.CLIENT, owner.key)
            span.set("bmq.member", owner.route.owner)
            self._sampled.add(data, span.context)
            traced = _TracedAppend(callback, span, lambda: self._sampled.remove(data))
        else:
            span = self.start("append", SpanKind.INTERNAL, owner.key)
            span.set("messaging.message.body.size", len(data))
            traced = _TracedAppend(callback, span)
        traced.inner_take_back = owner.append(data, traced, acks_all=acks_all, held_until=held_until)
        if not traced.is_ended and not isinstance(owner, RemoteOwner):
            span.end()
            traced.span = self.start("flush", SpanKind.INTERNAL, owner.key)
        return traced.take_back


class _TracedAppend:
    """The ``AppendCallback`` of one append under a span."""

    def __init__(self, callback: AppendCallback, span: Span, on_end: Callable[[], None] | None = None) -> None:
        self._callback = callback
        self._on_end = on_end
        self.span = span
        self.is_ended = False
        self.inner_take_back: Callable[[], None] | None = None

    @property
    def is_over(self) -> bool:
        return self._callback.is_over

    @property
    def transaction(self) -> Transaction | None:
        return self._callback.transaction

    def on_appended(self, appended: Appended) -> None:
        if not self.is_ended:
            self.span.set("messaging.kafka.offset", appended.base_offset)
            self._end()
        self._callback.on_appended(appended)

    def on_failed(self, error: RequestError) -> None:
        if not self.is_ended:
            self.span.fail(str(error))
            self._end()
        self._callback.on_failed(error)

    def on_given_back(self, data: memoryview, *, may_be_appended: bool) -> None:
        if not self.is_ended:
            self.span.fail("refused or lost: it waits for the next owner")
            self._end()
        self._callback.on_given_back(data, may_be_appended=may_be_appended)

    def take_back(self) -> None:
        """End the span: the caller no longer waits."""
        if not self.is_ended:
            self.span.fail("cancelled: its time was up, or its client has gone")
            self._end()
        if self.inner_take_back is not None:
            self.inner_take_back()

    def _end(self) -> None:
        self.is_ended = True
        self.span.end()
        if self._on_end is not None:
            self._on_end()


_PARTITIONS: ContextVar[_TracedPartitions] = ContextVar("bmq_traced_partitions")
"""The spans of the traced request that the running code works for."""


def _traced(api: Api[Any]) -> Api[Any]:
    """Return the API as it is for traced requests: Produce with the spans of its partitions, others as they are."""
    return api._replace(handle=_handle, begin_large=_begin_large) if api.key is ApiKey.PRODUCE else api


def _handle(scopes: AnyScopes, request: Request, asked: ProduceRequest) -> Response | Awaitable[Response]:
    return _TracedProduce(scopes, request, asked).start(asked)


async def _begin_large(scopes: AnyScopes, request: Request, until_answered: AsyncExitStack) -> Awaitable[Response]:
    return await begin_large(scopes, request, until_answered, _TracedLargeProduce)


class _TracedPart(PartitionProduce):
    """One partition's part of a traced produce."""

    __slots__ = ("traced",)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.traced = _PARTITIONS.get()

    def append(self, owner: Owner) -> None:
        """Hand the records to the owner, under spans if the batch is traced."""
        super().append(_TracedOwner(owner, self.traced) if self.traced.wants(self.key) else owner)

    def as_waiting(self) -> Waiting:
        """Return the part as it waits in its partition's queue, under a span if the batch is traced."""
        return _TracedWaiting(self.key, self, self.traced) if self.traced.wants(self.key) else self


class _TracedProduce(Produce):
    """A ``Produce`` whose parts are traced."""

    __slots__ = ()
    part_kind = _TracedPart


class _TracedLargeProduce(LargeProduce):
    """A ``LargeProduce`` whose parts are traced."""

    __slots__ = ()
    part_kind = _TracedPart


class _TracedOwner:
    """An ``Owner`` that traces ``append``; all else is the wrapped owner's."""

    def __init__(self, owner: Owner, traced: _TracedPartitions) -> None:
        self._owner = owner
        self._traced = traced

    def __getattr__(self, name: str) -> Any:
        return getattr(self._owner, name)

    def append(
        self, data: memoryview, callback: AppendCallback, *, acks_all: bool, held_until: float = math.inf
    ) -> Callable[[], None]:
        return self._traced.append(self._owner, data, callback, acks_all=acks_all, held_until=held_until)


class _TracedWaiting:
    """A part that waits in its partition's queue, under the span ``held``."""

    def __init__(self, key: PartitionKey, part: Waiting, traced: _TracedPartitions) -> None:
        self._part = part
        self._held = traced.start("held", SpanKind.INTERNAL, key)
        self._is_held = True

    @property
    def size(self) -> int:
        return self._part.size

    @property
    def held_until(self) -> float:
        return self._part.held_until

    @property
    def on_over(self) -> Callable[[], None]:
        return self._part.on_over

    @on_over.setter
    def on_over(self, call: Callable[[], None]) -> None:
        def over() -> None:
            if self._is_held:
                self._held.fail("its time was up, or its client has gone")
            self._end()
            call()

        self._part.on_over = over

    def append(self, owner: Owner) -> None:
        self._end()
        self._part.append(owner)

    def fail(self, error: RequestError) -> None:
        if self._is_held:
            self._held.fail(str(error))
        self._end()
        self._part.fail(error)

    def _end(self) -> None:
        if self._is_held:
            self._is_held = False
            self._held.end()
