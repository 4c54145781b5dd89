"""Bounded connections of the HTTP port: their number, how long they wait for their clients, and the bytes they hold.

The server waits for a client to send a request's head, its body or the next request, or to read a response.  Every wait
has a time-out.  After it the connection is dropped, with the bytes that the client has not read.  Connections are
dropped earlier in two cases: of too many, the one that has waited longest, when another comes; and the slowest readers,
when unsent responses take too much memory.  A connection whose request is being served is never dropped for others; the
number of such requests is bounded.  So health checks get through while clients hold connections open, and while the API
is busy.  A connection is dropped in any state when its client has gone during a standstill of this process, or when all
clients are given up (``server.node``).  A running handler goes on then.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Middleware

from bmq.console.operations import NotPossible
from bmq.console.security_headers import SECURITY_HEADERS
from bmq.core.aio.subscribers import no_op
from bmq.core.logging.fields import fields
from bmq.core.net.departures import Departures

CONNECTIONS_MAX = 200
REQUESTS_MAX = 100
"""Most requests served at the same time, without requests for health and metrics.

Requests whose body has not arrived do not count either.
"""
BODIES_MAX = 100
"""Most requests whose body is being read, of at most 2 MiB each."""
SCRAPES_MAX = 20
"""Most requests for metrics at the same time; they are rendered one by one."""
HEAD_BYTES_MAX = 32 << 10
"""Most bytes of a request's line and headers; a connection with more is dropped."""
HEADERS_MAX = 100
FIELD_BYTES_MAX = 8 << 10
"""Most bytes of the request's line, and of one header: 400 past that."""
HEAD_S = 10.0
"""Time-out from the first byte of a request, or from the connect, to the end of its head."""
IDLE_S = 75.0
"""Time-out between two requests: longer than Prometheus' usual minute."""
SEND_S = 30.0
"""Time-out of a client that reads a response, plus the time for its size at ``SEND_BYTES_A_SECOND``."""
SEND_BYTES_A_SECOND = 32 << 10
SENDING_BYTES_MAX = 64 << 20
"""Most bytes of responses that clients have not read: eight of the largest, or several scrapes of a large cluster."""
_HEAD_END = b"\r\n\r\n"
_TEXT_MAX = 200
_HEALTH = ("/healthz", "/readyz")


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Connections:
    """All connections of one server, by what they wait for.

    ``look`` is called before bytes are read.  It may call ``drop_all`` or ``drop_departed``: this process has stood
    still.
    """

    def __init__(self, look: Callable[[], None] = no_op) -> None:
        self._waiting: dict[HttpConnection, None] = {}  # the one that has waited longest is the first
        self._answering: set[HttpConnection] = set()
        self._bodies: dict[HttpConnection, None] = {}  # the waiting ones that wait for the body of a request
        self._sending: dict[HttpConnection, int] = {}  # bytes of the response; the one that began first is the first
        self.sending_bytes = 0
        """Bytes of responses that clients are reading."""
        self.requests = 0
        """Requests whose head has arrived, since the start."""
        self.refused = 0
        """Connections and bodies that came while there were too many: they were closed, or others in their place."""
        self.look = look
        self._departures = Departures()
        self.dropped = 0
        """Connections closed because clients had not read their responses."""

    def __repr__(self) -> str:
        return f"<Connections waiting={len(self._waiting)} answering={len(self._answering)} {self.sending_bytes} bytes>"

    def __len__(self) -> int:
        return len(self._waiting) + len(self._answering)

    def add(self, connection: HttpConnection) -> bool:
        """Add a waiting connection; if there are too many, drop the connection that has waited longest.

        Returns False if there are too many and none of them waits, or if its client has gone.
        """
        if connection.socket is not None and self._departures.has_left(connection.socket):
            return False
        if len(self) >= CONNECTIONS_MAX:
            self.refused += 1
            if not self._waiting:
                return False
            next(iter(self._waiting)).drop()
        self._waiting[connection] = None
        return True

    def drop_all(self) -> int:
        """Drop all connections, whatever they wait for; return their number."""
        connections = [*self._waiting, *self._answering]
        for connection in connections:
            connection.drop()
        return len(connections)

    def drop_departed(self) -> int:
        """Drop the connections whose client has closed them, whatever it sent before; return their number.

        A connection in the backlog is closed at its accept.
        """
        by_transport: dict[asyncio.BaseTransport, HttpConnection] = {
            each.socket: each for each in (*self._waiting, *self._answering) if each.socket is not None
        }
        departed = self._departures.find(by_transport)
        for transport in departed:
            by_transport[transport].drop()
        return len(departed)

    def answers(self, connection: HttpConnection) -> None:
        """Note that a request of ``connection`` is being served.  Does nothing if the connection is removed."""
        self._bodies.pop(connection, None)
        if self._waiting.pop(connection, self) is not self:
            self._answering.add(connection)

    def reads(self, connection: HttpConnection) -> None:
        """Note that ``connection`` waits for the body of a request.

        If too many connections do, drop the one that has waited longest.
        """
        if len(self._bodies) >= BODIES_MAX:
            self.refused += 1
            next(iter(self._bodies)).drop()
        self.waits(connection)
        if connection in self._waiting:
            self._bodies[connection] = None

    def waits(self, connection: HttpConnection) -> None:
        """Note that ``connection`` waits for its client from now on.  Does nothing if it is removed."""
        if connection in self._answering:
            self._answering.remove(connection)
        elif self._waiting.pop(connection, self) is self:
            return
        self._waiting[connection] = None

    def sends(self, connection: HttpConnection, size: int) -> None:
        """Note that a response of ``size`` bytes is being sent to ``connection``.

        If all responses have too many bytes, drop the connections that have read for longest, but not this one.
        """
        self._sending[connection] = size
        self.sending_bytes += size
        while self.sending_bytes > SENDING_BYTES_MAX and len(self._sending) > 1:
            self.dropped += 1
            next(iter(self._sending)).drop()

    def has_sent(self, connection: HttpConnection) -> None:
        """Note that the response to ``connection`` has been read, or never will be."""
        self.sending_bytes -= self._sending.pop(connection, 0)

    def remove(self, connection: HttpConnection) -> None:
        """Remove ``connection``.  Idempotent."""
        self._waiting.pop(connection, None)
        self._bodies.pop(connection, None)
        self._answering.discard(connection)
        self.has_sent(connection)


