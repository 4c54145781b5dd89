"""A connection of another process of the cluster: answers go out as they come, and nothing waits for its turn.

What a request holds up is its own answer.  A produce to a partition whose pipeline is slow, a group that waits for its
members, a parked fetch: none keeps those behind it from beginning, nor reading from going on.  A caller bounds what it
has under way by credit, and this side bounds the sum: past ``queued.max.request.bytes`` of its listener, connections
that hold more than ``SHARE_BYTES`` stop reading until answers have gone out.  The others go on, so that a ping, a
question or a new connection is answered however much is waiting for storage: a process with much to do must not look
dead.  Bound: the limit, one frame of socket.request.max.bytes, and for each connection ``SHARE_BYTES`` and one read.

As towards clients, nothing begins and nothing is read while the other side does not take its answers.
"""

from __future__ import annotations

import asyncio

from bmq.core.net.client_connection import UNANSWERED_MAX, ClientConnection, ConnectionOwner, Exchange
from bmq.core.net.request import Dispatch, Response

SHARE_BYTES = 1 << 20
SILENCE_S = 60.0
"""A connection is closed of which nothing was heard for so long.  Its caller pings every second: it is gone, and nobody
has told us.  This takes the place of connections.max.idle.ms."""


class UnorderedConnection(ClientConnection):
    """``_started``, what has begun in order, holds only answers here, from when they come until they are sent."""

    __slots__ = ("_running",)

    def __init__(self, listener: ConnectionOwner, dispatch: Dispatch | None = None) -> None:
        super().__init__(listener, dispatch)
        self._running: dict[Exchange, None] = {}

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]} running={len(self._running)}>"

    # -------------------------------------------------------------------------------------------------- requests

    def _may_begin(self, frame: memoryview) -> bool:
        return not self._is_blocked

    def _begin(self, frame: memoryview) -> None:
        super()._begin(frame)
        if self._started and self._started[-1].answer is None:
            self._running[self._started.pop()] = None

    def answered(self, exchange: Exchange, future: asyncio.Future[Response]) -> None:
        if exchange in self._running:
            del self._running[exchange]
            self._started.append(exchange)
        super().answered(exchange, future)

    def _go_on(self) -> None:
        if self._running and not self._is_write_due:  # others may be answered in this turn: one write for all
            self._is_write_due = True
            self._listener.loop.call_soon(self._go_on)
        else:
            super()._go_on()

    # --------------------------------------------------------------------------------------------------- reading

    def _read_or_pause(self) -> None:
        budget = self._listener.budget
        holds_little = self._bytes_held + self._frames.partial_bytes <= SHARE_BYTES
        if self._is_gated:
            if not holds_little:
                return  # ``read_on`` comes
            self._is_gated = False
            budget.forget(self)
        reads = not self._is_blocked and not self._is_draining and len(self._waiting) < UNANSWERED_MAX
        if reads and budget.is_tight and not holds_little and not budget.may_read(self):
            self._is_gated = True
            reads = False
        if reads != self._is_reading:
            self._switch_reading(reads)

    # ------------------------------------------------------------------------------------------------------ closing

    @property
    def is_quiet(self) -> bool:
        return not self._running and super().is_quiet

    def is_idle(self, now: float, limit_s: float) -> bool:
        """Whether nothing was heard of it.  Who is not read from, or reads its answers, is not silent."""
        if self._is_gated or self._has_sent_more():
            self._seen = now
        return now - self._seen >= limit_s

    @property
    def _is_running(self) -> bool:
        return bool(self._running)

    def _leave(self) -> None:
        self._started.extend(self._running)  # to be given back with the others
        self._running.clear()
        super()._leave()
