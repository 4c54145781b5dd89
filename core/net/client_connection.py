"""A client's connection: frames in, dispatched in order; responses out, in the same order.

Requests stand in two queues, oldest first::

    started                                waiting
    [response ready?] [running] [running]  [frame] [frame] ...
     └ sent as soon as it is first          └ begins when it may: ``_begin_waiting``

A pipelined request (Produce) may begin while others run.  Any other begins when nothing is started, so that all before
it have their responses.  Nothing begins out of order, and nothing begins while the client does not read its responses.

The end of a connection drops its requests, except for requests without a response (a produce with acks=0).  The client
of such a request counts it as done once it is sent: the client sends, flushes and closes.  As in Kafka, a request from
before the end is served.  The connection stays until the last request without a response has begun, and sends nothing.
Such a request, once begun, outlives the connection: also after a reset, or after the failure of a later request.  Until
it is done it keeps its bytes in the budget, and no place among the connections.

Only ``loop.create_task`` and the transport are used, no threads and no clock.  A transport may call back from within
``resume_reading``, as simulated ones do: it is the last thing that an event does.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol, cast

from bmq.core.aio.standstill import Standstill
from bmq.core.aio.subscribers import Subscribers, no_op
from bmq.core.config import NodeConfig
from bmq.core.net.frames import FrameReader
from bmq.core.net.login_budget import LoginBudget
from bmq.core.net.request import (
    Buffer,
    CloseConnection,
    CloseQuietly,
    Dispatch,
    Outcome,
    PendingResponse,
    Response,
    outcome_of,
)
from bmq.core.net.request_budget import FRAME_BYTES, LEAST_RATE, STALL_S, STUCK_S, RequestBudget
from bmq.core.security.session import ANONYMOUS_SESSION

UNANSWERED_MAX = 256
"""Requests of a connection that are read and have no response yet; librdkafka would send a million."""
UNANSWERED_BYTES_MAX = 16 << 20
"""Bytes of those requests.

A single read may bring more than both bounds, and a frame that has begun is read to its end.
"""
BEGUN_A_TURN = 100
"""Requests of a connection that begin in one turn of the loop.  A read may bring five thousand small requests of 20 to
100 us; at 100 us a request, a turn takes 10 ms."""
_JOIN_MAX = 4 << 10
"""Responses up to this size are joined: copying one costs less than one more element of a vector write."""
_WRITE_MAX = 64 << 10
"""Responses to requests that were read together are written together, up to this size."""
_SIZE = struct.Struct(">i")


class ConnectionOwner(Protocol):
    """A connection's view of the listener that accepted it (``core.net.listener.Listener``)."""

    dispatch: Dispatch
    config: NodeConfig
    budget: RequestBudget
    """Bytes of the connections with a session."""
    login_budget: LoginBudget[ClientConnection]
    """Bytes of the connections that have yet to log in."""
    shared_buffer: memoryview
    """The receive buffer of all connections."""
    now: float
    """The loop's time at the last tick, in seconds."""
    standstill: Standstill
    """The watch over this process's loop, which may close all connections."""
    loop: asyncio.AbstractEventLoop

    def opened(self, connection: ClientConnection) -> float:
        """Register a connection, or close it if there are too many.  Return the time of its first activity."""

    def identified(self, connection: ClientConnection) -> None:
        """Count a connection for the principal of its session, or refuse it if that has too many."""

    def lost(self, connection: ClientConnection) -> None:
        """Remove a connection whose socket is closed."""

    def finished(self, connection: ClientConnection) -> None:
        """Note that no request of a closed connection is in progress any more."""

    def malformed(self, connection: ClientConnection, why: str) -> None:
        """Count and log a connection that is closed because its bytes are not a request."""

    def bug(self, connection: ClientConnection, error: BaseException) -> None:
        """Log an exception that no request may cause."""


