"""A connection of another process of the cluster: responses go out as they come, in any order.

A request holds up only its own response.  A slow request does not delay the start of later requests, nor the reading of
the socket.  Examples are a produce to a slow pipeline, a group that waits for its members, a parked fetch.  A caller
bounds its outstanding requests by credit, and this side bounds the sum.  Past ``queued.max.request.bytes`` of its
listener, connections that hold more than ``SHARE_BYTES`` stop reading until responses have gone out.  The others go on,
so that a ping, a query or a new connection is served however much waits for storage: a busy process must not look dead.
Bound: the limit, a frame of socket.request.max.bytes, and ``SHARE_BYTES`` and a read per connection.

As towards clients, nothing begins and nothing is read while the other side does not read its responses.
"""

from __future__ import annotations

from collections.abc import Callable

from bmq.core.net.client_connection import ClientConnection
from bmq.core.net.exchanges import AT_ONCE, NEXT_TURN, UNANSWERED_MAX, Due, Exchange, Exchanges
from bmq.core.net.request import Response
from bmq.core.net.strangers import HELLO_BOUND, HELLO_BYTES_MAX

SHARE_BYTES = 1 << 20
SILENCE_S = 60.0
"""Seconds without a byte after which a connection is closed, in place of connections.max.idle.ms.  Its caller pings
every second, so it is gone, and its end was not notified."""


class UnorderedExchanges(Exchanges):
    """Requests of another process.  ``started`` holds the responses to be sent, in the order in which they came."""

    __slots__ = ("running",)

    def __init__(self, is_pipelined: Callable[[memoryview], bool]) -> None:
        super().__init__(is_pipelined)
        self.running: dict[Exchange, None] = {}

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]} running={len(self.running)}>"

    def may_begin(self, frame: memoryview) -> bool:
        return not self.is_blocked

    def may_read(self) -> bool:
        return not self.is_blocked and not self.is_draining and len(self.waiting) < UNANSWERED_MAX

    @property
    def is_quiet(self) -> bool:
        return not self.running and super().is_quiet

    @property
    def is_running(self) -> bool:
        return bool(self.running)

    def begun(self, exchange: Exchange) -> None:
        if exchange.response is not None:
            self.started.append(exchange)
            return
        self.bytes_held += exchange.bytes_held
        self.running[exchange] = None

    def responded(self, exchange: Exchange, response: Response) -> Due:
        del self.running[exchange]
        self.started.append(exchange)
        due = super().responded(exchange, response)
        return NEXT_TURN if due is AT_ONCE and self.running else due

    def failed(self, exchange: Exchange) -> None:
        """Take the failure of a request: nothing is sent behind it."""
        del self.running[exchange]
        self.started.append(exchange)
        super().failed(exchange)

    def close(self) -> list[Exchange]:
        self.started.extend(self.running)  # dropped with the others
        self.running.clear()
        return super().close()

    def _outlives(self, exchange: Exchange) -> bool:
        """Return False: all calls of a process have responses."""
        return False


class UnorderedConnection(ClientConnection):
    """An internal connection."""

    __slots__ = ()

    _order = UnorderedExchanges

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

    # --------------------------------------------------------------------------------------------------- reading

    def _read_or_pause(self) -> None:
        share = self._share
        holds_little = self._requests.bytes_held + self._frames.partial_bytes <= SHARE_BYTES
        if share.is_gated:
            if not holds_little:
                return  # until ``read_on``
            share.forget(self)
        reads = self._requests.may_read()
        if reads and share.budget.is_tight and not holds_little:
            reads = share.may_read(self)
        if reads != self._is_reading:
            self._switch_reading(reads)

    def _is_active(self) -> bool:
        """Return whether it is not read from, or responses are being read.  A connection without either is silent."""
        return self._share.is_gated or self._has_read()
