"""Numbers of a process that ``/metrics`` shows beside the request counters: of its roles, and of the process itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bmq.console.state import Own
from bmq.proxy.quotas.request_quotas import RequestQuotas
from bmq.server.cluster_member import ClusterMember
from bmq.server.queries.broker_metrics import broker_metrics
from bmq.server.queries.collected_metrics import Collected
from bmq.server.queries.coordinator_metrics import coordinator_metrics, lag_metrics
from bmq.server.queries.leader_metrics import leader_metrics
from bmq.server.queries.member_metrics import member_metrics
from bmq.server.queries.process_metrics import ProcessParts, process_metrics
from bmq.server.queries.proxy_metrics import proxy_metrics
from bmq.server.queries.storage_room import StorageRoom
from bmq.server.roles.broker import BrokerRole
from bmq.server.roles.controller import ControllerRole
from bmq.server.roles.coordinator import CoordinatorRole
from bmq.server.roles.proxy import ProxyRole


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnMetrics:
    """Reader of one process's numbers.  All are counted already, so a scrape costs microseconds of the event loop."""

    broker: BrokerRole | None
    coordinator: CoordinatorRole | None
    controller: ControllerRole | None
    proxy: ProxyRole
    quotas: RequestQuotas | None
    """The quotas of clients; None in a process that clients do not reach."""
    joined: ClusterMember
    collected: Collected
    room: StorageRoom
    process: ProcessParts

    def read(self) -> Sequence[Own]:
        """Return the numbers as they are now, and start the next collection of those that are collected.

        The numbers of ``Counts`` are as old as the last count: the caller awaits ``Counts.count`` before.
        """
        broker, coordinator, controller, collected = self.broker, self.coordinator, self.controller, self.collected
        collected.request()
        counts, lag = collected.counts, collected.group_lag
        return (
            *(broker_metrics(broker, counts, collected.log_sizes) if broker is not None else ()),
            *(coordinator_metrics(coordinator, counts.oldest_transaction_s) if coordinator is not None else ()),
            *(lag_metrics(lag.report) if lag is not None else ()),
            *proxy_metrics(self.proxy, broker, self.quotas),
            *member_metrics(self.joined, is_leader=controller is not None and controller.is_leader),
            *(leader_metrics(controller, self.room.known) if controller is not None else ()),
            *process_metrics(self.process),
        )
