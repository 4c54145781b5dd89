"""One connection to a member, made and made again as long as somebody wants it.

Where it cannot be made, a way through another process takes its place (``proxy.relay.pool``), while the direct one
is tried on and on.  When that has stood for ``RETURN_S`` it is used again.  Whoever uses the link hears "down" and "up"
at each change, so that what is under way on one way is answered before anything goes another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bmq.core.rpc.peers import Kind, PeerLost, Peers
from bmq.meta.cluster.member import Member
from bmq.proxy.relay.pool import RELAY_AFTER_S, RelayPool
from bmq.proxy.relay.relayed_connection import Connection, RelayedConnection

CONNECT_S = 5.0
RETRY_S = 0.1
"""Between tries to connect, beside the back-off of ``Peers``."""
RETURN_S = 1.0
SPOILED_MAX_S = 5.0
"""Where what arrives cannot be read, connecting again is put off, longer each time up to this."""
SPOILED_S = 30.0
"""One that was good for so long is no repetition of that."""


class BrokerLink:
    """``is_wanted`` is asked before each try; ``on_up`` and ``on_down`` are called in turns, ``on_up`` first.

    In ``on_down`` the link still is what it was, and what was handed over before may be called yet.
    """

    def __init__(
        self,
        peers: Peers,
        member: Member,
        kind: Kind,
        *,
        is_wanted: Callable[[], bool],
        on_up: Callable[[], None],
        on_down: Callable[[], None],
        relays: RelayPool | None = None,
    ) -> None:
        self.member = member
        self.kind = kind
        self.peer: Connection | None = None
        self._peers = peers
        self._relays = relays
        self._is_wanted = is_wanted
        self._on_up = on_up
        self._on_down = on_down
        self._forget: Callable[[], None] | None = None
        self._connecting: asyncio.Task[None] | None = None  # as long as there is no direct one
        self._is_shut = False
        self._since = 0.0  # when it came up
        self._spoiled = 0  # one after another
        self._not_before = 0.0

    def __repr__(self) -> str:
        state = "down" if self.peer is None else "up" if self.is_direct else "relayed"
        return f"<Link {self.kind.name} to {self.member.incarnation} {state}>"

    @property
    def is_direct(self) -> bool:
        """It is up, and through nobody else."""
        return self.peer is not None and not isinstance(self.peer, RelayedConnection)

    def want(self) -> None:
        """See that there will be a connection, now if there is one already."""
        if self.peer is not None or self._connecting is not None or self._is_shut:
            return  # a relayed one has its task as long as it stands
        peer = self._peers.get(self.member, self.kind)
        if peer is not None and asyncio.get_running_loop().time() >= self._not_before:
            self._up(peer)
        else:
            self._begin()

    def spoil(self) -> None:
        """What arrives cannot be read: another connection may do better, though not at once."""
        now = asyncio.get_running_loop().time()
        if now - self._since > SPOILED_S:
            self._spoiled = 0
        self._not_before = now + min(RETRY_S * 2.0**self._spoiled, SPOILED_MAX_S)
        self._spoiled = min(self._spoiled + 1, 16)
        if self.peer is not None:
            self.peer.close()

    def shut(self) -> None:
        """The member has gone, or we end."""
        self._is_shut = True
        if self._connecting is not None:
            self._connecting.cancel()
        way = self.peer
        if way is not None:
            self._down()
        if isinstance(way, RelayedConnection):
            way.close()

    async def close(self) -> None:
        """``shut``, and until that is done."""
        self.shut()
        if self._connecting is not None:
            await asyncio.wait([self._connecting])

    # -------------------------------------------------------------------------------------------------- connecting

    def _begin(self) -> None:
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        try:
            while self._is_wanted():
                await asyncio.sleep(self._not_before - asyncio.get_running_loop().time())
                if await self._go_direct():
                    return
                if self.peer is None and self._relays is not None:
                    await self._go_round(self._relays)
                else:
                    await asyncio.sleep(RETRY_S)
        finally:
            self._connecting = None
        relayed = self.peer
        if isinstance(relayed, RelayedConnection):  # nobody wants it now, and nobody would look for the direct one
            self._down()
            relayed.retire()

    async def _go_direct(self) -> bool:
        """Whether it is up at last."""
        try:
            patience_s = CONNECT_S if self._relays is None else RELAY_AFTER_S
            peer = await self._peers.reach(self.member, self.kind, patience_s)
        except PeerLost:
            return False
        if self.peer is not None:
            await asyncio.sleep(RETURN_S)
        if not peer.is_up:  # it was lost before our turn came
            return False
        relayed = self.peer
        if isinstance(relayed, RelayedConnection):
            self._down()
            relayed.retire()
        self._up(peer)
        return True

    async def _go_round(self, relays: RelayPool) -> None:
        """Through another process, if one can help now."""
        way = await relays.open(self.member)
        if way is None:
            await asyncio.sleep(RETRY_S)
        elif self._peers.get(self.member, self.kind) is not None or not way.is_up:
            way.close()
        else:
            self._up(way)

    def _up(self, peer: Connection) -> None:
        self.peer = peer
        self._since = asyncio.get_running_loop().time()
        self._forget = peer.on_lost(self._lost)
        self._on_up()

    def _lost(self) -> None:
        self._down()
        if self._is_wanted() and not self._is_shut and self._connecting is None:
            self._begin()

    def _down(self) -> None:
        assert self._forget is not None
        self._forget()
        self._forget = None
        self._on_down()
        self.peer = None
