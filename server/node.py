"""The roles of one process, wired together: all of a server except its sockets, signals and settings files.

A process has the configured roles.  The process calls its own parts directly; all other requests it sends to other
processes, over ``joined.peers``.  A single process is a cluster of one: it has all roles and owns everything, so each
hop is a function call.  Each process can reach all of the cluster, so each console can show it.  The simulation runs
this same object on storage in memory and a virtual clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from bmq.broker.cleanup.config import JanitorConfig
from bmq.broker.config import BrokerConfig
from bmq.broker.log_sizes_api import LogSizesApi
from bmq.controller.admin.client import RemoteAdmin
from bmq.coordinator.group_markers import GroupMarkers
from bmq.coordinator.partition_verifier import PartitionVerifier
from bmq.core.aio.subscribers import no_op
from bmq.core.clock import Clock
from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode
from bmq.core.logging.fields import fields
from bmq.core.logging.levels import LogLevels
from bmq.core.metrics.counters import PortCounters, ProcessCounters, RequestCounters
from bmq.core.metrics.traffic import TrafficMeter
from bmq.core.net.request import Buffer
from bmq.core.rpc.messages.broker import LogSizesRequest
from bmq.core.rpc.messages.member import LeaveRequest, LeaveResponse, LogLevelsRequest
from bmq.core.rpc.server import InternalCall
from bmq.core.tracing import Tracer
from bmq.endpoint.fetch.context import FetchContext
from bmq.meta.catalog import OFFSETS_TOPIC, KvCatalog
from bmq.meta.cluster.member import BROKER, CONTROLLER, COORDINATOR, PROXY, Address
from bmq.meta.kv import KeyValue
from bmq.meta.open import is_shared
from bmq.meta.producer_ids import ProducerIds
from bmq.proxy.tracing import Tracing
from bmq.server.certificates import open_certificates
from bmq.server.client_security import ClientSecurity
from bmq.server.cluster_member import ClusterMember
from bmq.server.listener_views import ListenerViews
from bmq.server.log_levels_api import LogLevelsApi
from bmq.server.ports import Ports
from bmq.server.queries.collected_metrics import Collected
from bmq.server.queries.storage_room import StorageRoom
from bmq.server.roles.broker import BrokerRole
from bmq.server.roles.controller import ControllerRole
from bmq.server.roles.coordinator import CoordinatorRole, coordinator_context
from bmq.server.roles.parts import Parts
from bmq.server.roles.proxy import ProxyRole
from bmq.server.roles.transactions import make_transactions
from bmq.storage.block_cache import BlockCache, ReadConfig
from bmq.storage.cluster_files import StoredTopics
from bmq.storage.filesystem import FileSystem

_log = logging.getLogger(__name__)
LEAVES_METADATA_S = 1.0
"""Pause of a draining proxy before it closes connections, in which the other proxies stop naming it in Metadata."""


class Role(Protocol):
    """A role of one process."""

    async def start(self) -> None:
        """Begin.  Raises StorageError, KvError or BmqError if storage or the metadata store refuses."""

    def drain(self) -> None:
        """Respond to all requests that wait for something, and let none wait any more."""

    async def close(self) -> None:
        """Hand over and end everything, also after a ``start`` that failed."""


class Node:
    """The roles of one process.

    ``start`` them; then ``proxy.dispatches`` serve Kafka's requests; ``close`` hands everything over.
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
        on_leave: Callable[[], None] = no_op,
    ) -> None:
        """Wire the roles.  ``joined`` must have joined already, since that gives a proxy its id.

        ``on_leave`` is called when an operator drains the process, so that it ends.  If the process must end and be
        started again, the ``on_failed`` of ``joined`` is called.
        """
        self.config = config = replace(config, node_id=joined.member.node_id)
        self.traffic = TrafficMeter() if PROXY in config.roles else None
        self.counters = ProcessCounters()
        self.client_requests = RequestCounters(config.metrics_topics_max, self.traffic)
        """Counters of clients' requests, through all listeners."""
        self.client_port = PortCounters()
        """Counters of clients' connections, of all listeners."""
        self.certificates = open_certificates(config)
        """The TLS of the listeners that have it, by their names."""
        if joined.tls is not None:
            self.certificates[joined.tls.name] = joined.tls
        self.log_levels = LogLevels()
        self.is_open = False
        """True from the end of ``start`` until ``close``: clients' rights and topics are known."""
        self.is_in_service = False
        """True from ``begin_serving`` until ``leave``."""
        self._on_leave = on_leave
        self.ports = Ports()
        """The ports of this process, once its sockets are made."""
        self.joined = joined
        self.fs = fs
        self.kv = kv
        self.clock = clock
        self.catalog = KvCatalog(kv, config.cluster, joined.on_failed, has_node_configs=not is_shared(config.meta))
        self.view = joined.view
        self.views = ListenerViews(config, self.view, self.catalog)
        self.security = ClientSecurity(config, kv, clock, self.view, joined.peers, joined.on_failed, joined.standstill)
        self.pool = BlockCache(fs, ReadConfig(cache_bytes=config.cache_bytes))
        self._parts = parts = Parts(
            config=config, fs=fs, kv=kv, clock=clock, joined=joined, catalog=self.catalog,
            files=StoredTopics(fs, rebuild_count=joined.root.rebuild_count),
            pool=self.pool, fetches=FetchContext(config, self.catalog, self.pool),
            verifier=PartitionVerifier(self.view, self.catalog, joined.peers),
            group_markers=GroupMarkers(self.view, joined.peers), security=self.security,
            tracing=Tracing(tracer) if tracer is not None else None,
        )  # fmt: skip
        self.broker: BrokerRole | None = None
        if BROKER in config.roles:
            self.broker = BrokerRole(parts, broker_config=broker_config, janitor_config=janitor_config)
        self.controller: ControllerRole | None = None
        if CONTROLLER in config.roles:
            self.controller = ControllerRole(parts, self.views.first.proxies)
        service = self.controller.service if self.controller is not None else None
        self.admin = RemoteAdmin(self.view, self.catalog, joined.peers, clock, local=service)
        offsets_topic = partial(self.admin.ensure_topic, OFFSETS_TOPIC)
        self.producer_ids = ProducerIds(kv, config.cluster, rebuild_count=joined.root.rebuild_count)
        self.coordinator: CoordinatorRole | None = None
        if COORDINATOR in config.roles:
            context = coordinator_context(parts, self.broker)
            transactions = make_transactions(parts, self.admin, offsets_topic, self.producer_ids, context)
            self.coordinator = CoordinatorRole(parts, context, offsets_topic, transactions)
        self.proxy = ProxyRole(
            parts, self.views, self.client_requests, self.client_port, self.log_levels, self.admin, offsets_topic,
            self.producer_ids, broker=self.broker, controller=self.controller, coordinator=self.coordinator,
        )  # fmt: skip
        roles: tuple[Role | None, ...] = (self.broker, self.controller, self.proxy, self.coordinator)
        self._roles: Sequence[Role] = [role for role in roles if role is not None]
        """The roles in the order in which they start and drain; they close from the last to the first.  A coordinator's
        shards are logs of partitions, and clients' requests need both, and partitions of the broker go last."""
        self.storage_room = StorageRoom(config.root, fs)
        self.collected = Collected(
            config, self.catalog, joined, broker=self.broker, coordinator=self.coordinator, room=self.storage_room,
            controller=self.controller,
        )  # fmt: skip
        """Numbers that are collected in the background, for ``/metrics`` and the console."""
        self.internal_endpoint = self.broker.endpoint if self.broker is not None else None
        """Dispatch of other processes' Produce and Fetch; None in a process without the broker role."""
        self._serve_inside()
        # After the proxies, so that these are up to date; and last: a node that could not be wired must not be called.
        self.view.subscribe(lambda change: self._send_away() if change.members else None)

    # ---------------------------------------------------------------------------------------------------------- life

    def is_at(self, addresses: Mapping[str, Address]) -> None:
        """Publish the address of each listener, by its name, to this process's clients and to the cluster."""
        self.views.move(addresses)
        self.joined.is_at(kafka=next(iter(addresses.values())), listeners=tuple(addresses.items()))

    async def start(self) -> None:
        """Start all roles.  The caller must ``close`` the node even if this fails.

        Raises StorageError, KvError or BmqError if storage or the metadata store refuses.
        """
        await self.catalog.start()
        await self.security.start()
        self.views.refresh()
        for role in self._roles:
            await role.start()
        self.is_open = True

    def begin_serving(self) -> None:
        """Report this process as ready: all of its sockets listen."""
        self.is_in_service = True

    async def leave(self, deadline: float, close_by: float) -> None:
        """Leave the cluster: hand partitions and shards over to other processes, and disappear from Metadata.

        From now on this process is not ready.  Returns by ``deadline``, on the event loop's clock.  A later ``close``
        leaves partitions as they are that are not handed over by ``close_by``.
        """
        self.is_in_service = False
        loop = asyncio.get_running_loop()
        broker, changed = self.broker, asyncio.Event()
        self.catalog.subscribe(lambda change: changed.set())
        await self.joined.drain(
            max(0.0, deadline - loop.time()), lambda: broker is not None and broker.has_partitions, changed
        )
        if self.broker is not None:
            await self.broker.wait_moved(max(0.0, deadline - loop.time()), close_by)
        if PROXY in self.config.roles and len(self.view.members) > 1:
            await asyncio.sleep(min(LEAVES_METADATA_S, max(0.0, deadline - loop.time())))

    def drain(self) -> None:
        """Respond to all requests that wait, and let none wait any more: clients' connections are about to close."""
        for role in self._roles:
            role.drain()

    def is_response_room_wanted(self) -> bool:
        """Return True if responses wait for memory that unsent ones hold."""
        proxy = self.proxy
        return proxy.fetch_service.budget.has_waiting or bool(proxy.services.responses.waiting)

    async def close(self) -> None:
        """Hand everything over and close all roles, also after a ``start`` that failed.

        All parts are closed even if one fails; its error is raised at the end.
        """
        self.is_open = False
        async with contextlib.AsyncExitStack() as parts:  # closed from the last to the first
            parts.push_async_callback(self.catalog.close)
            parts.push_async_callback(self.security.close)
            parts.push_async_callback(self.pool.close)
            parts.push_async_callback(self.producer_ids.close)
            parts.push_async_callback(self._parts.verifier.close)
            parts.push_async_callback(self._parts.group_markers.close)
            for role in self._roles:
                parts.push_async_callback(role.close)
            parts.push_async_callback(self.collected.close)

    # -------------------------------------------------------------------------------------------------------- wiring

    def _serve_inside(self) -> None:
        """Register the internal APIs of the process itself, and the callbacks of its membership."""
        joined, endpoint = self.joined, self.joined.endpoint
        endpoint.register(LeaveRequest, self._asked_to_leave, role=CONTROLLER)
        endpoint.register(LogLevelsRequest, LogLevelsApi(self.log_levels).handle)
        joined.on_id.add(self._renumbered)
        joined.serving.add(self._may_be_asked)
        joined.on_lost.add(self._lost)
        joined.on_joined.add(self._joined_again)
        joined.standstill.on_doubt.add(self._close_departed)
        joined.standstill.on_found.add(
            lambda seconds: self._give_clients_up(f"this process stood still for {seconds:.1f} s")
        )
        if self.broker is not None:
            sizes = LogSizesApi(self.collected.count_log_sizes, self.catalog)
            endpoint.register(LogSizesRequest, sizes.handle)

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

    def _lost(self) -> None:
        """Handle a lost lease: fence all partitions, which may have new owners, and send clients to other proxies."""
        if self.broker is not None:
            self.broker.broker.fence_all()
        self._set_member(False)
        self._give_clients_up("this process is not a member of the cluster any more")

    def _give_clients_up(self, why: str) -> None:
        """Close all clients' connections, with all that lies in them or is in progress for them.

        Produces without a response (acks=0) of clients that have gone are served after a pause of any length, as in
        Kafka: their clients repeat nothing, so nothing outdates them.  Each goes to the owner of its partition today.

        A process that stood still, or was declared dead, must not go on as if nothing had happened.  A client may have
        given up a request that this process still has, and have gone on through another process: what the request says
        is outdated then.  An offset commit would take back a later one, a join fence the member that joined again.  No
        request shows how long it has waited, so all are dropped.  A client that has not given up sees its connection
        break, and repeats what it may.
        """
        closed = self.ports.give_clients_up()
        self.counters.clients_given_up += 1
        _log.warning(
            "all clients' connections are closed, with the requests in them: clients connect and send them again."
            " Produces with acks=0 of clients that have gone are served",
            extra=fields(connections=closed, error=why),
        )

    def _close_departed(self, seconds: float) -> None:
        """Close the connections of clients that have gone while this process stood still, with the requests in them.

        Produces without a response (acks=0) are served before: their clients close without waiting for anything.  The
        same produces are served if clients are given up next.

        A client with a short time-out may have given another request up, and have gone on through another process.
        """
        closed = self.ports.close_departed()
        if closed:
            _log.info(
                "connections of clients that have gone are closed: of the requests in them, only produces with acks=0"
                " are served",
                extra=fields(connections=closed, error=f"this process stood still for {seconds:.1f} s"),
            )

    def _joined_again(self) -> None:
        self._set_member(True)

    def _set_member(self, is_member: bool) -> None:
        self.views.set_member(is_member)
        self._send_away()

    def _send_away(self) -> None:
        """Refuse fetches, and let no produce or group wait, while this is no member and Metadata has other proxies.

        Each listener's clients must have another.
        """
        self.proxy.send_away(self.views.sends_away)

    def _renumbered(self, node_id: int) -> None:
        """Handle a new proxy id after joining again: publish it to clients, and apply the configs set for it."""
        config = self.config = replace(self.config, node_id=node_id)
        self.views.renumber(config)
        if self.broker is not None:
            self.broker.renumber(config)
        if self.controller is not None:
            self.controller.renumber(config)

    def _may_be_asked(self) -> bool:
        return self.broker is None or not self.broker.broker.is_gray

    def _asked_to_leave(self, body: memoryview, call: InternalCall) -> list[Buffer]:
        asyncio.get_running_loop().call_soon(self._on_leave)
        return LeaveResponse(ErrorCode.NONE).encode()
