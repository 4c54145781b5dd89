"""Calls between the processes of a cluster: one process's connections to all others.

    peer = peers.get(member, ConnectionKind.PRODUCE)  # the connection that is up now; None: one is being made
    response = await peer.call(key, version, body)    # PeerLost: there will be none
    response = await peers.ask(member, AskRequest(...), timeout_s=5)
    peer = await peers.open(member, timeout_s=1)      # one for this caller alone

Connections are made on demand, three kinds to a member, and made again on demand after a break.  Pauses between
attempts double and are half random, so a process that comes back does not meet all others at once.  Every connection
begins with Hello (``core.rpc.server`` is the other side), and is pinged when it is silent.

Subscribers are notified of every connection that broke or could not be made.  A broken connection is a suspicion, not a
death: the controller judges.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol, cast

from bmq.core.aio.backoff import Backoff
from bmq.core.aio.lru import LruCache
from bmq.core.aio.standstill import Standstill
from bmq.core.aio.subscribers import Subscribers
from bmq.core.aio.tasks import report_bug
from bmq.core.descriptors import FAILURES
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.logging.fields import fields
from bmq.core.net.frames import SHARED_BYTES
from bmq.core.net.request import Buffer
from bmq.core.rpc.message import InternalRequest, R, leading_error
from bmq.core.rpc.messages.member import PingRequest, PingResponse, Unregistered
from bmq.core.rpc.name_lookup import LookupFailed, look_up
from bmq.core.rpc.peer import (
    ClosedAtOnce,
    ConnectionKind,
    Evidence,
    NotAccepted,
    NotShown,
    Peer,
    PeerBusy,
    PeerLost,
    PeerSettings,
)
from bmq.core.security.internal_tls import InternalTls
from bmq.core.security.shared_secret import NO_SECRET, SharedSecret

__all__ = [
    "PROTOCOL",
    "Evidence",
    "ConnectionKind",
    "ClosedAtOnce",
    "MemberLike",
    "NotAccepted",
    "Peer",
    "PeerBusy",
    "PeerLost",
    "PeerSettings",
    "Peers",
    "accepted",
    "ask_peer",
]

PROTOCOL = (1, 1)
"""The versions of the internal protocol that this process speaks, least and most."""
PAUSE_S = Backoff(0.05, 2.0)
"""Pause before a connection that broke, or could not be made, is tried again."""
WANTED_S = 30.0
"""Seconds without demand after which a connection is not tried any more, until the next demand."""
FORGOTTEN_MAX = 10_000
"""Former members that are remembered as such, at most."""
_log = logging.getLogger(__name__)
_VERSION = 0
_NOT_A_MEMBER = "it is not a member any more"


class Host(Protocol):
    """The address of a process."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...


class MemberLike(Protocol):
    """The part of a member that a connection to it needs (``meta.cluster.member``)."""

    @property
    def incarnation(self) -> str: ...

    @property
    def internal(self) -> Host: ...

    @property
    def has_tls(self) -> bool: ...


Broken = Callable[[str, str], None]


class Callee(Protocol):
    """The other side of calls."""

    @property
    def incarnation(self) -> str: ...

    def call(self, api_key: int, api_version: int, body: Sequence[Buffer]) -> Awaitable[memoryview]: ...


class Here(Protocol):
    """The other side of a process's requests to itself (``core.rpc.server.InternalEndpoint``)."""

    async def ask(self, request: InternalRequest[R]) -> R:
        """Return the response.  Raises RequestError with its error, or PeerLost."""
        ...


async def ask_peer(peer: Callee, request: InternalRequest[R]) -> R:
    """Send ``request`` and return the response to it.

    Raises RequestError if the response carries an error, PeerLost if there is none.
    """
    body = await peer.call(request.KEY, _VERSION, request.encode())
    try:
        response = request.RESPONSE.decode(body)
    except FormatError as error:
        code = leading_error(body)
        if code is not ErrorCode.NONE:  # of an API that the other side does not serve, nothing follows
            raise RequestError(code, f"{peer.incarnation} does not serve API {request.KEY}") from None
        _log.warning(
            "a process sent a response that cannot be decoded, to API %d: the request counts as lost, and its caller"
            " tries again or fails",
            request.KEY,
            extra=fields(member=peer.incarnation, error=error),
        )
        raise PeerLost(f"{peer.incarnation}: {error}", was_sent=True) from None
    return accepted(cast("R", response), peer.incarnation)


