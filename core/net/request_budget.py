"""A bound on the bytes of requests that were read and have no response, over all connections.

Connections that have yet to log in are not among them (``core.net.login_budget``).

The setting is queued.max.request.bytes.  Two gates::

    crowded   frames that have begun hold three quarters of the limit            connections with one begun wait
    shut      complete requests hold the limit, or what such frames leave of it  no connection reads

The first opens at a half, the second at seven eighths.  Waiting connections then read on in the order in which they
came, connections with a frame begun first.  Frames that have begun count for three quarters at most.  The last quarter
is left for requests that arrive whole, so a frame that does not go on never shuts out the connections between two
frames.

Why this cannot lock up.  Held bytes are of complete requests, or of frames that have begun.  While there are complete
requests, their responses come without anything being read, and give bytes back.  Parked requests are the exception, and
have a bound of their own (below).  Where begun frames are in the way, the
connections with the longest wait are let through as *finishers*.  All bytes together may then reach five quarters of
the limit; the first finisher reads its frame to the end whatever its size.  Its request gets its response, and the next
finisher is the first.

Two kinds of clients remain: a *slow sender* sends a part of a frame, and a *stuck reader* does not read its responses.
The ``Listener`` closes a slow sender whose frames arrive below ``LEAST_RATE`` for ``STALL_S`` while they may be read:
the slowest first, and as many as are needed.  It looks every ``STUCK_S / 4`` and measures once more after a burst, so
up to 33 s pass.  It closes a stuck reader that read below ``LEAST_RATE`` for ``STUCK_S`` of pauses of writing, and a
client that kept its bytes for as long, with the gate shut.  A request that runs is not in its client's hands.  But a
client may *park* a request: a fetch waits for records, a JoinGroup for other members (``Dispatch.may_park``).  The gate
may keep the records or the members out.  The client is closed if it keeps more than ``LITTLE_BYTES``
(``core.net.client_progress``) behind parked requests for ``STUCK_S`` in sum, or over its quota for ``STUCK_S``.  The
sum begins again only when the queue has few bytes, and the time of other requests does not count.

Parked requests have bytes of their own.  All that run for ``STUCK_S`` may hold ``parked_max`` together while others
wait; past it the largest are closed, and as many as are needed.  The bound is an eighth of the limit.  With the three
quarters of begun frames these are seven eighths, at which the gate opens.  It is a half while the gate opens for
moments, since the others then go on.  Requests of other kinds are never closed for their size.  A large Produce waits
for storage, and the process owes it this work.

For stuck readers and all the others but slow senders, a gate that opens for less than ``STUCK_S`` counts as shut.  With
almost seven eighths of the limit they would let it open for moments.

The bound is the sum of five quarters of the limit, a frame of socket.request.max.bytes, and a read per sending
connection.  A read has 64 KB of small frames, or a step of a large frame (``core.net.frames``).  A new connection waits
before its first read, too.  Else a client could connect, send and close again and again.  Its requests outlive their
connections (``core.net.exchanges``) and would pass the bound.
"""

from __future__ import annotations

from typing import Protocol

from bmq.core.metrics.counters import PortCounters

FRAME_BYTES = 400
"""Memory of a waiting request beside its bytes, so that many tiny requests count as the memory that they take."""
CONNECTION_BYTES = 3_200
"""Memory of a closed connection with requests in progress, beside these: as measured.  It counts in no other bound."""
STUCK_S = 30.0
STALL_S = 10.0
LEAST_RATE = 16 << 10
"""Bytes a second.  Bytes that were sent earlier wait in the kernel, so a client that sends at all is above this rate at
once.  """
FINISHERS_MAX = 256
"""Connections that finish their frames at a time; their bytes together have a bound of their own."""


class Reader(Protocol):
    """The budget's view of a connection."""

    @property
    def has_begun(self) -> bool:
        """True if a part of a frame has arrived."""

    def read_on(self) -> None:
        """Read again, after a new ``may_read``: a gate has let the connection through."""


