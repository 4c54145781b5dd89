"""What the console is told of a ``Node``."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from bmq.cli.cluster_facts import Operations
from bmq.cli.cluster_history import ClusterHistory
from bmq.cli.group_lag_history import GroupLagHistory
from bmq.cli.node import Node
from bmq.cli.own_metrics import OwnMetrics
from bmq.cli.partitions_not_served import partitions_not_served
from bmq.cli.shards_not_loaded import shards_not_loaded
from bmq.cli.storage_facts import segments_of
from bmq.cli.storage_room import StorageRoom
from bmq.cli.traffic import cluster_traffic, rates_of
from bmq.console.kafka import LocalRequests
from bmq.console.operations import NotLoadedFacts, RateFacts
from bmq.console.queries import Page
from bmq.console.schema_registry import SchemaRegistry
from bmq.console.state import (
    BrokerFacts,
    ClusterFacts,
    CommittedFacts,
    ConsoleState,
    Gauges,
    GroupDetails,
    GroupFacts,
    GroupsFacts,
    MemberFacts,
    PartitionFacts,
    TopicDetails,
    TopicFacts,
)
from bmq.core.descriptor_meter import DescriptorMeter
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.loop_meter import LoopMeter
from bmq.core.model import PartitionKey
from bmq.core.version import VERSION
from bmq.core.wire import messages as m
from bmq.meta.catalog import OFFSETS_TOPIC, Topic
from bmq.meta.coordinator.api import ClientInfo
from bmq.meta.coordinator.placement import shard_of
from bmq.meta.coordinator.service import Coordinator
from bmq.meta.coordinator.subscription import CONSUMER, parse_assignment
from bmq.proxy.asking import LOOK_S, ask_all, open_owner
from bmq.proxy.traffic_api import WHOLE_TOPIC

_NOT_TOLD = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
"""Of a group that a response had no room for, too: it is to be asked for again."""
_CONSOLE = ClientInfo("console", "/127.0.0.1")


def console_state(
    node: Node,
    meter: LoopMeter | None = None,
    history: ClusterHistory | None = None,
    registry: SchemaRegistry | None = None,
    lag: GroupLagHistory | None = None,
    descriptors: DescriptorMeter | None = None,
) -> ConsoleState:
    """Return the console's view of `node`.

    `history` and `lag`: None makes one that its caller does not sample.  `meter` and `descriptors` measure the process:
    None where a simulation's clock runs it.
    """
    facts = _Facts(node, descriptors)
    return ConsoleState(
        metrics=node.metrics,
        is_alive=facts.is_alive,
        is_ready=facts.is_ready,
        gauges=facts.gauges,
        cluster=facts.cluster,
        topic_names=facts.topic_names,
        topic_rates=facts.topic_rates,
        topic=facts.topic,
        find_topic=facts.find_topic,
        segments=partial(segments_of, node),
        storage=StorageRoom(node).facts,
        groups=facts.groups,
        group=facts.group,
        operations=Operations(node),
        kafka=LocalRequests(node.console_endpoint),
        registry=registry,
        own_metrics=OwnMetrics(node, meter, descriptors).read,
        history=(history or ClusterHistory(node)).facts,
        group_lag=(lag or GroupLagHistory(node)).facts,
    )


class _Facts:
    def __init__(self, node: Node, descriptors: DescriptorMeter | None) -> None:
        self._node = node
        self._descriptors = descriptors

    def is_alive(self) -> tuple[bool, str]:
        """Whoever can answer this is alive: what it waits for is told by ``is_ready``."""
        return True, ""

    def is_ready(self) -> tuple[bool, str]:
        """Return False while clients are better served elsewhere.

        Storage that acknowledges nothing leaves this True: it fails for all processes at once, and a service without
        any endpoint serves neither reads from memory nor an error that says why.
        """
        if not self._node.is_serving:
            return False, "starting, or draining"
        if self._descriptors is not None and self._descriptors.is_out:
            return False, "no file descriptor is left: new connections are closed as they come"
        joined, role = self._node.joined, self._node.broker
        is_member = joined.membership.is_member if joined is not None else role is None or not role.broker.is_lost
        if not is_member:
            return False, "the metadata store says that this process's lease is gone; it registers again"
        not_served = (
            role.broker.storage_trouble if role is not None else "",
            _partitions_not_served(self._node),
            _degraded(self._node.own_coordinator),
            _quarantined(self._node),
        )
        return True, "; ".join(filter(None, not_served))

    def gauges(self) -> Gauges:
        catalog, coordinator = self._node.catalog, self._node.own_coordinator
        sizes = self._node.collected.log_sizes
        return Gauges(
            partitions_by_state=self._states(),
            groups_by_state=coordinator.groups_by_state() if coordinator is not None else None,
            topics=len(catalog.topics),
            partitions=sum(topic.partitions for topic in catalog.topics.values()),
            log_bytes_by_topic=sizes.by_topic if sizes is not None else {},
        )

    def _states(self) -> dict[str, int]:
        role = self._node.broker
        return dict(Counter(writer.partition.state.name for writer in role.broker.partitions())) if role else {}

    def cluster(self) -> ClusterFacts:
        node = self._node
        return ClusterFacts(
            cluster_id=node.catalog.cluster_id,
            version=VERSION,
            node_id=node.config.node_id,
            brokers=[
                BrokerFacts(node_id=proxy.node_id, host=proxy.host, port=proxy.port, rack=proxy.zone or None)
                for proxy in node.members.proxies
            ],
            topics=len(node.catalog.topics),
            partitions=sum(topic.partitions for topic in node.catalog.topics.values()),
            partitions_by_state=self._states(),
            connections=node.metrics.connections,
        )

    def topic_names(self) -> Iterable[str]:
        return self._node.catalog.topics

    async def topic_rates(self, names: Sequence[str]) -> Mapping[str, RateFacts | None]:
        traffic = await cluster_traffic(self._node, [(name, WHOLE_TOPIC) for name in names])
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
        partitions, traffic = await asyncio.gather(
            ask_all(numbers, lambda number: self._partition(topic, number, deadline)),
            cluster_traffic(self._node, [(name, number) for number in (WHOLE_TOPIC, *numbers)]),
        )
        await self._explain(name, partitions)
        for each in partitions:
            each["rates"] = rates_of(traffic, name, each["partition"])
        facts = _topic(topic)
        facts["rates"] = rates_of(traffic, name)
        following = numbers[-1] if numbers and numbers[-1] + 1 < topic.partitions else None
        return TopicDetails(topic=facts, partitions=partitions, next=following)

    async def _explain(self, topic: str, partitions: Sequence[PartitionFacts]) -> None:
        """Have partitions that other brokers cannot serve say why."""
        own = self._node.view.own
        closed = {each["partition"]: each for each in partitions if each["epoch"] is None and each["owner"] != own}
        if not closed:
            return
        for told in (await partitions_not_served(self._node)).partitions:
            if told["topic"] == topic and told["partition"] in closed:
                closed[told["partition"]]["why"] = told["why"]

    async def _partition(self, topic: Topic, number: int, deadline: float) -> PartitionFacts:
        """What this process has yet to open is not waited for: its state is known here."""
        key = PartitionKey(topic.topic_id, number)
        owners, role = self._node.owners, self._node.broker
        assigned = self._node.view.owner_of(key)
        is_elsewhere = assigned not in ("", self._node.view.own)
        try:
            owner = await open_owner(owners, key, deadline) if is_elsewhere else owners.get(key)
            if owner is not None:
                ends = await owner.ends()
                return PartitionFacts(
                    partition=number,
                    owner=assigned,
                    state="WRITE",
                    why="",
                    epoch=ends.epoch,
                    log_start=ends.log_start,
                    high_watermark=ends.high_watermark,
                    bytes=await owner.log_bytes(),
                    rates=None,
                )
        except RequestError as error:
            if not error.code.is_retriable:
                raise
        writer = role.broker.get(key) if role is not None else None
        state = writer.partition.state.name if writer is not None else "START"
        return PartitionFacts(
            partition=number, owner=assigned, state=state, why=_why_not_served(self._node, key, assigned), epoch=None,
            log_start=None, high_watermark=None, bytes=None, rates=None,
        )  # fmt: skip

    async def groups(self, search: str, page: Page) -> GroupsFacts:
        """Return a page of the whole cluster's groups, whichever process is asked.  Only those of the page are
        described: a description has all members.  Raises RequestError if no shard can tell of its groups."""
        listing = await self._node.coordinator.list_all_groups(m.ListGroupsRequest(version=4), _CONSOLE)
        missing, search = dict(listing.missing), search.lower()
        names = sorted({group.group_id for group in listing.groups if search in group.group_id.lower()})
        shown, following = page.cut(names)
        left, found = list(shown), list[GroupFacts]()
        while left:
            described = (await self._described(left)).groups
            found += [_group(group) for group in described if group.error_code == ErrorCode.NONE]
            again = [group.group_id for group in described if group.error_code == _NOT_TOLD]
            is_stuck = len(again) == len(left)
            for group in described:
                code = ErrorCode(group.error_code)
                if code is _NOT_TOLD and not is_stuck:
                    continue
                if code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):  # else deleted meanwhile
                    missing[self._shard_of(group.group_id)] = code
            left = [] if is_stuck else again
        if missing and not found and missing.keys() >= listing.shards:
            _check(min(missing.values()))
        return GroupsFacts(
            groups=sorted(found, key=lambda each: each["group_id"]),
            total=len(names),
            next=following,
            shards_not_loaded=await self._missing(missing) if missing else [],
        )

    async def _missing(self, codes: Mapping[int, ErrorCode]) -> list[NotLoadedFacts]:
        """Return the shards with what their coordinators say, or with what a client is told."""
        known = {each["shard"]: each for each in await shards_not_loaded(self._node)}
        shards = self._node.view.shards
        return [
            known.get(number)
            or NotLoadedFacts(
                shard=number, coordinator=shards[number].incarnation if number in shards else "", why=codes[number].name
            )
            for number in sorted(codes)
        ]

    def _shard_of(self, group_id: str) -> int:
        return shard_of(group_id, self._node.catalog.topics[OFFSETS_TOPIC].partitions)

    async def group(self, group_id: str) -> GroupDetails | None:
        found = (await self._described([group_id])).groups[0]
        if found.error_code == ErrorCode.GROUP_ID_NOT_FOUND or found.group_state == "Dead":
            return None
        _check(found.error_code)
        request = m.OffsetFetchRequest(version=7, group_id=group_id, topics=None, require_stable=False)
        offsets = await self._node.coordinator.offset_fetch(request, _CONSOLE)
        _check(offsets.error_code)
        return GroupDetails(
            group=_group(found),
            protocol=found.protocol_data or None,
            members=[
                MemberFacts(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    assignment=_assignment(found.protocol_type, member.member_assignment),
                )
                for member in found.members
            ],
            offsets=[
                CommittedFacts(
                    topic=topic.name,
                    partition=part.partition_index,
                    offset=part.committed_offset,
                    metadata=part.metadata or "",
                )
                for topic in offsets.topics
                for part in topic.partitions
            ],
        )

    async def _described(self, group_ids: list[str]) -> m.DescribeGroupsResponse:
        return await self._node.coordinator.describe_groups(
            m.DescribeGroupsRequest(version=6, groups=group_ids), _CONSOLE
        )


def _partitions_not_served(node: Node) -> str:
    if node.broker is None:
        return ""
    found = [(str(path), why) for path, why in node.broker.assigned.not_served()]
    if not found:
        return ""
    partition, why = min(found)
    more = f", and {len(found) - 1} more partitions" if len(found) > 1 else ""
    return f"{partition}{more} cannot be served: {why}"


def _degraded(coordinator: Coordinator | None) -> str:
    """What is wrong though clients may come: all other groups and partitions are served."""
    not_loaded = coordinator.shards_not_loaded() if coordinator is not None else {}
    if not not_loaded:
        return ""
    number, why = min(not_loaded.items())
    more = f", and {len(not_loaded) - 1} more" if len(not_loaded) > 1 else ""
    return f"groups of shard {number} of {OFFSETS_TOPIC}{more} are not served: {why}"


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
        return f"{assigned} does not answer for it yet" if assigned in node.view.members else f"{assigned} is gone"
    return node.broker.assigned.why_not_served(key) if node.broker is not None else ""


def _assignment(protocol_type: str, data: bytes | None) -> Mapping[str, Sequence[int]]:
    """Return a consumer's partitions by topic; empty when it has none, or its protocol is another."""
    if protocol_type != CONSUMER or not data:
        return {}
    try:
        return parse_assignment(data)
    except FormatError:  # a client's own format under the consumer type is legal
        return {}


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


def _group(group: m.DescribeGroupsResponse.DescribedGroup) -> GroupFacts:
    return GroupFacts(
        group_id=group.group_id,
        state=group.group_state,
        protocol_type=group.protocol_type,
        members=len(group.members),
    )


def _check(code: int) -> None:
    if code:
        raise RequestError(ErrorCode(code), "the coordinator cannot tell now")
