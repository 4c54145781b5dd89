"""The internal connections whose other side has not shown yet that it is a process of the cluster.

Any host that reaches the port can open them, so their bytes, their time and their number are bounded.  A connection
past the number costs the oldest connection its place, not itself.  A process needs a few milliseconds to become known,
so it succeeds even while others open connections and say nothing.  Processes do not push each other out: a cluster has
far fewer than ``STRANGERS_MAX``.  Clients do, so they have another rule (``core.net.newcomers``).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from bmq.core.logging.fields import fields

HELLO_BYTES_MAX = 16 << 10
"""Bytes of a Hello or of the response to it: names of some hundred bytes, and a list of roles.  Nothing larger is read
from a process that has not been accepted yet."""
HELLO_BOUND = "what a process may send before it is accepted"
STRANGER_S = 5.0
"""Seconds in which a connection must become known.  Its caller gives up first (``PeerSettings.connect_timeout_s``)."""
STRANGERS_MAX = 1_000
"""Connections that are not known at most: as many as the kernel accepts ahead (``core.net.listener.BACKLOG``)."""
_log = logging.getLogger(__name__)


class Stranger(Protocol):
    """The part of a connection that is used here.  The connection's module imports this module."""

    @property
    def peer(self) -> str: ...

    def be_known(self) -> None:
        """Read requests of any size from now on."""

    def close(self) -> None: ...


class Strangers:
    """The connections of one listener that are not known yet, oldest first."""

    def __init__(self, most: int = STRANGERS_MAX, time_s: float = STRANGER_S) -> None:
        self._most = most
        self._time_s = time_s
        self._since: dict[object, tuple[Stranger, float]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Strangers {len(self._since)}/{self._most}>"

    def __len__(self) -> int:
        return len(self._since)

    def opened(self, connection: Stranger) -> None:
        """Register a connection that was accepted; close the oldest one if there are too many."""
        loop = asyncio.get_running_loop()
        self._since[connection] = (connection, loop.time())
        if len(self._since) > self._most:
            self.close_oldest(f"more than {self._most} connections have not said who they are")
        if self._timer is None and self._since:
            self._timer = loop.call_later(self._time_s, self._tick)

    def close_oldest(self, why: str) -> bool:
        """Close the oldest connection, for the reason ``why``; return False if there is none."""
        oldest = next(iter(self._since.values()), None)
        if oldest is None:
            return False
        self._close(oldest[0], why)
        return True

    def known(self, connection: object) -> None:
        """Take a connection out that has shown what it is asked for.  No effect on one that is not here."""
        found = self._since.pop(connection, None)
        if found is not None:
            found[0].be_known()
            self._stop_if_empty()

    def lost(self, connection: Stranger) -> None:
        """Take a connection out whose socket is closed.  Idempotent."""
        self._since.pop(connection, None)
        self._stop_if_empty()

    def _stop_if_empty(self) -> None:
        if not self._since and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        for connection, since in list(self._since.values()):
            left_s = since + self._time_s - loop.time()
            if left_s > 0:
                self._timer = loop.call_later(left_s, self._tick)
                return
            self._close(connection, f"it has not said who it is within {self._time_s:g} s")

    def _close(self, connection: Stranger, why: str) -> None:
        self._since.pop(connection, None)
        _log.warning("closing an internal connection", extra=fields(connection=connection.peer, error=why))
        connection.close()
