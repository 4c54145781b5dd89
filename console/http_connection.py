"""Connections to the HTTP port within bounds: their number, how long clients keep them waiting, and what they hold.

The server waits for a client that is to send a request's head, its body or the next request, or to read a response.
Each wait has its time, after which the connection is dropped, with what it has not read.  The one that has waited for
longest is dropped earlier when others come and there are too many, and the slowest readers when unsent responses take
too much memory.  One whose request is being answered is not; these are bounded by what they ask for.  So health checks
get through while strangers hold connections open, and while the API is busy.
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
from bmq.core.logging.fields import fields

CONNECTIONS_MAX = 200
REQUESTS_MAX = 100
"""Requests that are answered at once, without those for health and metrics, and those whose body has not come."""
BODIES_MAX = 100
"""Requests whose body is being read, of 2 MiB at most each."""
SCRAPES_MAX = 20
"""Requests for metrics, which are rendered one at a time."""
HEAD_S = 10.0
"""From the first byte of a request, or from connecting, to the end of its head."""
IDLE_S = 75.0
"""Between two requests: longer than Prometheus' usual minute."""
SEND_S = 30.0
"""For a client to read a response, beside what its size takes at SEND_BYTES_A_SECOND."""
SEND_BYTES_A_SECOND = 32 << 10
SENDING_BYTES_MAX = 64 << 20
"""Of responses that clients have not read: eight of the largest, or the metrics of a large cluster some times."""
_TEXT_MAX = 200
_HEALTH = ("/healthz", "/readyz")


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Connections:
    """Those of one server, the one that has waited longest first."""

    def __init__(self) -> None:
        self._waiting: dict[Connection, None] = {}
        self._answering: set[Connection] = set()
        self._bodies: dict[Connection, None] = {}  # of those that wait: for the body of a request
        self._sending: dict[Connection, int] = {}  # bytes of the response; the one that began first is the first
        self.sending_bytes = 0
        """Of responses that clients are reading."""
        self.requests = 0
        """Requests whose head has come, so far."""
        self.refused = 0
        """Connections, and bodies, that came when there were too many: each was closed, or another one for it."""
        self.dropped = 0
        """Connections closed because of what clients had not read of their responses."""

    def __repr__(self) -> str:
        return f"<Connections waiting={len(self._waiting)} answering={len(self._answering)} {self.sending_bytes} bytes>"

    def __len__(self) -> int:
        return len(self._waiting) + len(self._answering)

    def add(self, connection: Connection) -> bool:
        """Return whether there is room for `connection`, if need be after dropping one that waits."""
        if len(self) >= CONNECTIONS_MAX:
            self.refused += 1
            if not self._waiting:
                return False
            next(iter(self._waiting)).drop()
        self._waiting[connection] = None
        return True

    def answers(self, connection: Connection) -> None:
        """Note that a request of `connection` is being answered; nothing if the connection is gone."""
        self._bodies.pop(connection, None)
        if self._waiting.pop(connection, self) is not self:
            self._answering.add(connection)

    def reads(self, connection: Connection) -> None:
        """Note that `connection` waits for the body of a request.  If there are too many, the one that has waited for
        longest is dropped."""
        if len(self._bodies) >= BODIES_MAX:
            self.refused += 1
            next(iter(self._bodies)).drop()
        self.waits(connection)
        if connection in self._waiting:
            self._bodies[connection] = None

    def waits(self, connection: Connection) -> None:
        """Note that `connection` waits for its client from now on; nothing if it is gone."""
        if connection in self._answering:
            self._answering.remove(connection)
        elif self._waiting.pop(connection, self) is self:
            return
        self._waiting[connection] = None

    def sends(self, connection: Connection, size: int) -> None:
        """Note that a response of `size` bytes is being sent.  If there are too many bytes, readers that have taken
        longest are dropped, but not this one."""
        self._sending[connection] = size
        self.sending_bytes += size
        while self.sending_bytes > SENDING_BYTES_MAX and len(self._sending) > 1:
            self.dropped += 1
            next(iter(self._sending)).drop()

    def has_sent(self, connection: Connection) -> None:
        """Note that the response has been read, or will not be."""
        self.sending_bytes -= self._sending.pop(connection, 0)

    def remove(self, connection: Connection) -> None:
        """Forget `connection`.  Idempotent."""
        self._waiting.pop(connection, None)
        self._bodies.pop(connection, None)
        self._answering.discard(connection)
        self.has_sent(connection)


