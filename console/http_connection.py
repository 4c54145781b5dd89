"""Connections to the HTTP port within bounds: how many, how long a request may take to arrive, and what they log.

A connection that waits, for a request or for the rest of its head, is closed after a time, and earlier when others come
and there are too many.  One whose request is being answered is not: health checks get through while strangers hold
connections open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from bmq.core.log_fields import fields

CONNECTIONS_MAX = 200
HEAD_S = 10.0
"""From the first byte of a request, or from connecting, to the end of its head."""
IDLE_S = 75.0
"""Between two requests: longer than Prometheus' usual minute."""
_TEXT_MAX = 200


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Connections:
    """Those of one server, the one that has waited longest first."""

    def __init__(self) -> None:
        self._waiting: dict[Connection, None] = {}
        self._answering: set[Connection] = set()
        self.refused = 0
        """Connections closed because there were too many."""

    def __len__(self) -> int:
        return len(self._waiting) + len(self._answering)

    def add(self, connection: Connection) -> bool:
        """Return whether there is room for `connection`, if need be after closing one that waits."""
        if len(self) >= CONNECTIONS_MAX:
            self.refused += 1
            if not self._waiting:
                return False
            self.oldest().force_close()
        self._waiting[connection] = None
        return True

    def oldest(self) -> Connection:
        """Take out the connection that has waited longest."""
        connection = next(iter(self._waiting))
        del self._waiting[connection]
        return connection

    def answers(self, connection: Connection) -> None:
        """Note that a request of `connection` is being answered."""
        if self._waiting.pop(connection, self) is not self:
            self._answering.add(connection)

    def waits(self, connection: Connection) -> None:
        """Note that `connection` has been answered."""
        if connection in self._answering:
            self._answering.remove(connection)
            self._waiting[connection] = None

    def remove(self, connection: Connection) -> None:
        self._waiting.pop(connection, None)
        self._answering.discard(connection)


class Connection(web.RequestHandler):
    """One connection."""

    __slots__ = ("_connections", "_deadline", "_is_answering")

    def __init__(self, manager: Any, connections: Connections, *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(manager, loop=loop, access_log=_SILENT, logger=_aiohttp_log, keepalive_timeout=IDLE_S)
        self._connections = connections
        self._is_answering = False
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._connections.add(self):
            self._wait_for_head()
        else:
            self.force_close()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_waiting()
        self._connections.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._is_answering and self._deadline is None:
            self._wait_for_head()
        super().data_received(data)

    def begin_answer(self) -> None:
        """Note that a request has arrived."""
        self._is_answering = True
        self._stop_waiting()
        self._connections.answers(self)

    def end_answer(self) -> None:
        """Note that it is answered; aiohttp closes the connection when nothing follows for ``IDLE_S``."""
        self._is_answering = False
        self._connections.waits(self)

    def _wait_for_head(self) -> None:
        self._deadline = asyncio.get_running_loop().call_later(HEAD_S, self.force_close)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


@web.middleware
async def track(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Middleware that tells a request's connection of its beginning and end."""
    connection = request.protocol
    assert isinstance(connection, Connection), "the server makes its connections itself"
    connection.begin_answer()
    try:
        return await handler(request)
    finally:
        connection.end_answer()


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
