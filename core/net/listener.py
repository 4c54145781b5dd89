"""A listening port: accepts connections, within limits, and closes idle and stuck ones.

Its parts: ``core.net.client_connection`` is the connection of a client, ``core.net.internal_connection`` the connection
of another process of the cluster. ``core.net.frames`` cuts their bytes, ``core.net.request_budget`` bounds the bytes
that all of them hold.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections.abc import Callable
from functools import partial

from bmq.core.aio.standstill import Standstill
from bmq.core.aio.subscribers import wait_for
from bmq.core.audit.event import AuditEvent, AuditOutcome, Kind
from bmq.core.audit.log import NO_AUDIT, Audit
from bmq.core.clock import SystemClock
from bmq.core.config import NodeConfig
from bmq.core.logging.fields import ConnectionFields, fields
from bmq.core.metrics.counters import PortCounters
from bmq.core.net.admission import NO_BOUNDS, NO_RATES, ConnectionBounds, ConnectionRates
from bmq.core.net.backlog import close_backlog
from bmq.core.net.client_connection import ClientConnection
from bmq.core.net.departures import Departures, Ended, ended
from bmq.core.net.frames import SHARED_BYTES
from bmq.core.net.internal_connection import SILENCE_S, UnorderedConnection
from bmq.core.net.login_budget import LIMIT_BYTES, LoginBudget
from bmq.core.net.newcomers import Newcomers
from bmq.core.net.plain_or_tls import PlainOrTls
from bmq.core.net.request import Dispatch
from bmq.core.net.request_budget import STUCK_S, RequestBudget
from bmq.core.net.strangers import Strangers
from bmq.core.net.tls_transport import PIECE_BYTES, TlsTransport
from bmq.core.security.principal import ANONYMOUS
from bmq.core.security.session import ANONYMOUS_SESSION, Session
from bmq.core.security.tls import ServerTls

__all__ = ["ClientConnection", "Listener"]

BACKLOG = 1_000
"""Connections that the kernel accepts ahead of the process: as many may come back at once after a restart."""
REFUSED_S = 1.0
"""Time after which a connection past its principal's bound is closed: the wait of a client that connects again."""
REFUSED_MAX = 100
"""Connections of a listener that wait so.  Further ones are closed at once, since they count in max.connections."""
_log = logging.getLogger(__name__)


