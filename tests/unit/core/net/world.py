"""A connection without a socket: ``Peer`` is the client, its transport a kernel whose buffer has a size."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any

from bmq.core.config import NodeConfig
from bmq.core.metrics.counters import PortCounters
from bmq.core.net.listener import ClientConnection, Listener
from bmq.core.net.request import Client, PendingResponse, Response
from tests.harness.audit import HeldAudit

_HEADER = struct.Struct(">hhi")
PRODUCE, FETCH, OTHER = 0, 1, 18
NO_ACKS = 7
"""The version of requests that have no response for ``Script``."""


def frame(number: int, *, key: int = OTHER, size: int = 8, version: int = 0) -> bytes:
    """Return a request of ``size`` bytes, with its size in front."""
    return struct.pack(">i", size) + _HEADER.pack(key, version, number) + bytes(size - 8)


def reply(number: int, size: int = 4) -> Response:
    return Response((struct.pack(">i", number), bytes(size - 4)))


class Script:
    """A Dispatch that the test controls. ``answers[number]`` says how a request is answered: a Response, a future, a
    pending response, an exception; by default at once. ``begun`` lists the requests in their order."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.frames: list[memoryview] = []
        self.answers: dict[int, Any] = {}
        self.released: list[int] = []

    def __call__(self, frame: memoryview, client: Client) -> Response | Awaitable[Response]:
        _, _, number = _HEADER.unpack_from(frame)
        self.begun.append(number)
        self.frames.append(frame)
        response = self.answers.get(number)
        if isinstance(response, Exception):
            raise response.with_traceback(None)  # else each raise lengthens the traceback of those before
        if response is None:
            response = self.reply(number)
        return response

    def is_pipelined(self, frame: memoryview) -> bool:
        return frame[0] == frame[1] == 0

    def expects_response(self, frame: memoryview) -> bool:
        return bool(_HEADER.unpack_from(frame)[1] != NO_ACKS)

    def may_park(self, frame: memoryview) -> bool:
        return frame[1] == FETCH

    def later(self, *numbers: int) -> None:
        for number in numbers:
            self.answers[number] = asyncio.get_running_loop().create_future()

    def pending(self, *numbers: int) -> None:
        for number in numbers:
            self.answers[number] = PendingResponse()

    def respond(self, *numbers: int, size: int = 4) -> None:
        for number in numbers:
            response = self.answers[number]
            if isinstance(response, PendingResponse):
                response.resolve(self.reply(number, size))
            else:
                response.set_result(self.reply(number, size))

    def reply(self, number: int, size: int = 4) -> Response:
        response = reply(number, size)
        response.release = lambda: self.released.append(number)
        return response


class Peer(asyncio.Transport):
    """The client, and the transport between it and the connection.

    ``room`` bytes fit into the kernel's buffers; ``read`` makes room.  What the server pauses waits in ``unread``.
    """

    def __init__(
        self,
        listener: Listener,
        *,
        host: str = "10.0.0.1",
        room: int = 1 << 40,
        piece: int = 1 << 30,
        kind: type[ClientConnection] = ClientConnection,
    ) -> None:
        super().__init__()
        self.room, self.piece = room, piece
        self.received = bytearray()
        self.unread = bytearray()
        self.is_paused = self.is_gone = self.is_aborted = False
        self.writes = 0
        self._host = host
        self._unsent = bytearray()
        self._tells = False
        self.connection = kind(listener)
        self.connection.connection_made(self)

    # The client

    def send(self, data: bytes) -> None:
        self.unread += data
        self._deliver()

    def read(self, count: int) -> None:
        self.room += count
        self._drain()

    def answers(self) -> list[int]:
        """Return the numbers of the responses that have come, in order."""
        numbers, pos = [], 0
        while pos + 4 <= len(self.received):
            (size,) = struct.unpack_from(">i", self.received, pos)
            if pos + 4 + size > len(self.received):
                break
            numbers.append(struct.unpack_from(">i", self.received, pos + 4)[0])
            pos += 4 + size
        return numbers

    def leave(self) -> None:
        """Close from the client's side."""
        if not self.is_gone:
            self.is_gone = True
            self.connection.connection_lost(None)

    # The transport

    def _deliver(self) -> None:
        while self.unread and not self.is_paused and not self.is_gone:
            buffer = self.connection.get_buffer(-1)
            count = min(len(buffer), len(self.unread), self.piece)
            assert count > 0
            buffer[:count] = self.unread[:count]
            del self.unread[:count]
            self.connection.buffer_updated(count)

    def _drain(self) -> None:
        count = min(self.room, len(self._unsent))
        self.received += self._unsent[:count]
        del self._unsent[:count]
        self.room -= count
        if self._unsent and not self._tells:
            self._tells = True
            self.connection.pause_writing()
        elif not self._unsent and self._tells:
            self._tells = False
            self.connection.resume_writing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self._host, 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def write(self, data: Any) -> None:
        assert not self.is_gone
        self.writes += 1
        self._unsent += data
        self._drain()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        assert self.is_paused
        self.is_paused = False
        self._deliver()

    def is_closing(self) -> bool:
        return self.is_gone

    def close(self) -> None:
        if not self.is_gone:
            self.is_gone = True
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    def abort(self) -> None:
        self.is_aborted = True
        self.close()


class World:
    """A listener with a scripted dispatch."""

    def __init__(self, *, is_response_room_wanted: Callable[[], bool] = lambda: False, **settings: Any) -> None:
        self.script = Script()
        self.metrics = PortCounters()
        self.config = NodeConfig(**settings)
        self.audit = HeldAudit()
        self.listener = Listener(
            self.script,
            self.config,
            self.metrics,
            is_response_room_wanted=is_response_room_wanted,
            audit=self.audit,
        )

    def peer(self, **settings: Any) -> Peer:
        return Peer(self.listener, **settings)


async def turn(times: int = 3) -> None:
    """Let what is ready run."""
    for _ in range(times):
        await asyncio.sleep(0)
