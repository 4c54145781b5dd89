"""Facts of one process and of its cluster for the console, as the process knows them without a request."""

from __future__ import annotations

from bmq.console.state import BrokerFacts, ClusterFacts, Gauges
from bmq.core.metrics.counters import PortCounters
from bmq.core.version import VERSION
from bmq.meta.catalog import Catalog
from bmq.server.listener_views import ListenerViews
from bmq.server.queries.collected_metrics import Collected
from bmq.server.roles.coordinator import CoordinatorRole


def read_gauges(catalog: Catalog, coordinator: CoordinatorRole | None, collected: Collected) -> Gauges:
    """Return the numbers of topics, and of the partitions and groups of one process."""
    sizes, counts = collected.log_sizes, collected.counts
    return Gauges(
        partitions_by_state=dict(counts.partitions_by_state),
        groups_by_state=coordinator.coordinator.groups_by_state() if coordinator is not None else None,
        topics=len(catalog.topics),
        partitions=sum(topic.partitions for topic in catalog.topics.values()),
        log_bytes_by_topic=sizes.by_topic if sizes is not None else {},
    )


def read_cluster(catalog: Catalog, views: ListenerViews, collected: Collected, port: PortCounters) -> ClusterFacts:
    """Return the cluster as the clients of a process's first listener see it."""
    return ClusterFacts(
        cluster_id=catalog.cluster_id,
        version=VERSION,
        node_id=views.node_id,
        brokers=[
            BrokerFacts(node_id=proxy.node_id, host=proxy.host, port=proxy.port, rack=proxy.zone or None)
            for proxy in views.first.proxies.addresses
        ],
        topics=len(catalog.topics),
        partitions=sum(topic.partitions for topic in catalog.topics.values()),
        partitions_by_state=dict(collected.counts.partitions_by_state),
        connections=port.connections,
    )
