"""Partitions of the whole cluster that are not served, from the report of each broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bmq.broker.not_served_api import NotServed, not_served
from bmq.console.operations import NAMED_MAX, NotServedFacts
from bmq.core.rpc.messages.broker import NotServedPartition, PartitionsNotServedRequest
from bmq.meta.cluster.member import BROKER
from bmq.server.member_queries import ask_members, others_with
from bmq.server.node import Node


class ClusterNotServed(NamedTuple):
    """Reports of all brokers.  ``total`` counts all such partitions, ``partitions`` has the first `NAMED_MAX`."""

    total: int
    partitions: Sequence[NotServedFacts]
    storage_trouble: Mapping[str, str]
    """The reason by incarnation, of brokers whose writes storage does not acknowledge."""
    silent: Sequence[str]
    """Brokers that did not respond."""


async def partitions_not_served(node: Node) -> ClusterNotServed:
    """Return the partitions that their brokers cannot serve, by topic and number."""
    total, named, trouble = 0, list[tuple[NotServedPartition, str]](), dict[str, str]()
    others = others_with(node, BROKER)
    responses = await ask_members(node, others, PartitionsNotServedRequest())
    found = {name: NotServed(each.storage_trouble, each.total, each.partitions) for name, each in responses.items()}
    if node.broker is not None:
        found[node.view.own] = not_served(node.broker.broker, node.broker.assigned)
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
