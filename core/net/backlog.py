"""The backlog of a listening socket: connections that the kernel has accepted ahead of the process."""

from __future__ import annotations

import contextlib
import errno
import socket
from typing import Protocol

_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Listening(Protocol):
    """A listening socket that does not block, as the loops show it."""

    def dup(self) -> socket.socket: ...


def close_backlog(listening: Listening) -> int:
    """Close all connections that wait to be accepted, with what lies in them; return their number.

    The loop's own object cannot accept, so a duplicate of the socket does.  A process without a free descriptor closes
    none.  uvloop accepts and closes new connections then (``core.metrics.descriptor_meter``).  Connections that the
    process closes itself give their descriptors back only in the next turn of the loop.
    """
    closed = 0
    try:
        with listening.dup() as own, contextlib.suppress(BlockingIOError):
            while True:
                with contextlib.suppress(ConnectionAbortedError):  # by its client, while it waited
                    connection, _ = own.accept()
                    connection.close()
                    closed += 1
    except OSError as error:
        if error.errno not in _EXHAUSTED:
            raise
    return closed
