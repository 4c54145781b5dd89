"""Shards of the whole cluster that are not loaded, from the report of each coordinator."""

from __future__ import annotations

from bmq.console.operations import NotLoadedFacts
from bmq.core.rpc.messages.coordinator import ShardsNotLoadedRequest
from bmq.meta.cluster.member import COORDINATOR
from bmq.server.cluster_member import ClusterMember
from bmq.server.queries.member_queries import ask_members, others_with
from bmq.server.roles.coordinator import CoordinatorRole


async def shards_not_loaded(joined: ClusterMember, coordinator: CoordinatorRole | None) -> list[NotLoadedFacts]:
    """Return the shards that are not loaded, by number.

    ``coordinator`` is the role of this process; None without it.

    A coordinator that does not respond is left out: its state shows it, and the groups that are missing.
    """
    own = coordinator.coordinator.shards_not_loaded() if coordinator is not None else {}
    found = [(number, joined.view.own, why) for number, why in own.items()]
    responses = await ask_members(joined, others_with(joined, COORDINATOR), ShardsNotLoadedRequest())
    for name, response in responses.items():
        found += [(number, name, why) for number, why in response.shards]
    return [NotLoadedFacts(shard=number, coordinator=name, why=why) for number, name, why in sorted(found)]
