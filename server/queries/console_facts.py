"""The console's view of a ``Node``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from bmq.broker.not_served_api import NotServed
from bmq.console.kafka import LocalRequests
from bmq.console.operations import RateFacts
from bmq.console.schema_registry import SchemaRegistry
from bmq.console.state import (
    BrokerFacts,
    CleaningFacts,
    ClusterFacts,
    ConsoleState,
    Gauges,
    PartitionFacts,
    TopicDetails,
    TopicFacts,
)
from bmq.core.errors import RequestError
from bmq.core.metrics.descriptor_meter import DescriptorMeter
from bmq.core.metrics.loop_meter import LoopMeter
from bmq.core.model import PartitionKey
from bmq.core.version import VERSION
from bmq.endpoint.partitions import Owner
from bmq.meta.catalog import Topic
from bmq.meta.cluster.membership import TTL_S
from bmq.meta.topic_configs import effective
from bmq.proxy.partition_queries import LOOK_S, ask_all, open_owner
from bmq.proxy.traffic_api import WHOLE_TOPIC
from bmq.server.node import Node
from bmq.server.queries.cluster_facts import Operations
from bmq.server.queries.cluster_history import ClusterHistory
from bmq.server.queries.group_facts import Groups
from bmq.server.queries.group_lag_history import GroupLagHistory
from bmq.server.queries.log_cleaning import log_cleaning
from bmq.server.queries.own_metrics import OwnMetrics
from bmq.server.queries.partitions_not_served import partitions_not_served
from bmq.server.queries.storage_facts import segments_of
from bmq.server.queries.topic_sizes import ClusterTopicSizes
from bmq.server.queries.traffic import ClusterTraffic, cluster_traffic, rates_of
from bmq.server.queries.transaction_facts import Transactions
from bmq.server.roles.coordinator import CoordinatorRole

BYTES_S = 5.0
"""Time-out of storage, for the bytes of all partitions of a page."""


class _FoundPartition(NamedTuple):
    """A partition's facts, and its open owner, if it has one, which can return more."""

    facts: PartitionFacts
    owner: Owner | None


def console_state(
    node: Node,
    meter: LoopMeter | None = None,
    history: ClusterHistory | None = None,
    registry: SchemaRegistry | None = None,
    lag: GroupLagHistory | None = None,
    descriptors: DescriptorMeter | None = None,
) -> ConsoleState:
    """Return the console's view of ``node``.

    For ``history`` and ``lag``, None makes ones that are never sampled.  ``meter`` and ``descriptors`` measure the
    process; both are None under a simulation's clock.
    """
    facts = _Facts(node, descriptors)
    groups = Groups(node.joined, node.catalog, node.proxy.coordinator, node.coordinator)
    transactions = Transactions(
        node.joined, node.catalog, node.proxy.transactions, node.proxy.owners,
        coordinator=node.coordinator, broker=node.broker,
    )  # fmt: skip
    return ConsoleState(
        metrics=node.metrics,
        is_alive=facts.is_alive,
        is_ready=facts.is_ready,
        count=node.collected.counts.count,
        gauges=facts.gauges,
        cluster=facts.cluster,
        topics=facts.topics,
        topic_rates=facts.topic_rates,
        topic=facts.topic,
        find_topic=facts.find_topic,
        segments=partial(segments_of, node.fs, node.catalog),
        storage=node.storage_room.facts,
        topic_sizes=ClusterTopicSizes(node.joined, node.catalog, node.collected).facts,
        groups=groups.page,
        group=groups.group,
        committed=groups.committed,
        transactions=transactions.page,
        transaction=transactions.transaction,
        marker_waits=transactions.marker_waits,
        open_transactions=transactions.open_in,
        operations=Operations(node),
        kafka=LocalRequests(node.proxy.console_endpoint),
        authorizer=node.security.authorizer,
        audit=node.proxy.audit,
        registry=registry,
        own_metrics=OwnMetrics(node, meter, descriptors).read,
        history=(history or history_of(node)).facts,
        group_lag=(lag or lag_history_of(node)).facts,
    )


def history_of(node: Node) -> ClusterHistory:
    """Return the history of ``node``'s clients, to be sampled."""
    return ClusterHistory(node.joined, node.metrics, node.broker)


def lag_history_of(node: Node) -> GroupLagHistory:
    """Return the history of the lag of ``node``'s groups, to be sampled."""
    return GroupLagHistory(node.config, node.joined, node.catalog, node.collected)