class RequestBudget:
    """The count of held bytes, and the gates.  Pure but for its calls of ``read_on``, which may call back."""

    def __init__(self, limit: int, metrics: PortCounters) -> None:
        self.limit = limit
        self.is_tight = False
        """True if one of the gates is closed: ``may_read`` must be called before reading."""
        self.is_shut = False
        self.is_crowded = False
        self.times_shut = 0
        self.held = 0
        """Bytes that are held now, over all connections."""
        self._metrics = metrics
        self._complete = 0  # bytes of complete requests
        self._begun: dict[Reader, None] = {}  # connections that wait with a frame begun, in order
        self._between: dict[Reader, None] = {}
        self._finishers: dict[Reader, None] = {}  # connections that finish their frames; the first has no bound
        # Finishers that wait, because all together have brought too much.
        self._held_back: dict[Reader, None] = {}

    def __repr__(self) -> str:
        gates = f"{' shut' if self.is_shut else ''}{' crowded' if self.is_crowded else ''}"
        return (
            f"<RequestBudget {self.held}/{self.limit} complete={self._complete} begun={len(self._begun)}"
            f" between={len(self._between)} finishers={len(self._finishers)}{gates}>"
        )

    @property
    def excess_begun_bytes(self) -> int:
        """Bytes of begun frames above the half at which their gate opens again."""
        return max(0, self._begun_bytes - self.limit // 2)

    def parked_max(self, *, was_open: bool) -> int:
        """Return the bytes that parked requests may hold for long while others wait.

        ``was_open``: the gate was open for moments.
        """
        return self.limit // (2 if was_open else 8)

    @property
    def _begun_bytes(self) -> int:
        return self.held - self._complete

    @property
    def _weight(self) -> int:
        """Bytes as the gate for all connections counts them."""
        return self._complete + min(self._begun_bytes, self.limit * 3 // 4)

    def change(self, reader: Reader, held: int, complete: int, *, has_completed: bool) -> None:
        """Add to the bytes that ``reader`` holds, or subtract; ``complete`` is the part of its complete requests.

        ``has_completed``: a frame of it is complete, which ends its turn as a finisher.
        """
        self.held += held
        self._metrics.request_bytes_held += held
        self._complete += complete
        if has_completed and reader in self._finishers:
            self._end_finisher(reader)
        if held > 0:
            if not self.is_crowded and self._begun_bytes >= self.limit * 3 // 4:
                self.is_crowded = self.is_tight = True
            if not self.is_shut and self._weight >= self.limit:
                self.is_shut = self.is_tight = True
                self.times_shut += 1
        if self.is_tight:
            self._let_through()

    def may_read(self, reader: Reader) -> bool:
        """Return whether to read now.  If not, ``read_on`` is called when its turn comes."""
        if reader in self._finishers:
            if self._goes_on(reader):
                return True
            self._held_back[reader] = None
            return False
        if not reader.has_begun:
            if not self.is_shut:
                return True
            self._between[reader] = None
            return False
        if not self.is_tight:
            return True
        if not self._begun and self._may_finish():
            self._finishers[reader] = None
            return True
        self._begun[reader] = None
        return False

    def forget(self, reader: Reader) -> None:
        """Remove a connection that reads no more.  Its bytes are given back by ``change``."""
        self._begun.pop(reader, None)
        self._between.pop(reader, None)
        if reader in self._finishers:
            self._end_finisher(reader)
            self._let_through()

    def _may_finish(self) -> bool:
        """Return whether one more may finish its frame.  While responses are to come, they are waited for first."""
        return len(self._finishers) < FINISHERS_MAX and not (self.is_shut and self._complete)

    def _goes_on(self, finisher: Reader) -> bool:
        if self.held < self.limit * 5 // 4:
            return True
        return not self._complete and finisher is next(iter(self._finishers))

    def _end_finisher(self, reader: Reader) -> None:
        self._finishers.pop(reader, None)
        self._held_back.pop(reader, None)

    def _let_through(self) -> None:
        if self.is_shut and self._weight <= self.limit * 7 // 8:
            self.is_shut = False
        if self.is_crowded and not self.excess_begun_bytes:
            self.is_crowded = False
        self.is_tight = self.is_shut or self.is_crowded
        for reader in [each for each in self._finishers if each in self._held_back]:
            if reader in self._held_back and self._goes_on(reader):
                del self._held_back[reader]
                reader.read_on()
        if not self.is_tight:
            self._finishers.clear()
        while self._begun and (not self.is_tight or self._may_finish()):
            reader = next(iter(self._begun))
            del self._begun[reader]
            if self.is_tight:
                self._finishers[reader] = None
            reader.read_on()
        while self._between and not self.is_shut:
            reader = next(iter(self._between))
            del self._between[reader]
            reader.read_on()
