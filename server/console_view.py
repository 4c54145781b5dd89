"""The console's view of a ``Node``: the parts of the process are passed to the queries."""

from __future__ import annotations

from functools import partial

from bmq.console.kafka import LocalRequests
from bmq.console.schema_registry import SchemaRegistry
from bmq.console.state import ConsoleState
from bmq.controller.store_upkeep import maintained
from bmq.core.metrics.descriptor_meter import DescriptorMeter
from bmq.core.metrics.loop_meter import LoopMeter
from bmq.meta.cluster.member import PROXY
from bmq.meta.maintenance import CallTimes
from bmq.server.node import Node
from bmq.server.queries.cluster_facts import ClusterStatus
from bmq.server.queries.cluster_history import ClusterHistory
from bmq.server.queries.console_facts import read_cluster, read_gauges
from bmq.server.queries.group_facts import Groups
from bmq.server.queries.group_lag_history import GroupLagHistory
from bmq.server.queries.job_rounds import JobRounds
from bmq.server.queries.operations import Operations
from bmq.server.queries.own_metrics import OwnMetrics
from bmq.server.queries.process_metrics import ProcessParts
from bmq.server.queries.readiness import Readiness
from bmq.server.queries.repairs import Repairs
from bmq.server.queries.storage_facts import segments_of
from bmq.server.queries.topic_facts import Topics
from bmq.server.queries.topic_sizes import ClusterTopicSizes
from bmq.server.queries.transaction_facts import Transactions


def console_state(
    node: Node,
    meter: LoopMeter | None = None,
    history: ClusterHistory | None = None,
    registry: SchemaRegistry | None = None,
    lag: GroupLagHistory | None = None,
    descriptors: DescriptorMeter | None = None,
) -> ConsoleState:
    """Return the console's view of ``node``.

    ``history`` and ``lag`` that are None are made here, and never sampled.  ``meter`` and ``descriptors`` measure the
    process; both are None under a simulation's clock.
    """
    joined, catalog, collected, proxy = node.joined, node.catalog, node.collected, node.proxy
    readiness = Readiness(
        is_in_service=lambda: node.is_in_service, membership=joined.membership, broker=node.broker,
        coordinator=node.coordinator, counts=collected.counts, quarantined=node.quarantined, descriptors=descriptors,
    )  # fmt: skip
    topics = Topics(
        joined=joined, catalog=catalog, config=lambda: node.config, owners=proxy.owners, broker=node.broker,
        traffic=node.traffic,
    )  # fmt: skip
    groups = Groups(joined, catalog, proxy.coordinator, node.coordinator)
    transactions = Transactions(
        joined, catalog, proxy.transactions, proxy.owners, coordinator=node.coordinator, broker=node.broker
    )
    return ConsoleState(
        client_requests=node.client_requests,
        client_port=node.client_port,
        is_alive=readiness.is_alive,
        is_ready=readiness.is_ready,
        is_open=lambda: node.is_open,
        count=collected.counts.count,
        gauges=partial(read_gauges, catalog, node.coordinator, collected),
        cluster=partial(read_cluster, catalog, node.views, collected, node.client_port),
        topics=topics.topics,
        topic_rates=topics.topic_rates,
        topic=topics.topic,
        find_topic=topics.find_topic,
        segments=partial(segments_of, node.fs, catalog),
        storage=node.storage_room.facts,
        topic_sizes=ClusterTopicSizes(joined, catalog, collected).facts,
        groups=groups.page,
        group=groups.group,
        committed=groups.committed,
        transactions=transactions.page,
        transaction=transactions.transaction,
        marker_waits=transactions.marker_waits,
        open_transactions=transactions.open_in,
        operations=operations(node),
        kafka=LocalRequests(proxy.console_endpoint),
        authorizer=node.security.authorizer,
        audit=proxy.audit,
        registry=registry,
        own_metrics=own_metrics(node, meter, descriptors).read,
        history=(history or history_of(node)).facts,
        group_lag=(lag or lag_history_of(node)).facts,
    )


def operations(node: Node) -> Operations:
    """Return the operators' commands at ``node``, with the status of its cluster."""
    status = ClusterStatus(
        config=node.config, joined=node.joined, catalog=node.catalog, admin=node.admin, broker=node.broker,
        coordinator=node.coordinator, traffic=node.traffic, quarantined=node.quarantined, store=maintained(node.kv),
    )  # fmt: skip
    repairs = Repairs(node.fs, node.kv, node.clock, node.pool, node.config.cluster)
    rounds = JobRounds(node.joined, node.catalog)
    return Operations(node.joined, node.admin, node.log_levels, status, rounds, repairs)


def own_metrics(node: Node, meter: LoopMeter | None = None, descriptors: DescriptorMeter | None = None) -> OwnMetrics:
    """Return the reader of the numbers of ``node``; None for a meter leaves out its numbers."""
    parts = ProcessParts(
        counters=node.counters, quarantined=node.quarantined, certificates=node.certificates, pool=node.pool,
        cache_bytes=node.config.cache_bytes, store_times=node.kv if isinstance(node.kv, CallTimes) else None,
        meter=meter, descriptors=descriptors,
    )  # fmt: skip
    return OwnMetrics(
        broker=node.broker, coordinator=node.coordinator, controller=node.controller, proxy=node.proxy,
        quotas=node.security.quotas if PROXY in node.config.roles else None, joined=node.joined,
        collected=node.collected, room=node.storage_room, process=parts,
    )  # fmt: skip


def history_of(node: Node) -> ClusterHistory:
    """Return the history of ``node``'s clients, to be sampled."""
    return ClusterHistory(node.joined, node.client_requests, node.client_port, node.broker)


def lag_history_of(node: Node) -> GroupLagHistory:
    """Return the history of the lag of ``node``'s groups, to be sampled."""
    return GroupLagHistory(node.config, node.joined, node.catalog, node.collected)
