"""Topics and their partitions, wherever the owner of a partition is, for the console."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bmq.console.operations import RateFacts
from bmq.console.state import CleaningFacts, PartitionFacts, TopicDetails, TopicFacts
from bmq.core.config import NodeConfig
from bmq.core.errors import RequestError
from bmq.core.metrics.traffic import TrafficMeter
from bmq.core.model import PartitionKey
from bmq.endpoint.partitions import Owner, Owners
from bmq.meta.catalog import Catalog, Topic
from bmq.meta.cluster.view import ClusterView
from bmq.meta.topic_configs import effective
from bmq.proxy.partition_queries import LOOK_S, ask_all, open_owner
from bmq.proxy.traffic_api import WHOLE_TOPIC
from bmq.server.cluster_member import ClusterMember
from bmq.server.queries.log_cleaning import log_cleaning
from bmq.server.queries.partitions_not_served import partitions_not_served
from bmq.server.queries.traffic import ClusterTraffic, cluster_traffic, rates_of
from bmq.server.roles.broker import BrokerRole

BYTES_S = 5.0
"""Time-out of storage, for the bytes of all partitions of a page."""


class _FoundPartition(NamedTuple):
    """A partition's facts, and its open owner, if it has one, which can return more."""

    facts: PartitionFacts
    owner: Owner | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """Topics and partitions of the cluster, from one process and from the reports of the partitions' owners."""

    joined: ClusterMember
    catalog: Catalog
    config: Callable[[], NodeConfig]
    """Returns the settings with the present node id, which changes when the process joins again."""
    owners: Owners
    broker: BrokerRole | None
    traffic: TrafficMeter | None
    """The rates of this process's clients; None in a process that clients do not reach."""

    def topics(self) -> Sequence[Topic]:
        return list(self.catalog.topics.values())

    async def topic_rates(self, names: Sequence[str]) -> Mapping[str, RateFacts | None]:
        traffic = await self._traffic([(name, WHOLE_TOPIC) for name in names])
        return {name: rates_of(traffic, name) for name in names}

    def find_topic(self, name: str) -> TopicFacts | None:
        topic = self.catalog.topics.get(name)
        return _topic(topic) if topic is not None else None

    async def topic(self, name: str, after: int, limit: int) -> TopicDetails | None:
        topic = self.catalog.topics.get(name)
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
        if topic.is_internal or not numbers or not _is_compacted(self.config(), self.catalog, topic):
            return {}
        return await log_cleaning(self.joined, self.broker, topic.topic_id, numbers)

    async def _explain(self, topic: str, partitions: Sequence[PartitionFacts]) -> None:
        """Add the reason to partitions that other brokers cannot serve."""
        own = self.joined.view.own
        closed = {each["partition"]: each for each in partitions if each["epoch"] is None and each["owner"] != own}
        if not closed:
            return
        for each in (await partitions_not_served(self.joined, self.broker)).partitions:
            if each["topic"] == topic and each["partition"] in closed:
                closed[each["partition"]]["why"] = each["why"]

    async def _partition(self, topic: Topic, number: int, deadline: float) -> _FoundPartition:
        """Return a partition's facts.

        A partition that this process has yet to open is not waited for, since its state is known here.
        """
        key = PartitionKey(topic.topic_id, number)
        owners, role, view = self.owners, self.broker, self.joined.view
        assigned = view.owner_of(key)
        is_elsewhere = assigned not in ("", view.own)
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
            partition=number, owner=assigned, state=state, why=_why_not_served(view, role, key, assigned), epoch=None,
            log_start=None, high_watermark=None, bytes=None, rates=None, cleaning=None,
        )  # fmt: skip
        return _FoundPartition(facts, None)

    async def _traffic(self, asked: Sequence[tuple[str, int]]) -> ClusterTraffic:
        return await cluster_traffic(self.joined, self.catalog, self.traffic, asked)


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


def _is_compacted(config: NodeConfig, catalog: Catalog, topic: Topic) -> bool:
    """Return whether cleanup.policy has compact, also as a default of the cluster or of this node."""
    of_node = catalog.broker_configs(config.node_id) if config.node_id >= 0 else {}
    values = effective(topic.configs, config, catalog.broker_configs(None), of_node)
    return "compact" in values["cleanup.policy"].replace(" ", "").split(",")


def _why_not_served(view: ClusterView, broker: BrokerRole | None, key: PartitionKey, assigned: str) -> str:
    """Return why a partition has no open owner, as far as this process knows."""
    if not assigned:
        return "no broker is assigned; start one, or wait for the leader to assign it"
    if assigned != view.own:
        is_member = assigned in view.members
        return f"{assigned} does not serve it yet" if is_member else f"{assigned} is no longer a member"
    return broker.assigned.why_not_served(key) if broker is not None else ""


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
