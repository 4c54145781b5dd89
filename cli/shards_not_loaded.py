"""The shards of the whole cluster that are not loaded: each coordinator is asked for its own."""

from __future__ import annotations

import asyncio

from bmq.cli.node import Node
from bmq.console.operations import NotLoadedFacts
from bmq.core.errors import RequestError
from bmq.core.rpc import PeerLost
from bmq.core.wire.internal import InternalKey, ShardsNotLoadedRequest, ShardsNotLoadedResponse
from bmq.meta.cluster.member import COORDINATOR, Member

ANSWER_S = 2.0
"""For one coordinator.  One that does not answer is seen elsewhere: by its state, and by its missing shards."""
PARALLEL = 16


async def shards_not_loaded(node: Node) -> list[NotLoadedFacts]:
    """Return them by number.  A process of an earlier version does not know the question, and has none to tell."""
    own = node.own_coordinator.shards_not_loaded() if node.own_coordinator is not None else {}
    found = [(number, node.view.own, why) for number, why in own.items()]
    if node.joined is not None:
        turns = asyncio.Semaphore(PARALLEL)
        others = [
            member
            for name, member in node.view.members.items()
            if name != node.view.own and member.has(COORDINATOR) and member.internal.port
        ]
        for answers in await asyncio.gather(*(_ask(node, member, turns) for member in others)):
            found += answers
    return [NotLoadedFacts(shard=number, coordinator=name, why=why) for number, name, why in sorted(found)]


async def _ask(node: Node, member: Member, turns: asyncio.Semaphore) -> list[tuple[int, str, str]]:
    assert node.joined is not None
    request, key = ShardsNotLoadedRequest(), InternalKey.SHARDS_NOT_LOADED
    async with turns:
        try:
            answer = await node.joined.peers.ask(member, request, key, ShardsNotLoadedResponse, ANSWER_S)
        except (RequestError, PeerLost, TimeoutError):
            return []
    return [(number, member.incarnation, why) for number, why in answer.shards]
