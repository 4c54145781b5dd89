"""The simulated network: Kafka connections in memory, with latency, that break when a process dies.

A ``BrokerLink`` is the client's end.  Requests are kafka-python's messages, so that the endpoint's own codec is not
what it is tested with.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from contextvars import Context
from random import Random
from typing import Any

from bmq.core.net.listener import ClientConnection


class Disconnected(ConnectionError):
    """The connection broke; whether the request was carried out is not known."""


class _ServerTransport(asyncio.Transport):
    """The server's transport: ``link`` gets what is written a little later, in order."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link
        self._is_closing = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("10.0.0.9", self._link.number) if name in ("peername", "sockname") else default

    def write(self, data: Any) -> None:
        if not self._is_closing:
            copy = bytes(data)
            self._link.later(lambda: self._link.received(copy))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._link.later(self._link.closed)

    def abort(self) -> None:
        self.close()

    def pause_reading(self) -> None:
        self._link.is_paused = True

    def resume_reading(self) -> None:
        self._link.is_paused = False
        self._link.deliver()

    def is_reading(self) -> bool:
        return not self._link.is_paused

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: the simulated kernel takes everything."""

    def get_write_buffer_size(self) -> int:
        return 0


class Calls:
    """A connection's requests and their answers, in order; calls may overlap."""

    def __init__(self) -> None:
        self._inbound = bytearray()
        self._waiting: list[tuple[int, type[Any], int, asyncio.Future[Any]]] = []
        self._correlation_id = 0
        self.is_open = True

    def send(self, frame: bytes) -> None:
        raise NotImplementedError

    async def call(self, request: Any, response: type[Any], version: int) -> Any:
        """Return the decoded response; None when the request asks for none (acks=0)."""
        if not self.is_open:
            raise Disconnected("closed")
        self._correlation_id += 1
        request.with_header(correlation_id=self._correlation_id, client_id="simulated")
        frame = bytes(request.encode(version=version, header=True, framed=True))
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if getattr(request, "acks", None) != 0:
            self._waiting.append((self._correlation_id, response, version, reply))
        else:
            reply.set_result(None)
        self.send(frame)
        return await reply

    def received(self, data: bytes) -> None:
        if not self.is_open:
            return
        self._inbound += data
        while len(self._inbound) >= 4:
            (size,) = struct.unpack_from(">i", self._inbound)
            if len(self._inbound) < 4 + size:
                return
            body = bytes(self._inbound[4 : 4 + size])
            del self._inbound[: 4 + size]
            correlation_id, response, version, reply = self._waiting.pop(0)
            assert struct.unpack_from(">i", body)[0] == correlation_id, "an answer out of order"
            message = response.decode(body, version=version, header=True)
            if not reply.done():
                reply.set_result(message)

    def lost(self) -> None:
        """There is no answer any more to what waits for one."""
        self.is_open = False
        for _, _, _, response in self._waiting:
            if not response.done():
                response.set_exception(Disconnected("the connection was closed"))
        self._waiting.clear()


class Link(Calls):
    """One client connection.  ``call`` sends a request and awaits its answer; calls may overlap, answers keep order."""

    number = 0

    def __init__(self, connection: ClientConnection, context: Context, rng: Random, latency_s: float) -> None:
        super().__init__()
        Link.number += 1
        self.number = 10_000 + Link.number
        self._connection = connection
        self._context = context
        self._rng = rng
        self._latency_s = latency_s
        self._due = 0.0
        self._outbound = bytearray()
        self.is_paused = False
        self._run(connection.connection_made, _ServerTransport(self))

    def _run(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return self._context.copy().run(call, *arguments)

    def later(self, call: Callable[[], None]) -> None:
        """Call it after the network's latency, in order."""
        loop = asyncio.get_running_loop()
        # Timers of the same moment have no order: each is a little later than the one before.
        self._due = max(self._due + 1e-6, loop.time() + self._rng.uniform(0, self._latency_s))
        loop.call_at(self._due, call)

    # The client's side

    def send(self, frame: bytes) -> None:
        self.later(lambda: self._sent(frame))

    def _sent(self, frame: bytes) -> None:
        if self.is_open:
            self._outbound += frame
            self.deliver()

    def deliver(self) -> None:
        """Hand bytes to the server in pieces of any size, as TCP does."""
        while self._outbound and self.is_open and not self.is_paused:
            size = min(len(self._outbound), self._rng.choice((1 << 20, 1 << 20, 3, 100)))
            buffer = self._run(self._connection.get_buffer, size)
            size = min(size, len(buffer))
            buffer[:size] = self._outbound[:size]
            del self._outbound[:size]
            self._run(self._connection.buffer_updated, size)

    def closed(self) -> None:
        """Note that the server's side is gone."""
        if self.is_open:
            self.is_open = False
            self._run(self._connection.connection_lost, None)
            self.lost()

    close = closed
    """The client goes away: the server hears of it at once."""
