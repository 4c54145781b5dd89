"""The time for which a silent member has the benefit of the doubt: short, and longer where members are seen to be slow.

A member that was silent for a while and then responded was not dead.  So three times the longest such silence of the
last minutes is waited for, between ``LEAST_S`` and ``MOST_S``.  All members count together: a busy machine or a busy
network makes several members slow.  Pure; time comes with each call.
"""

from __future__ import annotations

LEAST_S = 0.8
"""The patience of a leader without slow members: the two pings of a probe have half of it each."""
MOST_S = 4.5
"""A member that is silent for longer counts as dead, however slow members were before."""
FACTOR = 3.0
"""Patience, as a multiple of the longest silence that ended."""
MEMORY_S = 600.0
"""A silence counts for this long at least, for twice as long at most."""


class Patience:
    """A controller's memory of silences that ended; it outlives its terms."""

    __slots__ = ("_before", "_longest", "_since")

    def __init__(self) -> None:
        self._longest = self._before = 0.0  # of the present period of MEMORY_S, of the one before it
        self._since = float("-inf")

    def __repr__(self) -> str:
        return f"<Patience longest={max(self._longest, self._before):.3f}>"

    def responded(self, silence_s: float, now: float) -> None:
        """Note that a member has responded after ``silence_s`` seconds.

        A longer silence than ``MOST_S`` teaches nothing: no patience would have been enough for it.
        """
        self._turn(now)
        if silence_s <= MOST_S:
            self._longest = max(self._longest, silence_s)

    def seconds(self, now: float) -> float:
        """Return how long to wait for a response of a member that is suspected."""
        self._turn(now)
        return min(MOST_S, max(LEAST_S, FACTOR * max(self._longest, self._before)))

    def _turn(self, now: float) -> None:
        """Begin the next period when the present one is over; after two without a call nothing is left."""
        age_s = now - self._since
        if age_s < MEMORY_S:
            return
        self._before = self._longest if age_s < 2 * MEMORY_S else 0.0
        self._longest, self._since = 0.0, now
