"""The description of one API, and the services that its handler works with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from bmq.core.audit.log import NO_AUDIT, Audit
from bmq.core.clock import Clock
from bmq.core.config import NodeConfig
from bmq.core.metrics.counters import Metrics
from bmq.core.net.request import Request, Response
from bmq.core.wire.api_keys import ApiKey
from bmq.endpoint.authorization.authorizer import ALLOW_ALL, Authorizer, Needs, Rights
from bmq.endpoint.fetch.fetch_params import Nearer
from bmq.endpoint.fetch.service import FetchService
from bmq.endpoint.large_requests import LargeRequests
from bmq.endpoint.leader_hints import LeaderHints
from bmq.endpoint.partitions import Owners
from bmq.endpoint.produce.connection_order import ProduceOrder
from bmq.endpoint.produce.queue import ProduceQueue
from bmq.endpoint.quotas import NO_QUOTAS, RequestQuotas
from bmq.endpoint.response_budget import ResponseBudget
from bmq.meta.catalog import Catalog


@dataclass(slots=True, kw_only=True)
class Services:
    """Everything that Produce and Fetch use, on a proxy's listeners and on a broker's internal port.

    A process has several of these, which differ by listener and by who calls (`server.node`).  A copy shares each
    field that its maker does not replace: a bound of the process holds for all copies together.  So no field is made by
    the class itself when it is copied: each is an argument (``init=True``), and there is no ``__post_init__``.
    """

    config: NodeConfig
    clock: Clock
    metrics: Metrics
    """Counters of the requests that these services serve: of the clients, or of the process's own requests."""
    catalog: Catalog
    owners: Owners
    fetch_service: FetchService
    """Tail cache, block reads, long polls and fetch sessions: everything that serves Fetch."""
    responses: ResponseBudget
    """Bytes of responses, other than records, that are being built or wait to be sent."""
    produce_queue: ProduceQueue = field(default_factory=ProduceQueue)
    """Produces that wait for their partition."""
    large: LargeRequests = field(default_factory=LargeRequests)
    produce_order: ProduceOrder = field(default_factory=ProduceOrder)
    """Order of the produces of connections whose large produce is being handed to the owners."""
    quotas: RequestQuotas = NO_QUOTAS
    apis: Sequence[Api[Any]] = ()
    """All APIs that the endpoint serves; `endpoint.dispatch.Endpoint` sets this."""
    authorizer: Authorizer = ALLOW_ALL
    """Rights of the clients."""
    audit: Audit = NO_AUDIT
    """The audit log of what the clients do."""

    def rights(self, request: Request) -> Rights:
        """Return the rights of the client that sent the request."""
        return Rights(self.authorizer, request, self.audit)

    def nearer(self, rack: str) -> Nearer | None:
        """Return a function that chooses the proxy in `rack` to fetch from (KIP-392).

        None: the client fetches from this process, as always on internal ports.
        """
        return None

    def leader_hints(self, request: Request, rack: str = "") -> LeaderHints | None:
        """Return the hints for a request of a client in `rack` (KIP-951).

        None: there are none, as always on internal ports.
        """
        return None


S = TypeVar("S", bound=Services, contravariant=True)
"""Services that an API needs; a subclass of `Services` that has more fits, too."""


class Api(NamedTuple, Generic[S]):
    """One API: Kafka's version range, and the handler of its requests.

    ============== ======================== =====================================================
    field          argument                 result, at once or awaited
    ============== ======================== =====================================================
    ``handle``     the decoded message      the response message, or an encoded `Response`
    ``handle_raw`` the request's bytes      an encoded `Response` (Produce and Fetch)
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
    it does not count in `LargeRequests`, so that others may pass."""
    is_pipelined: bool = False
    """True if a request may begin while earlier ones of its connection have no response yet."""
    needs: Needs | None = None
    """Rights that the handler asks for; ``NOTHING_NEEDED`` if it serves everybody.  None, for APIs of tests alone."""
    advertised_min: int | None = None
    """Lowest version that ApiVersions lists, where it is not ``min_version`` (Produce: 0, KAFKA-18659)."""
