"""Connections of an HTTP port with TLS: few handshakes at once, in bounded time, by the newest certificate.

A connection counts as one of the port only after its handshake.  Until then it waits here; if too many do, the one that
has waited longest is closed.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from bmq.core.aio.tasks import cancel_and_wait
from bmq.core.audit.event import AuditEvent, AuditOutcome, Kind
from bmq.core.audit.log import NO_AUDIT, Audit
from bmq.core.logging.fields import fields
from bmq.core.net.backlog import close_backlog
from bmq.core.security.session import Session

_log = logging.getLogger(__name__)
HANDSHAKES_MAX = 100
HANDSHAKE_S = 10.0
RETRY_S = 0.1
"""Pause after an accept that failed: no file descriptor is left, for example."""
_BACKLOG = 100


class ServerCertificate(Protocol):
    """The certificate of a server."""

    @property
    def context(self) -> ssl.SSLContext:
        """The context for the next connection."""


class TlsAcceptor:
    """The listening sockets of one address, and the connections whose handshake is under way."""

    def __init__(
        self, certificate: ServerCertificate, connect: Callable[[], asyncio.Protocol], audit: Audit = NO_AUDIT
    ) -> None:
        """``connect`` makes the protocol of a connection; it is notified of it after the handshake.

        ``audit`` gets the handshakes that fail.
        """
        self._audit = audit
        self._certificate = certificate
        self._connect = connect
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._handshakes: dict[asyncio.Task[None], None] = {}  # the one that began first is the first
        self.failed = 0
        """Handshakes that failed, took too long, or were given up."""

    def __repr__(self) -> str:
        return f"<TlsAcceptor handshakes={len(self._handshakes)} failed={self.failed}>"

    @property
    def handshakes(self) -> int:
        """Number of handshakes under way."""
        return len(self._handshakes)

    async def start(self, host: str, port: int) -> int:
        """Begin to listen, and return the port.  Raises OSError."""
        loop = asyncio.get_running_loop()
        for family, kind, protocol, _, address in await loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            self._sockets.append(_listening(family, kind, protocol, address))
        self._accepting = [loop.create_task(self._accept(each)) for each in self._sockets]
        return int(self._sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Listen no more, and give up the handshakes.  Idempotent."""
        tasks: Sequence[asyncio.Task[None]] = (*self._accepting, *self._handshakes)
        self._accepting = []
        await cancel_and_wait(*tasks)
        for each in self._sockets:
            each.close()
        self._sockets = []

    def give_clients_up(self) -> int:
        """Close the connections that wait to be accepted or for their handshake, and go on listening.

        Return their number.
        """
        for task in self._handshakes:
            task.cancel()
        return len(self._handshakes) + sum(map(close_backlog, self._sockets))

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listening)
            except OSError as error:
                _log.warning("an HTTP connection cannot be accepted", extra=fields(error=error))
                await asyncio.sleep(RETRY_S)
                continue
            if len(self._handshakes) >= HANDSHAKES_MAX:
                oldest = next(iter(self._handshakes))
                del self._handshakes[oldest]
                oldest.cancel()
            task = loop.create_task(self._secure(accepted, address[0]))
            self._handshakes[task] = None
            task.add_done_callback(partial(self._done, accepted))

    async def _secure(self, accepted: socket.socket, peer: str) -> None:
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await asyncio.get_running_loop().connect_accepted_socket(
                    self._connect, accepted, ssl=self._certificate.context
                )
        except (OSError, TimeoutError) as error:  # an SSLError is an OSError
            self.failed += 1
            why = error if str(error) else f"no handshake within {HANDSHAKE_S:g} s"
            if self._audit.is_on:
                session = Session(protocol="SSL")
                event = AuditEvent(Kind.LOGIN, "HANDSHAKE", AuditOutcome.FAILED, session, peer, reason=str(why))
                self._audit.write(event)
            _log.info("TLS handshake of an HTTP client failed", extra=fields(connection=peer, error=why))

    def _done(self, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        self._handshakes.pop(task, None)
        if task.cancelled():
            self.failed += 1
            accepted.close()  # the task may not have begun
        elif (error := task.exception()) is not None:
            context = {"message": "a TLS handshake ended with a bug", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)


def _listening(family: int, kind: int, protocol: int, address: object) -> socket.socket:
    found = socket.socket(family, kind, protocol)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        found.setblocking(False)
        found.bind(address)  # type: ignore[arg-type]
        found.listen(_BACKLOG)
    except OSError:
        found.close()
        raise
    return found