def accepted(response: R, incarnation: str) -> R:
    """Return a response of ``incarnation``.  Raises RequestError if it carries an error."""
    if response.error is not ErrorCode.NONE:
        raise RequestError(response.error, getattr(response, "message", "") or f"as {incarnation} says")
    return response


async def _connect(make: Callable[[], Peer], addresses: Sequence[str], host: Host, tls: InternalTls | None) -> Peer:
    """Return a connection to the first address that accepts one.  Raises OSError, the last address's, if none does."""
    loop = asyncio.get_running_loop()
    secured: dict[str, Any] = {} if tls is None else {"ssl": tls.callers_context, "server_hostname": host.host}
    for address in addresses[:-1]:
        with contextlib.suppress(OSError):
            return (await loop.create_connection(make, address, host.port, **secured))[1]
    return (await loop.create_connection(make, addresses[-1], host.port, **secured))[1]


def _evidence_of(error: Exception) -> Evidence:
    """Return the evidence of a failed attempt to connect."""
    if FAILURES.note(error) or isinstance(error, LookupFailed):
        return Evidence.NONE
    if isinstance(error, ssl.SSLError):
        return Evidence.LIFE  # as of a secret: nobody is to be declared dead for a certificate
    return Evidence.REFUSED if isinstance(error, ConnectionRefusedError) else Evidence.SILENCE


class _Link:
    """The connection of one kind to one member: up, being made, or neither until there is demand."""

    __slots__ = ("failures", "kind", "member", "not_before", "peer", "since", "task", "waiters", "wanted", "why")

    def __init__(self, member: MemberLike, kind: ConnectionKind) -> None:
        self.member = member
        self.kind = kind
        self.peer: Peer | None = None
        self.task: asyncio.Task[None] | None = None  # makes the connection
        self.waiters: list[asyncio.Future[Peer]] = []
        self.wanted = 0.0  # time of the last demand
        self.since = 0.0  # time when it came up
        self.failures = 0  # one after another
        self.not_before = 0.0
        self.why = "no connection yet"

    def failed(self, now: float, why: str) -> None:
        self.why = why
        self.failures += 1
        self.not_before = now + PAUSE_S.half_random(self.failures)


