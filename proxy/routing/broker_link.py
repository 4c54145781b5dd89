"""One connection to a member, opened again and again for as long as it is wanted.

While it cannot be opened, a relayed connection takes its place (``proxy.relay.pool``), and the direct one is tried
again and again.  Once the direct one has been up for ``RETURN_S``, it is used again.  The user of the link is notified
of "down" and "up" at every change.  So it can wait for the results of a connection before it uses the next connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bmq.core.aio.backoff import Backoff
from bmq.core.aio.subscribers import no_op
from bmq.core.rpc.peers import ConnectionKind, PeerLost, Peers
from bmq.meta.cluster.member import Member
from bmq.proxy.relay.pool import RELAY_AFTER_S, RelayPool
from bmq.proxy.relay.relayed_connection import Connection, RelayedConnection

CONNECT_S = 5.0
"""Time-out of a try to connect, if there are no relays."""
RETRY_S = 0.1
"""Pause between tries to connect, beside the back-off of ``Peers``."""
RETURN_S = 1.0
"""Time for which a direct connection must be up before it replaces a relayed one."""
SPOILED_S = Backoff(RETRY_S, 5.0)
"""Pause before the next try after a connection brought malformed responses."""
SOUND_S = 30.0
"""Age from which a connection with malformed responses starts the count of such connections again."""


class BrokerLink:
    """A connection to ``member``, direct or relayed, that is kept up while ``is_wanted`` returns True.

    ``is_wanted`` is called before each try.  ``on_up`` and ``on_down`` are called alternately, ``on_up`` first.  During
    ``on_down``, ``peer`` still is the connection that ends, and calls on it are still possible.
    """

    def __init__(
        self,
        peers: Peers,
        member: Member,
        kind: ConnectionKind,
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
        self._forget: Callable[[], None] = no_op
        self._connecting: asyncio.Task[None] | None = None  # as long as there is no direct one
        self._is_shut = False
        self._since = 0.0  # when it came up
        self._spoiled = 0  # one after another
        self._not_before = 0.0

    def __repr__(self) -> str:
        state = "down" if self.peer is None else "up" if self.is_direct else "relayed"
        return f"<BrokerLink {self.kind.name} to {self.member.incarnation} {state}>"

    @property
    def is_direct(self) -> bool:
        """True if the link is up, and not through a relay."""
        return self.peer is not None and not isinstance(self.peer, RelayedConnection)

    def want(self) -> None:
        """Connect, now or later; use a connection that ``Peers`` has already at once."""
        if self.peer is not None or self._connecting is not None or self._is_shut:
            return  # a relayed one has its task as long as it stands
        peer = self._peers.get(self.member, self.kind)
        if peer is not None and asyncio.get_running_loop().time() >= self._not_before:
            self._up(peer)
        else:
            self._begin()

    def spoil(self) -> None:
        """Close the connection, which brought a malformed response.  The next one is opened after a pause."""
        now = asyncio.get_running_loop().time()
        self._spoiled = 1 if now - self._since > SOUND_S else self._spoiled + 1
        self._not_before = now + SPOILED_S.pause(self._spoiled)
        if self.peer is not None:
            self.peer.close()

    def shut(self) -> None:
        """Close the connection, and open no more: the member is gone, or this process ends."""
        self._is_shut = True
        if self._connecting is not None:
            self._connecting.cancel()
        peer = self.peer
        if peer is not None:
            self._down()
        if isinstance(peer, RelayedConnection):
            peer.close()

    async def close(self) -> None:
        """Shut the link, and wait until its task has ended."""
        self.shut()
        if self._connecting is not None:
            await asyncio.wait([self._connecting])

    # ------------------------------------------------------------------------------------------------------- connecting

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
        if isinstance(relayed, RelayedConnection):  # not wanted any more, and without this task it would stay relayed
            self._down()
            relayed.retire()

    async def _go_direct(self) -> bool:
        """Try the direct connection.  Return whether it is in use now."""
        try:
            patience_s = CONNECT_S if self._relays is None else RELAY_AFTER_S
            peer = await self._peers.reach(self.member, self.kind, patience_s)
        except PeerLost:
            return False
        if self.peer is not None:
            await asyncio.sleep(RETURN_S)
        if not peer.is_up:  # it was lost during the pause
            return False
        relayed = self.peer
        if isinstance(relayed, RelayedConnection):
            self._down()
            relayed.retire()
        self._up(peer)
        return True

    async def _go_round(self, relays: RelayPool) -> None:
        """Use a relayed connection, if a relay can help now."""
        relayed = await relays.open(self.member)
        if relayed is None:
            await asyncio.sleep(RETRY_S)
        elif self._peers.get(self.member, self.kind) is not None or not relayed.is_up:
            relayed.close()
        else:
            self._up(relayed)

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
        self._forget()
        self._on_down()
        self.peer = None
