"""A question to some members before a process joins: do they and this process accept each other's secret?

A process that joins without it is a member that nobody can call: it would get partitions, and might lead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from bmq.core.config import ConfigError
from bmq.core.rpc.peers import PeerLost, Peers, SecretRefused
from bmq.meta.cluster.member import Member

ASKED_MAX = 3
"""Members that are asked: some may have just died."""
TIMEOUT_S = 1.0
"""A member that lives answers in milliseconds, and the start waits for this."""


async def check_secret(peers: Peers, members: Iterable[Member]) -> None:
    """Ask up to three of `members` at once, on connections of their own, for a second at most.

    Raises ConfigError if one of them does not accept this process's secret, or does not have it itself.  One that does
    not answer has no say: the cluster may be starting as a whole.
    """
    asked = [member for member in members if member.internal.port][:ASKED_MAX]
    refusals = await asyncio.gather(*(_refusal(peers, member) for member in asked))
    for refusal in filter(None, refusals):
        raise ConfigError(f"internal.secret: this process and a member do not accept each other: {refusal}")


async def _refusal(peers: Peers, member: Member) -> str:
    try:
        await peers.greet(member, TIMEOUT_S)
    except SecretRefused as refused:
        return str(refused)
    except PeerLost:
        return ""  # it has ended, or does not know this process yet: neither says anything of the secret
    return ""
