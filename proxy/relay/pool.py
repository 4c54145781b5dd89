"""Connections through other processes (relays) to members that this one does not reach: ``CONNECTIONS_MAX`` at most.

They bridge the time until the direct connection is up again, or the controller has moved the member's partitions.
Meanwhile the direct connection is tried again and again, and ``proxy.reachability`` reports the member as before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Set

from bmq.core.aio.tasks import cancel_and_wait
from bmq.core.logging.fields import fields
from bmq.core.rpc.message import InternalRequest, R
from bmq.core.rpc.peers import ConnectionKind, PeerLost, Peers, ask_peer
from bmq.meta.cluster.member import Member
from bmq.meta.cluster.view import ClusterView
from bmq.meta.kv import KvError
from bmq.proxy.relay.relayed_connection import Connection, RelayedConnection, open_relayed
from bmq.proxy.relay.selection import RelayChoice

CONNECTIONS_MAX = 48
"""Relayed connections of this process at once."""
RELAY_AFTER_S = 0.5
"""Time to wait for the direct connection before a relay is used."""
OPEN_S = 1.5
"""Time-out of opening a relayed connection."""
LISTED_S = 5.0
"""Age from which the other proxies' lists of unreachable members are read again before they are used."""
READ_S = 0.5
"""Time-out of reading these lists."""
_log = logging.getLogger(__name__)
Unreachable = Mapping[str, Set[str]]


class RelayPool:
    """The relayed connections of one process.

    ``read_unreachable`` returns, for each proxy, the members that it does not reach (``read_unreachable`` of
    ``proxy.reachability.unreachable_brokers``).
    """

    def __init__(
        self, view: ClusterView, peers: Peers, zone: str, read_unreachable: Callable[[], Awaitable[Unreachable]]
    ) -> None:
        self._view = view
        self._peers = peers
        self._read_unreachable = read_unreachable
        self._choice = RelayChoice(view.own, zone)
        self._unreachable: Unreachable = {}
        self._read_at = -LISTED_S
        self._relayed: dict[RelayedConnection, None] = {}  # until they are closed
        self._opening = 0
        self._is_closed = False
        self._controls: dict[str, RelayedConnection] = {}  # for queries
        self._seeking: dict[str, asyncio.Task[RelayedConnection | None]] = {}  # one for all callers of `ask`

    def __repr__(self) -> str:
        return f"<RelayPool {len(self._relayed)} connections, {self._opening} being opened>"

    def __len__(self) -> int:
        """Return the number of relayed connections."""
        return len(self._relayed)

    async def close(self) -> None:
        """Close all relayed connections, and open no more.  Idempotent."""
        self._is_closed = True
        await cancel_and_wait(*self._seeking.values())
        for relayed in tuple(self._relayed):
            relayed.close()

    def forget(self, incarnation: str) -> None:
        """Close the relayed connections to a process that is not a member any more."""
        self._choice.forget(incarnation)
        for relayed in [relayed for relayed in self._relayed if relayed.incarnation == incarnation]:
            relayed.close()

    async def open(self, member: Member) -> RelayedConnection | None:
        """Open a relayed connection for the caller alone, through the relay that ``RelayChoice`` picks.

        Returns None if there is no relay, if it does not reach the member either, or if CONNECTIONS_MAX is reached.
        """
        if self._is_closed or len(self._relayed) + self._opening >= CONNECTIONS_MAX:
            return None
        self._opening += 1
        try:
            await self._read()
            loop = asyncio.get_running_loop()
            via = self._choice.pick(member.incarnation, self._view.members.values(), self._unreachable, loop.time())
            if via is None:
                return None
            try:
                relayed = await open_relayed(self._peers, member, via, OPEN_S)
            except PeerLost as error:
                _log.info(
                    "a member cannot be reached through %s either",
                    via.incarnation,
                    extra=fields(member=member.incarnation, error=error),
                )
                self._choice.failed(member.incarnation, via.incarnation, loop.time())
                return None
        finally:
            self._opening -= 1
        if self._is_closed or member.incarnation not in self._view.members:
            relayed.close()
            return None
        _log.warning(
            "a member is reached through %s only: there is no direct connection to it",
            via.incarnation,
            extra=fields(member=member.incarnation),
        )
        self._choice.helped(member.incarnation)
        self._relayed[relayed] = None
        relayed.on_closed = lambda: self._closed(relayed)
        relayed.on_lost(lambda: self._lost(relayed))
        return relayed

    def _closed(self, relayed: RelayedConnection) -> None:
        self._relayed.pop(relayed, None)

    def _lost(self, relayed: RelayedConnection) -> None:
        if self._controls.get(relayed.incarnation) is relayed:
            del self._controls[relayed.incarnation]
        if not relayed.was_closed:
            self._choice.failed(relayed.incarnation, relayed.via, asyncio.get_running_loop().time())

    async def _read(self) -> None:
        """Read the other proxies' lists of unreachable members, unless they were read less than LISTED_S ago.

        They only save time: a relay that does not reach the member refuses.
        """
        loop = asyncio.get_running_loop()
        if loop.time() - self._read_at < LISTED_S:
            return
        self._read_at = loop.time()
        try:
            async with asyncio.timeout(READ_S):
                self._unreachable = await self._read_unreachable()
        except (KvError, TimeoutError) as error:
            _log.info(
                "the lists of unreachable members cannot be read: a relay is chosen without them",
                extra=fields(error=str(error) or "the store does not respond"),
            )
            self._unreachable = {}

    # ---------------------------------------------------------------------------------------------------------- queries

    async def ask(self, member: Member, request: InternalRequest[R], timeout_s: float) -> R:
        """Send a query to ``member``, directly or through a relay, and return its response.  See ``Peers.ask``.

        Queries have no order.  Raises PeerLost or TimeoutError.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        callee: Connection | None = self._peers.get(member, ConnectionKind.CONTROL)
        relayed = self._controls.get(member.incarnation)
        if callee is not None and relayed is not None:
            del self._controls[member.incarnation]
            relayed.retire()
        callee = callee or relayed or await self._reach(member, deadline)
        async with asyncio.timeout_at(deadline):
            return await ask_peer(callee, request)

    async def _reach(self, member: Member, deadline: float) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            return await self._peers.reach(
                member, ConnectionKind.CONTROL, max(0.0, min(RELAY_AFTER_S, deadline - loop.time()))
            )
        except PeerLost:
            task = self._seeking.get(member.incarnation)
            if task is None:
                task = self._seeking[member.incarnation] = loop.create_task(self._seek(member))
                task.add_done_callback(lambda _: self._seeking.pop(member.incarnation))
            await asyncio.wait((task,), timeout=max(0.0, deadline - loop.time()))
            relayed = task.result() if task.done() and not task.cancelled() else None
            if relayed is None or not relayed.is_up:
                raise
            return relayed

    async def _seek(self, member: Member) -> RelayedConnection | None:
        relayed = await self.open(member)
        if relayed is not None and relayed.is_up:
            self._controls[member.incarnation] = relayed
        return relayed

    def sweep(self) -> None:
        """Retire the relayed connections for queries to members whose direct connection is up again."""
        for incarnation, relayed in tuple(self._controls.items()):
            member = self._view.members.get(incarnation)
            if member is not None and self._peers.get(member, ConnectionKind.CONTROL) is not None:
                del self._controls[incarnation]
                relayed.retire()