class HttpConnection(web.RequestHandler):
    """One connection of the HTTP server, with its time-outs."""

    __slots__ = ("_connections", "_deadline", "_head_bytes", "_head_end", "_is_idle", "_is_in_head", "socket")

    def __init__(self, manager: Any, connections: Connections, *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            manager, loop=loop, access_log=_SILENT, logger=_aiohttp_log, keepalive_timeout=IDLE_S,
            max_headers=HEADERS_MAX, max_field_size=FIELD_BYTES_MAX, max_line_size=FIELD_BYTES_MAX,
        )  # fmt: skip
        self._connections = connections
        self._is_idle = False  # no byte of the next request has arrived
        self._is_in_head = True  # the end of the next request's head has not been seen
        self._head_bytes = 0
        self._head_end = b""  # the last bytes of the head so far
        self._deadline: asyncio.TimerHandle | None = None
        self.socket: asyncio.Transport | None = None
        """The transport until it is closed: aiohttp drops its own before all bytes are sent."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.socket = cast(asyncio.Transport, transport)
        super().connection_made(transport)
        if self._connections.add(self):
            self._wait(HEAD_S)
        else:
            self.drop()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_waiting()
        self._connections.remove(self)
        self.socket = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._connections.look()
        if self.transport is None:
            return  # dropped just now: what lies in the socket is outdated
        if self._is_idle:
            self._wait(HEAD_S)
        super().data_received(data)
        if self._is_in_head:
            self._head_bytes += len(data)
            self._head_end += data[: HEAD_BYTES_MAX + len(_HEAD_END)]
            # With a large body behind it, aiohttp has the head before it has a message.
            is_read = self._messages or self._current_request is not None or _HEAD_END in self._head_end
            if self._head_bytes > HEAD_BYTES_MAX and not is_read:
                self.drop()
            if _HEAD_END not in self._head_end:
                self._head_end = self._head_end[1 - len(_HEAD_END) :]

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Return aiohttp's response to a request that no handler gets, with the headers of all other responses."""
        response = super().handle_error(request, status, exc, message)
        response.headers.update(SECURITY_HEADERS)
        return response

    def begin_request(self) -> None:
        """Note that the head of a request has arrived."""
        self._is_in_head = False
        self._head_bytes, self._head_end = 0, b""
        self._connections.requests += 1
        self.begin_response()

    def begin_response(self) -> None:
        """Note that the request has arrived and is being served: the client has no time-out now."""
        self._stop_waiting()
        self._connections.answers(self)

    def begin_body(self) -> None:
        """Note that the handler waits for the request's body.  The handler sets the time-out itself."""
        self._connections.reads(self)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send the response within its time-out; then wait for the next request, or for the connection to close."""
        body = resp.body if isinstance(resp, web.Response) else None
        size = len(body) if isinstance(body, bytes | bytearray) else 0
        self._wait(SEND_S + size / SEND_BYTES_A_SECOND)
        self._connections.sends(self, size)
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._connections.has_sent(self)
            self._is_in_head = True
            if self.socket is not None:
                self._wait(IDLE_S, is_idle=True)
            else:
                self._stop_waiting()

    def drop(self) -> None:
        """Close the connection at once, without sending the bytes that the client has not read."""
        self._stop_waiting()
        self._connections.remove(self)
        transport = self.socket
        self.force_close()
        if transport is not None:
            transport.abort()

    def _wait(self, seconds: float, *, is_idle: bool = False) -> None:
        self._stop_waiting()
        self._is_idle = is_idle
        self._connections.waits(self)
        self._deadline = asyncio.get_running_loop().call_later(seconds, self.drop)

    def _stop_waiting(self) -> None:
        self._is_idle = False
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


@web.middleware
async def track(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Notify a request's connection that it is being served.  A middleware; the connection sees the end itself."""
    connection = _connection_of(request)
    connection.begin_request()
    return await handler(request)


