"""The backlog of a listening socket: connections that the kernel has accepted ahead of the process."""

from __future__ import annotations

import contextlib
import socket
from typing import Protocol


class Listening(Protocol):
    """A listening socket that does not block, as the loops show it."""

    def dup(self) -> socket.socket: ...


def close_backlog(listening: Listening) -> int:
    """Close all connections that wait to be accepted, with what lies in them; return their number.

    The loop's own object cannot accept, so a duplicate of the socket does.
    """
    closed = 0
    with listening.dup() as own, contextlib.suppress(BlockingIOError):
        while True:
            connection, _ = own.accept()
            connection.close()
            closed += 1
    return closed
