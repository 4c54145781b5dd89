"""Ways through other processes to the members that this one does not reach: at most ``WAYS_MAX``.

They are for the time until the connection is up again or the controller has moved what the member has: reaching it
directly is tried all the while, and what is known and told of that (``reports``, ``unreachable``) does not change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Set

from bmq.core.logging.fields import fields
from bmq.core.rpc.message_fields import Message
from bmq.core.rpc.peers import Kind, PeerLost, Peers, R, ask_peer
from bmq.meta.cluster.member import Member
from bmq.meta.cluster.view import ClusterView
from bmq.meta.kv import KvError
from bmq.proxy.relay.relayed_connection import Connection, RelayedConnection, open_way
from bmq.proxy.relay.selection import RelayChoice

WAYS_MAX = 48
RELAY_AFTER_S = 0.5
"""So long the direct connection is waited for before another way is looked for."""
OPEN_S = 1.5
LISTED_S = 5.0
"""What other proxies say that they do not reach is read again after this, when it is needed."""
READ_S = 0.5
_log = logging.getLogger(__name__)
Unreachable = Mapping[str, Set[str]]


class RelayPool:
    """``read_unreachable`` gives, by proxy, whom it says that it does not reach."""

    def __init__(
        self, view: ClusterView, peers: Peers, zone: str, read_unreachable: Callable[[], Awaitable[Unreachable]]
    ) -> None:
        self._view = view
        self._peers = peers
        self._read_unreachable = read_unreachable
        self._choice = RelayChoice(view.own, zone)
        self._unreachable: Unreachable = {}
        self._read_at = -LISTED_S
        self._ways: dict[RelayedConnection, None] = {}  # until they are closed
        self._opening = 0
        self._is_closed = False
        self._controls: dict[str, RelayedConnection] = {}  # for questions
        self._seeking: dict[str, asyncio.Task[RelayedConnection | None]] = {}  # one for all who ask

    def __repr__(self) -> str:
        return f"<Relays {len(self._ways)} ways, {self._opening} being opened>"

    def __len__(self) -> int:
        return len(self._ways)

    async def close(self) -> None:
        """Idempotent."""
        self._is_closed = True
        tasks = list(self._seeking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for way in tuple(self._ways):
            way.close()

    def forget(self, incarnation: str) -> None:
        """It is no member any more, so nobody reaches it."""
        self._choice.forget(incarnation)
        for way in [way for way in self._ways if way.incarnation == incarnation]:
            way.close()

    async def open(self, member: Member) -> RelayedConnection | None:
        """One of its caller's own, through the next process that may help; None when it does not, or there is none."""
        if self._is_closed or len(self._ways) + self._opening >= WAYS_MAX:
            return None
        self._opening += 1
        try:
            await self._read()
            loop = asyncio.get_running_loop()
            via = self._choice.pick(member.incarnation, self._view.members.values(), self._unreachable, loop.time())
            if via is None:
                return None
            try:
                way = await open_way(self._peers, member, via, OPEN_S)
            except PeerLost as error:
                _log.info(
                    "a member is not reached through %s",
                    via.incarnation,
                    extra=fields(member=member.incarnation, error=error),
                )
                self._choice.failed(member.incarnation, via.incarnation, loop.time())
                return None
        finally:
            self._opening -= 1
        if self._is_closed or member.incarnation not in self._view.members:
            way.close()
            return None
        _log.warning("a member is reached through %s", via.incarnation, extra=fields(member=member.incarnation))
        self._choice.helped(member.incarnation)
        self._ways[way] = None
        way.on_closed = lambda: self._closed(way)
        way.on_lost(lambda: self._lost(way))
        return way

    def _closed(self, way: RelayedConnection) -> None:
        self._ways.pop(way, None)

    def _lost(self, way: RelayedConnection) -> None:
        if self._controls.get(way.incarnation) is way:
            del self._controls[way.incarnation]
        if not way.was_closed:
            self._choice.failed(way.incarnation, way.via, asyncio.get_running_loop().time())

    async def _read(self) -> None:
        """What is not known is no hindrance: a process that does not reach the member says so when it is asked."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._read_at < LISTED_S:
            return
        self._read_at = loop.time()
        try:
            async with asyncio.timeout(READ_S):
                self._unreachable = await self._read_unreachable()
        except (KvError, TimeoutError) as error:
            _log.info(
                "the lists of unreachable members cannot be read",
                extra=fields(error=str(error) or "the store does not answer"),
            )
            self._unreachable = {}

    # ---------------------------------------------------------------------------------------------------- questions

    async def ask(self, member: Member, message: Message, api_key: int, response_type: type[R], timeout_s: float) -> R:
        """As ``Peers.ask``, through another process where that is the only way.  Questions have no order."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        callee: Connection | None = self._peers.get(member, Kind.CONTROL)
        relayed = self._controls.get(member.incarnation)
        if callee is not None and relayed is not None:
            del self._controls[member.incarnation]
            relayed.retire()
        callee = callee or relayed or await self._reach(member, deadline)
        async with asyncio.timeout_at(deadline):
            return await ask_peer(callee, message, api_key, response_type)

    async def _reach(self, member: Member, deadline: float) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            return await self._peers.reach(member, Kind.CONTROL, max(0.0, min(RELAY_AFTER_S, deadline - loop.time())))
        except PeerLost:
            task = self._seeking.get(member.incarnation)
            if task is None:
                task = self._seeking[member.incarnation] = loop.create_task(self._seek(member))
                task.add_done_callback(lambda _: self._seeking.pop(member.incarnation))
            await asyncio.wait((task,), timeout=max(0.0, deadline - loop.time()))
            way = task.result() if task.done() and not task.cancelled() else None
            if way is None or not way.is_up:
                raise
            return way

    async def _seek(self, member: Member) -> RelayedConnection | None:
        way = await self.open(member)
        if way is not None and way.is_up:
            self._controls[member.incarnation] = way
        return way

    def sweep(self) -> None:
        """Give up the ways for questions where the direct connection is up again."""
        for incarnation, way in tuple(self._controls.items()):
            member = self._view.members.get(incarnation)
            if member is not None and self._peers.get(member, Kind.CONTROL) is not None:
                del self._controls[incarnation]
                way.retire()
