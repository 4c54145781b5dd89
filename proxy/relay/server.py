"""The relay: passes requests on to brokers for other processes, which do not reach them.

``proxy.relay.relayed_connection`` is the other processes' side.  A connection from there that carries RelayRequests
belongs to a single broker, and gets a connection of its own to it.  So the broker sees the same requests in the same
order as over a direct connection, and either connection ends with the other.  The first request, a Ping, opens it.
Only requests of proxies to brokers are passed on, and only over a direct connection.  A relayed ping does not prove
that any other process reaches the broker, and it is never relayed again.

The first error ends the connection: all later requests are refused, since they would overtake the failed one.  Bounds:
``CONNECTIONS_MAX`` connections, ``BYTES_MAX`` bytes of requests under way in all, and the listener's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from bmq.core.errors import ErrorCode, FormatError
from bmq.core.net.request import Buffer, Client
from bmq.core.rpc.api_keys import InternalKey
from bmq.core.rpc.messages.member import PingRequest
from bmq.core.rpc.messages.proxy import RelayRequest, RelayResponse
from bmq.core.rpc.peers import Peer, PeerLost, Peers
from bmq.core.rpc.server import InternalCall
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.fetch_client import FETCH_VERSION
from bmq.core.wire.produce_client import PRODUCE_VERSION
from bmq.meta.cluster.member import BROKER, Member
from bmq.meta.cluster.view import ClusterView

CONNECTIONS_MAX = 32
"""Connections that are relayed at once."""
BYTES_MAX = 64 << 20
"""Bytes of relayed requests under way, over all connections."""
OPEN_S = 1.0
"""Time-out of the connection to the broker; the other process waits a little longer."""
PASSED_ON = frozenset(
    {
        (ApiKey.PRODUCE, PRODUCE_VERSION),
        (ApiKey.FETCH, FETCH_VERSION),
        (InternalKey.PING, 0),
        (InternalKey.ASK, 0),
        (InternalKey.ASK_PARTITIONS, 0),
        (InternalKey.PRODUCERS, 0),
        (InternalKey.ACTIVE_SEGMENT, 0),
    }
)
"""APIs and versions that are passed on: none that ends or moves anything."""


class _Relayed:
    """One relayed connection.

    ``peer`` is None until the broker is reached; ``is_over``: no more requests are passed on.
    """

    __slots__ = ("is_over", "peer", "to")

    def __init__(self, to: str) -> None:
        self.to = to
        self.peer: Peer | None = None
        self.is_over = False

    def end(self) -> None:
        self.is_over = True
        if self.peer is not None:
            self.peer.close()


class Relay:
    """One process's relay; register ``handle`` for InternalKey.RELAY."""

    def __init__(self, view: ClusterView, peers: Peers) -> None:
        self._view = view
        self._peers = peers
        self._relayed: dict[Client, _Relayed] = {}
        self._bytes = 0

    def __repr__(self) -> str:
        return f"<Relay {len(self._relayed)} connections, {self._bytes} bytes>"

    def __len__(self) -> int:
        """Return the number of connections that are relayed."""
        return len(self._relayed)

    def close(self) -> None:
        """Close the connections to brokers, and pass nothing more on over them."""
        for relayed in self._relayed.values():
            relayed.end()

    def handle(self, body: memoryview, call: InternalCall) -> list[Buffer] | Awaitable[list[Buffer]]:
        """Pass a request on, and return its encoded response, or an awaitable of it.

        The request is handed to the broker's connection before this returns, so requests keep their order.  Raises
        FormatError, and ends the relayed connection, if ``body`` is not a RelayRequest.
        """
        relayed = self._relayed.get(call.client)
        try:
            asked = RelayRequest.decode(body)
        except FormatError:
            if relayed is not None:
                relayed.end()
            raise
        if relayed is None:
            return self._begin(asked, call.client)
        if relayed.is_over or relayed.peer is None:
            return _refusal(f"there is no connection to {relayed.to}")
        if asked.to != relayed.to or (asked.api_key, asked.api_version) not in PASSED_ON:
            relayed.end()
            return _refusal(f"API {asked.api_key} is not passed on to {asked.to}")
        size = len(body)
        if self._bytes + size > BYTES_MAX:
            relayed.end()
            return _refusal(f"{self._bytes} bytes are under way through this process")
        self._bytes += size
        return self._pass_on(relayed, size, relayed.peer.call(asked.api_key, asked.api_version, asked.body))

    def _begin(self, asked: RelayRequest, client: Client) -> list[Buffer] | Awaitable[list[Buffer]]:
        relayed = self._relayed[client] = _Relayed(asked.to)
        client.on_close(lambda: self._ended(client))
        member = self._view.members.get(asked.to)
        if asked.api_key != InternalKey.PING or asked.api_version != 0:
            reason = "a relayed connection must begin with a ping"
        elif len(self._relayed) > CONNECTIONS_MAX:
            reason = f"{CONNECTIONS_MAX} other connections are relayed through this process"
        elif member is None or not member.has(BROKER):
            reason = f"{asked.to} is not a broker of this cluster"
        elif asked.to == self._view.own:
            reason = f"{asked.to} is this process itself"
        else:
            return self._open(relayed, member)
        relayed.end()
        return _refusal(reason)

    def _ended(self, client: Client) -> None:
        self._relayed.pop(client).end()

    async def _open(self, relayed: _Relayed, member: Member) -> list[Buffer]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + OPEN_S
        try:
            peer = await self._peers.open(member, OPEN_S)
            if relayed.is_over:  # the other process has disconnected
                peer.close()
                return _refusal("too late")
            relayed.peer = peer
            async with asyncio.timeout_at(deadline):
                pong = await peer.call(InternalKey.PING, 0, PingRequest().encode())
        except (PeerLost, TimeoutError) as error:
            relayed.end()
            return _refusal(f"{member.incarnation} is not reached from here either: {str(error) or 'no response'}")
        return RelayResponse(ErrorCode.NONE, body=pong).encode()

    async def _pass_on(self, relayed: _Relayed, size: int, response: asyncio.Future[memoryview]) -> list[Buffer]:
        try:
            return RelayResponse(ErrorCode.NONE, body=await response).encode()
        except PeerLost as error:
            relayed.end()
            return _refusal(str(error), was_sent=error.was_sent)
        finally:
            self._bytes -= size


def _refusal(why: str, *, was_sent: bool = False) -> list[Buffer]:
    return RelayResponse(ErrorCode.NOT_LEADER_OR_FOLLOWER, why, was_sent).encode()
