"""A connection of another process of the cluster: responses go out as they come, in any order.

A request holds up only its own response.  A produce to a partition whose pipeline is slow, a group that waits for its
members, a parked fetch: no such request keeps later requests from beginning, nor reading from going on.  A caller
bounds its outstanding requests by credit, and this side bounds the sum.  Past ``queued.max.request.bytes`` of its
listener, connections that hold more than ``SHARE_BYTES`` stop reading until responses have gone out.  The others go on,
so that a ping, a query or a new connection is served however much waits for storage: a busy process must not look dead.
Bound: the limit, a frame of socket.request.max.bytes, and ``SHARE_BYTES`` and a read per connection.

As towards clients, nothing begins and nothing is read while the other side does not read its responses.
"""

from __future__ import annotations

from collections.abc import Callable

from bmq.core.net.client_connection import UNANSWERED_MAX, ClientConnection, ConnectionOwner, Exchange
from bmq.core.net.request import Dispatch, Outcome
from bmq.core.net.strangers import HELLO_BOUND, HELLO_BYTES_MAX

SHARE_BYTES = 1 << 20
SILENCE_S = 60.0
"""Seconds without a byte after which a connection is closed, in place of connections.max.idle.ms.  Its caller pings
every second, so it is gone, and its end was not notified."""


class UnorderedConnection(ClientConnection):
    """An internal connection.  ``_started`` holds only requests with a response, from its arrival until it is sent."""

    __slots__ = ("_running",)

    def __init__(
        self,
        listener: ConnectionOwner,
        dispatch: Dispatch | None = None,
        on_open: Callable[[ClientConnection], None] | None = None,
    ) -> None:
        super().__init__(listener, dispatch, on_open)
        self._running: dict[Exchange, None] = {}

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]} running={len(self._running)}>"

    def be_stranger(self) -> None:
        """Read small requests only until ``be_known``."""
        self._frames.limit(HELLO_BYTES_MAX, HELLO_BOUND)

    def be_known(self) -> None:
        self._frames.limit(self._listener.config.socket_request_max_bytes)

    # ------------------------------------------------------------------------------------------ transport's events

    def eof_received(self) -> bool:
        """Close the connection at once: all calls of a process have responses."""
        self.close()
        return False

    def depart(self) -> None:
        """Close the connection at once: the other process has closed it."""
        self.close()

    # -------------------------------------------------------------------------------------------------- requests

    def _may_begin(self, frame: memoryview) -> bool:
        return not self._is_blocked

    def _begin(self, frame: memoryview) -> None:
        super()._begin(frame)
        if self._started and self._started[-1].response is None:
            self._running[self._started.pop()] = None

    def on_response(self, exchange: Exchange, outcome: Outcome, *, in_turn: bool) -> None:
        if exchange in self._running:
            del self._running[exchange]
            self._started.append(exchange)
        super().on_response(exchange, outcome, in_turn=in_turn)

    @property
    def _shares_writes(self) -> bool:
        return bool(self._running) or super()._shares_writes

    # --------------------------------------------------------------------------------------------------- reading

    def _read_or_pause(self) -> None:
        budget = self._listener.budget
        holds_little = self._bytes_held + self._frames.partial_bytes <= SHARE_BYTES
        if self._is_gated:
            if not holds_little:
                return  # until ``read_on``
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
        """Return whether nothing has arrived for ``limit_s`` seconds.

        A connection that is not read from, or whose responses are being read, is not silent.
        """
        if self._is_gated or self._has_sent_more():
            self._seen = now
        return now - self._seen >= limit_s

    @property
    def _is_running(self) -> bool:
        return bool(self._running)

    def _leave(self) -> None:
        self._started.extend(self._running)  # given back with the others
        self._running.clear()
        super()._leave()

    def _outlives(self, exchange: Exchange) -> bool:
        """Return False: all calls of a process have responses."""
        return False
