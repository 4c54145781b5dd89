"""The bytes of requests that were read and are not answered, over all connections (queued.max.request.bytes).

Past the limit the gate is shut: connections stop reading and wait.  When the bytes are down to three quarters of it the
gate opens, and all who wait read on, first those with a frame begun, each in the order in which it came.

Why this cannot lock up.  Held bytes are of complete requests, or of frames that have begun.  While there are complete
requests, their answers come without anything being read, and give bytes back.  When there are none, the gate lets one
connection through: the one that has waited longest with a frame begun.  It reads its frame to the end, whatever its
size, the request is answered, and the next one has its turn.  What is left are clients that do not go on: that send a
part of a frame, or do not read their answers.  When the gate is shut for ``STUCK_S``, those that kept their bytes for
so long without a request under way are closed (``Listener``).

Bound: the limit, one frame of socket.request.max.bytes, and for each connection that sends one read (64 KB of small
frames, or one step of a large one: see ``core.frames``).
"""

from __future__ import annotations

from typing import Protocol

from bmq.core.metrics import Metrics

FRAME_BYTES = 400
"""What a waiting request takes beside its bytes: many tiny ones count as what they are."""
STUCK_S = 30.0


class Reader(Protocol):
    """A connection, as the budget knows it."""

    @property
    def has_begun(self) -> bool:
        """A part of a frame has arrived."""

    def read_on(self) -> None:
        """The gate lets you through: ask again and read."""


class RequestBudget:
    """Pure but for the calls of ``read_on``; who is called may call back."""

    def __init__(self, limit: int, metrics: Metrics) -> None:
        self.limit = limit
        self.is_shut = False
        self.times_shut = 0
        self._metrics = metrics
        self._complete = 0  # bytes of complete requests
        self._begun: dict[Reader, None] = {}  # waits with a frame begun; in order
        self._between: dict[Reader, None] = {}
        self._finisher: Reader | None = None

    def __repr__(self) -> str:
        return (
            f"<RequestBudget {self.held}/{self.limit} complete={self._complete} begun={len(self._begun)}"
            f" between={len(self._between)}{' shut' if self.is_shut else ''}>"
        )

    @property
    def held(self) -> int:
        return self._metrics.request_bytes_held

    def change(self, reader: Reader, held: int, complete: int, *, has_completed: bool) -> None:
        """Bytes of ``reader`` more or less; ``complete`` is the part of its complete requests.

        ``has_completed``: a frame of it is complete, whose turn is over.
        """
        self._metrics.request_bytes_held += held
        self._complete += complete
        if has_completed and self._finisher is reader:
            self._finisher = None
        if held > 0 and not self.is_shut and self.held >= self.limit:
            self.is_shut = True
            self.times_shut += 1
        if self.is_shut:
            self._let_through()

    def may_read(self, reader: Reader) -> bool:
        """Whether to read now; else ``read_on`` is called when it is its turn."""
        if not self.is_shut or self._finisher is reader:
            return True
        if reader.has_begun and self._finisher is None and not self._complete:
            assert not self._begun, "the one that waited longest would have been let through"
            self._finisher = reader
            return True
        (self._begun if reader.has_begun else self._between)[reader] = None
        return False

    def forget(self, reader: Reader) -> None:
        """It reads no more.  Its bytes are given back by ``change``."""
        self._begun.pop(reader, None)
        self._between.pop(reader, None)
        if self._finisher is reader:
            self._finisher = None
            self._let_through()

    def _let_through(self) -> None:
        if self.held <= self.limit * 3 // 4:
            self.is_shut = False
            self._finisher = None
        while not self.is_shut and (self._begun or self._between):
            waiting = self._begun or self._between
            reader = next(iter(waiting))
            del waiting[reader]
            reader.read_on()
        if self.is_shut and not self._complete and self._finisher is None and self._begun:
            self._finisher = next(iter(self._begun))
            del self._begun[self._finisher]
            self._finisher.read_on()
