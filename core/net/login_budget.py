"""A bound on the bytes of requests of connections without a session, over all Kafka listeners that ask for a log-in.

Everybody who reaches the port can open such a connection.  So these bytes have a budget apart from the bytes of clients
that have logged in (``core.net.request_budget``), and no client waits for memory that strangers hold.  Strangers do not
wait either: a log-in is read at once.  Past the limit, the budget closes the connections of the highest cost, until a
sixteenth of the limit is free::

    cost of a connection = bytes that it holds * bytes that all connections have brought since it held none

A log-in holds some hundred bytes for some milliseconds, so its cost is low.  Time is counted in bytes that arrive.  So
the order is the same however fast an attacker sends, and there is no clock.  A log-in is among the last to be closed,
unless other connections bring many times the limit while its token arrives.

A single connection may hold more than the limit: one token of sasl.server.max.receive.size always arrives.

Bound: the limit (or a single token, if larger), and a read of a single connection. The limit is 16 MB: thirty of the
largest tokens by default (512 KB), or ten thousand connections in the middle of a SCRAM exchange.  By default it is a
sixteenth of queued.max.request.bytes; it is half of this setting if the setting is less than 32 MB.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from bmq.core.metrics.counters import PortCounters

LIMIT_BYTES = 16 << 20
R = TypeVar("R", bound=Hashable)


class LoginBudget(Generic[R]):
    """The count of bytes held by connections without a session.  Pure but for the calls of ``close``."""

    is_tight = False
    """Whether readers wait: see ``RequestBudget``.  Here none does."""

    def __init__(self, limit: int, metrics: PortCounters, close: Callable[[R], None]) -> None:
        """``close`` closes a connection, which gives its bytes back by ``change``."""
        self.limit = limit
        self.held = 0
        """Bytes that are held now, over all connections without a session."""
        self._metrics = metrics
        self._close = close
        self._brought = 0  # bytes that all connections have brought so far
        self._holders: dict[R, _Holding] = {}

    def __repr__(self) -> str:
        return f"<LoginBudget {self.held}/{self.limit} connections={len(self._holders)}>"

    def change(self, reader: R, held: int, complete: int, *, has_completed: bool) -> None:
        """Add to the bytes that ``reader`` holds, or subtract: see ``RequestBudget.change``."""
        self.held += held
        self._metrics.request_bytes_held += held
        holding = self._holders.get(reader)
        if holding is None:
            if not held:
                return
            holding = self._holders[reader] = _Holding(self._brought)
        holding.size += held
        if held > 0:
            self._brought += held
        if not holding.size:
            del self._holders[reader]
        if held > 0 and self.held > self.limit:
            self._make_room()

    def may_read(self, reader: R) -> bool:
        """Return True: nobody waits here."""
        return True

    def forget(self, reader: R) -> None:
        """Do nothing: no connection waits here, and its bytes are given back by ``change``."""

    def _make_room(self) -> None:
        """Close the connections of the highest cost until a sixteenth of the limit is free."""
        by_cost = sorted(self._holders, key=self._cost, reverse=True)
        for reader in by_cost[:-1]:  # the connection of the lowest cost stays: it may be a log-in
            if self.held <= self.limit * 15 // 16:
                return
            self._close(reader)

    def _cost(self, reader: R) -> int:
        holding = self._holders[reader]
        return holding.size * (self._brought - holding.since)


class _Holding:
    __slots__ = ("since", "size")

    def __init__(self, since: int) -> None:
        self.since = since
        self.size = 0