class _Turn:
    """A request's place among those that are served at the same time."""

    __slots__ = ("_is_taken", "_kind", "_most", "_running")

    def __init__(self, running: Counter[str], kind: str, most: int) -> None:
        self._running = running
        self._kind = kind
        self._most = most
        self._is_taken = False

    def take(self) -> None:
        """Take the place.  Raises NotPossible (503) if there are too many requests."""
        if self._running[self._kind] >= self._most:
            raise NotPossible(503, "busy", f"{self._most} {self._kind} are being served; try again in a moment")
        self._running[self._kind] += 1
        self._is_taken = True

    def give_back(self) -> None:
        """Free the place.  Idempotent."""
        if self._is_taken:
            self._is_taken = False
            self._running[self._kind] -= 1


_TURN = web.RequestKey("turn", _Turn)


@contextmanager
def body_awaited(request: web.Request) -> Iterator[None]:
    """Let the request's connection count as waiting for its client while the block reads the body.

    After the block the request counts as being served again.  Raises NotPossible (503) if there are too many then.
    """
    connection, turn = _connection_of(request), request[_TURN]
    connection.begin_body()
    turn.give_back()
    try:
        yield
    finally:
        connection.begin_response()
    turn.take()


def bounded() -> Middleware:
    """Return the middleware that refuses requests while ``REQUESTS_MAX``, or ``SCRAPES_MAX``, are being served."""
    running: Counter[str] = Counter()

    @web.middleware
    async def bound(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in _HEALTH:
            return await handler(request)
        is_scrape = request.path == "/metrics"
        turn = _Turn(running, *(("scrapes", SCRAPES_MAX) if is_scrape else ("requests", REQUESTS_MAX)))
        request[_TURN] = turn
        turn.take()
        try:
            return await handler(request)
        finally:
            turn.give_back()

    return bound


def _connection_of(request: web.Request) -> HttpConnection:
    connection = request.protocol
    assert isinstance(connection, HttpConnection), "HttpServer makes its own connections"
    return connection


class _Shortened(logging.Filter):
    """Filter that logs aiohttp's errors in one line: aiohttp logs a traceback for every malformed request."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            text = str(error.message).partition("\n")[0][:_TEXT_MAX]
            _log.info("malformed HTTP request", extra=fields(error=f"{record.getMessage()}: {text}"))
        else:
            _log.log(record.levelno, "an HTTP connection failed: %s", record.getMessage(), exc_info=error)
        return False


_log = logging.getLogger(__name__)
_SILENT = logging.getLogger(f"{__name__}.access")
_SILENT.disabled = True  # nothing is logged per request
_aiohttp_log = logging.getLogger(f"{__name__}.aiohttp")
_aiohttp_log.addFilter(_Shortened())
