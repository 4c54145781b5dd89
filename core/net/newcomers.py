"""The connections without a session, and the rule by which they lose their places to new connections.

At max.connections, a new connection is either refused or takes the place of a connection without a session.  The rule
must serve two cases.  Strangers hold all places and stay silent: they must not keep clients out.  More clients than
places connect at once: they must not end each other's log-ins, or none ends.  So:

* a connection that is refused, and held before its close, loses its place first and at once;
* any other connection keeps its place for ``KEPT_S`` from its first read, which may wait for a rate of connections;
* past this time, the youngest connection is the first to lose its place: an older connection is nearer to its session;
* places change hands at random moments, on average ``SHARE`` of all these connections a second.

The last two rules leave the older half of the connections alone.  Their log-ins end even if the process needs far
longer than ``KEPT_S`` for all log-ins together.  Random moments keep strangers from taking each place as it becomes
free.  So no attack, in bursts or in time with the changes, is better than a steady flood.  If a steady flood has
``r`` times the rate of the changes, a new connection gets a place with a chance of 1 / (1 + 2r).
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

KEPT_S = 5.0
"""Seconds in which no connection loses its place.

A log-in takes six round trips of 300 ms at most and up to 2 s for a Kerberos ticket.  A turn of the loop with a
thousand TLS handshakes takes 1 to 2 s.
"""
SHARE = 0.1
"""The part of the connections without a session that may lose their places in a second: half of them in ``KEPT_S``."""
SAVED_S = 0.5
"""Seconds of this rate that a pause saves: after it, a twentieth of the places may change hands at once."""
C = TypeVar("C", bound=Hashable)


class Newcomers(Generic[C]):
    """The connections without a session of one listener.  Pure: times are arguments, in seconds."""

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        """``chance`` returns random numbers from 0 to 1."""
        self._chance = chance
        # An OrderedDict finds its first key at once, after any number of removals.
        self._young: OrderedDict[C, float] = OrderedDict()  # the time of each one's first read; oldest first
        self._old: dict[C, None] = {}  # past ``KEPT_S``; the oldest is the first
        self._refused: dict[C, None] = {}  # refused, and held for a while before their close
        self._next_s = 0.0  # when the next place may change hands

    def __repr__(self) -> str:
        return f"<Newcomers young={len(self._young)} old={len(self._old)} refused={len(self._refused)}>"

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def add(self, connection: C, read_from: float) -> None:
        """Add a connection that was accepted now, and is read from ``read_from`` on: its time begins then.

        A connection that was accepted later, and is read earlier, may keep its place for as much longer.
        """
        self._young[connection] = read_from

    def refuse(self, connection: C) -> None:
        """Note that a connection is refused, and closed after a while: it is the first to lose its place."""
        self.remove(connection)
        self._refused[connection] = None

    def remove(self, connection: C) -> None:
        """Remove a connection: it has a session, or is closed.  Idempotent."""
        for each in (self._young, self._old, self._refused):
            each.pop(connection, None)

    @property
    def has_refused(self) -> bool:
        """True if a refused connection is the next to lose its place."""
        return bool(self._refused)

    def is_refused(self, connection: C) -> bool:
        """Return whether a connection is refused, and not closed yet."""
        return connection in self._refused

    def may_give_way(self, now: float) -> bool:
        """Return whether a connection may lose its place at ``now``.

        A connection becomes old once, so a call has constant cost on average.
        """
        young, old = self._young, self._old
        while young and now - next(iter(young.values())) >= KEPT_S:
            old[young.popitem(last=False)[0]] = None
        return bool(self._refused) or (bool(old) and now >= self._next_s)

    def give_way(self, now: float) -> C | None:
        """Remove and return the connection that loses its place to a new connection; None if none does."""
        if not self.may_give_way(now):
            return None
        if self._refused:
            return self._refused.popitem()[0]
        pause_s = 2 * self._chance() / (SHARE * len(self))
        self._next_s = max(self._next_s, now - SAVED_S) + pause_s
        return self._old.popitem()[0]
