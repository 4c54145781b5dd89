"""The roles of one process, wired together: all of a server except its sockets, signals and settings files.

A process has the configured roles.  What it owns itself it calls directly; requests for anything else it sends to the
other processes, over ``joined.peers``.  A single process is a cluster of one: it has all roles and owns everything, so
each hop is a function call.  Each process can reach all of the cluster, so each console can show it.  The simulation
runs this same object on storage in memory and a virtual clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from bmq.broker.cleanup.janitor import JanitorConfig
from bmq.broker.config import BrokerConfig
from bmq.broker.log_sizes_api import LogSizesApi
from bmq.broker.not_served_api import NotServedApi
from bmq.broker.repair.repair import Repair, RepairReport, RepairRequest, find_partition
from bmq.console.kafka import LocalRequests
from bmq.controller.admin.client import RemoteAdmin
from bmq.controller.admin.cluster import LeaderAdmin
from bmq.controller.admin.server import AdminService
from bmq.controller.kv_commit import Guard
from bmq.controller.member_client import PeerMemberClient
from bmq.controller.quota_shares_api import QuotaSharesApi
from bmq.controller.service import Controller
from bmq.controller.store_age import StoreAge
from bmq.controller.store_upkeep import StoreUpkeep, maintained
from bmq.controller.topics.access_walks import AccessWalks
from bmq.controller.topics.deletion import TopicCleaner
from bmq.controller.topics.topics import REPLICAS_MAX, TopicAdmin
from bmq.coordinator.coordinator import Coordinator
from bmq.coordinator.server import Forwarding
from bmq.coordinator.shard.log import ShardLogs
from bmq.coordinator.shard.remote_log import RemoteShardLogs, RoutedShardLogs
from bmq.core.aio.subscribers import no_op
from bmq.core.audit.log import NO_AUDIT, Audit
from bmq.core.clock import Clock
from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode
from bmq.core.logging.fields import fields
from bmq.core.logging.levels import LogLevels
from bmq.core.metrics.counters import Metrics
from bmq.core.metrics.traffic import TrafficMeter
from bmq.core.net.request import Buffer, Dispatch
from bmq.core.rpc.messages.broker import LogSizesRequest, PartitionsNotServedRequest
from bmq.core.rpc.messages.controller import QuotaSharesRequest
from bmq.core.rpc.messages.coordinator import ForwardRequest, ShardsNotLoadedRequest
from bmq.core.rpc.messages.member import LeaveRequest, LeaveResponse, LogLevelsRequest
from bmq.core.rpc.messages.proxy import RelayRequest, TrafficRequest
from bmq.core.rpc.server import InternalCall
from bmq.core.tracing import Tracer
from bmq.endpoint.authorization.authorizer import ALLOW_ALL
from bmq.endpoint.dispatch import Endpoint
from bmq.endpoint.fetch.service import FetchService
from bmq.endpoint.quotas import NO_QUOTAS
from bmq.endpoint.response_budget import ResponseBudget
from bmq.meta.catalog import OFFSETS_TOPIC, KvCatalog, Topic
from bmq.meta.cluster.admission import ShardOwnership
from bmq.meta.cluster.member import BROKER, CONTROLLER, COORDINATOR, PROXY, Address
from bmq.meta.cluster.proxies import ClusterProxies
from bmq.meta.kv import KeyValue
from bmq.meta.maintenance import CallTimes, Maintained
from bmq.meta.open import is_shared
from bmq.meta.producer_ids import ProducerIds
from bmq.meta.proxy_addresses import ProxyAddress
from bmq.proxy.apis import ALL_APIS
from bmq.proxy.audit.audited_apis import audited
from bmq.proxy.groups.router import RoutedCoordinator
from bmq.proxy.metadata_cache import MetadataCache
from bmq.proxy.reachability.failure_reports import Reports
from bmq.proxy.reachability.unreachable_brokers import UnreachableBrokers, read_unreachable
from bmq.proxy.relay.pool import RelayPool
from bmq.proxy.relay.server import Relay
from bmq.proxy.routing.new_leaders import NewLeaders
from bmq.proxy.routing.owners import RemoteOwners, RoutedOwners
from bmq.proxy.services import ProxyServices
from bmq.proxy.tracing import Tracing
from bmq.proxy.traffic_api import TrafficApi
from bmq.server.audit import open_audit
from bmq.server.broker_endpoint import INTERNAL_APIS, internal_dispatch, internal_services, register_broker
from bmq.server.broker_role import BrokerRole
from bmq.server.certificates import open_certificates
from bmq.server.client_security import ClientSecurity
from bmq.server.cluster_member import ClusterMember
from bmq.server.collected_metrics import Collected
from bmq.server.flush_listeners import FetchAndShardListener, FetchListener
from bmq.server.local_shard_log import LocalShardLogs
from bmq.server.log_levels_api import LogLevelsApi
from bmq.server.storage_room import StorageRoom
from bmq.storage.access_files import AccessFiles
from bmq.storage.block_cache import BlockCache, ReadConfig
from bmq.storage.cluster_files import StoredTopics
from bmq.storage.filesystem import FileSystem, StorageError

log = logging.getLogger(__name__)
REPLICAS_WAIT_S = 5.0
"""Time-out of storage's number of datanodes."""
LEAVES_METADATA_S = 1.0
"""Pause of a draining proxy before it closes connections, in which the other proxies stop naming it in Metadata."""


