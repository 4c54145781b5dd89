"""Connections to datanodes that are kept between large reads.

After a read that came to its end a datanode waits a while for the next request on the same connection
(dfs.datanode.socket.reuse.keepalive, 4 s).  The kept connection saves both sides a connection and the datanode a
thread, and the kernel's receive buffer has grown already.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
import time

from bmq.storage.hdfs.protected_socket import Connection

KEPT_S = 3.0
"""Idle connections are used again within this time: below the datanodes' 4 s (dfs.client.socketcache.expiryMsec)."""
KEPT_MAX = 16
"""Idle connections of one process: as many as threads that read (dfs.client.socketcache.capacity)."""
WAITS = 4
"""Receives without a byte, one after another, until a datanode is late.  A receive that has got a part of its bytes
returns them only after its wait, which does not count.  With one long wait, a stall within a read would take twice the
time.  """
_TIMEVAL = struct.Struct("@ll")

Address = tuple[str, int]


class DataConnections:
    """The idle connections of one root's reads.  All methods may be called by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[tuple[Address, Connection, float]] = []  # with the time of its last use, oldest first
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._idle)

    def take(self, address: Address) -> Connection | None:
        """Return a connection to the datanode on which nothing is under way, or None if there is none."""
        with self._lock:
            self._drop_old()
            for number in range(len(self._idle) - 1, -1, -1):
                if self._idle[number][0] == address:
                    connection = self._idle.pop(number)[1]
                    if not _is_readable(connection):
                        return connection
                    connection.close()  # the datanode has closed it, or breaks the protocol
        return None

    def connect(self, address: Address, step_s: float) -> socket.socket:
        """Connect; ``step_s`` is the longest wait for more bytes, in ``WAITS`` receives.  Raises OSError."""
        connection = socket.create_connection(address, timeout=step_s)
        try:
            # With a time-out of Python's the socket would not wait for all of the requested bytes.
            connection.settimeout(None)
            # A request follows the last read's status, and would wait for its acknowledgement: 40 ms.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(step_s / WAITS))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(step_s))
        except BaseException:
            connection.close()
            raise
        return connection

    def keep(self, address: Address, connection: Connection) -> None:
        """Keep a connection after a complete read; the connection that is idle longest makes room.

        A protected connection is kept with the state of its ciphers.
        """
        with self._lock:
            if self._is_closed:
                connection.close()
                return
            self._idle.append((address, connection, time.monotonic()))
            self._drop_old()
            if len(self._idle) > KEPT_MAX:
                self._idle.pop(0)[1].close()

    def close(self) -> None:
        """Close the idle connections, and keep none from now on."""
        with self._lock:
            self._is_closed = True
            for _, connection, _ in self._idle:
                connection.close()
            self._idle.clear()

    def _drop_old(self) -> None:
        while self._idle and time.monotonic() - self._idle[0][2] > KEPT_S:
            self._idle.pop(0)[1].close()


def _timeval(seconds: float) -> bytes:
    return _TIMEVAL.pack(int(seconds), int(seconds % 1 * 1e6))


def _is_readable(connection: Connection) -> bool:
    """Return whether the other side has closed the connection, or sent something."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))
