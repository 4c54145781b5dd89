"""Partitions of the whole cluster that are not served, from the report of each broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bmq.broker.not_served_api import NotServed, not_served
from bmq.console.operations import NAMED_MAX, NotServedFacts
from bmq.core.rpc.messages.broker import NotServedPartition, PartitionsNotServedRequest
from bmq.meta.cluster.member import BROKER
from bmq.server.cluster_member import ClusterMember
from bmq.server.queries.member_queries import ask_members, others_with
from bmq.server.roles.broker import BrokerRole


class ClusterNotServed(NamedTuple):
    """Reports of all brokers.  ``total`` counts all such partitions, ``partitions`` has the first ``NAMED_MAX``."""

    total: int
    partitions: Sequence[NotServedFacts]
    storage_trouble: Mapping[str, str]
    """The reason by incarnation, of brokers whose writes storage does not acknowledge."""
    silent: Sequence[str]
    """Brokers that did not respond."""


async def partitions_not_served(joined: ClusterMember, broker: BrokerRole | None) -> ClusterNotServed:
    """Return the partitions that their brokers cannot serve, by topic and number.

    ``broker`` is the role of this process; None without it.
    """
    total, named, trouble = 0, list[tuple[NotServedPartition, str]](), dict[str, str]()
    others = others_with(joined, BROKER)
    responses = await ask_members(joined, others, PartitionsNotServedRequest())
    found = {name: NotServed(each.storage_trouble, each.total, each.partitions) for name, each in responses.items()}
    if broker is not None:
        found[joined.view.own] = await not_served(broker.broker, broker.assigned)
    for name, (why, count, partitions) in found.items():
        total += count
        named += [(each, name) for each in partitions]
        if why:
            trouble[name] = why
    facts = [
        NotServedFacts(topic=each.topic, partition=each.partition, broker=name, why=each.why)
        for each, name in sorted(named)[:NAMED_MAX]
    ]
    silent = sorted(member.incarnation for member in others if member.incarnation not in found)
    return ClusterNotServed(total, facts, trouble, silent)