class Peers:
    """A process's connections to the others.  To be created in the process that uses it; ``close`` ends it."""

    def __init__(
        self,
        own: str,
        cluster: str,
        *,
        settings: PeerSettings | None = None,
        protocols: tuple[int, int] = PROTOCOL,
        here: Here | None = None,
        secret: SharedSecret = NO_SECRET,
        tls: InternalTls | None = None,
        standstill: Standstill | None = None,
    ) -> None:
        """Create no connection yet.  ``here`` serves what this process asks itself.  ``standstill``: see ``Peer``."""
        self._standstill = standstill
        self._tls = tls
        self._own = own
        self._here = here
        self._cluster = cluster
        self._settings = settings or PeerSettings()
        self._protocols = protocols
        self._secret = secret
        self._shared = memoryview(bytearray(SHARED_BYTES))
        self._links: dict[tuple[str, ConnectionKind], _Link] = {}
        self._apart: dict[Peer, MemberLike] = {}  # connections from ``open``
        self._forgotten: LruCache[str, None] = LruCache(FORGOTTEN_MAX)
        self._ending: dict[asyncio.Task[None], None] = {}
        self._subscribers = Subscribers[str, str]()
        self._on_unregistered = Subscribers[Unregistered]()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        up = sum(link.peer is not None for link in self._links.values())
        return f"<Peers of {self._own} links={len(self._links)} up={up}>"

    # ------------------------------------------------------------------------------------------------- connections

    @property
    def connected(self) -> int:
        """Number of members to which a connection of any kind is up."""
        return len({incarnation for (incarnation, _), link in self._links.items() if link.peer is not None})

    def get(self, member: MemberLike, kind: ConnectionKind) -> Peer | None:
        """Return the connection that is up now; None if there is none, and then one is being made."""
        link = self._links.get((member.incarnation, kind))
        if link is not None and link.peer is not None:
            return link.peer
        self._want(member, kind)
        return None

    async def reach(self, member: MemberLike, kind: ConnectionKind, timeout_s: float) -> Peer:
        """Return the connection once it is up.

        Raises PeerLost, of which nothing was sent, if it is not up within ``timeout_s`` seconds.
        """
        link = self._want(member, kind)
        if link is None:
            raise PeerLost(f"{member.incarnation}: {_NOT_A_MEMBER}", was_sent=False)
        if link.peer is not None:
            return link.peer
        waiter: asyncio.Future[Peer] = asyncio.get_running_loop().create_future()
        link.waiters.append(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                return await waiter
        except TimeoutError:
            raise PeerLost(f"{member.incarnation}: {link.why}", was_sent=False) from None
        finally:
            link.waiters.remove(waiter)

    async def ask(self, member: MemberLike, request: InternalRequest[R], timeout_s: float) -> R:
        """Return the response to ``request``: on the control connection, or from this process itself.

        Raises RequestError if it carries an error, PeerLost if there is none, TimeoutError if it was sent and there is
        no response within ``timeout_s`` seconds.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        if self._here is not None and member.incarnation == self._own:
            async with asyncio.timeout_at(deadline):
                return await self._here.ask(request)
        peer = await self.reach(member, ConnectionKind.CONTROL, timeout_s)
        async with asyncio.timeout_at(deadline):
            return await ask_peer(peer, request)

    async def open(self, member: MemberLike, timeout_s: float) -> Peer:
        """Open a connection for the caller alone, beside the others: tried once, pinged, and the caller's to close.

        Raises PeerLost if it is not up within ``timeout_s`` seconds.
        """
        peer = await self._open(member, ConnectionKind.CONTROL, timeout_s)
        if self._is_closed or member.incarnation in self._forgotten:
            peer.close()
            raise PeerLost(f"{member.incarnation}: {_NOT_A_MEMBER}", was_sent=False)
        self._apart[peer] = member
        peer.on_lost(lambda: self._went(peer))
        if self._timer is None:
            self._start_timer()
        return peer

    def _went(self, peer: Peer) -> None:
        self._apart.pop(peer, None)

    async def probe(self, member: MemberLike, timeout_s: float) -> PingResponse:
        """Ping a member on a new connection, independent of the others, once.  Return the response.

        Raises PeerLost, with its evidence, if nothing listens there, another process does, it refuses this process, or
        it does not respond within ``timeout_s`` seconds.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        peer = await self._open(member, ConnectionKind.CONTROL, timeout_s)
        try:
            async with asyncio.timeout_at(deadline):
                return PingResponse.decode(await peer.call(PingRequest.KEY, _VERSION, PingRequest().encode()))
        except TimeoutError:
            raise PeerLost(f"{member.incarnation}: no response to a ping", was_sent=True) from None
        except FormatError as error:  # of a process that has accepted Hello
            raise PeerLost(f"{member.incarnation}: {error}", was_sent=True, evidence=Evidence.LIFE) from None
        finally:
            peer.close()

    def subscribe_broken(self, call: Broken) -> Callable[[], None]:
        """Call ``call(incarnation, why)`` when a connection breaks or cannot be made.

        Return a function that unsubscribes it.
        """
        return self._subscribers.add(call)

    def subscribe_unregistered(self, call: Callable[[Unregistered], None]) -> Callable[[], None]:
        """Call ``call`` when a member refuses a connection because the store has no member key of this process.

        Return a function that unsubscribes it.
        """
        return self._on_unregistered.add(call)

    async def greet(self, member: MemberLike, timeout_s: float) -> None:
        """Say Hello on a connection that is closed afterwards.

        If the member finds this process unregistered, the subscribers are notified.  Raises PeerLost if the member
        refuses, or does not respond within ``timeout_s`` seconds.
        """
        peer = await self._open(member, ConnectionKind.CONTROL, timeout_s)
        peer.close()

    def forget(self, incarnation: str) -> None:
        """Close the connections to a former member, and make none until ``welcome``.  Idempotent."""
        self._forgotten.put(incarnation, None)
        for kind in ConnectionKind:
            link = self._links.pop((incarnation, kind), None)
            if link is not None:
                self._end(link)
        for peer in [peer for peer in self._apart if peer.incarnation == incarnation]:
            peer.close()
        if not self._links and not self._apart:
            self._stop_timer()

    def welcome(self, member: MemberLike) -> None:
        """Admit a member, maybe again, if it was declared dead and has joined again.  Idempotent.

        Connections go to its present address from now on: a process joins before it listens, so one that was wanted
        early was being made to nowhere.
        """
        self._forgotten.pop(member.incarnation)
        for kind in ConnectionKind:
            link = self._links.get((member.incarnation, kind))
            if link is not None:
                link.member = member

    async def close(self) -> None:
        """Close all connections.  Idempotent."""
        self._is_closed = True
        links = list(self._links.values())
        self._links.clear()
        self._stop_timer()
        for link in links:
            self._end(link)
        for peer in list(self._apart):
            peer.close()
        if self._ending:
            await asyncio.wait(self._ending)

    # -------------------------------------------------------------------------------------------- making connections

    def _want(self, member: MemberLike, kind: ConnectionKind) -> _Link | None:
        """Note the demand for a connection.  Return its link, None if there must be none."""
        if self._is_closed or member.incarnation in self._forgotten:
            return None
        key = (member.incarnation, kind)
        link = self._links.get(key)
        if link is None:
            link = self._links[key] = _Link(member, kind)
        link.member = member
        loop = asyncio.get_running_loop()
        link.wanted = loop.time()
        if link.peer is None and link.task is None:
            link.task = loop.create_task(self._make(link))
            link.task.add_done_callback(partial(self._made, link))
        if self._timer is None:
            self._start_timer()
        return link

    async def _make(self, link: _Link) -> None:
        """Try until the connection is up, or there is no demand any more."""
        loop = asyncio.get_running_loop()
        while link.waiters or loop.time() - link.wanted <= WANTED_S:
            await asyncio.sleep(link.not_before - loop.time())
            try:
                peer = await self._open(link.member, link.kind, self._settings.connect_timeout_s)
            except PeerLost as error:
                link.failed(loop.time(), str(error))
                self._notify(link, str(error))
                continue
            self._came_up(link, peer, loop.time())
            return

    def _made(self, link: _Link, task: asyncio.Task[None]) -> None:
        link.task = None
        report_bug(task, f"connecting to {link.member.incarnation} failed")

    async def _open(self, member: MemberLike, kind: ConnectionKind, timeout_s: float) -> Peer:
        """Return a connection on which both sides have said Hello.  Raises PeerLost, NotAccepted among them."""
        where = f"{member.incarnation} at {member.internal.host}:{member.internal.port}"
        make = partial(
            Peer, self._own, member.incarnation, kind, self._settings, self._shared, standstill=self._standstill
        )
        peer: Peer | None = None
        kind_of_loss: type[PeerLost] = PeerLost
        evidence = Evidence.NONE  # whatever fails before the peer's address is known
        try:
            async with asyncio.timeout(timeout_s):
                addresses = await look_up(member.internal.host, member.internal.port)
                evidence = Evidence.SILENCE
                tls = self._tls if self._tls is not None and (self._tls.is_required or member.has_tls) else None
                peer = await _connect(make, addresses, member.internal, tls)
                await peer.hello(self._cluster, self._own, self._protocols, self._secret)
                return peer
        except TimeoutError:
            is_found = evidence is not Evidence.NONE
            why = f"{where} " + ("does not answer" if is_found else "is not looked up") + f" in {timeout_s:g} s"
        except (OSError, PeerLost, FormatError) as error:
            evidence = _evidence_of(error)
            why = f"{where}: {error}"
            if isinstance(error, ssl.SSLError) or (peer is not None and peer.is_refused_by_tls):
                evidence, kind_of_loss = Evidence.LIFE, NotAccepted
            elif isinstance(error, ConnectionResetError) if peer is None else peer.is_lost and not peer.has_received:
                kind_of_loss = ClosedAtOnce
                why = f"{where}: {str(error) or 'it has closed the connection'}"
        except RequestError as error:
            why = f"{where} refuses: {error}"
            assert peer is not None, "a connected process refuses"
            is_there = peer.refused_by == member.incarnation and error.code is not ErrorCode.INCONSISTENT_CLUSTER_ID
            evidence = Evidence.LIFE if is_there else Evidence.REPLACED
            if error.code is ErrorCode.SASL_AUTHENTICATION_FAILED:
                kind_of_loss = NotAccepted
            if peer.unregistered is not None:
                self._on_unregistered.notify(peer.unregistered)
        except NotShown as error:
            evidence = Evidence.LIFE  # as its own refusal: nobody is to declare it dead for the lack of a secret
            why = f"{where}: {error}"
            kind_of_loss = NotAccepted
        finally:
            if peer is not None and not peer.is_up:
                peer.close()
        raise kind_of_loss(why, was_sent=False, evidence=evidence)

    def _came_up(self, link: _Link, peer: Peer, now: float) -> None:
        _log.info("connected to a member (%s)", peer.kind.value, extra=fields(member=peer.incarnation))
        link.peer, link.since = peer, now
        peer.on_lost(partial(self._lost, link, peer))
        for waiter in link.waiters:
            if not waiter.done():
                waiter.set_result(peer)

    def _lost(self, link: _Link, peer: Peer) -> None:
        link.peer = None
        if peer.was_closed:
            return
        now = asyncio.get_running_loop().time()
        if now - link.since > PAUSE_S.most:
            link.failures = 0
            link.why = peer.why
        else:  # one that breaks as soon as it is made counts as one that cannot be made
            link.failed(now, peer.why)
        self._notify(link, peer.why)

    def _notify(self, link: _Link, why: str) -> None:
        """Log the first failure of a row, and notify the subscribers of each."""
        if link.failures <= 1:
            _log.warning(
                "no connection to a member (%s)",
                link.kind.value,
                extra=fields(member=link.member.incarnation, error=why),
            )
        self._subscribers.notify(link.member.incarnation, why)

    def _end(self, link: _Link) -> None:
        if link.task is not None:
            self._ending[link.task] = None
            link.task.add_done_callback(self._ended)
            link.task.cancel()
        for waiter in link.waiters:
            if not waiter.done():
                error = PeerLost(f"{link.member.incarnation}: {_NOT_A_MEMBER}", was_sent=False)
                waiter.set_exception(error)
        if link.peer is not None:
            link.peer.close()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._ending.pop(task, None)

    # ---------------------------------------------------------------------------------------------------- the timer

    def _start_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._settings.ping_s / 4, self._tick)

    def _tick(self) -> None:
        self._start_timer()
        now = asyncio.get_running_loop().time()
        links = [(link.peer, link.member) for link in self._links.values() if link.peer is not None]
        peers = [*links, *self._apart.items()]
        alive: dict[str, float] = {}
        for peer, _ in peers:
            alive[peer.incarnation] = max(alive.get(peer.incarnation, 0.0), peer.alive_at)
        for peer, member in peers:
            if peer.is_busy:
                self._vouch(peer, member, alive[peer.incarnation], now)
            peer.tick(now)

    def _vouch(self, peer: Peer, member: MemberLike, alive_at: float, now: float) -> None:
        """Let other connections to the same process vouch for a busy one.

        A busy process reads no more from a connection of which it holds many bytes already.  It responds on the control
        connection, which is made for this purpose if there is none.
        """
        peer.vouch(alive_at)
        if now - peer.alive_at >= self._settings.ping_s / 2:
            self._want(member, ConnectionKind.CONTROL)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