class _Facts:
    """Facts of one process and its topics."""

    def __init__(self, node: Node, descriptors: DescriptorMeter | None) -> None:
        self._node = node
        self._descriptors = descriptors

    async def _traffic(self, asked: Sequence[tuple[str, int]]) -> ClusterTraffic:
        node = self._node
        return await cluster_traffic(node.joined, node.catalog, node.metrics.traffic, asked)

    def is_alive(self) -> tuple[bool, str]:
        """Return True: a process that can respond is alive.  ``is_ready`` says what it waits for."""
        return True, ""

    def is_ready(self) -> tuple[bool, str]:
        """Return False, and the reason, while other processes serve clients better; else True, and what is not served.

        Storage that acknowledges nothing leaves this True: it fails for all processes at once, and a service without
        endpoints could return neither reads from memory nor an error with the reason.
        """
        if not self._node.is_serving:
            return False, "starting, or draining"
        if self._descriptors is not None and self._descriptors.is_out:
            return False, "no file descriptor is left: new connections are closed as they come"
        role = self._node.broker
        if not self._node.joined.membership.is_member:
            return False, "the metadata store says that this process's lease is gone; it registers again"
        not_served = (
            role.broker.storage_trouble if role is not None else "",
            _store_trouble(self._node),
            _partitions_not_served(self._node.collected.counts.not_served),
            _degraded(self._node.coordinator),
            _quarantined(self._node),
        )
        return True, "; ".join(filter(None, not_served))

    def gauges(self) -> Gauges:
        catalog, role = self._node.catalog, self._node.coordinator
        sizes, counts = self._node.collected.log_sizes, self._node.collected.counts
        return Gauges(
            partitions_by_state=dict(counts.partitions_by_state),
            groups_by_state=role.coordinator.groups_by_state() if role is not None else None,
            topics=len(catalog.topics),
            partitions=sum(topic.partitions for topic in catalog.topics.values()),
            log_bytes_by_topic=sizes.by_topic if sizes is not None else {},
        )

    def cluster(self) -> ClusterFacts:
        node = self._node
        return ClusterFacts(
            cluster_id=node.catalog.cluster_id,
            version=VERSION,
            node_id=node.config.node_id,
            brokers=[
                BrokerFacts(node_id=proxy.node_id, host=proxy.host, port=proxy.port, rack=proxy.zone or None)
                for proxy in node.views.first.proxies.addresses
            ],
            topics=len(node.catalog.topics),
            partitions=sum(topic.partitions for topic in node.catalog.topics.values()),
            partitions_by_state=dict(node.collected.counts.partitions_by_state),
            connections=node.metrics.connections,
        )

    def topics(self) -> Sequence[Topic]:
        return list(self._node.catalog.topics.values())

    async def topic_rates(self, names: Sequence[str]) -> Mapping[str, RateFacts | None]:
        traffic = await self._traffic([(name, WHOLE_TOPIC) for name in names])
        return {name: rates_of(traffic, name) for name in names}

    def find_topic(self, name: str) -> TopicFacts | None:
        topic = self._node.catalog.topics.get(name)
        return _topic(topic) if topic is not None else None

    async def topic(self, name: str, after: int, limit: int) -> TopicDetails | None:
        topic = self._node.catalog.topics.get(name)
        if topic is None:
            return None
        deadline = asyncio.get_running_loop().time() + LOOK_S
        numbers = range(after + 1, min(after + 1 + limit, topic.partitions))
        found, traffic, cleaning = await asyncio.gather(
            ask_all(numbers, lambda number: self._partition(topic, number, deadline)),
            self._traffic([(name, number) for number in (WHOLE_TOPIC, *numbers)]),
            self._cleaning(topic, numbers),
        )
        partitions = [each.facts for each in found]
        await asyncio.gather(self._explain(name, partitions), _add_bytes(found))
        for each in partitions:
            each["rates"] = rates_of(traffic, name, each["partition"])
            each["cleaning"] = cleaning.get(each["partition"])
        facts = _topic(topic)
        facts["rates"] = rates_of(traffic, name)
        following = numbers[-1] if numbers and numbers[-1] + 1 < topic.partitions else None
        return TopicDetails(topic=facts, partitions=partitions, next=following)

    async def _cleaning(self, topic: Topic, numbers: range) -> Mapping[int, CleaningFacts]:
        """Return the cleaning of these partitions; nothing, and no request, for a topic that is not compacted."""
        node = self._node
        if topic.is_internal or not numbers or not _is_compacted(node, topic):
            return {}
        return await log_cleaning(node.joined, node.broker, topic.topic_id, numbers)

    async def _explain(self, topic: str, partitions: Sequence[PartitionFacts]) -> None:
        """Add the reason to partitions that other brokers cannot serve."""
        own = self._node.view.own
        closed = {each["partition"]: each for each in partitions if each["epoch"] is None and each["owner"] != own}
        if not closed:
            return
        for each in (await partitions_not_served(self._node.joined, self._node.broker)).partitions:
            if each["topic"] == topic and each["partition"] in closed:
                closed[each["partition"]]["why"] = each["why"]

    async def _partition(self, topic: Topic, number: int, deadline: float) -> _FoundPartition:
        """Return a partition's facts.

        A partition that this process has yet to open is not waited for, since its state is known here.
        """
        key = PartitionKey(topic.topic_id, number)
        owners, role = self._node.proxy.owners, self._node.broker
        assigned = self._node.view.owner_of(key)
        is_elsewhere = assigned not in ("", self._node.view.own)
        try:
            owner = await open_owner(owners, key, deadline) if is_elsewhere else owners.get(key)
            if owner is not None:
                ends = await owner.ends()
                facts = PartitionFacts(
                    partition=number,
                    owner=assigned,
                    state="WRITE",
                    why="",
                    epoch=ends.epoch,
                    log_start=ends.log_start,
                    high_watermark=ends.high_watermark,
                    bytes=None,
                    rates=None,
                    cleaning=None,
                )
                return _FoundPartition(facts, owner)
        except RequestError as error:
            if not error.code.is_retriable:
                raise
        driver = role.broker.get(key) if role is not None else None
        state = driver.machine.state.name if driver is not None else "START"
        facts = PartitionFacts(
            partition=number, owner=assigned, state=state, why=_why_not_served(self._node, key, assigned), epoch=None,
            log_start=None, high_watermark=None, bytes=None, rates=None, cleaning=None,
        )  # fmt: skip
        return _FoundPartition(facts, None)


