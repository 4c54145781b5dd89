"""The description of one API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Generic, NamedTuple, TypeVar

from bmq.core.net.request import Request, Response
from bmq.core.wire.api_keys import ApiKey
from bmq.endpoint.authorization.authorizer import Needs
from bmq.endpoint.request_plan import BY_BODY, PlanRule
from bmq.endpoint.scopes import Scopes

S = TypeVar("S", bound=Scopes[Any, Any], contravariant=True)
"""Scopes that an API needs; ``Scopes`` of subclasses that have more fit, too."""


Handler = Callable[[S, Request, Any], Any | Awaitable[Any]]
"""A handler of requests: see ``Api``."""


class Api(NamedTuple, Generic[S]):
    """One API: Kafka's version range, and the handler of its requests.

    ``handle`` gets the decoded message.  It returns the response message or an encoded ``Response``, now or awaited.
    It does long work in turns of the loop (``core.aio.turns``).  A RequestError that leaves it is a bug: a handler puts
    errors where Kafka's response has a field for them.
    """

    key: ApiKey
    min_version: int
    max_version: int
    handle: Handler[S]
    rule: PlanRule = BY_BODY
    """Bounds up to which a request is small: see ``endpoint.request_plan``."""
    parse: Callable[[memoryview, int, int], Any] | None = None
    """Reader of a body of a version, which accepts ``rule.partitions`` at most; None: the codec.  Raises
    TooManyPartitions past the bound, FormatError if the body is malformed."""
    begin_large: Callable[[S, Request, AsyncExitStack], Awaitable[Response | Awaitable[Response]]] | None = None
    """Begins a large request, in turns of the loop.  Returns its encoded response, or an awaitable of it; the stack's
    resources are released when the response is there.  None: the dispatcher decodes and encodes in the thread for
    large requests, and calls ``handle``."""
    response_bytes: Callable[[S, Any], int] | None = None
    """Estimate, from the message, of the bytes of its response; None: at most a few times the request's body."""
    waits_for_clients: bool = False
    """True if the response may wait for other clients' requests (Fetch, JoinGroup, SyncGroup).  While a large request
    of such an API waits, it does not count in ``LargeRequests``, so that others may pass.  If such requests hold much
    of the memory for requests, while others wait for it, their connections are closed (``core.net.request_budget``)."""
    is_pipelined: bool = False
    """True if a request may begin while earlier ones of its connection have no response yet."""
    needs: Needs | None = None
    """Rights that the handler asks for; ``NOTHING_NEEDED`` if it serves everybody.  None, for APIs of tests alone."""
    advertised_min: int | None = None
    """Lowest version that ApiVersions lists, where it is not ``min_version`` (Produce: 0, KAFKA-18659)."""
    handle_of: Callable[[Sequence[Api[Any]]], Handler[S]] | None = None
    """Makes the handler for an endpoint, from all APIs of the endpoint (ApiVersions).  None: ``handle`` is the handler
    of every endpoint."""

    def within(self, apis: Sequence[Api[Any]]) -> Api[S]:
        """Return the API with its handler for an endpoint of ``apis``."""
        return self if self.handle_of is None else self._replace(handle=self.handle_of(apis))
