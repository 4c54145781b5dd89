"""The protection of a connection on the loop: a sealing transport and an opening protocol, as TLS in asyncio.

Up to 64 KB are sealed or opened at once.  More goes through a thread, and later bytes wait for their turn, so the order
stays.  While a thread opens, the socket is not read: no more than one read of it is held here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import cast

from bmq.storage.filesystem import Buffer
from bmq.storage.hdfs.channel import Channel

AT_ONCE_BYTES_MAX = 64 << 10
"""Most bytes that the loop itself seals or opens: 20 us with AES, 6 ms with 3DES."""


def protect(
    transport: asyncio.Transport, protocol: asyncio.Protocol, channel: Channel, executor: Executor | None
) -> ProtectedTransport:
    """Give the connection of ``transport`` the protection of ``channel``, and return the transport to send with.

    ``protocol`` gets the opened bytes from now on.  ``executor`` has the threads; None: those of the loop.
    """
    protected = ProtectedTransport(transport, channel, executor)
    transport.set_protocol(_Opener(protected, protocol))
    return protected


class ProtectedTransport(asyncio.Transport):
    """A transport that seals, over the transport of the connection."""

    def __init__(self, transport: asyncio.Transport, channel: Channel, executor: Executor | None) -> None:
        super().__init__()
        self.channel = channel
        self.loop = asyncio.get_running_loop()
        self.executor = executor
        self._transport = transport
        self._waiting: list[Buffer] = []
        self._is_sealing = False

    def write(self, data: Buffer) -> None:
        self._send((data,), len(data))

    def writelines(self, list_of_data: Sequence[Buffer]) -> None:  # type: ignore[override]
        self._send(list_of_data, sum(map(len, list_of_data)))

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def abort(self) -> None:
        """Close the connection at once; what a thread still seals is not sent."""
        self._waiting.clear()
        self._transport.abort()

    def close(self) -> None:
        """Close the connection, as ``abort`` does: its owners have got the last response then."""
        self.abort()

    def pause_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _send(self, parts: Sequence[Buffer], size: int) -> None:
        if self._is_sealing or size > AT_ONCE_BYTES_MAX:
            self._waiting.extend(parts)
            if not self._is_sealing:
                self._seal_by_thread()
        elif size and not self._transport.is_closing():
            self._transport.writelines(self.channel.seal(parts))

    def _seal_by_thread(self) -> None:
        parts, self._waiting = self._waiting, []
        try:
            sealing = self.loop.run_in_executor(self.executor, self.channel.seal, parts)
        except RuntimeError:  # the client was closed
            self.abort()
            return
        self._is_sealing = True
        sealing.add_done_callback(self._sealed)

    def _sealed(self, sealing: asyncio.Future[list[bytes]]) -> None:
        self._is_sealing = False
        error = None if sealing.cancelled() else sealing.exception()
        if error is not None:
            self.loop.call_exception_handler({"message": "HDFS: sealing failed", "exception": error})
        if sealing.cancelled() or error is not None or self._transport.is_closing():
            self.abort()  # the threads end, or the connection has ended
            return
        self._transport.writelines(sealing.result())
        if self._waiting:
            self._seal_by_thread()


class _Opener(asyncio.Protocol):
    """The protocol of the connection below: opens what comes, and gives it to ``protocol``."""

    def __init__(self, transport: ProtectedTransport, protocol: asyncio.Protocol) -> None:
        self._transport = transport
        self._protocol = protocol
        self._failure: BaseException | None = None
        self._waiting: list[bytes] = []
        self._opening: asyncio.Future[bytes] | None = None
        self._is_lost = False
        self._lost_by: Exception | None = None

    def data_received(self, data: bytes) -> None:
        if self._failure is not None:
            return
        if self._opening is not None:
            self._waiting.append(data)
        elif len(data) > AT_ONCE_BYTES_MAX:
            self._open_by_thread(data)
        else:
            try:
                opened = self._transport.channel.open(data)
            except ConnectionError as error:
                self._fail(error)
                return
            if opened:
                self._protocol.data_received(opened)

    def eof_received(self) -> bool | None:
        return None if self._opening is not None or self._failure is not None else self._protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._opening is not None:  # what came before is given first
            self._is_lost, self._lost_by = True, exc
            return
        self._protocol.connection_lost(cast("Exception | None", self._failure) or exc)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def _open_by_thread(self, data: bytes) -> None:
        transport = self._transport
        try:
            self._opening = transport.loop.run_in_executor(transport.executor, transport.channel.open, data)
        except RuntimeError:
            self._fail(ConnectionAbortedError("the HDFS client is closed"))
            return
        transport.pause_reading()
        self._opening.add_done_callback(self._opened)

    def _opened(self, opening: asyncio.Future[bytes]) -> None:
        self._opening = None
        if opening.cancelled():
            self._fail(ConnectionAbortedError("the HDFS client is closed"))
        elif (error := opening.exception()) is not None:
            self._fail(error)
        elif opening.result():
            self._protocol.data_received(opening.result())
        waiting, self._waiting = b"".join(self._waiting), []
        if waiting and self._failure is None:
            self.data_received(waiting)
        if self._opening is not None:
            return
        self._transport.resume_reading()
        if self._is_lost:
            self.connection_lost(self._lost_by)

    def _fail(self, error: BaseException) -> None:
        """End the connection: the peer is not who it was, or the bytes are not what it sent."""
        self._failure = error
        self._transport.abort()
