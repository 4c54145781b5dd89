"""A fixed server to measure beside: what this machine costs today, so that a figure of BMQ can be told as a ratio.

    python -m bench.reference_loop FILE

An echo server on asyncio (uvloop, where it is there) that does a little of what a log does: it checks a CRC and appends
to a file, or reads from the file.  Prints ``ready PORT`` and serves until it is killed.

This code never changes: ratios are comparable only between runs of one ``VERSION``.  A change that must be raises the
version, and needs a new baseline.

    request    u32 bytes that follow | u8 operation | operation 0, append: data
                                                    | operation 1, read: u64 position | u32 length
                                                    | operation 2, truncate: nothing
    response   u32 bytes that follow | append: u32 CRC-32 of the data; read: the data; truncate: nothing
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
import time
import zlib
from array import array
from typing import cast

VERSION = 1
HOST = "127.0.0.1"
FRAME_MAX = 1 << 20
APPEND, READ, TRUNCATE = range(3)
_SIZE = struct.Struct(">I")
_HEAD = struct.Struct(">IB")
_READ = struct.Struct(">QI")
_RECEIVE_BYTES = 1 << 18


# ------------------------------------------------------------------------------------------------------------ server


class _Connection(asyncio.Protocol):
    """One client's requests, handled in their order."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        responses, at = [], 0
        while len(self._buffer) - at >= _HEAD.size:
            size, operation = _HEAD.unpack_from(self._buffer, at)
            if size > FRAME_MAX:
                raise ValueError(f"a frame of {size} bytes, {FRAME_MAX} at most")
            end = at + _SIZE.size + size
            if len(self._buffer) < end:
                break
            responses.append(self._respond(operation, bytes(self._buffer[at + _HEAD.size : end])))
            at = end
        del self._buffer[:at]
        if responses:
            assert self._transport is not None
            self._transport.write(b"".join(responses))

    def _respond(self, operation: int, data: bytes) -> bytes:
        found = b""
        if operation == APPEND:
            found = _SIZE.pack(zlib.crc32(data))
            os.write(self._file, data)
        elif operation == READ:
            position, length = _READ.unpack(data)
            found = os.pread(self._file, length, position)
            zlib.crc32(found)
        elif operation == TRUNCATE:
            os.ftruncate(self._file, 0)
        return _SIZE.pack(len(found)) + found


async def serve(path: str) -> None:
    """Serve on a free port until this task is cancelled."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        server = await asyncio.get_running_loop().create_server(lambda: _Connection(file), HOST, 0)
        print(f"ready {server.sockets[0].getsockname()[1]}", flush=True)
        async with server:
            await server.serve_forever()
    finally:
        os.close(file)


# ------------------------------------------------------------------------------------------------------------ client


def append_frame(data: bytes) -> bytes:
    """Return a request to append ``data``."""
    return _HEAD.pack(1 + len(data), APPEND) + data


def read_frame(position: int, length: int) -> bytes:
    """Return a request to read from the file."""
    return _HEAD.pack(1 + _READ.size, READ) + _READ.pack(position, length)


def truncate_frame() -> bytes:
    """Return a request to empty the file."""
    return _HEAD.pack(1, TRUNCATE)


def pipelined(connection: socket.socket, frame: bytes, *, count: int, window: int) -> float:
    """Send a request ``count`` times, ``window`` of them in flight; return the seconds until the last response.

    The frames of both directions begin with the number of bytes that follow, as the protocol above and Kafka's do.
    """
    received, missing, head = 0, 0, b""
    begun = time.monotonic()
    sent = min(window, count)
    connection.sendall(frame * sent)
    while received < count:
        data = head + connection.recv(_RECEIVE_BYTES)
        if len(data) == len(head):
            raise ConnectionError(f"closed after {received} of {count} responses")
        at, ended = 0, 0
        while at < len(data):
            if missing:
                taken = min(missing, len(data) - at)
                at, missing = at + taken, missing - taken
                ended += not missing
            elif len(data) - at < _SIZE.size:
                break
            else:
                missing = _SIZE.unpack_from(data, at)[0]
                at += _SIZE.size
                ended += not missing
        head = data[at:]
        received += ended
        more = min(ended, count - sent)
        if more:
            connection.sendall(frame * more)
            sent += more
    return time.monotonic() - begun


def lone(connection: socket.socket, frame: bytes, *, count: int) -> array[float]:
    """Send a request ``count`` times, one at a time; return the seconds of each."""
    return array("d", (pipelined(connection, frame, count=1, window=1) for _ in range(count)))


def paced(connection: socket.socket, frame: bytes, *, count: int, requests_s: int) -> None:
    """Send a request ``count`` times, each when it is due; a late one is sent at once."""
    begun = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, begun + number / requests_s - time.monotonic()))
        pipelined(connection, frame, count=1, window=1)


def main() -> None:
    """Serve, on uvloop if it is installed."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve(sys.argv[1]))
    else:
        uvloop.run(serve(sys.argv[1]))


if __name__ == "__main__":
    main()
