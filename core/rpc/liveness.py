"""Liveness of the other side of an internal connection.  Pure: events and the time are arguments.

A sign of life is any arrival, and also any progress of the kernel with bytes that it had refused before.  Bytes that
the kernel takes at once are no sign of life: it takes some megabytes even for a stopped process.

* Silent for ``ping_s``: a ping goes out, and another one every ``ping_s``.
* Silent for ``ping_s`` + ``ping_timeout_s``: lost.  With the usual numbers two pings have gone without response then.
* The kernel has taken nothing more for ``stuck_s``: lost, whatever still arrives; no request can be sent to it.

The other side may leave a connection unread on purpose, since it holds too many bytes of it already, and then sends no
response to a ping there.  Another connection to the same process vouches for it: what arrives there is a sign of life
here, though for no longer than ``stuck_s`` without one of its own.

A process that was held up itself (stopped, or in a long turn of the loop) has not read meanwhile.  So the excess time
between two ticks does not count against the other side.
"""

from __future__ import annotations

from enum import Enum


class LivenessVerdict(Enum):
    """A tick's verdict on the connection."""

    FINE = "fine"
    PING = "ping"
    LOST = "lost"


class Liveness:
    """The liveness of one connection.  Times are seconds of one clock."""

    __slots__ = ("_alive", "_drained", "_pinged", "_read", "_ticked", "_unsent", "ping_s", "silence_max_s", "stuck_s")

    def __init__(self, now: float, ping_s: float, ping_timeout_s: float, stuck_s: float) -> None:
        self.ping_s = ping_s
        self.silence_max_s = ping_s + ping_timeout_s
        self.stuck_s = stuck_s
        self._alive = self._read = self._drained = self._pinged = self._ticked = now
        self._unsent = 0  # at the last tick

    def __repr__(self) -> str:
        return f"<Liveness alive={self._alive:.3f} pinged={self._pinged:.3f} unsent={self._unsent}>"

    @property
    def tick_s(self) -> float:
        """Seconds between two calls of ``tick``."""
        return self.ping_s / 4

    @property
    def alive(self) -> float:
        """The time of the last sign of life."""
        return self._alive

    def received(self, now: float) -> None:
        """Note that bytes have arrived."""
        self._alive = self._read = now

    def vouched(self, at: float) -> None:
        """Note a sign of life of the same process at the time ``at``, on another connection."""
        self._alive = max(self._alive, at)

    def drained(self, now: float) -> None:
        """Note that the kernel has taken the last of what it had refused."""
        self._alive = self._read = self._drained = now
        self._unsent = 0

    def tick(self, now: float, unsent: int) -> LivenessVerdict:
        """Judge the connection.  ``unsent`` are the bytes that the kernel has not taken yet."""
        self._forgive(now)
        if not self._unsent:
            self._drained = now  # what is unsent now is seen for the first time
        elif unsent < self._unsent:
            self._alive = self._read = self._drained = now
        self._unsent = unsent
        silence_s = now - self._alive
        is_stuck = unsent and now - self._drained >= self.stuck_s
        if is_stuck or silence_s >= self.silence_max_s or now - self._read >= max(self.stuck_s, self.silence_max_s):
            return LivenessVerdict.LOST
        if silence_s >= self.ping_s and now - self._pinged >= self.ping_s:
            self._pinged = now
            return LivenessVerdict.PING
        return LivenessVerdict.FINE

    def _forgive(self, now: float) -> None:
        """Add the time for which this process was held up to the times of the last signs of life."""
        held_up_s = now - self._ticked - self.tick_s
        if held_up_s > self.tick_s:
            self._alive = min(now, self._alive + held_up_s)
            self._read = min(now, self._read + held_up_s)
            self._drained = min(now, self._drained + held_up_s)
        self._ticked = now
