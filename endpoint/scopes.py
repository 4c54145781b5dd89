"""The three scopes of a request: its process, the listener that it came through, and the kind of its caller.

============== ==================================================== ==================================================
scope          one for each                                         holds
============== ==================================================== ==================================================
process        ``ProcessServices``: process; a broker's internal    what the process has once: budgets, queues, the
               port has its own                                     fetch service, the owners of partitions
listener       ``ListenerView``: listener                           what its clients see: addresses, node id, settings
caller         ``Caller``: kind of caller (clients, console,        rights, quotas, audit log, counters
               internal port, the process itself)
============== ==================================================== ==================================================

A handler gets them as ``Scopes``.  No scope is ever copied: two endpoints that share a bound have the same object.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

from bmq.core.audit.log import NO_AUDIT, Audit
from bmq.core.clock import Clock
from bmq.core.config import NodeConfig
from bmq.core.features import FEATURES, FeatureTable
from bmq.core.metrics.counters import RequestCounters
from bmq.core.net.request import Request
from bmq.endpoint.authorization.authorizer import ALLOW_ALL, Authorizer, Rights
from bmq.endpoint.fetch.fetch_params import Nearer
from bmq.endpoint.fetch.service import FetchService
from bmq.endpoint.large_requests import LargeRequests
from bmq.endpoint.leader_hints import LeaderHints, MovedLeaders
from bmq.endpoint.partitions import Owners
from bmq.endpoint.produce.connection_order import ProduceOrder
from bmq.endpoint.produce.queue import ProduceQueue
from bmq.endpoint.quotas import NO_QUOTAS, RequestQuotas
from bmq.endpoint.response_budget import ResponseBudget
from bmq.meta.catalog import Catalog
from bmq.meta.cluster.levels import NO_LEVELS, FeatureLevels


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessServices:
    """Parts of a process for Produce and Fetch, once for all listeners and callers.

    All clients of a process share each bound here: a queue, a budget, a cache.
    """

    clock: Clock
    catalog: Catalog
    owners: Owners
    """Owners of the partitions, here and in other processes."""
    fetch_service: FetchService
    """Tail cache, block reads, long polls and fetch sessions: everything that serves Fetch."""
    responses: ResponseBudget
    """Bytes of responses, other than records, that are being built or wait to be sent."""
    produce_queue: ProduceQueue = field(default_factory=ProduceQueue)
    """Produces that wait for their partition."""
    large: LargeRequests = field(default_factory=LargeRequests)
    produce_order: ProduceOrder = field(default_factory=ProduceOrder)
    """Order of the produces of connections whose large produce is being handed to the owners."""
    new_leaders: MovedLeaders | None = None
    """Leaders of the partitions that have moved from this process; None in a process that owns none."""
    features: FeatureTable = FEATURES
    """Features of this version, with the levels that it supports."""
    levels: Callable[[], FeatureLevels] = lambda: NO_LEVELS
    """Returns the levels of features in force in the cluster."""


@dataclass(slots=True, kw_only=True)
class ListenerView:
    """The process as the clients of one listener see it."""

    config: NodeConfig
    """Settings of the process, with the node id that clients see.  ``renumber`` replaces it."""

    def renumber(self, config: NodeConfig) -> None:
        """Adopt the settings with a new node id, after the process has joined its cluster again."""
        self.config = config

    def nearer(self, rack: str) -> Nearer | None:
        """Return a function that chooses the proxy in ``rack`` to fetch from (KIP-392).

        None: the client fetches from this process, as always on internal ports.
        """
        return None

    def leader_hints(self, process: ProcessServices, request: Request, rack: str = "") -> LeaderHints | None:
        """Return the hints for a request of a client in ``rack`` (KIP-951).

        None: there are none, as always on internal ports.
        """
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """One kind of caller: its rights, its quotas, and where its requests are counted and recorded."""

    metrics: RequestCounters
    """Counters of the caller's requests."""
    quotas: RequestQuotas = NO_QUOTAS
    authorizer: Authorizer = ALLOW_ALL
    """Rights of the caller's clients."""
    audit: Audit = NO_AUDIT
    """The audit log of what the caller does."""
    is_process: bool = False
    """True for a process of the cluster: its requests carry tags that count for more than a client's."""

    def rights(self, request: Request) -> Rights:
        """Return the rights of the client that sent the request."""
        return Rights(self.authorizer, request, self.audit)


P = TypeVar("P", bound=ProcessServices, covariant=True)
V = TypeVar("V", bound=ListenerView, covariant=True)


@dataclass(frozen=True, slots=True)
class Scopes(Generic[P, V]):
    """The three scopes of an endpoint, for its handlers."""

    process: P
    view: V
    caller: Caller


AnyScopes: TypeAlias = Scopes[ProcessServices, ListenerView]
"""The scopes of Produce and Fetch, which proxies' listeners and brokers' internal ports serve."""
