"""A port that takes connections with TLS and without, while a cluster gets TLS process by process.

The first byte of a connection decides. A handshake of TLS begins with 22 (RFC 8446, 5.1). A request begins with its
size in four bytes, and 22 as its first byte would mean 369 MB.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from bmq.core.aio.subscribers import no_op
from bmq.core.net.tls_transport import HANDSHAKE_RECORD

UNDECIDED_MAX = 1_000
"""Connections of which no byte has arrived, at once; the next one closes the oldest."""
MakeProtocol = Callable[[], asyncio.BufferedProtocol]


class PlainOrTls:
    """The connections of one port of which no byte has arrived.  Calling it makes the protocol of the next one."""

    def __init__(self, plain: MakeProtocol, tls: MakeProtocol, timeout_s: float) -> None:
        """``plain`` and ``tls`` make the protocols of both kinds.  A connection of no byte ends after ``timeout_s``."""
        self.plain = plain
        self.tls = tls
        self.timeout_s = timeout_s
        self.undecided: dict[FirstByte, None] = {}  # oldest first

    def __call__(self) -> FirstByte:
        return FirstByte(self)


class FirstByte(asyncio.BufferedProtocol):
    """The protocol of a connection until its first byte has arrived."""

    def __init__(self, port: PlainOrTls) -> None:
        self._port = port
        self._byte = memoryview(bytearray(1))  # one byte at most is read here, and copied
        self._transport: asyncio.Transport
        self._end_waiting: Callable[[], None] = no_op

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has the methods, not the base class
        undecided = self._port.undecided
        if len(undecided) >= UNDECIDED_MAX:
            next(iter(undecided)).close()
        undecided[self] = None
        self._end_waiting = asyncio.get_running_loop().call_later(self._port.timeout_s, self.close).cancel

    def close(self) -> None:
        """Close the connection at once.  Idempotent."""
        self._decide()
        self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._byte

    def buffer_updated(self, nbytes: int) -> None:
        self._decide()
        protocol = self._port.tls() if self._byte[0] == HANDSHAKE_RECORD else self._port.plain()
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        if not self._transport.is_closing():  # as one too many for its listener
            memoryview(protocol.get_buffer(1))[:1] = self._byte
            protocol.buffer_updated(1)

    def eof_received(self) -> None:
        """Return None, which closes the connection."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._decide()

    def _decide(self) -> None:
        """End the wait for the first byte.  Idempotent."""
        self._port.undecided.pop(self, None)
        self._end_waiting()
