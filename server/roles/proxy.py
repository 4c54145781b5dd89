"""The proxy role of one process: its way to the owners of partitions, to coordinators and to the controller.

Each process has it, since each console shows all of the cluster and the audit log is produced like any record.  Clients
reach it in a process with the configured role; only there are members watched and requests relayed for other proxies.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from functools import partial

from bmq.console.kafka import LocalRequests
from bmq.controller.admin.client import RemoteAdmin
from bmq.core.aio.subscribers import no_op
from bmq.core.audit.log import NO_AUDIT, Audit
from bmq.core.logging.levels import LogLevels
from bmq.core.metrics.counters import PortCounters, RequestCounters, UnreadCounters
from bmq.core.net.request import Dispatch
from bmq.core.rpc.messages.proxy import RelayRequest, TrafficRequest
from bmq.endpoint.dispatch import Endpoint
from bmq.endpoint.fetch.service import FetchService
from bmq.endpoint.response_budget import ResponseBudget
from bmq.endpoint.scopes import Caller
from bmq.endpoint.topic_counters import forget_gone_topics
from bmq.meta.catalog import TRANSACTIONS_TOPIC, Topic
from bmq.meta.cluster.member import PROXY
from bmq.meta.producer_ids import ProducerIds
from bmq.proxy.apis import ALL_APIS
from bmq.proxy.audit.audited_apis import audited
from bmq.proxy.groups.router import RoutedCoordinator
from bmq.proxy.reachability.failure_reports import Reports
from bmq.proxy.reachability.unreachable_brokers import UnreachableBrokers, read_unreachable
from bmq.proxy.relay.pool import RelayPool
from bmq.proxy.relay.server import Relay
from bmq.proxy.routing.new_leaders import NewLeaders
from bmq.proxy.routing.owners import RemoteOwners, RoutedOwners
from bmq.proxy.scopes import ProxyServices
from bmq.proxy.traffic_api import TrafficApi
from bmq.proxy.transactions.router import RoutedTransactions
from bmq.server.audit import open_audit
from bmq.server.listener_views import ListenerViews
from bmq.server.roles.broker import BrokerRole
from bmq.server.roles.controller import ControllerRole
from bmq.server.roles.coordinator import CoordinatorRole
from bmq.server.roles.parts import Parts


class ProxyRole:
    """The proxy role of one process.  ``start`` it once catalog and view are loaded."""

    def __init__(
        self,
        parts: Parts,
        views: ListenerViews,
        metrics: RequestCounters,
        port: PortCounters,
        log_levels: LogLevels,
        admin: RemoteAdmin,
        offsets_topic: Callable[[], Awaitable[Topic]],
        producer_ids: ProducerIds,
        *,
        broker: BrokerRole | None,
        controller: ControllerRole | None,
        coordinator: CoordinatorRole | None,
    ) -> None:
        """Make the role, with the counters of clients' requests and of their port.

        Raises ConfigError if the audit log's file or a mechanism of authentication does not work."""
        config, joined, security = parts.config, parts.joined, parts.security
        self._parts = parts
        self.admin = admin
        self.remote_owners = self._make_remote_owners()
        self.owners = RoutedOwners(joined.view, broker.assigned if broker is not None else None, self.remote_owners)
        self.fetch_service = FetchService(
            config, parts.catalog, self.owners, parts.fetches, parts.clock,
            tracer=parts.tracing.tracer if parts.tracing is not None else None,
        )  # fmt: skip
        self.coordinator = RoutedCoordinator(
            joined.view, views.first.proxies, joined.peers, parts.catalog, offsets_topic,
            shards=config.offsets_topic_num_partitions, local=coordinator.coordinator if coordinator else None,
        )  # fmt: skip
        self.transactions = RoutedTransactions(
            joined.view, views.first.proxies, joined.peers, parts.catalog,
            partial(admin.ensure_topic, TRANSACTIONS_TOPIC), shards=config.transaction_state_log_num_partitions,
            local=coordinator.transactions if coordinator else None,
        )  # fmt: skip
        self._routers = (self.coordinator, self.transactions)
        self.new_leaders: NewLeaders | None = None
        """Leaders of partitions that have moved from here; None unless this process is proxy and broker."""
        if broker is not None and PROXY in config.roles:
            self.new_leaders = NewLeaders(joined.view, self.remote_owners.ask_epoch, parts.fetches.changed)
        self.services = ProxyServices(
            clock=parts.clock,
            catalog=parts.catalog,
            owners=self.owners,
            fetch_service=self.fetch_service,
            responses=ResponseBudget(config.queued_max_request_bytes),
            admin=admin,
            coordinator=self.coordinator,
            producer_ids=producer_ids,
            scram_users=security.scram_users,
            tokens=security.tokens,
            client_quotas=security.client_quotas,
            log_levels=log_levels,
            acls=security.acls,
            transactions=self.transactions,
            end_group_transaction=parts.group_markers.end,
            new_leaders=self.new_leaders,
            features=joined.features,
            levels=lambda: joined.view.levels,
        )
        self.own_endpoint = Endpoint(self.services, views.first, Caller(metrics=UnreadCounters()), ALL_APIS)
        """Endpoint of the process itself: the audit log's produces, which nobody has to allow and nothing records."""
        self.audit_log = open_audit(
            config, parts.clock, joined.member.incarnation, node=lambda: views.node_id,
            find=lambda name: parts.catalog.topics.get(name), requests=LocalRequests(self.own_endpoint),
        )  # fmt: skip
        """The audit log; None without the setting."""
        self.audit: Audit = self.audit_log or NO_AUDIT
        apis = audited(ALL_APIS) if self.audit.is_on else ALL_APIS
        forget_gone_topics(parts.catalog, metrics)
        clients = Caller(metrics=metrics, quotas=security.quotas, authorizer=security.authorizer, audit=self.audit)
        self.client_endpoints = {
            name: Endpoint(self.services, view, clients, apis) for name, view in views.by_name.items()
        }
        """The endpoint of each listener's clients, by its name, without log-in and traces."""
        self.endpoint = next(iter(self.client_endpoints.values()))
        console = Caller(metrics=UnreadCounters(), authorizer=security.authorizer, audit=self.audit)
        self.console_endpoint = Endpoint(self.services, views.first, console, apis)
        """Endpoint of the Kafka requests of this process's HTTP API, which are not counted as clients'."""
        tracing = parts.tracing
        self.dispatches: dict[str, Dispatch] = {
            name: endpoint if tracing is None else tracing.of_clients(endpoint)
            for name, endpoint in self.client_endpoints.items()
        }
        """The dispatch of clients' requests, by listener."""
        self.gates = security.make_gates(self.dispatches, port, self.audit)
        """The authentication gates of SASL listeners, by name: each is the listener's dispatch."""
        self.dispatches.update(self.gates)
        self._relay: Relay | None = None
        self._lookouts: tuple[Reports, UnreachableBrokers] | tuple[()] = ()
        if PROXY in config.roles:
            self._relay = Relay(joined.view, joined.peers)
            joined.endpoint.register(RelayRequest, self._relay.handle)
            self._lookouts = self._make_lookouts(controller)
        if metrics.traffic is not None:
            joined.endpoint.register(TrafficRequest, TrafficApi(metrics.traffic, parts.catalog).handle)

    def _make_remote_owners(self) -> RemoteOwners:
        parts = self._parts
        config, joined = parts.config, parts.joined
        return RemoteOwners(
            joined.view,
            joined.peers,
            parts.fetches,
            parts.fetches.poll.is_followed,
            credit_bytes=config.internal_credit_bytes,
            held_s=config.held_produce_ms / 1000,
            relays=RelayPool(
                joined.view, joined.peers, config.zone, lambda: read_unreachable(parts.kv, config.cluster)
            ),
            sampled=parts.tracing.sampled if parts.tracing is not None else None,
        )

    def _make_lookouts(self, controller: ControllerRole | None) -> tuple[Reports, UnreachableBrokers]:
        """Return a proxy's reports of members that it cannot reach: to the leader, and in the store."""
        parts, joined = self._parts, self._parts.joined
        reports = Reports(joined.view, joined.peers, controller.report if controller is not None else no_op)
        unreachable = UnreachableBrokers(
            parts.kv, parts.config.cluster, joined.view, joined.peers,
            is_up=self.remote_owners.is_up, lease=lambda: joined.membership.lease,
        )  # fmt: skip
        return reports, unreachable

    # ---------------------------------------------------------------------------------------------------------- life

    async def start(self) -> None:
        """Begin to authenticate clients, and to look for owners and members."""
        for gate in self.gates.values():
            await gate.start()
        if self.audit_log is not None:
            self.audit_log.start()
        self.remote_owners.start()
        for lookout in self._lookouts:
            lookout.start()

    def send_away(self, sends_away: bool) -> None:
        """Refuse fetches, and let no produce or group wait, while clients are sent to other proxies."""
        self.fetch_service.send_away(sends_away)
        self.owners.send_away(sends_away)
        if self.new_leaders is not None:
            self.new_leaders.send_away(sends_away)
        for router in self._routers:
            router.send_away(sends_away)

    def drain(self) -> None:
        """Respond to all requests that wait, and let none wait any more: clients' connections are about to close."""
        self.fetch_service.drain()
        self.remote_owners.drain()
        for router in self._routers:
            router.drain()

    async def close(self) -> None:
        """End all requests and connections to owners.  May be called after a ``start`` that failed.

        All parts are closed even if one fails; its error is raised at the end.
        """
        async with contextlib.AsyncExitStack() as parts:  # closed from the last to the first
            for gate in self.gates.values():
                parts.push_async_callback(gate.close)
            parts.push_async_callback(self.remote_owners.close)
            if self.new_leaders is not None:
                parts.push_async_callback(self.new_leaders.close)
            for lookout in reversed(self._lookouts):
                parts.push_async_callback(lookout.close)
            parts.push_async_callback(self.fetch_service.close)
            for router in self._routers:
                parts.callback(router.close)
            if self._relay is not None:
                parts.callback(self._relay.close)
            if self.audit_log is not None:
                parts.push_async_callback(self.audit_log.close)
