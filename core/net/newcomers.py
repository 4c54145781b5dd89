"""The connections without a session, and the rule by which they lose their places to new connections.

At max.connections, a new connection is either refused or takes the place of a connection without a session.  The rule
must serve three cases.  Strangers hold all places and stay silent: they must not keep clients out.  Few places are
left, and a trickle of strangers comes for them: log-ins are quick, so most must end.  More clients than places connect
at once: they must not end each other's log-ins, or none ends.  So:

* a connection that is refused, and held before its close, loses its place first and at once;
* every second of the other connections has a quick place, the others have patient places;
* a connection that waits for a rate of connections has a patient place;
* the oldest connection with a quick place loses it at once after ``PATIENCE`` times the usual time of a log-in;
* any other connection keeps its place for ``KEPT_S`` from its first read, which may wait for a rate of connections;
* past this time, the youngest connection is the first to lose its place: an older connection is nearer to its session;
* places change hands at random moments, on average ``SHARE`` of the patient places a second.

The usual time is learned.  Each log-in moves it by the factor ``STEP`` at most, so it follows the majority of log-ins.
Only log-ins with a name count: a stranger has none.  While log-ins usually take long, as in a storm of clients, all
places are patient.  A client whose log-in takes longer than usual has the patient places, whatever the others do.

The last two rules leave the older half of the patient places alone.  Their log-ins end even if the process needs far
longer than ``KEPT_S`` for all log-ins together.  Random moments keep strangers from taking each place as it becomes
free.  So no attack, in bursts or in time with the changes, is better than a steady flood.  If a steady flood has
``r`` times the rate of the changes, a new connection gets a patient place with a chance of 1 / (1 + 2r).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Generic

from bmq.core.net.earliest_first import C, EarliestFirst

KEPT_S = 5.0
"""Seconds in which no connection loses a patient place.

A log-in takes six round trips of 300 ms at most and up to 2 s for a Kerberos ticket.  A turn of the loop with a
thousand TLS handshakes takes 1 to 2 s.
"""
SHARE = 0.1
"""The part of the patient places that may change hands in a second: half of them in ``KEPT_S``."""
SAVED_S = 0.5
"""Seconds of this rate that a pause saves: after it, a twentieth of the places may change hands at once."""
PATIENCE = 4.0
"""Usual times of a log-in in which a connection keeps a quick place."""
QUICK_LEAST_S = 0.2
"""Seconds in which a connection keeps a quick place at least: a log-in takes six round trips."""
STEP = 1.5
"""The factor by which a log-in changes the time of quick places at most: from the longest to the least in 8 log-ins."""


class Newcomers(Generic[C]):
    """The connections without a session of one listener.  Pure: times are arguments, in seconds."""

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        """``chance`` returns random numbers from 0 to 1."""
        self._chance = chance
        # Of each connection, the time of its first read: later than now while it waits for a rate of connections.
        self._young = EarliestFirst[C]()
        self._old: dict[C, float] = {}  # past ``KEPT_S``; the oldest is the first
        self._quick = EarliestFirst[C]()  # young or old
        self._patient = EarliestFirst[C]()  # the others
        self._refused: dict[C, None] = {}  # refused, and held for a while before their close
        self._next_s = 0.0  # when the next patient place may change hands
        self._quick_s = KEPT_S  # how long a connection keeps a quick place

    def __repr__(self) -> str:
        return (
            f"<Newcomers young={len(self._young)} old={len(self._old)} refused={len(self._refused)}"
            f" kept={self._quick_s:.2g} s>"
        )

    def __len__(self) -> int:
        return len(self._quick) + len(self._patient)

    @property
    def kept_s(self) -> float:
        """Seconds in which no connection loses its place, unless it is refused."""
        return self._quick_s

    def add(self, connection: C, now: float, wait_s: float = 0.0) -> None:
        """Add a connection that was accepted now, and waits for a rate before its first read: its time begins then."""
        self._young.add(connection, now + wait_s)
        is_patient = wait_s > 0 or len(self._patient) < len(self._quick)
        (self._patient if is_patient else self._quick).add(connection, now + wait_s)

    def refuse(self, connection: C) -> None:
        """Note that a connection is refused, and closed after a while: it is the first to lose its place."""
        self.remove(connection)
        self._refused[connection] = None

    def log_in(self, connection: C, now: float) -> None:
        """Remove a connection whose client has shown its name, and learn from the time that the log-in took."""
        began = self._young.time_of(connection)
        if began is None:
            began = self._old.get(connection)
        if began is None:
            return
        self.remove(connection)
        wanted_s = min(max(PATIENCE * (now - began), self._quick_s / STEP), self._quick_s * STEP)
        self._quick_s = min(max(wanted_s, QUICK_LEAST_S), KEPT_S)

    def remove(self, connection: C) -> None:
        """Remove a connection: it has a session without a log-in, or is closed.  Idempotent."""
        for places in (self._young, self._quick, self._patient):
            places.remove(connection)
        for others in (self._old, self._refused):
            others.pop(connection, None)

    @property
    def has_refused(self) -> bool:
        """True if a refused connection is the next to lose its place."""
        return bool(self._refused)

    def is_refused(self, connection: C) -> bool:
        """Return whether a connection is refused, and not closed yet."""
        return connection in self._refused

    def may_give_way(self, now: float) -> bool:
        """Return whether a connection may lose its place at ``now``.

        A connection becomes old once, and leaves a patient place once.
        """
        while (first := self._young.first()) is not None and now - first[1] >= KEPT_S:
            connection, began = self._young.pop()
            self._old[connection] = began
        return bool(self._refused) or self._is_due(now) or self._overdue(now) is not None

    def give_way(self, now: float) -> C | None:
        """Remove and return the connection that loses its place to a new connection; None if none does."""
        if not self.may_give_way(now):
            return None
        if self._refused:
            return self._refused.popitem()[0]
        if self._is_due(now):
            patient = len(self._patient) if self._quick_s < KEPT_S else len(self)
            pause_s = 2 * self._chance() / (SHARE * max(1, patient))
            self._next_s = max(self._next_s, now - SAVED_S) + pause_s
            given: C | None = self._old.popitem()[0]
        else:
            given = self._overdue(now)
        assert given is not None, "may_give_way has found it"
        self.remove(given)
        return given

    def _is_due(self, now: float) -> bool:
        """Return whether the youngest of the old connections may lose its place."""
        return bool(self._old) and now >= self._next_s

    def _overdue(self, now: float) -> C | None:
        """Return the connection that has had a quick place for too long; None if there is none.

        After log-ins by quick places, more places are patient than quick.  The oldest patient places then become quick.
        """
        if self._quick_s >= KEPT_S:
            return None
        surplus = (len(self._patient) - len(self._quick) + 1) // 2
        for _ in range(surplus):
            self._quick.add(*self._patient.pop())
        first = self._quick.first()
        return None if first is None or now - first[1] < self._quick_s else first[0]
