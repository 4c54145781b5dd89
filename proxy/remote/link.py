"""One connection to a member, made and made again as long as somebody wants it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bmq.core.rpc import Kind, Peer, PeerLost, Peers
from bmq.meta.cluster.member import Member

CONNECT_S = 5.0
RETRY_S = 0.1
"""Between tries to connect, beside the back-off of ``Peers``."""


class Link:
    """``is_wanted`` is asked before each try; ``on_up`` and ``on_down`` are called in turns, ``on_up`` first."""

    def __init__(
        self,
        peers: Peers,
        member: Member,
        kind: Kind,
        *,
        is_wanted: Callable[[], bool],
        on_up: Callable[[], None],
        on_down: Callable[[], None],
    ) -> None:
        self.member = member
        self.kind = kind
        self.peer: Peer | None = None
        self._peers = peers
        self._is_wanted = is_wanted
        self._on_up = on_up
        self._on_down = on_down
        self._forget: Callable[[], None] | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._is_shut = False

    def __repr__(self) -> str:
        return f"<Link {self.kind.name} to {self.member.incarnation} {'up' if self.peer is not None else 'down'}>"

    def want(self) -> None:
        """See that there will be a connection, now if there is one already."""
        if self.peer is not None or self._connecting is not None or self._is_shut:
            return
        peer = self._peers.get(self.member, self.kind)
        if peer is not None:
            self._up(peer)
        else:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())

    def shut(self) -> None:
        """The member has gone, or we end."""
        self._is_shut = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self.peer is not None:
            self._down()

    async def close(self) -> None:
        """``shut``, and until that is done."""
        self.shut()
        if self._connecting is not None:
            await asyncio.wait([self._connecting])

    async def _connect(self) -> None:
        try:
            while self._is_wanted():
                try:
                    peer = await self._peers.reach(self.member, self.kind, CONNECT_S)
                except PeerLost:
                    await asyncio.sleep(RETRY_S)
                    continue
                if peer.is_up:  # else it was lost before our turn came
                    self._up(peer)
                    return
        finally:
            self._connecting = None

    def _up(self, peer: Peer) -> None:
        self.peer = peer
        self._forget = peer.on_lost(self._lost)
        self._on_up()

    def _lost(self) -> None:
        self._down()
        if self._is_wanted() and not self._is_shut and self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())

    def _down(self) -> None:
        assert self._forget is not None
        self._forget()
        self.peer = self._forget = None
        self._on_down()