async def _add_bytes(found: Sequence[_FoundPartition]) -> None:
    """Add the bytes on storage of open partitions; those that do not come within ``BYTES_S`` stay None."""
    deadline = asyncio.get_running_loop().time() + BYTES_S

    async def ask(each: _FoundPartition) -> None:
        assert each.owner is not None
        if asyncio.get_running_loop().time() >= deadline:
            return
        try:
            async with asyncio.timeout_at(deadline):
                each.facts["bytes"] = await each.owner.log_bytes()
        except (RequestError, TimeoutError):
            pass  # it stays None; all other facts of the partition are known

    await ask_all([each for each in found if each.owner is not None], ask)


def _is_compacted(node: Node, topic: Topic) -> bool:
    """Return whether cleanup.policy has compact, also as a default of the cluster or of this node."""
    config, catalog = node.config, node.catalog
    of_node = catalog.broker_configs(config.node_id) if config.node_id >= 0 else {}
    values = effective(topic.configs, config, catalog.broker_configs(None), of_node)
    return "compact" in values["cleanup.policy"].replace(" ", "").split(",")


def _store_trouble(node: Node) -> str:
    """Return why the broker waits for the metadata store, or that the lease is not renewed; "" if all is well."""
    if node.broker is not None and (trouble := node.broker.broker.store_trouble):
        return trouble
    age_s = node.joined.membership.lease_age_s
    if age_s <= TTL_S:
        return ""
    return f"the metadata store has not renewed this process's lease for {age_s:.0f} s: is it up and reachable?"


def _partitions_not_served(found: NotServed) -> str:
    if not found.total:
        return ""
    topic, partition, why = found.partitions[0]
    more = f", and {found.total - 1} more partitions" if found.total > 1 else ""
    return f"{topic}-{partition}{more} cannot be served: {why}"


def _degraded(role: CoordinatorRole | None) -> str:
    """Return what is not served for want of a shard, and why; "" if all is.  Clients of other shards are served."""
    not_loaded = role.shards_not_loaded() if role is not None else {}
    if not not_loaded:
        return ""
    shard, why = min(not_loaded.items())
    more = f", and {len(not_loaded) - 1} more" if len(not_loaded) > 1 else ""
    return f"{shard.kind.name} of {shard}{more} are not served: {why}"


def _quarantined(node: Node) -> str:
    found = node.quarantined()
    if not found:
        return ""
    what, why = min(found.items())
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return f"{what}{more} cannot be used: {why}"


def _why_not_served(node: Node, key: PartitionKey, assigned: str) -> str:
    """Return why a partition has no open owner, as far as this process knows."""
    if not assigned:
        return "no broker is assigned; start one, or wait for the leader to assign it"
    if assigned != node.view.own:
        is_member = assigned in node.view.members
        return f"{assigned} does not serve it yet" if is_member else f"{assigned} is no longer a member"
    return node.broker.assigned.why_not_served(key) if node.broker is not None else ""


def _topic(topic: Topic) -> TopicFacts:
    return TopicFacts(
        name=topic.name,
        topic_id=str(topic.topic_id),
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        is_internal=topic.is_internal,
        configs=topic.configs,
        rates=None,
    )
