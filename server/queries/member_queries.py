"""The same request to several processes of the cluster at once, with a short time-out."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from bmq.core.errors import RequestError
from bmq.core.rpc.message import InternalRequest, R
from bmq.core.rpc.peers import PeerLost
from bmq.meta.cluster.member import Member
from bmq.server.cluster_member import ClusterMember

RESPONSE_S = 2.0
"""Time-out of the request to one process."""
PARALLEL = 16
"""Most requests at the same time."""


def others_with(joined: ClusterMember, role: str) -> list[Member]:
    """Return the other processes of the cluster that have this role and an internal address."""
    return [
        member
        for name, member in joined.view.members.items()
        if name != joined.view.own and member.has(role) and member.internal.port
    ]


async def ask_members(joined: ClusterMember, members: Collection[Member], request: InternalRequest[R]) -> dict[str, R]:
    """Return the responses by incarnation.

    Processes that do not respond in time, or are of an earlier version without the request, are left out.
    """
    turns = asyncio.Semaphore(PARALLEL)

    async def ask(member: Member) -> R | None:
        async with turns:
            try:
                return await joined.peers.ask(member, request, RESPONSE_S)
            except (RequestError, PeerLost, TimeoutError):
                return None

    responses = await asyncio.gather(*map(ask, members))
    return {member.incarnation: each for member, each in zip(members, responses, strict=True) if each is not None}