class Connection(web.RequestHandler):
    """One connection."""

    __slots__ = ("_connections", "_deadline", "_is_idle", "_socket")

    def __init__(self, manager: Any, connections: Connections, *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(manager, loop=loop, access_log=_SILENT, logger=_aiohttp_log, keepalive_timeout=IDLE_S)
        self._connections = connections
        self._is_idle = False  # nothing of the next request has come
        self._deadline: asyncio.TimerHandle | None = None
        self._socket: asyncio.Transport | None = None  # aiohttp forgets its own before all is sent

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast(asyncio.Transport, transport)
        super().connection_made(transport)
        if self._connections.add(self):
            self._wait(HEAD_S)
        else:
            self.drop()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_waiting()
        self._connections.remove(self)
        self._socket = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_idle:
            self._wait(HEAD_S)
        super().data_received(data)

    def begin_request(self) -> None:
        """Note that the head of a request has come."""
        self._connections.requests += 1
        self.begin_answer()

    def begin_answer(self) -> None:
        """Note that nothing more is waited for: the request is being answered."""
        self._stop_waiting()
        self._connections.answers(self)

    def begin_body(self) -> None:
        """Note that the body of the request is waited for, by the one that answers: it sets the time too."""
        self._connections.reads(self)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send the response within its time; then wait for the next request, or for the connection to close."""
        body = resp.body if isinstance(resp, web.Response) else None
        size = len(body) if isinstance(body, bytes | bytearray) else 0
        self._wait(SEND_S + size / SEND_BYTES_A_SECOND)
        self._connections.sends(self, size)
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._connections.has_sent(self)
            if self._socket is not None:
                self._wait(IDLE_S, is_idle=True)
            else:
                self._stop_waiting()

    def drop(self) -> None:
        """Close the connection now, and forget what the client has not read: it may never."""
        self._stop_waiting()
        self._connections.remove(self)
        transport = self._socket
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
    """Middleware that tells a request's connection of its beginning; the connection sees the end itself."""
    connection = _connection_of(request)
    connection.begin_request()
    return await handler(request)


class _Turn:
    """A request's place among those that are answered at once."""

    __slots__ = ("_is_taken", "_kind", "_most", "_running")

    def __init__(self, running: Counter[str], kind: str, most: int) -> None:
        self._running = running
        self._kind = kind
        self._most = most
        self._is_taken = False

    def take(self) -> None:
        """Take the place.  Raises NotPossible (503) if there are too many."""
        if self._running[self._kind] >= self._most:
            raise NotPossible(503, "busy", f"{self._most} {self._kind} are being answered; ask again in a moment")
        self._running[self._kind] += 1
        self._is_taken = True

    def give_back(self) -> None:
        """Leave it to others.  Idempotent."""
        if self._is_taken:
            self._is_taken = False
            self._running[self._kind] -= 1


_TURN = web.RequestKey("turn", _Turn)


@contextmanager
def body_awaited(request: web.Request) -> Iterator[None]:
    """Have the request's connection wait for its client while the block reads the body.

    The request counts as one that is answered again when the body is there.  Raises NotPossible (503) if there are too
    many by then.
    """
    connection, turn = _connection_of(request), request[_TURN]
    connection.begin_body()
    turn.give_back()
    try:
        yield
    finally:
        connection.begin_answer()
    turn.take()


def bounded() -> Middleware:
    """Return the middleware that refuses requests while REQUESTS_MAX, or SCRAPES_MAX, are being answered."""
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


def _connection_of(request: web.Request) -> Connection:
    connection = request.protocol
    assert isinstance(connection, Connection), "the server makes its connections itself"
    return connection


class _Shortened(logging.Filter):
    """aiohttp logs a traceback for each malformed request: one line is enough."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            text = str(error.message).partition("\n")[0][:_TEXT_MAX]
            _log.info("malformed HTTP", extra=fields(error=f"{record.getMessage()}: {text}"))
        else:
            _log.log(record.levelno, "an HTTP connection failed: %s", record.getMessage(), exc_info=error)
        return False


_log = logging.getLogger(__name__)
_SILENT = logging.getLogger(f"{__name__}.access")
_SILENT.disabled = True  # nothing is logged per request
_aiohttp_log = logging.getLogger(f"{__name__}.aiohttp")
_aiohttp_log.addFilter(_Shortened())
