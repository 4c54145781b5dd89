"""A question to some members before a process joins: do they accept its secret and certificate, and it theirs?

A process that joins without them is a member that nobody can call: it would get partitions, and might lead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from bmq.core.config import ConfigError
from bmq.core.rpc.peers import ClosedAtOnce, NotAccepted, PeerLost, Peers
from bmq.meta.cluster.member import Member

ASKED_MAX = 3
"""Members that are asked: some may have just died."""
TRIES = 3
"""Connections that a member closes without a response before it counts as a member that speaks TLS, or does not."""
PAUSE_S = 0.2
TIMEOUT_S = 1.0
"""A member that lives answers in milliseconds, and the start waits for this."""


async def check_secret(peers: Peers, members: Iterable[Member]) -> None:
    """Ask up to three of ``members`` at once, on connections of their own, for a second at most.

    Raises ConfigError if one of them and this process do not accept each other's secret or certificate.  A member that
    does not respond has no say: the cluster may be starting as a whole.
    """
    asked = [member for member in members if member.internal.port][:ASKED_MAX]
    refusals = await asyncio.gather(*(_refusal(peers, member) for member in asked))
    for refusal in filter(None, refusals):
        raise ConfigError(
            f"internal.secret or internal.ssl: this process and a member do not accept each other: {refusal}"
        )


async def _refusal(peers: Peers, member: Member) -> str:
    closed = ""
    for _ in range(TRIES):
        try:
            await peers.greet(member, TIMEOUT_S)
        except NotAccepted as refused:
            return str(refused)
        except ClosedAtOnce as error:
            closed = str(error)
            await asyncio.sleep(PAUSE_S)
            continue
        except PeerLost:
            return ""  # it has ended, or does not know this process yet: neither says anything of the secret
        return ""
    return (
        f"{closed}, without a response: one of both may speak TLS (internal.ssl.keystore.location), and the other not"
    )
