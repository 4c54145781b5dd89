"""The running of a connection's requests: they begin in their order, and their responses are written in that order.

The order is that of ``core.net.exchanges``.  A runner passes a request to the endpoint's ``Dispatch``, takes its
outcome, and gives the response to ``core.net.response_writer``.  It bounds the requests that begin in a turn of the
loop, and writes the responses of one turn together.

``core.net.client_connection`` builds on it: a base class, not a part with a reference back to its connection.  The
references would be a cycle, and a cycle of objects that are set aside is never freed (``core.garbage_collector``).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from bmq.core.net.connection_owner import LoopOwner
from bmq.core.net.exchanges import LATER, NEXT_TURN, Exchange, Exchanges
from bmq.core.net.request import Dispatch, Outcome, PendingResponse, Response, outcome_of
from bmq.core.net.request_budget import FRAME_BYTES
from bmq.core.net.response_writer import ResponseWriter
from bmq.core.security.session import Session

BEGUN_A_TURN = 100
"""Requests of a connection that begin in one turn of the loop.  A read may bring five thousand small requests of 20 to
100 us; at 100 us a request, a turn takes 10 ms."""


class RunningExchange(Exchange):
    """A request whose outcome is to come.  It passes the outcome to its runner."""

    __slots__ = ("runner",)

    runner: RequestRunner

    def done(self, future: asyncio.Future[Response]) -> None:
        """Pass on the outcome of a future, which calls in a turn of its own."""
        self.runner.on_response(self, outcome_of(future), in_turn=True)

    def resolved(self, outcome: Outcome) -> None:
        """Pass on the outcome of a pending response, which calls in the middle of other work."""
        self.runner.on_response(self, outcome, in_turn=False)


class RequestRunner(ABC):
    """The requests and responses of a connection, over its transport."""

    __slots__ = ("_dispatch", "_is_begin_due", "_is_write_due", "_listener", "_requests", "_transport", "_writer",
                 "is_closed")  # fmt: skip

    _order: ClassVar[type[Exchanges]] = Exchanges
    """The order of requests and responses."""

    # The members of ``core.net.request.Client`` that the connection has.
    session: Session
    client_software: tuple[str, str]
    client_id: str | None
    peer: str
    host: str

    def __init__(self, listener: LoopOwner, dispatch: Dispatch) -> None:
        self.is_closed = False
        self._listener = listener
        self._dispatch = dispatch
        self._transport: asyncio.Transport | None = None
        self._requests = self._order(dispatch.is_pipelined)
        self._writer = ResponseWriter()
        self._is_write_due = False
        self._is_begin_due = False  # more may begin than began in this turn

    @property
    def transport(self) -> asyncio.Transport:
        """The transport, once the connection stands."""
        assert self._transport is not None
        return self._transport

    @property
    def is_quiet(self) -> bool:
        """True if no request is in progress, and no response is unsent whose client may read it."""
        return self._requests.is_quiet

    # ---------------------------------------------------------------------------------------------- for the connection

    @abstractmethod
    def on_close(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call ``call`` at the close: see ``core.net.request.Client``.  After the close it is called at once."""

    @abstractmethod
    def mute(self, seconds: float) -> None:
        """Begin no further request, and read nothing, for so long: see ``core.net.request.Client``."""

    @abstractmethod
    def unmute(self) -> None:
        """End a mute, in the loop's next turn: see ``core.net.request.Client``."""

    @abstractmethod
    def _settle(self, *, has_completed: bool = False) -> None:
        """End an event: write, update the budget, read on or pause."""

    @abstractmethod
    def _close_failed(self, error: BaseException) -> None:
        """Close the connection because of a request's exception."""

    @abstractmethod
    def _take_late(self, exchange: Exchange, outcome: Outcome) -> None:
        """Take the outcome of a dropped request, or of a request of a closed connection."""

    # -------------------------------------------------------------------------------------------------- requests begin

    def _take(self, frames: list[memoryview]) -> None:
        """Take complete frames: begin their requests, BEGUN_A_TURN in this turn, or let them wait."""
        requests = self._requests
        for frame in frames if len(frames) <= BEGUN_A_TURN else frames[:BEGUN_A_TURN]:
            if requests.waiting or not requests.may_begin(frame):
                requests.hold(frame)
                continue
            self._begin(frame)
            if self.is_closed:
                return
        if len(frames) > BEGUN_A_TURN:
            for frame in frames[BEGUN_A_TURN:]:
                requests.hold(frame)
            self._begin_later()

    def _begin_waiting(self) -> None:
        """Begin waiting requests: BEGUN_A_TURN in this turn, further requests in the next."""
        requests = self._requests
        begun = 0
        while requests.waiting and not self.is_closed and requests.may_begin(requests.waiting[0]):
            if begun == BEGUN_A_TURN:
                self._begin_later()
                return
            begun += 1
            self._begin(requests.next_waiting())

    def _begin_later(self) -> None:
        """Begin more requests in the next turn of the loop."""
        if not self._is_begin_due:
            self._is_begin_due = True
            self._listener.loop.call_soon(self._begin_more)

    def _begin_more(self) -> None:
        self._is_begin_due = False
        if not self.is_closed:
            self._begin_waiting()
            self._settle()

    def _begin(self, frame: memoryview) -> None:
        standstill = self._listener.standstill
        if standstill.now() > standstill.deadline:
            standstill.look()
            if self.is_closed:
                return  # the process stood still: its client is given up
        requests = self._requests
        if requests.has_left and self._expects_response(frame):
            return
        try:
            response = self._dispatch(frame, self)
        except Exception as error:  # noqa: BLE001 - a request must not end the process: see Dispatch
            self._close_failed(error)
            return
        if isinstance(response, Response):
            if requests.started:
                requests.begun(Exchange(0, response))
            elif self._writer.add(response):
                self._write()
            return
        exchange = RunningExchange(
            len(frame) + FRAME_BYTES,
            None,
            expects_response=self._expects_response(frame),
            may_park=self._dispatch.may_park(frame),
        )
        exchange.runner = self
        requests.begun(exchange)
        if isinstance(response, PendingResponse):
            exchange.work = response
            response.on_over(exchange.resolved)
        else:
            exchange.work = future = asyncio.ensure_future(response)
            future.add_done_callback(exchange.done)

    def _expects_response(self, frame: memoryview) -> bool:
        """Return whether a request has a response.  Before the log-in all have: a raw token may look like a produce."""
        return not self.session.has_begun or self._dispatch.expects_response(frame)

    # -------------------------------------------------------------------------------------------- responses are written

    def on_response(self, exchange: Exchange, outcome: Outcome, *, in_turn: bool) -> None:
        """Take the outcome of a request.

        ``in_turn``: in a turn of the loop of its own.  If False, the call comes in the middle of other work, so it only
        writes the response.  All work that the response makes possible begins in the next turn.
        """
        if self.is_closed or exchange.is_dropped:
            self._take_late(exchange, outcome)
            return
        if not isinstance(outcome, Response):
            self._requests.failed(exchange)
            if in_turn:
                self._close_failed(outcome)
            else:
                self._listener.loop.call_soon(self._close_failed, outcome)
            return
        due = self._requests.responded(exchange, outcome)
        if due is NEXT_TURN:
            self._go_on_later()
        elif due is LATER:
            return
        elif in_turn:
            self._go_on()
        else:
            self._send_ready()
            if self._writer.pieces or self._writer.releases:
                self._write()
            self._go_on_later()

    def _go_on_later(self) -> None:
        if not self._is_write_due:
            self._is_write_due = True
            self._listener.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Send the responses that are ready, and begin the requests behind them."""
        self._is_write_due = False
        if not self.is_closed:
            requests = self._requests
            if requests.started:
                self._send_ready()
            if requests.waiting:
                self._begin_waiting()
            self._settle()

    def _send_ready(self) -> None:
        requests, add = self._requests, self._writer.add
        while requests.started and (response := requests.next_response()) is not None:
            if add(response):
                self._write()

    def _write(self) -> None:
        """Write the responses of this event.  Responses are unsent until the kernel has taken them."""
        writer = self._writer
        assert self._transport is not None
        writer.write(self._transport)
        if writer.unsent and (self.is_closed or not self._requests.is_blocked):
            writer.taken()

    def _drop_expecting_response(self) -> None:
        """Drop the requests that have a response, and send nothing more."""
        for exchange in self._requests.leave():
            exchange.give_up()
        self._writer.drop()
