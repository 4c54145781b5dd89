"""An endpoint's APIs, and the services that its handlers work with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from bmq.core.clock import Clock
from bmq.core.config import NodeConfig
from bmq.core.metrics.counters import Metrics
from bmq.core.net.request import Request, Response
from bmq.core.wire.api_keys import ApiKey
from bmq.endpoint.large_requests import LargeRequests
from bmq.endpoint.partitions import Owners
from bmq.endpoint.produce.connection_order import ProduceOrder
from bmq.endpoint.produce.queue import ProduceQueue
from bmq.endpoint.response_budget import ResponseBudget
from bmq.meta.catalog import Catalog

if TYPE_CHECKING:
    from bmq.endpoint.fetch.operation import Nearer
    from bmq.endpoint.fetch.service import FetchService


@dataclass(slots=True, kw_only=True)
class Services:
    """Everything that Produce and Fetch use, on a proxy's listeners and on a broker's internal port."""

    config: NodeConfig
    clock: Clock
    metrics: Metrics
    catalog: Catalog
    owners: Owners
    reading: FetchService
    """Tail cache, block reads, long polls and fetch sessions: everything that serves Fetch."""
    holding: ProduceQueue = field(default_factory=ProduceQueue)
    """Produces that wait for their partition."""
    large: LargeRequests = field(default_factory=LargeRequests)
    produce_order: ProduceOrder = field(default_factory=ProduceOrder)
    """Connections with a large produce that is being handed out."""
    apis: Sequence[Api[Any]] = ()
    """All that the endpoint serves; it fills this in."""
    responses: ResponseBudget = field(init=False)
    """Bytes of responses, other than records, that are built or not sent yet."""

    def __post_init__(self) -> None:
        self.responses = ResponseBudget(self.config.queued_max_request_bytes)

    def nearer(self, rack: str) -> Nearer | None:
        """Return the choice of a node in `rack` to fetch from (KIP-392); None: this process, as on internal ports."""
        return None


S = TypeVar("S", bound=Services, contravariant=True)
"""Services that an API needs: whoever has more serves it, too."""


class Api(NamedTuple, Generic[S]):
    """One API: Kafka's version range, and what answers it.

    ``handle`` gets the decoded message and returns the response message, or the finished answer, at once or awaited; it
    works in turns of the loop (``core.aio.turns``) on what may be long.  ``handle_raw`` (Produce,
    Fetch) gets the request with its bytes and returns the finished answer.  Exactly one of the two is set.
    A RequestError that leaves ``handle`` is a bug: every handler answers errors where Kafka's response has them.
    """

    key: ApiKey
    min_version: int
    max_version: int
    handle: Callable[[S, Request, Any], Any | Awaitable[Any]] | None = None
    handle_raw: Callable[[S, Request], Response | Awaitable[Response]] | None = None
    response_bytes: Callable[[S, Any], int] | None = None
    """Estimates from the message what its response takes while it is built; None: no more than a few times the body."""
    waits_for_clients: bool = False
    """Answered only once other clients have sent theirs (JoinGroup): a large request keeps no other waiting so long."""
    is_pipelined: bool = False
    """May begin while earlier requests of its connection are unanswered."""
    advertised_min: int | None = None
    """The least version that ApiVersions lists when it is not ``min_version`` (Produce: 0, KAFKA-18659)."""