class Exchange:
    """A request that has begun, until its response is sent."""

    __slots__ = ("bytes_held", "connection", "expects_response", "is_dropped", "response", "work")

    def __init__(
        self, connection: ClientConnection, bytes_held: int, response: Response | None, *, expects_response: bool = True
    ) -> None:
        self.connection = connection
        self.bytes_held = bytes_held
        self.response = response
        self.expects_response = expects_response
        """False if the request has no response by protocol (acks=0).  Then the request outlives its connection."""
        self.is_dropped = False
        """True once the request is given up.  Then the connection ignores its outcome."""
        self.work: asyncio.Future[Response] | PendingResponse | None = None

    def begin(self, work: Awaitable[Response]) -> None:
        """Have the connection get the outcome of ``work``, which has begun."""
        if isinstance(work, PendingResponse):
            self.work = work
            work.on_over(self._resolved)
        else:
            self.work = asyncio.ensure_future(work)
            self.work.add_done_callback(self._done)

    def _done(self, future: asyncio.Future[Response]) -> None:
        self.connection.on_response(self, outcome_of(future), in_turn=True)

    def _resolved(self, outcome: Outcome) -> None:
        self.connection.on_response(self, outcome, in_turn=False)


class ClientConnection(asyncio.BufferedProtocol):
    """The protocol of a client's socket, and the ``Client`` of its requests.

    Needs a loop that reads into the buffer in the call that gets it (selectors, uvloop; not Windows' proactor): one
    receive buffer serves all connections.
    """

    __slots__ = ("_budget", "_bytes_held", "_counted", "_counted_complete", "_dispatch", "_frame_mark", "_frame_since",
                 "_frames", "_has_ended", "_has_left", "_held_max", "_is_begin_due", "_is_blocked", "_is_draining",
                 "_is_gated", "_is_reading", "_is_write_due", "_listener", "_mute_timer", "_muted_until", "_on_close",
                 "_on_open", "_out", "_out_releases", "_out_size", "_read_mark", "_read_since", "_seen", "_since",
                 "_started", "_transport", "_unsent", "_unsent_bytes", "_waiting", "client_id", "client_software",
                 "host", "is_closed", "is_muted", "peer", "session")  # fmt: skip

    def __init__(
        self,
        listener: ConnectionOwner,
        dispatch: Dispatch | None = None,
        on_open: Callable[[ClientConnection], None] | None = None,
    ) -> None:
        """``dispatch`` handles the connection's requests in place of the listener's own.

        ``on_open`` is called once the connection stands, before anything is read.
        """
        self._dispatch = dispatch or listener.dispatch
        self._on_open = on_open
        self.client_id: str | None = None
        self.client_software = ("", "")
        self.session = ANONYMOUS_SESSION
        self.host = self.peer = "unknown"
        self.is_closed = False
        self._listener = listener
        self._budget: RequestBudget | LoginBudget[ClientConnection] = listener.budget
        self._frames = FrameReader(listener.shared_buffer, listener.config.socket_request_max_bytes)
        self._transport: asyncio.Transport | None = None
        self._started: deque[Exchange] = deque()
        self._waiting: deque[memoryview] = deque()
        self._bytes_held = 0  # of complete requests without a response
        self._held_max = UNANSWERED_BYTES_MAX
        self._counted = self._counted_complete = 0  # as the budget has counted them
        self._out: list[Buffer] = []  # framed, to be written at the event's end
        self._out_size = 0
        self._out_releases: list[Callable[[], None]] = []
        self._unsent: list[Callable[[], None]] = []  # releases of responses that the kernel has not taken
        self._unsent_bytes = 0  # at the last check
        self._on_close = Subscribers[[]]()
        self._is_reading = True
        self._has_left = False  # its client is gone: only requests without a response begin
        self._has_ended = False  # its client is gone, and all bytes are read
        self._is_gated = False  # waits for the budget to call ``read_on``
        self._is_blocked = False  # the kernel does not take all that was written
        self.is_muted = False  # its client is over its quota, or too many connections come
        self._muted_until = 0.0
        self._mute_timer: asyncio.TimerHandle | None = None
        self._is_draining = False
        self._is_write_due = False
        self._is_begin_due = False  # more may begin than began in this turn
        self._seen = self._since = 0.0  # last activity; since when its client keeps its bytes
        self._frame_since = 0.0  # when its frame began, was let through, or was last fast enough
        self._frame_mark = 0  # and what had arrived of it then
        self._read_since = 0.0  # when its responses were too many for the kernel, or were last read fast enough
        self._read_mark = 0  # and what the kernel had not taken of them then

    def __repr__(self) -> str:
        return (
            f"<ClientConnection {self.peer} started={len(self._started)} waiting={len(self._waiting)}"
            f" held={self._bytes_held}{' blocked' if self._is_blocked else ''}{' gated' if self._is_gated else ''}"
            f"{' muted' if self.is_muted else ''}"
            f"{' closed' if self.is_closed else ''}>"
        )

    # ------------------------------------------------------------------------------------------- for request handlers

    @property
    def transport(self) -> asyncio.Transport:
        """The transport, once the connection stands."""
        assert self._transport is not None
        return self._transport

    def on_close(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call ``call`` at the close: see ``core.net.request.Client``.  After the close it is called at once."""
        if self.is_closed:
            call()
            return no_op
        return self._on_close.add(call)

    def limit_frames(self, size_max: int, bound: str, size_least: int) -> None:
        """Bound the requests that arrive before a log-in: each, and all without a response together.

        They count among those of the connections without a session.  ``bound`` names the setting of ``size_max``, for
        the log.
        """
        self._frames.limit(size_max, bound, size_least)
        self._held_max = size_max
        self._count_in(self._listener.login_budget)

    def unlimit_frames(self) -> None:
        """Take the bounds of ``limit_frames`` away: the client has logged in."""
        self._frames.limit(self._listener.config.socket_request_max_bytes)
        self._held_max = UNANSWERED_BYTES_MAX
        self._count_in(self._listener.budget)

    def identified(self) -> None:
        """Note that the session has the client's principal, after a log-in or where the listener asks for none.

        A principal with too many connections loses this one soon: nothing more is read then.
        """
        self._listener.identified(self)
        if self.is_muted:
            self._read_or_pause()

    @property
    def is_known(self) -> bool:
        """True unless the connection has yet to log in."""
        return self._budget is self._listener.budget

    def _count_in(self, budget: RequestBudget | LoginBudget[ClientConnection]) -> None:
        """Move the bytes that are counted to another budget."""
        before, held, complete = self._budget, self._counted, self._counted_complete
        if before is budget or self.is_closed:
            return
        self._budget, self._is_gated = budget, False
        if held:
            before.change(self, -held, -complete, has_completed=False)
        before.forget(self)
        if held:
            budget.change(self, held, complete, has_completed=False)

    def mute(self, seconds: float) -> None:
        """Begin no further request, and read nothing, for so long: see ``core.net.request.Client``.

        Reading pauses at the end of the event in progress, like all that a request changes.
        """
        loop = self._listener.loop
        until = loop.time() + seconds
        if self.is_closed or self._is_draining or until <= self._muted_until:
            return
        if self._mute_timer is not None:
            self._mute_timer.cancel()
        self.is_muted, self._muted_until = True, until
        self._mute_timer = loop.call_at(until, self._unmute)

    def unmute(self) -> None:
        """End a mute, in the loop's next turn: see ``core.net.request.Client``."""
        if self._mute_timer is not None:
            self._mute_timer.cancel()
            self._muted_until = 0.0
            self._mute_timer = self._listener.loop.call_later(0, self._unmute)

    def _unmute(self) -> None:
        if self._mute_timer is not None:
            self._mute_timer.cancel()
            self._mute_timer = None
        self.is_muted = False
        self._since = self._frame_since = self._listener.loop.time()
        self._frame_mark = self._frames.partial_bytes
        self._go_on()

    @property
    def has_begun(self) -> bool:
        """True if a part of a frame has arrived."""
        return self._frames.is_partial

    @property
    def has_left(self) -> bool:
        """True once the client is known to have gone: it reads nothing, and requests with a response do not begin."""
        return self._has_left

    # ------------------------------------------------------------------------------------------ transport's events

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)  # uvloop's has the methods, not the base class
        self._transport = stream
        self.host, self.peer = _names(transport.get_extra_info("peername"))
        self._seen = self._since = self._listener.opened(self)
        if self.is_closed:
            return
        # Blocked as soon as the kernel does not take everything: whether what was written is sent is then certain.
        stream.set_write_buffer_limits(high=0)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            # The kernel sizes the buffers: a fixed size would switch its tuning off.
        if self._on_open is not None:
            self._on_open(self)
        if self._may_begin_at_once:
            self.identified()
        if self.is_muted:  # too many connections come: it waits
            self._read_or_pause()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self.is_closed:
            return
        self._seen = self._listener.now
        was_begun = self._frames.is_partial
        frames = self._frames.received(nbytes)
        for frame in frames if len(frames) <= BEGUN_A_TURN else frames[:BEGUN_A_TURN]:
            self._take(frame)
            if self.is_closed:
                return
        if len(frames) > BEGUN_A_TURN:
            for frame in frames[BEGUN_A_TURN:]:
                self._hold(frame)
            self._begin_later()
        if self._frames.error:
            self._close_malformed(self._frames.error)
            return
        if self._frames.is_partial and (frames or not was_begun):
            self._since = self._frame_since = self._listener.loop.time()
            self._frame_mark = 0
        self._settle(has_completed=bool(frames))

    def eof_received(self) -> bool:
        """Close the connection: at once, or when the last request without a response has begun, then return True.

        Outstanding responses are not sent.  Kafka sends them to a client that has closed its sending half alone.  Here
        such a client counts as gone: a proxy shows a close in the same way.

        The loop closes the connection, too, if the result is False, but calls ``connection_lost`` in a later turn.  A
        request that waits may not begin before.
        """
        if self.is_closed:
            return False
        self._has_ended = True
        self._frames.drop()  # a frame that has begun will not end, and others must not wait for its end
        self._is_gated = False
        self._budget.forget(self)
        self._drop_answered()
        if self._waiting:
            self._begin_later()
        self._settle()
        return not self.is_closed

    def depart(self) -> None:
        """Drop the requests that have a response: the client has gone.

        The connection is read up to its end.  Only requests without a response begin.
        """
        if self.is_closed or self._has_left:
            return
        if self._is_blocked and self._is_reading:  # TLS pauses by itself while its own bytes are not taken
            self._switch_reading(False)  # the next turn reads on, and TLS with it
        is_idle = self._is_reading and not (self._started or self._waiting)
        self._drop_answered()
        if not is_idle:  # thousands of idle connections may end at once, and the loop reads their ends without a call
            self._go_on_later()

    def depart_unread(self) -> None:
        """Depart before anything is read.  A client that has to log in, or to shake hands, has no requests here."""
        if self._may_begin_at_once:
            self.depart()
        else:
            self.close()

    @property
    def _may_begin_at_once(self) -> bool:
        """True if the first bytes of the connection are requests: no log-in and no TLS come before."""
        return self.session.has_begun and self.session.protocol == "PLAINTEXT"

    def _drop_answered(self) -> None:
        """Drop the requests in progress that have a response, and send nothing more.

        Waiting requests with a response are dropped instead of being begun.
        """
        self._has_left = True
        for exchange in [each for each in self._started if each.expects_response]:
            self._started.remove(exchange)
            exchange.is_dropped = True
            if exchange.work is not None:
                self._bytes_held -= exchange.bytes_held
                exchange.work.cancel()
            elif exchange.response is not None:
                _release(exchange.response)
        self._out.clear()
        self._out_size = 0
        _call_all(self._out_releases)

    def pause_writing(self) -> None:
        assert self._transport is not None
        self._is_blocked = True
        self._since = self._read_since = self._listener.loop.time()
        self._read_mark = self._transport.get_write_buffer_size()

    def resume_writing(self) -> None:
        self._is_blocked = False
        self._seen = self._listener.now
        _call_all(self._unsent)
        if not self.is_closed:
            self._send_ready()
            self._begin_waiting()
            self._settle()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self._listener.lost(self)

    # -------------------------------------------------------------------------------------------------- requests

    def _take(self, frame: memoryview) -> None:
        """Begin the request of a complete frame, or queue it."""
        if self._waiting or not self._may_begin(frame):
            self._hold(frame)
        else:
            self._begin(frame)

    def _hold(self, frame: memoryview) -> None:
        self._bytes_held += len(frame) + FRAME_BYTES
        self._waiting.append(frame)

    def _may_begin(self, frame: memoryview) -> bool:
        if self.is_muted:
            return False
        if self._has_left:
            return True  # in any order: there are no responses
        if self._is_blocked:
            return False
        return not self._started or self._dispatch.is_pipelined(frame)

    def _begin_waiting(self) -> None:
        begun = 0
        while self._waiting and not self.is_closed and self._may_begin(self._waiting[0]):
            if begun == BEGUN_A_TURN:
                self._begin_later()
                return
            begun += 1
            frame = self._waiting.popleft()
            self._bytes_held -= len(frame) + FRAME_BYTES
            self._begin(frame)

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
        if self._has_left and self._dispatch.expects_response(frame):
            return
        try:
            response = self._dispatch(frame, self)
        except Exception as error:  # noqa: BLE001 - a request must not end the process: see Dispatch
            self._close_failed(error)
            return
        if isinstance(response, Response):
            if self._started:
                self._started.append(Exchange(self, 0, response))
            else:
                self._send(response)
            return
        expects_response = self._dispatch.expects_response(frame)
        exchange = Exchange(self, len(frame) + FRAME_BYTES, None, expects_response=expects_response)
        self._bytes_held += exchange.bytes_held
        self._started.append(exchange)
        exchange.begin(response)

    def on_response(self, exchange: Exchange, outcome: Outcome, *, in_turn: bool) -> None:
        """Take the outcome of a request.

        ``in_turn``: in a turn of the loop of its own.  If False, the call comes in the middle of other work, so it only
        writes the response.  All work that the response makes possible begins in the next turn.
        """
        if self.is_closed or exchange.is_dropped:
            self._take_late(exchange, outcome)
            return
        exchange.work = None
        if not isinstance(outcome, Response):
            if in_turn:
                self._close_failed(outcome)
            else:
                self._listener.loop.call_soon(self._close_failed, outcome)
            return
        exchange.response = outcome
        self._bytes_held -= exchange.bytes_held
        if self._has_left:
            self._go_on_later()
            return
        if exchange is not self._started[0]:
            return  # sent after the response before it
        if self._shares_writes:  # responses of one turn of the loop go out in one write
            self._go_on_later()
        elif in_turn:
            self._go_on()
        else:
            self._send_ready()
            self._write_sent()
            self._go_on_later()

    def _take_late(self, exchange: Exchange, outcome: Outcome) -> None:
        """Take the outcome of a dropped request, or of a request of a closed connection."""
        if isinstance(outcome, Response):
            _release(outcome)
        elif not isinstance(outcome, asyncio.CancelledError | CloseConnection):
            self._listener.bug(self, outcome)
        if exchange.is_dropped:
            return
        if isinstance(outcome, CloseConnection) and not isinstance(outcome, CloseQuietly):
            self._listener.malformed(self, str(outcome))
        self._listener.loop.call_soon(self._finish, exchange)

    @property
    def _shares_writes(self) -> bool:
        """True if other responses may come in this turn of the loop."""
        return len(self._started) > 1

    def _go_on_later(self) -> None:
        if not self._is_write_due:
            self._is_write_due = True
            self._listener.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Send the responses that are ready, and begin requests that waited for them."""
        self._is_write_due = False
        if not self.is_closed:
            self._send_ready()
            self._begin_waiting()
            self._settle()

    # ----------------------------------------------------------------------------------------------- responses

    def _send_ready(self) -> None:
        started = self._started
        while started and self._may_send and (response := started[0].response) is not None:
            started.popleft()
            self._send(response)

    @property
    def _may_send(self) -> bool:
        return not self._is_blocked or self._has_left

    def _send(self, response: Response) -> None:
        if self._has_left:
            _release(response)
            return
        if response.release is not None:
            self._out_releases.append(response.release)
        size = response.size
        if not size and not response.buffers:  # a frame of no bytes has one, empty: a raw SASL token
            return
        if size <= _JOIN_MAX:
            self._out.append(_SIZE.pack(size) + b"".join(response.buffers))
        else:
            self._out.append(_SIZE.pack(size))
            self._out += response.buffers
        self._out_size += size
        if self._out_size >= _WRITE_MAX:
            self._write()

    def _write_sent(self) -> None:
        """Write the responses that were sent in this turn, if there are any."""
        if self._out or self._out_releases:
            self._write()

    def _write(self) -> None:
        """Give everything to the transport, which passes it to the kernel at once or calls ``pause_writing``."""
        out = self._out
        releases, self._out_releases = self._out_releases, []
        if out:
            assert self._transport is not None
            self._out = []
            is_small, self._out_size = self._out_size <= _WRITE_MAX, 0
            if len(out) == 1:
                self._transport.write(out[0])
            elif is_small:
                self._transport.write(b"".join(out))
            else:
                self._transport.writelines(out)
        if self._is_blocked and not self.is_closed:
            self._unsent += releases
        else:
            _call_all(releases)

    # --------------------------------------------------------------------------------------------------- reading

    def _settle(self, *, has_completed: bool = False) -> None:
        """End an event: write, update the budget, read on or pause.  The budget may call other connections."""
        self._write_sent()
        held = self._bytes_held + self._frames.partial_bytes
        budget = self._budget
        if held != self._counted or self._bytes_held != self._counted_complete or (has_completed and budget.is_tight):
            more, more_complete = held - self._counted, self._bytes_held - self._counted_complete
            self._counted, self._counted_complete = held, self._bytes_held
            budget.change(self, more, more_complete, has_completed=has_completed)
        if (self._is_draining and self.is_quiet) or (self._has_ended and not self._waiting):
            self.close()
        elif not self.is_closed:
            self._read_or_pause()

    def _read_or_pause(self) -> None:
        if self._is_gated:
            return  # until ``read_on``
        reads = (
            self._may_send
            and not self.is_muted
            and not self._is_draining
            and not self._has_ended
            and len(self._started) + len(self._waiting) < UNANSWERED_MAX
            and self._bytes_held < self._held_max
        )
        if reads and self._budget.is_tight and not self._budget.may_read(self):
            self._is_gated = True
            reads = False
        if reads != self._is_reading:
            self._switch_reading(reads)

    def _switch_reading(self, reads: bool) -> None:
        assert self._transport is not None
        self._is_reading = reads
        if reads:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def read_on(self) -> None:
        """Read again: the budget has let this connection through."""
        self._is_gated = False
        self._since = self._frame_since = self._listener.loop.time()
        self._frame_mark = self._frames.partial_bytes
        if not self.is_closed:
            self._read_or_pause()

    # ------------------------------------------------------------------------------------------------------ closing

    @property
    def is_quiet(self) -> bool:
        """True if no request is in progress, and no response is unsent whose client may read it."""
        return self._may_send and not (self._started or self._waiting)

    def is_idle(self, now: float, limit_s: float) -> bool:
        """Return whether nothing has happened for ``limit_s`` seconds.

        A connection whose requests run, or whose responses are being read, is not idle.
        """
        if self._is_running or self._has_sent_more():
            self._seen = now
        return now - self._seen >= limit_s

    def is_stuck(self, now: float) -> bool:
        """Return whether it has kept bytes for STUCK_S seconds, and only its client can change that."""
        if self._is_running or self._is_gated or not self._counted:
            return False
        if self._has_sent_more():
            self._since = now
        return now - self._since >= STUCK_S

    def slow_frame_rate(self, now: float) -> float | None:
        """Return the bytes a second at which its frame arrives, if that is below LEAST_RATE for STALL_S or longer.

        None if no frame has begun, if it may not be read from, or if it is fast enough: its time then begins again.
        """
        age = now - self._frame_since
        if not self._frames.is_partial or not self._is_reading or age < STALL_S:
            return None
        rate = (self._frames.partial_bytes - self._frame_mark) / age
        if rate < LEAST_RATE:
            return rate
        self._frame_since, self._frame_mark = now, self._frames.partial_bytes
        return None

    def slow_read_rate(self, now: float) -> float | None:
        """Return the bytes a second at which its client reads, if that is below LEAST_RATE for STUCK_S or longer.

        None if the kernel has taken all responses, or if they are read fast enough: its time then begins again.
        """
        age = now - self._read_since
        if not self._is_blocked or age < STUCK_S:
            return None
        assert self._transport is not None
        unsent = self._transport.get_write_buffer_size()
        rate = (self._read_mark - unsent) / age
        if rate < LEAST_RATE:
            return rate
        self._read_since, self._read_mark = now, unsent
        return None

    @property
    def _is_running(self) -> bool:
        return any(exchange.response is None for exchange in self._started)

    def _has_sent_more(self) -> bool:
        if not self._is_blocked:
            return False
        assert self._transport is not None
        before, self._unsent_bytes = self._unsent_bytes, self._transport.get_write_buffer_size()
        return before != self._unsent_bytes

    def drain(self) -> None:
        """Read no more; close once everything that was read has its response."""
        self._is_draining = True
        if self._is_gated:
            self._is_gated = False
            self._budget.forget(self)
        if self.is_muted:
            self._unmute()  # what it has sent gets its responses before it is closed
        else:
            self._settle()

    def close(self) -> None:
        """Close at once.  Bytes of earlier responses that the kernel has not taken are lost.

        Requests without a response go on once they have begun.
        """
        if self.is_closed:
            return
        was_blocked = self._is_blocked
        self._leave()
        assert self._transport is not None
        if was_blocked:
            self._transport.abort()  # close() would wait until the client reads
        else:
            self._transport.close()

    def abandon(self) -> None:
        """Close at once, and give up the requests that would outlive the connection.  Idempotent."""
        self.close()
        for exchange in self._started:
            exchange.is_dropped = True
            if exchange.work is not None:
                exchange.work.cancel()
        self._started.clear()
        self._bytes_held = 0
        self._count_outliving()

    @property
    def is_outlived(self) -> bool:
        """True if the connection is closed, and requests without a response are in progress."""
        return self.is_closed and bool(self._started)

    def _finish(self, exchange: Exchange) -> None:
        """End a request that has outlived the connection, in a turn of the loop of its own."""
        if exchange.is_dropped:
            return
        self._started.remove(exchange)
        self._bytes_held -= exchange.bytes_held
        self._count_outliving()
        if not self._started:
            self._listener.finished(self)

    def _count_outliving(self) -> None:
        """Update the budget after the close.  It may call other connections."""
        held = self._bytes_held
        more, more_complete = held - self._counted, held - self._counted_complete
        self._counted = self._counted_complete = held
        if more or more_complete:
            self._budget.change(self, more, more_complete, has_completed=False)

    def _close_malformed(self, why: str) -> None:
        self._write()  # responses to what came before
        self._listener.malformed(self, why)
        self.close()

    def _close_failed(self, error: BaseException) -> None:
        """Close the connection because of a request's exception: a bug is logged, also if it is closed already.

        As in Kafka, waiting requests do not begin.  Requests without a response go on once they have begun.
        """
        if not isinstance(error, CloseConnection):
            self._listener.bug(self, error)
            self.close()
        elif isinstance(error, CloseQuietly):
            self.close()
        elif not self.is_closed:
            self._close_malformed(str(error))

    def _leave(self) -> None:
        """Give back everything that the connection holds.  Idempotent.

        Requests without a response go on, with their bytes in the budget.
        """
        if self.is_closed:
            return
        self.is_closed = True
        started, self._started = self._started, deque()
        self._waiting.clear()
        self._bytes_held = 0
        for exchange in started:
            if self._outlives(exchange):
                self._started.append(exchange)
                self._bytes_held += exchange.bytes_held
                continue
            exchange.is_dropped = True
            if exchange.work is not None:
                exchange.work.cancel()  # a parked fetch must not linger; a produce goes on in its partition's owner
            elif exchange.response is not None:
                _release(exchange.response)
        self._out.clear()
        _call_all(self._out_releases)
        _call_all(self._unsent)
        self._is_gated = self.is_muted = False
        if self._mute_timer is not None:
            self._mute_timer.cancel()
            self._mute_timer = None
        self._on_close.notify_last()
        self._frames.drop()
        self._count_outliving()
        self._budget.forget(self)

    def _outlives(self, exchange: Exchange) -> bool:
        """Return whether a request goes on after the close: it has no response, and is in progress."""
        return exchange.work is not None and not exchange.expects_response


def _release(response: Response) -> None:
    if response.release is not None:
        response.release()


def _call_all(releases: list[Callable[[], None]]) -> None:
    """Call each release once, and empty the list."""
    calls = releases.copy()
    releases.clear()
    for call in calls:
        call()


def _names(peer: object) -> tuple[str, str]:
    """Return (host, host:port) of a transport's peer name; IPv6 hosts in brackets before a port."""
    if not isinstance(peer, tuple) or len(peer) < 2:
        return "unknown", "unknown"
    host, port = peer[0], peer[1]
    return host, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
