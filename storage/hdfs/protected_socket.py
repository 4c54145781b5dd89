"""The protection of a blocking connection, for long reads by a thread.

AES/CTR decrypts in place what the kernel has put into the caller's memory.  A SASL layer's frames are received, checked
and copied there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from bmq.storage.hdfs.channel import AesCtr, Channel

_RECEIVE_BYTES = 256 << 10


class Connection(Protocol):
    """The methods of a socket that a read by a thread needs."""

    def sendall(self, data: bytes, /) -> None: ...
    def recvmsg_into(self, buffers: list[memoryview], ancbufsize: int = ..., flags: int = ..., /) -> Sequence[Any]: ...
    def fileno(self) -> int: ...
    def shutdown(self, how: int, /) -> None: ...
    def close(self) -> None: ...


def protect_socket(connection: Connection, channel: Channel | None) -> Connection:
    """Return the connection with the protection of ``channel``, itself if that is None."""
    if channel is None:
        return connection
    return _AesSocket(connection, channel) if isinstance(channel, AesCtr) else _FrameSocket(connection, channel)


class _ProtectedSocket:
    def __init__(self, connection: Connection, channel: Channel) -> None:
        self._socket = connection
        self._channel = channel

    def sendall(self, data: bytes, /) -> None:
        self._socket.sendall(b"".join(self._channel.seal([data])))

    def fileno(self) -> int:
        return self._socket.fileno()

    def shutdown(self, how: int, /) -> None:
        self._socket.shutdown(how)

    def close(self) -> None:
        self._socket.close()


class _AesSocket(_ProtectedSocket):
    _channel: AesCtr

    def recvmsg_into(self, buffers: list[memoryview], ancbufsize: int = 0, flags: int = 0, /) -> Sequence[int]:
        """Receive as ``socket.recvmsg_into``, decrypted."""
        got = self._socket.recvmsg_into(buffers, ancbufsize, flags)[0]
        self._channel.open_in_place(buffers, got)
        return (got,)


class _FrameSocket(_ProtectedSocket):
    def __init__(self, connection: Connection, channel: Channel) -> None:
        super().__init__(connection, channel)
        self._received = bytearray(_RECEIVE_BYTES)
        self._rest = memoryview(b"")

    def recvmsg_into(self, buffers: list[memoryview], ancbufsize: int = 0, flags: int = 0, /) -> Sequence[int]:
        """Receive as ``socket.recvmsg_into``, but no more than a single receive has completed.  Raises LayerBroken."""
        while not self._rest:
            got = self._socket.recvmsg_into([memoryview(self._received)])[0]
            if not got:
                return (0,)
            self._rest = memoryview(self._channel.open(bytes(memoryview(self._received)[:got])))
        got = 0
        for place in buffers:
            part = self._rest[: len(place)]
            place[: len(part)] = part
            self._rest = self._rest[len(part) :]
            got += len(part)
            if not self._rest:
                break
        return (got,)
