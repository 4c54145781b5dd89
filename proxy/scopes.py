"""The scopes of a proxy's handlers: what they use beyond the services of Produce and Fetch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from bmq.controller.admin.api import Admin
from bmq.coordinator.api import ClusterTransactionCoordinator, GroupCoordinator
from bmq.core.errors import ErrorCode
from bmq.core.logging.levels import LogLevels
from bmq.core.net.request import Request
from bmq.core.records.control import TransactionMarker
from bmq.endpoint.fetch.fetch_params import Nearer
from bmq.endpoint.leader_hints import LeaderHints
from bmq.endpoint.scopes import ListenerView, ProcessServices, Scopes
from bmq.meta.producer_ids import ProducerIds
from bmq.meta.proxy_addresses import Proxies
from bmq.meta.security.acls import AclStore
from bmq.meta.security.delegation_tokens import DelegationTokens
from bmq.meta.security.quotas_view import QuotasView
from bmq.meta.security.scram_credentials import ScramCredentials
from bmq.proxy.metadata_cache import MetadataCache


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyServices(ProcessServices):
    """Everything that a proxy has once for all of its handlers."""

    admin: Admin
    """Controller, wherever it runs: changes topics and configs."""
    coordinator: GroupCoordinator
    transactions: ClusterTransactionCoordinator
    end_group_transaction: Callable[[int, TransactionMarker], Awaitable[ErrorCode]]
    """Gives a marker to the coordinator of a partition of ``__consumer_offsets``, and returns its code."""
    producer_ids: ProducerIds
    scram_users: ScramCredentials
    """The cluster's SCRAM users."""
    tokens: DelegationTokens | None = None
    """Delegation tokens; None without delegation.token.secret.key."""
    client_quotas: QuotasView
    log_levels: LogLevels = field(default_factory=LogLevels)
    acls: AclStore | None = None
    """ACLs of the cluster; None without ``authorizer.class.name``."""


@dataclass(slots=True, kw_only=True)
class ProxyView(ListenerView):
    """The cluster as the clients of one listener see it."""

    proxies: Proxies
    """Proxies, each under its address for this listener's clients."""
    metadata: MetadataCache = field(default_factory=MetadataCache)
    """Encoded Metadata with these addresses."""

    def nearer(self, rack: str) -> Nearer | None:
        """Return a function that chooses a proxy in ``rack`` to fetch from; None if this proxy is in it."""
        return None if self.proxies.own.zone == rack else partial(self.metadata.nearer, rack, self.proxies)

    def leader_hints(self, process: ProcessServices, request: Request, rack: str = "") -> LeaderHints | None:
        """Return the hints for a request of a client in ``rack``; None if no partition has moved from here lately."""
        return None if process.new_leaders is None else process.new_leaders.of_request(request, self.proxies, rack)


ProxyScopes: TypeAlias = Scopes[ProxyServices, ProxyView]
"""The scopes of each handler of clients' requests."""
