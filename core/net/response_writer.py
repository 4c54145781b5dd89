"""Responses on their way to the kernel: framed, joined where they are small, and written once an event.

::

    add ──> pieces, releases ──write──> the transport, unsent ──taken──> the releases are called
                       └─drop──> the releases are called: the client has gone

A response's memory is given back once the kernel has taken the response.  The transport's buffer limit is zero, so the
kernel has taken everything unless the transport has called ``pause_writing``.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable

from bmq.core.net.request import Buffer, Response

JOIN_MAX = 4 << 10
"""Responses up to this size are joined: copying one costs less than one more element of a vector write."""
WRITE_MAX = 64 << 10
"""Responses to requests that were read together are written together, up to this size."""
_SIZE = struct.Struct(">i")


class ResponseWriter:
    """The responses of a connection, until the kernel has taken them."""

    __slots__ = ("_has_dropped", "_size", "pieces", "releases", "unsent")

    def __init__(self) -> None:
        self.pieces: list[Buffer] = []
        """Framed responses, to be written at the event's end."""
        self.releases: list[Callable[[], None]] = []
        """The releases of these responses."""
        self.unsent: list[Callable[[], None]] = []
        """The releases of responses that are written and not yet taken by the kernel."""
        self._size = 0
        self._has_dropped = False

    def __repr__(self) -> str:
        return f"<ResponseWriter {self._size} bytes to write, {len(self.unsent)} releases unsent>"

    def add(self, response: Response) -> bool:
        """Add a response behind the others.  Return True if there is enough for a write."""
        if self._has_dropped:
            release(response)
            return False
        if response.release is not None:
            self.releases.append(response.release)
        size = response.size
        if not size and not response.buffers:  # a frame of no bytes has one, empty: a raw SASL token
            return False
        if size <= JOIN_MAX:
            self.pieces.append(_SIZE.pack(size) + b"".join(response.buffers))
        else:
            self.pieces.append(_SIZE.pack(size))
            self.pieces += response.buffers
        self._size = total = self._size + size
        return total >= WRITE_MAX

    def write(self, transport: asyncio.WriteTransport) -> None:
        """Give everything to the transport, which passes it to the kernel at once or calls ``pause_writing``."""
        if self.releases:
            self.unsent += self.releases
            self.releases.clear()
        pieces = self.pieces
        if not pieces:
            return
        self.pieces = []
        is_small, self._size = self._size <= WRITE_MAX, 0
        if len(pieces) == 1:
            transport.write(pieces[0])
        elif is_small:
            transport.write(b"".join(pieces))
        else:
            transport.writelines(pieces)

    def taken(self) -> None:
        """Give the memory of written responses back: the kernel has taken them, or the connection is closed."""
        _call_all(self.unsent)

    def drop(self) -> None:
        """Drop the responses that are not written, and all later responses: the client has gone."""
        self._has_dropped = True
        self.pieces.clear()
        self._size = 0
        _call_all(self.releases)


def release(response: Response) -> None:
    """Give the memory of a response back that is not sent."""
    if response.release is not None:
        response.release()


def _call_all(releases: list[Callable[[], None]]) -> None:
    """Call each release once, and empty the list."""
    calls = releases.copy()
    releases.clear()
    for call in calls:
        call()
