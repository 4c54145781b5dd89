"""Departures of clients: closed connections with unread requests.

An event loop reports the end of a connection behind its bytes: in a later turn, or never while reading is paused.  The
kernel reports it at once, whatever lies unread before it (``POLLRDHUP``; Linux).  So after a standstill a process need
not read a request to know that its client has gone.

The kernel sees no end that lies behind more bytes than the socket's receive buffer takes.  It sees no end under way in
a network that is cut, or stood still itself.  And a middlebox may keep its side of a connection open when the client
has gone.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable, Collection, Iterable

BACKLOG_S = 5.0
"""Seconds after a standstill in which a new connection may have waited through it, accepted by the kernel only."""
_END = getattr(select, "POLLRDHUP", 0)  # the other side sends no more
_ENDED = _END | select.POLLHUP | select.POLLERR

Ended = Callable[[Iterable[asyncio.BaseTransport]], Collection[asyncio.BaseTransport]]
"""Returns the transports whose other side has closed the connection, or reset it."""


def ended(transports: Iterable[asyncio.BaseTransport]) -> Collection[asyncio.BaseTransport]:
    """Return the transports whose other side has closed the connection, or reset it: one call of poll for all.

    Transports without a socket, and transports closed by this side, are left out.
    """
    poll = select.poll()
    by_descriptor: dict[int, asyncio.BaseTransport] = {}
    for transport in transports:
        sock = None if transport.is_closing() else transport.get_extra_info("socket")
        if sock is not None and (descriptor := sock.fileno()) >= 0:
            by_descriptor[descriptor] = transport
            poll.register(descriptor, _END)
    return [by_descriptor[descriptor] for descriptor, events in poll.poll(0) if events & _ENDED]


class Departures:
    """The departures from one port: ``find`` after a standstill, ``has_left`` for every new connection."""

    def __init__(self, ended: Ended = ended) -> None:
        self._ended = ended
        self._until = 0.0  # the loop's time, in seconds

    def __repr__(self) -> str:
        return f"<Departures backlog until {self._until:.3f}>"

    def find(self, transports: Iterable[asyncio.BaseTransport]) -> Collection[asyncio.BaseTransport]:
        """Return the transports whose client has gone.  New connections are doubtful for ``BACKLOG_S`` from now on."""
        self._until = asyncio.get_running_loop().time() + BACKLOG_S
        return self._ended(transports)

    def has_left(self, transport: asyncio.BaseTransport) -> bool:
        """Return whether the client of a new connection has gone, if the connection may be older than a standstill."""
        if not self._until or asyncio.get_running_loop().time() >= self._until:
            return False
        return bool(self._ended((transport,)))