class Listener:
    """Listening addresses and their connections, with common limits, request memory and one timer.

    ``in_order`` False is for the cluster's own processes. Their responses go out as they come, and any number of them
    may share a host. They are closed for silence (``core.net.internal_connection``) instead of idleness.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        config: NodeConfig,
        metrics: PortCounters,
        *,
        in_order: bool = True,
        is_response_room_wanted: Callable[[], bool] = lambda: False,
        strangers: Strangers | None = None,
        rates: ConnectionRates = NO_RATES,
        bounds: ConnectionBounds = NO_BOUNDS,
        audit: Audit = NO_AUDIT,
        standstill: Standstill | None = None,
        ended: Ended = ended,
    ) -> None:
        """``is_response_room_wanted`` returns whether responses wait for memory that unsent ones hold.

        ``strangers`` bounds connections until the dispatch says that they are known; without ``in_order`` only.
        ``rates`` bounds how fast connections come, ``bounds`` how many of one principal there are.
        ``audit`` gets the log-ins by certificate, and the handshakes that fail.
        ``standstill`` is looked at before each request; without one nobody watches the loop.
        ``ended`` finds the connections whose client has gone.
        """
        self._rates = rates
        self._bounds = bounds
        self._refused = 0  # connections past their principal's bound that are not closed yet
        self._strangers = strangers
        self.dispatch = dispatch
        self._is_response_room_wanted = is_response_room_wanted
        self.config = config
        self.metrics = metrics
        self.audit = audit
        self.standstill = standstill or Standstill(SystemClock())  # one that is never started finds nothing
        self._departures = Departures(ended)
        self.budget = RequestBudget(config.queued_max_request_bytes, metrics)
        self.login_budget = LoginBudget[ClientConnection](
            min(LIMIT_BYTES, config.queued_max_request_bytes // 2), metrics, self._close_before_login
        )
        self.connections: dict[ClientConnection, None] = {}  # oldest first
        self._newcomers = Newcomers[ClientConnection]()
        self._outlived: set[ClientConnection] = set()  # gone, with requests without a response that are in progress
        self.shared_buffer = memoryview(bytearray(SHARED_BYTES))
        self.cipher_buffer = memoryview(bytearray(PIECE_BYTES))
        self.now = 0.0  # the loop's time at the last tick
        self.loop: asyncio.AbstractEventLoop
        self._kind = ClientConnection if in_order else UnorderedConnection
        self._per_host_max = config.max_connections_per_ip if in_order else sys.maxsize
        self._servers: list[asyncio.Server] = []
        self._by_host: dict[str, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._idle_s = config.connections_max_idle_ms / 1000 if in_order else SILENCE_S
        self._tick_s = max(0.01, min(STUCK_S / 4, self._idle_s / 16)) if self._idle_s >= 0 else STUCK_S / 4
        self._times_shut = 0  # as the last tick saw it
        self._shut_since = 0.0  # the tick that saw this number first
        # The first and the last tick at which the gate of requests was shut, or had been since the tick before.  A new
        # first tick follows STUCK_S seconds with the gate open.
        self._shut_ticks = (-math.inf, -math.inf)
        self._is_stopping = False
        self._all_gone: asyncio.Event | None = None

    def __repr__(self) -> str:
        return f"<Listener connections={len(self.connections)} {self.budget} {self.login_budget}>"

    async def start(
        self,
        host: str,
        port: int,
        *,
        is_shared: bool = False,
        dispatch: Dispatch | None = None,
        on_open: Callable[[ClientConnection], None] | None = None,
        session: Session = ANONYMOUS_SESSION,
        tls: ServerTls | None = None,
        plain_session: Session | None = None,
    ) -> int:
        """Listen on one more address and return its port; port 0 takes a free one.

        ``is_shared``: other processes of this machine may listen there too.  ``dispatch`` handles requests that come by
        this address in place of the listener's own.  Its connections begin with ``session``, and ``on_open`` is called
        with every accepted connection.  ``tls`` secures them.  With a ``plain_session``, it secures only connections
        that speak TLS, and the others begin with the ``plain_session``.  Raises OSError if the address is not
        available.
        """
        connect = partial(self._connection, dispatch, on_open, session)
        factory: Callable[[], asyncio.BufferedProtocol] = connect
        if tls is not None:
            handshake_s = self.config.tls_handshake_ms / 1000
            factory = partial(TlsTransport, self, tls, handshake_s, connect)
            if plain_session is not None:
                plain = partial(self._connection, dispatch, on_open, plain_session)
                factory = PlainOrTls(plain, factory, handshake_s)
        server = await asyncio.get_running_loop().create_server(
            factory, host, port, backlog=BACKLOG, reuse_port=is_shared or None
        )
        self._servers.append(server)
        return _port(server)

    def _connection(
        self, dispatch: Dispatch | None, on_open: Callable[[ClientConnection], None] | None, session: Session
    ) -> ClientConnection:
        connection = self._kind(self, dispatch, on_open)
        connection.session = session
        return connection

    @property
    def port(self) -> int:
        """The port of the first address."""
        assert self._servers, "start comes first"
        return _port(self._servers[0])

    def stop_accepting(self) -> None:
        """Close the listening sockets; connections go on."""
        self._is_stopping = True
        for server in self._servers:
            server.close()

    async def drain(self, timeout_s: float) -> None:
        """Stop accepting; close connections once everything that they sent has its response.

        Requests without a response are waited for beyond their connections, too: no other process will serve them.
        After ``timeout_s`` seconds the rest are closed, and all requests given up.
        """
        self.stop_accepting()
        for connection in list(self.connections):
            connection.drain()
        if self.connections or self._outlived:
            self._all_gone = asyncio.Event()
            if not await wait_for(self._all_gone, timeout_s):
                _log.warning(
                    "%d connections, and requests of %d closed connections, did not end in %g s and are given up",
                    len(self.connections), len(self._outlived), timeout_s,
                )  # fmt: skip
        self.close()

    def close(self) -> None:
        """Close all connections at once, requests in progress or not.  Idempotent."""
        self.stop_accepting()
        for connection in (*self.connections, *self._outlived):
            connection.abandon()
        self._outlived.clear()
        self._stop_timer()

    def give_clients_up(self) -> int:
        """Close all connections at once, also those that wait to be accepted, and go on listening.

        Requests in their buffers and requests in progress are dropped; a produce that an owner has accepted goes on.
        Requests without a response go on once they have begun.  Connections whose client has closed them stay for their
        requests without a response, as after ``close_departed``: nothing outdates these.  Return the number of closed
        connections.
        """
        self.close_departed()
        accepted = [each for each in self.connections if not each.has_left]
        for connection in accepted:
            connection.close()
        listening = () if self._is_stopping else self._servers
        return len(accepted) + sum(close_backlog(sock) for server in listening for sock in server.sockets)

    def close_departed(self) -> int:
        """Close the connections whose client has closed them, whatever it sent before; return their number.

        Requests in their buffers and requests in progress are dropped, except for those without a response (acks=0).
        A produce that an owner has accepted goes on.  A connection in the backlog is treated so at its accept.
        """
        by_transport: dict[asyncio.BaseTransport, ClientConnection] = {}
        for connection in self.connections:
            by_transport[connection.transport] = connection
        departed = self._departures.find(by_transport)
        for transport in departed:
            by_transport[transport].depart()
        return len(departed)

    # --------------------------------------------------------------------------------------- events of connections

    def opened(self, connection: ClientConnection) -> float:
        """Register a connection.  Return the time of its first activity.

        If there are too many, close a connection without a session in its place, or the new connection itself.  Nobody
        loses a place to a connection that is not served: its client has gone, or it comes too fast.
        """
        self.loop = asyncio.get_running_loop()
        metrics = self.metrics
        metrics.connections_total += 1
        metrics.connections += 1
        of_host = self._by_host.get(connection.host, 0)
        is_full = len(self.connections) >= self.config.max_connections
        if self._is_stopping:
            refusal = "the server is stopping"
        elif of_host >= self._per_host_max:
            refusal = f"max.connections.per.ip ({self._per_host_max}) is reached"
        elif is_full and not self._may_make_room():
            refusal = f"max.connections ({self.config.max_connections}) is reached"
        else:
            refusal = ""
        self.connections[connection] = None
        self._by_host[connection.host] = of_host + 1
        if refusal:
            metrics.connections_refused += 1
            _log.warning("connection refused", extra=fields(connection=connection.peer, error=refusal))
            connection.close()
            return self.now
        if self._departures.has_left(connection.transport):
            connection.depart_unread()
            if connection.is_closed:
                return self.now
        wait_s = self._admit(connection, is_full=is_full) if self._rates.is_active else 0.0
        if connection.is_closed:
            return self.now
        if is_full:
            self._make_room()
        if self._timer is None:
            self.now = self.loop.time()
            self._timer = self.loop.call_later(self._tick_s, self._tick)
        if self._strangers is not None and isinstance(connection, UnorderedConnection):
            connection.be_stranger()
            self._strangers.opened(connection)
        elif not self._newcomers.is_refused(connection):
            self._newcomers.add(connection, self.loop.time(), wait_s)
        return self.now

    def _may_make_room(self) -> bool:
        """Return whether a connection without a session, of any address, may lose its place now.

        Anybody may open connections without a session: see ``core.net.newcomers``, and ``core.net.strangers`` for the
        internal port.
        """
        if self._strangers is not None:
            return bool(len(self._strangers))
        return self._newcomers.may_give_way(self.loop.time())

    def _make_room(self) -> None:
        """Close the connection that may lose its place."""
        bound = f"max.connections ({self.config.max_connections}) is reached, and it"
        if self._strangers is not None:
            self.metrics.connections_refused += self._strangers.close_oldest(f"{bound} is the oldest without a session")
            return
        is_refused = self._newcomers.has_refused
        closed = self._newcomers.give_way(self.loop.time())
        if closed is None or closed.is_closed:
            return  # a closed connection leaves its place in this turn of the loop
        if not is_refused:  # else it is counted and logged already
            self.metrics.connections_refused += 1
            why = f"{bound} has had no session for {self._newcomers.kept_s:.2g} s"
            _log.warning("closing a connection: it has not logged in", extra=fields(**_about(closed), error=why))
        closed.close()

    def _admit(self, connection: ClientConnection, *, is_full: bool) -> float:
        """Let a connection wait if too many come, or close it; return the seconds until it is read.

        ``is_full``: it has no place to wait in before it is closed.
        """
        wait_s, refusal = self._rates.admit(connection.host, connection.session.listener)
        if not wait_s and not refusal:
            return 0.0
        self.metrics.connections_throttled += 1
        if not refusal:
            connection.mute(wait_s)
            return wait_s
        self.metrics.connections_refused += 1
        _log.warning("connection refused", extra=fields(connection=connection.peer, error=refusal))
        if is_full or not wait_s:
            connection.close()
        else:
            self._close_later(connection, wait_s)
        return 0.0

    def _close_later(self, connection: ClientConnection, wait_s: float) -> None:
        """Read nothing more of a connection, and close it after so many seconds, or sooner if its place is needed."""
        self._newcomers.refuse(connection)
        connection.on_close(self.loop.call_later(wait_s, connection.close).cancel)
        connection.refuse(wait_s + 1)  # closed before that is over

    def identified(self, connection: ClientConnection) -> None:
        """Count a connection for the principal of its session; close it after a while if that has too many.

        The wait keeps a client that connects again at once from turning in a circle.
        """
        if self._newcomers.is_refused(connection):
            return
        if connection.session.principal == ANONYMOUS:  # anybody may have such a session, at once
            self._newcomers.remove(connection)
        else:
            self._newcomers.log_in(connection, self.loop.time())
        refusal = self._bounds.admit(connection)
        if not refusal:
            return
        self.metrics.connections_refused += 1
        self.metrics.user_connections_refused += 1
        _log.warning("connection refused", extra=fields(connection=connection.peer, error=refusal))
        session = connection.session
        if self.audit.is_on and session.principal != ANONYMOUS:
            event = AuditEvent(
                Kind.LOGIN, "LOGIN", AuditOutcome.DENIED, session, connection.host, connection.client_id, reason=refusal
            )
            self.audit.write(event)
        wait_s = REFUSED_S if self._refused < REFUSED_MAX else 0.0
        self._refused += 1
        connection.on_close(self._refused_closed)
        self._close_later(connection, wait_s)

    def _refused_closed(self) -> None:
        self._refused -= 1

    def lost(self, connection: ClientConnection) -> None:
        """Remove a connection whose socket is closed."""
        if connection not in self.connections:
            return
        del self.connections[connection]
        self._newcomers.remove(connection)
        if self._strangers is not None and isinstance(connection, UnorderedConnection):
            self._strangers.lost(connection)
        self.metrics.connections -= 1
        left = self._by_host[connection.host] - 1
        if left:
            self._by_host[connection.host] = left
        else:
            del self._by_host[connection.host]
        if not self.connections:
            self._stop_timer()
        if connection.is_outlived:
            self._outlived.add(connection)
        else:
            self.finished(connection)

    def finished(self, connection: ClientConnection) -> None:
        """Note that no request of a closed connection is in progress any more."""
        self._outlived.discard(connection)
        if self._all_gone is not None and not self.connections and not self._outlived:
            self._all_gone.set()

    def malformed(self, connection: ClientConnection, why: str) -> None:
        """Count and log a connection that is closed because its bytes are not a request.

        It is closed already if it was a request without a response that has outlived it.
        """
        self.metrics.connections_malformed += 1
        if connection.is_closed:
            about = fields(**_about(connection), error=why)
            _log.warning("a request without a response failed after the end of its connection", extra=about)
            return
        _log.warning("closing a connection: its request is invalid", extra=fields(**_about(connection), error=why))

    def bug(self, connection: ClientConnection, error: BaseException) -> None:
        """Log an exception that no request may cause."""
        _log.error("closing a connection: its request failed", exc_info=error, extra=fields(**_about(connection)))

    # -------------------------------------------------------------------------------------------------- the timer

    def _tick(self) -> None:
        self.now = now = self.loop.time()
        self._timer = self.loop.call_later(self._tick_s, self._tick)
        if self._idle_s >= 0:
            limit_s = self._idle_s + self._tick_s  # activity has the time of the tick before it
            for connection in [each for each in self.connections if each.is_idle(now, limit_s)]:
                self.metrics.connections_idle_closed += 1
                _log.debug("closing a connection: idle", extra=fields(connection=connection.peer))
                connection.close()
        self._relieve(now)

    def _relieve(self, now: float) -> None:
        """Close connections that keep others from reading: see ``core.net.request_budget``."""
        if self.budget.is_tight:
            self._close_slow_frames(now)
        if self._is_response_room_wanted():
            for connection in [each for each in self.connections if each.slow_read_rate(now) is not None]:
                self._close_stuck(connection, "memory for responses", "does not read its responses")
        if self._times_shut != self.budget.times_shut:
            self._times_shut, self._shut_since = self.budget.times_shut, now
        elif not self.budget.is_shut:
            return
        first, last = self._shut_ticks
        if now - last >= STUCK_S:
            first = now
            for connection in self.connections:
                connection.forget_earlier()
        self._shut_ticks = (first, now)
        for connection in self.connections:
            connection.look(now)
        if now - first >= STUCK_S:
            was_open = now - self._shut_since < STUCK_S
            known = (each for each in self.connections if each.is_known)
            for connection in [each for each in known if each.is_stuck(now, was_open=was_open)]:
                why = "is over its quota, and " if connection.is_muted else ""
                self._close_stuck(connection, "queued.max.request.bytes", f"{why}keeps its requests' bytes")
            self._close_parked(now, self.budget.parked_max(was_open=was_open))

    def _close_parked(self, now: float, most: int) -> None:
        """Close connections, the largest parked request first, until parked requests hold ``most`` bytes or less."""
        known = (each for each in self.connections if each.is_known)
        parked = [(held, each) for each in known if (held := each.bytes_parked(now))]
        excess = sum(held for held, _ in parked) - most
        for held, connection in sorted(parked, key=lambda pair: pair[0], reverse=True):
            if excess <= 0:
                return
            excess -= held
            cause = "keeps the bytes of a request that waits for other clients"
            self._close_stuck(connection, "queued.max.request.bytes", cause)

    def _close_slow_frames(self, now: float) -> None:
        """Close those whose frames arrive below LEAST_RATE, the slowest first, until the gate of frames can open."""
        known = (each for each in self.connections if each.is_known)  # the bytes of the others are not in the way
        rates = [(rate, each) for each in known if (rate := each.slow_frame_rate(now)) is not None]
        for _, connection in sorted(rates, key=lambda pair: pair[0]):
            if not self.budget.excess_begun_bytes:
                return
            self._close_stuck(connection, "queued.max.request.bytes", "does not go on sending its request")

    def _close_before_login(self, connection: ClientConnection) -> None:
        self._close_stuck(connection, "the memory for log-ins", "has held a part of it for long without a log-in")

    def _close_stuck(self, connection: ClientConnection, wanted: str, cause: str) -> None:
        self.metrics.connections_stuck_closed += 1
        why = f"others wait for {wanted}, and it {cause}"
        _log.warning("closing a connection: it keeps others waiting", extra=fields(**_about(connection), error=why))
        connection.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _about(connection: ClientConnection) -> ConnectionFields:
    return {"connection": connection.peer, "client_id": connection.client_id}


def _port(server: asyncio.Server) -> int:
    return int(server.sockets[0].getsockname()[1])
