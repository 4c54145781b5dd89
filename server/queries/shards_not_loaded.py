"""Shards of the whole cluster that are not loaded, from the report of each coordinator."""

from __future__ import annotations

from bmq.console.operations import NotLoadedFacts
from bmq.core.rpc.messages.coordinator import ShardsNotLoadedRequest
from bmq.meta.cluster.member import COORDINATOR
from bmq.meta.shard_kinds import shard_of_code
from bmq.server.cluster_member import ClusterMember
from bmq.server.queries.member_queries import ask_members, others_with
from bmq.server.roles.coordinator import CoordinatorRole


async def shards_not_loaded(joined: ClusterMember, coordinator: CoordinatorRole | None) -> list[NotLoadedFacts]:
    """Return the shards that are not loaded, by kind and number.

    ``coordinator`` is the role of this process; None without it.

    A coordinator that does not respond is left out: its state shows it, and the groups that are missing.
    """
    own = coordinator.shards_not_loaded() if coordinator is not None else {}
    found = [(shard, joined.view.own, why) for shard, why in own.items()]
    responses = await ask_members(joined, others_with(joined, COORDINATOR), ShardsNotLoadedRequest())
    for name, response in responses.items():
        known = ((shard_of_code(code), why) for code, why in response.shards)
        found += [(shard, name, why) for shard, why in known if shard is not None]
    return [
        NotLoadedFacts(kind=shard.kind.name, shard=shard.number, coordinator=name, why=why)
        for shard, name, why in sorted(found)
    ]
