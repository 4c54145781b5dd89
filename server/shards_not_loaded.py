"""Shards of the whole cluster that are not loaded, from the report of each coordinator."""

from __future__ import annotations

from bmq.console.operations import NotLoadedFacts
from bmq.core.rpc.messages.coordinator import ShardsNotLoadedRequest
from bmq.meta.cluster.member import COORDINATOR
from bmq.server.member_queries import ask_members, others_with
from bmq.server.node import Node


async def shards_not_loaded(node: Node) -> list[NotLoadedFacts]:
    """Return the shards that are not loaded, by number.

    A coordinator that does not respond is left out: its state shows it, and the groups that are missing.
    """
    role = node.coordinator
    own = role.coordinator.shards_not_loaded() if role is not None else {}
    found = [(number, node.view.own, why) for number, why in own.items()]
    responses = await ask_members(node, others_with(node, COORDINATOR), ShardsNotLoadedRequest())
    for name, response in responses.items():
        found += [(number, name, why) for number, why in response.shards]
    return [NotLoadedFacts(shard=number, coordinator=name, why=why) for number, name, why in sorted(found)]
