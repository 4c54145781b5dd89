"""Standstills of this process: moments in which its event loop ran no callback, as under SIGSTOP, swap or a long pause.

While a process stands still, the other processes go on.  Clients give their requests up and repeat them through
another process, the controller declares the process dead, and its partitions get new owners.  The process itself
notices none of these events, and requests of a minute ago still lie in its sockets.  So it must detect the standstill
before it serves the first of these requests.

A beat, a timer of ``TICK_S``, keeps the time by which the loop must have run again.  After a standstill timers and
bytes become ready in the same turn of the loop, and asyncio and uvloop (libuv since 1.45) read the bytes first.  So the
beat alone comes too late: ``look`` is called before each request begins, and costs one comparison with the clock.

============ =========================================================================================================
length       consequence
============ =========================================================================================================
``DOUBT_S``    a doubt: this process may have been declared dead.  It asks the store whether it is still a member, which
             settles the doubt.  Until then its partitions' owners prove their ownership before they say where a log
             ends or begins (``broker.partition.assurance``).  Two pauses of ``PAUSE_S`` soon after one another count as
             well: together they may keep a process from answering the controller's pings.  And connections that the
             other side has closed meanwhile are closed, with the requests that lie in them (``core.net.departures``)
``GIVEN_UP_S`` a doubt that the membership does not settle: a partition on its way to another broker may have been taken
             over from a living process (``BrokerConfig.handover_wait_ms``).  And clients are given up, whether the end
             of their connections has arrived or not: a client with a short time-out may have gone on elsewhere,
             and every other process has given up its connections to this one (``core.rpc.liveness``)
``ALONE_S``    the length after which a process that has its cluster alone gives clients up: no other process can have
             served them.  Kafka's own request time-out has passed then, so whatever lies in a socket has no reader any
             more.  A shorter length would let a slow disk close all connections again and again
============ =========================================================================================================

The clock counts the time for which the machine was suspended (``core.clock``).  A hypervisor that pauses a virtual
machine and stops all of its clocks leaves nothing to measure: then only the loss of the membership shows the pause.
"""

from __future__ import annotations

import asyncio
import math

from bmq.core.aio.subscribers import Subscribers
from bmq.core.clock import Clock

TICK_S = 0.25
"""Seconds between two beats: a standstill may be shorter than it was measured by so much."""
PAUSE_S = 0.4
"""Seconds without a response after which the controller suspects a process (``controller.heartbeats``)."""
DOUBT_S = 0.8
"""The shortest silence for which the controller declares a process dead (``controller.patience``)."""
CALM_S = 4.5
"""Seconds without a pause after which earlier pauses do not count: the longest patience of the controller."""
GIVEN_UP_S = 3.0
"""Seconds after which clients are given up: the shortest request time-out in common use."""
ALONE_S = 30.0
"""Seconds after which a process that has its cluster alone gives clients up: Kafka's request.timeout.ms."""


class Standstill:
    """The watch of one process over its own loop, between ``start`` and ``stop``."""

    def __init__(self, clock: Clock, given_up_s: float = GIVEN_UP_S) -> None:
        self.doubts = 0
        """Number of doubts so far."""
        self._settled = 0  # the number of the last doubt that was settled
        self._firm = 0  # the number of the last doubt that the membership cannot settle
        self.on_doubt = Subscribers[float]()
        """Called with the seconds of the standstill, or of the pauses together."""
        self.on_found = Subscribers[float]()
        """Called with the seconds of a standstill of ``given_up_s`` or more, before anything else runs."""
        self.now = clock.monotonic
        self.deadline = math.inf
        """The time, by ``now``, after which the loop should have run again: past it ``look`` finds a standstill."""
        self._given_up_s = given_up_s
        self._beat_at = 0.0
        self._paused_s = 0.0  # of the pauses without a calm time between them
        self._paused_at = -math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._look_due: asyncio.Handle | None = None

    def __repr__(self) -> str:
        return f"<Standstill doubts={self.doubts} given_up_s={self._given_up_s}>"

    def start(self) -> None:
        """Begin to watch the running loop."""
        self._beat()

    def stop(self) -> None:
        """End the watch; later calls of ``look`` find nothing.  Idempotent."""
        for handle in (self._timer, self._look_due):
            if handle is not None:
                handle.cancel()
        self._timer = self._look_due = None
        self.deadline = math.inf

    @property
    def standing(self) -> int:
        """The number of the last doubt that is not settled; 0 if there is none."""
        return self.doubts if self.doubts > self._settled else self._firm

    def settle(self) -> None:
        """Settle the doubts so far: after the last one the store still had this process as a member."""
        self._settled = self.doubts

    def look(self) -> None:
        """Find a standstill that has just ended.  To be called before each request begins, if ``deadline`` has passed.

        Subscribers run within this call: do not call it in the middle of work on connections or produces.
        """
        if self.now() > self.deadline:
            self._passed()

    @property
    def is_unnoticed(self) -> bool:
        """True if a standstill has ended, unseen by ``look``.  Then ``look`` is called soon.

        A caller in the middle of other work reads it, and sends nothing for a client before ``look`` has run.
        """
        if self.now() <= self.deadline:
            return False
        if self._look_due is None:
            self._look_due = asyncio.get_running_loop().call_soon(self._look_now)
        return True

    async def looked(self) -> None:
        """Return once no standstill is unnoticed.  Here a caller is cancelled if its client has gone.

        A change for a client awaits this before it is sent, in the request's task or in its ``core.aio.children``.
        """
        if self.is_unnoticed:
            await asyncio.sleep(0)  # ``look`` runs before this goes on

    def _look_now(self) -> None:
        self._look_due = None
        self.look()

    def _beat(self) -> None:
        is_first = self._timer is None
        # First: a subscriber that fails must not end the beat. Without it each quiet time counts as a standstill.
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._beat)
        if is_first:
            self._mark(self.now())
        else:
            self._passed()

    def _mark(self, now: float) -> None:
        self._beat_at, self.deadline = now, now + DOUBT_S

    def _passed(self) -> None:
        """Judge the time since the last beat."""
        now = self.now()
        passed_s = now - self._beat_at
        self._mark(now)
        if passed_s < PAUSE_S:
            return
        self._paused_s = passed_s + (self._paused_s if now - passed_s - self._paused_at < CALM_S else 0.0)
        self._paused_at = now
        if self._paused_s < DOUBT_S:
            return
        paused_s, self._paused_s = self._paused_s, 0.0
        self.doubts += 1
        if paused_s >= GIVEN_UP_S:
            self._firm = self.doubts
        self.on_doubt.notify(paused_s)
        if passed_s >= self._given_up_s:
            self.on_found.notify(passed_s)
