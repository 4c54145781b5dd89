"""The description of one API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, NamedTuple, TypeVar

from bmq.core.net.request import Request, Response
from bmq.core.wire.api_keys import ApiKey
from bmq.endpoint.authorization.authorizer import Needs
from bmq.endpoint.scopes import Scopes

S = TypeVar("S", bound=Scopes[Any, Any], contravariant=True)
"""Scopes that an API needs; ``Scopes`` of subclasses that have more fit, too."""


class Api(NamedTuple, Generic[S]):
    """One API: Kafka's version range, and the handler of its requests.

    ============== ======================== =====================================================
    field          argument                 result, at once or awaited
    ============== ======================== =====================================================
    ``handle``     the decoded message      the response message, or an encoded ``Response``
    ``handle_raw`` the request's bytes      an encoded ``Response`` (Produce and Fetch)
    ============== ======================== =====================================================

    Exactly one of the two is set.  A handler does long work in turns of the loop (``core.aio.turns``).  A RequestError
    that leaves ``handle`` is a bug: a handler puts errors where Kafka's response has a field for them.
    """

    key: ApiKey
    min_version: int
    max_version: int
    handle: Callable[[S, Request, Any], Any | Awaitable[Any]] | None = None
    handle_raw: Callable[[S, Request], Response | Awaitable[Response]] | None = None
    response_bytes: Callable[[S, Any], int] | None = None
    """Estimate, from the message, of the bytes of its response; None: at most a few times the request's body."""
    waits_for_clients: bool = False
    """True if the response waits for other clients' requests (JoinGroup).  While a large request of such an API waits,
    it does not count in ``LargeRequests``, so that others may pass."""
    is_pipelined: bool = False
    """True if a request may begin while earlier ones of its connection have no response yet."""
    needs: Needs | None = None
    """Rights that the handler asks for; ``NOTHING_NEEDED`` if it serves everybody.  None, for APIs of tests alone."""
    advertised_min: int | None = None
    """Lowest version that ApiVersions lists, where it is not ``min_version`` (Produce: 0, KAFKA-18659)."""