class Node:
    """The roles of one process.

    `start` them; then `endpoints` dispatch Kafka's requests; `close` hands everything over.
    """

    def __init__(
        self,
        config: NodeConfig,
        fs: FileSystem,
        kv: KeyValue,
        clock: Clock,
        joined: ClusterMember,
        *,
        broker_config: BrokerConfig | None = None,
        janitor_config: JanitorConfig | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """Wire the roles.  ``joined`` must have joined already, since that gives a proxy its id."""
        self._tracing = Tracing(tracer) if tracer is not None else None
        self.config = config = replace(config, node_id=joined.member.node_id)
        self.traffic = TrafficMeter() if PROXY in config.roles else None
        self.metrics = Metrics(config.metrics_topics_max, self.traffic)
        self.certificates = open_certificates(config)
        """The TLS of the listeners that have it, by their names."""
        if joined.tls is not None:
            self.certificates[joined.tls.name] = joined.tls
        self.log_levels = LogLevels()
        self.is_serving = False
        self.close_by: float | None = (
            None  # on the loop's clock: partitions not handed over by then are left as they are
        )
        self.on_leave: Callable[[], None] = no_op
        """Called when an operator drains the process, so that it ends."""
        self.on_failed: Callable[[str], None] = no_op
        """Called with the reason when the process must end and be started again."""
        self.close_clients: Callable[[], int] = _no_clients
        """Called to close all clients' connections; returns their number."""
        self.joined = joined
        self.fs = fs
        self._kv = kv
        self._clock = clock
        self._files = StoredTopics(fs)
        self.catalog = KvCatalog(kv, config.cluster, self._failed, has_node_configs=not is_shared(config.meta))
        self.view = joined.view
        self._proxies_by_listener = {
            listener.name: ClusterProxies(
                ProxyAddress(config.node_id, "", 0, config.zone), self.view, self.catalog,
                config.offsets_topic_num_partitions, listener.name,
            )
            for listener in config.kafka_listeners()
        }  # fmt: skip
        """The proxies, with the addresses that clients of each listener get."""
        self.proxies = next(iter(self._proxies_by_listener.values()))
        self.pool = BlockCache(fs, ReadConfig(cache_bytes=config.cache_bytes))
        self.broker: BrokerRole | None = None
        if BROKER in config.roles:
            self.broker = BrokerRole(
                config, fs, kv, clock, self.catalog, joined, self.pool,
                broker_config=broker_config, janitor_config=janitor_config,
            )  # fmt: skip
            self.broker.broker.on_failed = self._failed
        self.remote_owners = self._make_remote_owners()
        self.owners = RoutedOwners(
            self.view, self.broker.assigned if self.broker is not None else None, self.remote_owners
        )
        self.fetch_service = FetchService(config, self.catalog, self.owners, self.pool, clock, self.metrics)
        self.fetch_service.tracer = tracer
        self.security = ClientSecurity(config, kv, clock, self.view, joined.peers, self._failed)
        self.controller: Controller | None = None
        self.admin = self._make_admin()
        self._forwarding: Forwarding | None = None
        self.own_coordinator = self._make_own_coordinator()
        self.coordinator = RoutedCoordinator(
            self.view, self.proxies, joined.peers, self.catalog, self._offsets_topic,
            shards=config.offsets_topic_num_partitions, local=self.own_coordinator,
        )  # fmt: skip
        self.storage_room = StorageRoom(config.root, self.fs)
        self.collected = Collected(
            config, self.catalog, joined, broker=self.broker, coordinator=self.own_coordinator,
            room=self.storage_room, leads=lambda: self.controller is not None and self.controller.leading is not None,
        )  # fmt: skip
        """Numbers that are collected in the background, for `/metrics` and the console."""
        self.producer_ids = ProducerIds(kv, config.cluster)
        self.audit_log = open_audit(
            config, clock, joined.member.incarnation, node=lambda: self.config.node_id,
            find=lambda name: self.catalog.topics.get(name), requests=lambda: self._own_requests,
        )  # fmt: skip
        """The audit log; None without the setting."""
        self.audit: Audit = self.audit_log or NO_AUDIT
        self.new_leaders: NewLeaders | None = None
        """Leaders of partitions that have moved from here; None unless this process is proxy and broker."""
        if self.broker is not None and PROXY in config.roles:
            self.new_leaders = NewLeaders(self.view, self.remote_owners.ask_epoch, self.fetch_service.check_again)
        self._services = ProxyServices(
            config=config,
            clock=clock,
            metrics=self.metrics,
            catalog=self.catalog,
            proxies=self.proxies,
            owners=self.owners,
            admin=self.admin,
            coordinator=self.coordinator,
            producer_ids=self.producer_ids,
            tokens=self.security.tokens,
            client_quotas=self.security.client_quotas,
            quotas=self.security.quotas,
            scram_users=self.security.scram_users,
            fetch_service=self.fetch_service,
            log_levels=self.log_levels,
            authorizer=self.security.authorizer,
            acls=self.security.acls,
            audit=self.audit,
            new_leaders=self.new_leaders,
            responses=ResponseBudget(config.queued_max_request_bytes),
        )
        self._all_services = [self._services]
        """The services of the clients, and their copies for further listeners and other callers.  A copy shares
        everything but what `_copy_services` is given: queues, budgets and counts of bytes are the process's."""
        apis = audited(ALL_APIS) if self.audit.is_on else ALL_APIS
        self.endpoint = Endpoint(self._services, apis)
        of_console = self._copy_services(self._services, metrics=Metrics(), quotas=NO_QUOTAS)
        self.console_endpoint = Endpoint(of_console, apis)
        """Endpoint of the Kafka requests of this process's HTTP API, which its metrics do not count as clients'."""
        own = self._copy_services(of_console, authorizer=ALLOW_ALL, audit=NO_AUDIT)
        self._own_requests = LocalRequests(Endpoint(own, ALL_APIS))
        """Requests of the process itself: the audit log's produces, which nobody has to allow and nothing records."""
        self.endpoints: dict[str, Dispatch] = dict.fromkeys(
            self._proxies_by_listener, self._traced(self.endpoint, self._services)
        )
        """The dispatch of clients' requests, by listener."""
        for name in list(self._proxies_by_listener)[1:]:
            services = self._copy_services(
                self._services, proxies=self._proxies_by_listener[name], metadata=MetadataCache()
            )
            self.endpoints[name] = self._traced(Endpoint(services, apis), services)
        self.endpoints.update(self.security.make_gates(self.endpoints, self.metrics, self.audit))
        self._relay: Relay | None = None
        self._serve_inside()
        self._lookouts = self._make_lookouts() if PROXY in config.roles else ()
        # After the proxies, so that these are up to date; and last: a node that could not be wired must not be called.
        self.view.subscribe(lambda change: self._send_away() if change.members else None)

    # ---------------------------------------------------------------------------------------------------------- life

    def is_at(self, addresses: Mapping[str, Address]) -> None:
        """Publish the address of each listener, by its name, to this process's clients and to the cluster."""
        self.move(addresses)
        self.joined.is_at(kafka=next(iter(addresses.values())), listeners=tuple(addresses.items()))

    def move(self, addresses: Mapping[str, Address]) -> None:
        """Publish the address of each listener, by its name, to this process's clients only."""
        for name, address in addresses.items():
            own = ProxyAddress(self.config.node_id, address.host, address.port, self.config.zone)
            self._proxies_by_listener[name].move(own)

    async def start(self) -> None:
        """Start all roles.  The caller must `close` the node even if this fails.

        Raises StorageError, KvError or BmqError if storage or the metadata store refuses.
        """
        if self.audit_log is not None:
            self.audit_log.start()
        await self.catalog.start()
        await self.security.start()
        self.producer_ids.rebuild_count = self._files.rebuild_count = self.joined.root.rebuild_count
        for proxies in self._proxies_by_listener.values():
            proxies.refresh()
        self.remote_owners.start()
        for lookout in self._lookouts:
            lookout.start()
        if self.broker is not None:
            await self.broker.start()
        if self.controller is not None:
            await self.controller.start()
        if self.own_coordinator is not None:
            await self.own_coordinator.start()

    async def leave(self, deadline: float) -> None:
        """Leave the cluster: hand partitions and shards over to other processes, and disappear from Metadata.

        Returns by ``deadline``, on the event loop's clock.
        """
        loop = asyncio.get_running_loop()
        broker, changed = self.broker, asyncio.Event()
        self.catalog.subscribe(lambda change: changed.set())
        await self.joined.drain(
            max(0.0, deadline - loop.time()), lambda: broker is not None and broker.has_partitions, changed
        )
        if self.broker is not None:
            await self.broker.wait_moved(max(0.0, deadline - loop.time()))
        if PROXY in self.config.roles and len(self.view.members) > 1:
            await asyncio.sleep(min(LEAVES_METADATA_S, max(0.0, deadline - loop.time())))

    def drain(self) -> None:
        """Respond to all requests that wait, and let none wait any more: clients' connections are about to close."""
        self.fetch_service.drain()
        self.remote_owners.drain()
        self.coordinator.drain()
        if self.own_coordinator is not None:
            self.own_coordinator.drain()

    @property
    def held_produces(self) -> int:
        """Number of parts of clients' produces that wait for an owner or for room at it."""
        return self._services.produce_queue.parts

    def is_response_room_wanted(self) -> bool:
        """Return True if responses wait for memory that unsent ones hold."""
        return self.fetch_service.budget.has_waiting or bool(self._services.responses.waiting)

    async def close(self) -> None:
        """Hand everything over and close all roles, also after a `start` that failed.

        All parts are closed even if one fails; its error is raised at the end.
        """
        async with contextlib.AsyncExitStack() as parts:  # closed from the last to the first
            parts.push_async_callback(self.catalog.close)
            parts.push_async_callback(self.security.close)
            parts.push_async_callback(self.pool.close)
            parts.push_async_callback(self.remote_owners.close)
            if self.new_leaders is not None:
                parts.push_async_callback(self.new_leaders.close)
            if self.broker is not None:
                parts.push_async_callback(self.broker.close, self.close_by)
            parts.push_async_callback(self.producer_ids.close)
            for lookout in reversed(self._lookouts):
                parts.push_async_callback(lookout.close)
            if self.controller is not None:
                parts.push_async_callback(self.controller.close)
            parts.push_async_callback(self.fetch_service.close)
            if self.own_coordinator is not None:
                parts.push_async_callback(self.own_coordinator.close)
            for link in (self.coordinator, self._forwarding, self._relay):
                if link is not None:
                    parts.callback(link.close)
            parts.push_async_callback(self.collected.close)
            if self.audit_log is not None:
                parts.push_async_callback(self.audit_log.close)

    # -------------------------------------------------------------------------------------------------------- wiring

    def _copy_services(self, services: ProxyServices, **changes: Any) -> ProxyServices:
        """Return a copy for another listener or caller, which shares all fields but ``changes``."""
        copy = replace(services, **changes)
        self._all_services.append(copy)
        return copy

    def _traced(self, endpoint: Endpoint, services: ProxyServices) -> Dispatch:
        """Return the endpoint with traces of its requests; the endpoint itself in a process that traces nothing."""
        return endpoint if self._tracing is None else self._tracing.of_clients(endpoint, services, ALL_APIS)

    def _make_remote_owners(self) -> RemoteOwners:
        peers, cluster = self.joined.peers, self.config.cluster
        return RemoteOwners(
            self.view,
            peers,
            FetchListener(self),
            lambda key: self.fetch_service.poll.is_followed(key),
            credit_bytes=self.config.internal_credit_bytes,
            held_s=self.config.held_produce_ms / 1000,
            relays=RelayPool(self.view, peers, self.config.zone, lambda: read_unreachable(self._kv, cluster)),
            sampled=self._tracing.sampled if self._tracing is not None else None,
        )

    def _make_admin(self) -> RemoteAdmin:
        """Return the administration of topics, configs and the cluster, and make this process's controller."""
        joined, service = self.joined, None
        if CONTROLLER in self.config.roles:
            members = PeerMemberClient(joined.peers)
            self.controller = Controller(
                self.config, self._kv, joined.view, self.catalog, members, self._clock,
                topics=self._make_topics, cleaner=self._make_cleaner, access=self._make_access,
                upkeep=self._make_upkeep, age=self._make_age, on_failed=self._failed,
                since_outage_s=lambda: joined.membership.since_outage_s,
            )  # fmt: skip
            leader = LeaderAdmin(self.controller, self.catalog, members)
            service = AdminService(self.controller, joined.view, leader)
            service.register(joined.endpoint)
            shares = QuotaSharesApi(self.controller, joined.view, self._clock)
            joined.endpoint.register(QuotaSharesRequest, shares.handle, role=PROXY)
        return RemoteAdmin(joined.view, self.catalog, joined.peers, self._clock, local=service)

    def _make_topics(self, guard: Guard) -> TopicAdmin:
        return TopicAdmin(
            self._kv, self.config.cluster, self.catalog, self.config, self._files, self._clock,
            replicas_max=self._replicas_max, nodes=lambda: [proxy.node_id for proxy in self.proxies.addresses],
            guard=guard, has_node_configs=not is_shared(self.config.meta), access_files=AccessFiles(self.fs),
            bounds=self.security.client_quotas,
        )  # fmt: skip

    def _make_upkeep(self, guard: Guard) -> StoreUpkeep | None:
        store, config = self.maintained_store, self.config
        if store is None:
            return None
        return StoreUpkeep(self._kv, store, config.cluster, self._clock, config.etcd_history_ms, guard=guard)

    def _make_age(self, guard: Guard) -> StoreAge:
        return StoreAge(self._kv, self.fs, self.config.cluster, self._files.rebuild_count, guard=guard)

    @property
    def maintained_store(self) -> Maintained | None:
        """The metadata store as one that may be full; None if it runs in this process."""
        return maintained(self._kv)

    @property
    def store_times(self) -> CallTimes | None:
        """Counts and times of the calls to the metadata store; None if it runs in this process."""
        return self._kv if isinstance(self._kv, CallTimes) else None

    @property
    def cleaner(self) -> TopicCleaner | None:
        """The topic cleaner that runs here; None unless this process leads."""
        return self.controller.cleaner if self.controller is not None else None

    @property
    def access_walks(self) -> AccessWalks | None:
        """The walks that run here; None unless this process leads."""
        return self.controller.access if self.controller is not None else None

    def _make_access(self, guard: Guard) -> AccessWalks:
        return AccessWalks(
            self._kv, self.config.cluster, self.catalog, self.config, AccessFiles(self.fs), self._clock,
            guard=guard, shared=self.config.shared_access(),
        )  # fmt: skip

    def _make_cleaner(self, guard: Guard) -> TopicCleaner:
        return TopicCleaner(self._kv, self.config.cluster, self._files, self._clock, guard=guard)

    def _make_own_coordinator(self) -> Coordinator | None:
        """Return the coordinator of this process's shards; None in a process without the role.

        Logs of partitions that this process owns end when it loses them.
        """
        local = None
        if self.broker is not None:
            local = LocalShardLogs(self.broker.assigned, self.catalog, self.pool, self.broker.fence)
            self.broker.broker.shared.flush_listener = FetchAndShardListener(self.fetch_service, local)
        if COORDINATOR not in self.config.roles:
            return None
        remote = RemoteShardLogs(self.view, self.catalog, self.joined.peers)
        logs: ShardLogs = remote
        if local is not None:
            logs = RoutedShardLogs(self.view, self.catalog, local, remote)
        return Coordinator(
            self.config, self._clock, logs, self._offsets_topic, self.catalog, self.view,
            bounds=self.security.client_quotas,
        )  # fmt: skip

    def _make_lookouts(self) -> tuple[Reports, UnreachableBrokers]:
        """Return a proxy's reports of members that it cannot reach: to the leader, and in the store."""
        joined, controller = self.joined, self.controller
        here = partial(_report, controller, joined.view.own) if controller is not None else no_op
        reports = Reports(self.view, joined.peers, here)
        unreachable = UnreachableBrokers(
            self._kv, self.config.cluster, self.view, joined.peers,
            is_up=self.remote_owners.is_up, lease=lambda: joined.membership.lease,
        )  # fmt: skip
        return reports, unreachable

    def _serve_inside(self) -> None:
        """Register the internal APIs of this process, by its roles, and the callbacks of its membership."""
        joined, endpoint = self.joined, self.joined.endpoint
        endpoint.register(LeaveRequest, self._asked_to_leave, role=CONTROLLER)
        endpoint.register(LogLevelsRequest, LogLevelsApi(self.log_levels).handle)
        joined.on_failed = self._failed
        joined.on_id = self._renumbered
        joined.is_serving = self._may_be_asked
        joined.on_lost, joined.on_joined = self._lost, self._joined_again
        joined.standstill.on_found.add(
            lambda seconds: self._give_clients_up(f"this process stood still for {seconds:.1f} s")
        )
        if self.broker is not None:
            ownership = ShardOwnership(self._kv, self.config.cluster, joined.view, self.catalog)
            shared = self.broker.broker.shared
            register_broker(
                endpoint, self.broker.assigned, shared.load, shared.open_files, self.broker.fence, ownership.check
            )
            services = internal_services(
                self.config, self._clock, self.catalog, self.broker.assigned, self.broker.broker.shared.load,
                pool=self.pool, beside=self.fetch_service,
            )  # fmt: skip
            inside = internal_dispatch(services)
            endpoint.register_kafka(
                inside if self._tracing is None else self._tracing.of_processes(inside, services, INTERNAL_APIS)
            )
            not_served = NotServedApi(self.broker.broker, self.broker.assigned)
            endpoint.register(PartitionsNotServedRequest, not_served.handle)
            sizes = LogSizesApi(self.collected.count_log_sizes, self.catalog)
            endpoint.register(LogSizesRequest, sizes.handle)
        if PROXY in self.config.roles:
            self._relay = Relay(joined.view, joined.peers)
            endpoint.register(RelayRequest, self._relay.handle)
        if self.traffic is not None:
            endpoint.register(TrafficRequest, TrafficApi(self.traffic, self.catalog).handle)
        if self.own_coordinator is not None:
            forwarding = self._forwarding = Forwarding(self.own_coordinator, self.view)
            endpoint.register(ForwardRequest, forwarding.handle)
            endpoint.register(ShardsNotLoadedRequest, forwarding.list_not_loaded)

    def quarantined(self) -> Mapping[str, str]:
        """Return the store's keys and the topics that this process cannot use, each with the reason.

        Everything else is served.
        """
        topics = self.broker.refused_topics if self.broker is not None else {}
        return {
            **self.catalog.unreadable,
            **self.view.unreadable,
            **self.security.unreadable,
            **{f"topic {name}": why for name, why in topics.items()},
        }

    def _failed(self, why: str) -> None:
        self.on_failed(why)

    def _lost(self) -> None:
        """Handle a lost lease: fence all partitions, which may have new owners, and send clients to other proxies."""
        if self.broker is not None:
            self.broker.broker.fence_all()
        self._set_member(False)
        self._give_clients_up("this process is not a member of the cluster any more")

    def _give_clients_up(self, why: str) -> None:
        """Close all clients' connections, with all that lies in them or is in progress for them.

        A process that stood still, or was declared dead, must not go on as if nothing had happened.  A client may have
        given up a request that this process still has, and have gone on through another process: what the request says
        is outdated then.  An offset commit would take back a later one, a join fence the member that joined again.  No
        request shows how long it has waited, so all are dropped.  A client that has not given up sees its connection
        break, and repeats what it may.
        """
        closed = self.close_clients()
        self.metrics.clients_given_up += 1
        log.warning(
            "all clients' connections are closed, with the requests in them: clients connect and send them again",
            extra=fields(connections=closed, error=why),
        )

    def _joined_again(self) -> None:
        self._set_member(True)

    def _set_member(self, is_member: bool) -> None:
        for proxies in self._proxies_by_listener.values():
            proxies.set_member(is_member)
        self._send_away()

    def _send_away(self) -> None:
        """Refuse fetches, and let no produce or group wait, while this is no member and Metadata has other proxies.

        Each listener's clients must have another.
        """
        sends_away = all(proxies.sends_away for proxies in self._proxies_by_listener.values())
        self.fetch_service.send_away(sends_away)
        self.owners.send_away(sends_away)
        if self.new_leaders is not None:
            self.new_leaders.send_away(sends_away)
        self.coordinator.send_away(sends_away)

    def _renumbered(self, node_id: int) -> None:
        """Handle a new proxy id after joining again: publish it to clients, and apply the configs set for it."""
        config = self.config = replace(self.config, node_id=node_id)
        for services in self._all_services:
            services.config = config
        for proxies in self._proxies_by_listener.values():
            proxies.move(replace(proxies.own, node_id=node_id))
        if self.broker is not None:
            self.broker.reconfigure(config)
        if self.controller is not None and self.controller.topics is not None:
            self.controller.topics.config = config

    def _may_be_asked(self) -> bool:
        return self.broker is None or not self.broker.broker.is_gray

    def _asked_to_leave(self, body: memoryview, call: InternalCall) -> list[Buffer]:
        asyncio.get_running_loop().call_soon(self.on_leave)
        return LeaveResponse(ErrorCode.NONE).encode()

    async def repair(self, wanted: RepairRequest) -> RepairReport:
        """Inspect or repair a partition's files, as ``wanted`` says.

        Raises NotRepaired, which says why; StorageError or KvError if storage or store fails.
        """
        place = await find_partition(self._kv, self.config.cluster, wanted.topic, wanted.partition)
        report = await Repair(self.fs, self._kv, self._clock, place).run(wanted)
        for plan in (*report.older, *report.plans):
            self.pool.forget(place.path.log(plan.name))
        return report

    # ----------------------------------------------------------------------------------------------------- questions

    async def _offsets_topic(self) -> Topic:
        return await self.admin.ensure_topic(OFFSETS_TOPIC)

    async def _replicas_max(self) -> int:
        """Return the number of live datanodes; `REPLICAS_MAX` if storage does not report it.

        So topics can be created while storage does not respond: HDFS adds missing replicas once there are more nodes.
        """
        try:
            async with asyncio.timeout(REPLICAS_WAIT_S):
                return await self.fs.replicas_max()
        except (StorageError, TimeoutError) as error:
            log.info(
                "storage does not report its number of datanodes, so any replication factor is accepted",
                extra=fields(error=error),
            )
            return REPLICAS_MAX


def _no_clients() -> int:
    """Close nothing: no socket for clients is open."""
    return 0


def _report(controller: Controller, by: str, incarnation: str, why: str) -> None:
    controller.report(by, incarnation)
