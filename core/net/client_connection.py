"""A client's connection: frames in, dispatched in order; responses out, in the same order.

The thin shell around three parts, which have no transport and no loop of their own::

    FrameReader ──frames──> Exchanges ──responses──> ResponseWriter          ClientProgress: is the client too slow?
    (core.net.frames)       (core.net.exchanges)     (core.net.response_writer)   (core.net.client_progress)

The shell has the transport, the share of a budget (``core.net.budget_share``) and the time of a mute.  Its base class
has the turns of the loop in which requests begin and responses are written (``core.net.request_runner``).

When the client has gone, its requests without a response (a produce with acks=0) are served all the same.  The
connection stays until the last of them has begun, and sends nothing.  Such a request, once begun, outlives the
connection: also after a reset, or after the failure of a later request.  Until it is done it keeps its bytes and
those of the connection in the budget, and no place among the connections.

Only ``loop.create_task`` and the transport are used, no threads and no clock.  A transport may call back from within
``resume_reading``, as simulated ones do: it is the last thing that an event does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from bmq.core.aio.subscribers import Subscribers, no_op
from bmq.core.net.budget_share import BudgetShare
from bmq.core.net.client_progress import LITTLE_BYTES, ClientProgress
from bmq.core.net.client_socket import names_of, tune
from bmq.core.net.connection_owner import ConnectionOwner
from bmq.core.net.exchanges import UNANSWERED_BYTES_MAX, Exchange
from bmq.core.net.frames import FrameReader, NarrowReader
from bmq.core.net.login_budget import LoginBudget
from bmq.core.net.request import CloseConnection, CloseQuietly, Dispatch, Outcome, Response
from bmq.core.net.request_budget import RequestBudget
from bmq.core.net.request_runner import RequestRunner
from bmq.core.net.response_writer import release
from bmq.core.security.session import ANONYMOUS_SESSION


class ClientConnection(RequestRunner, asyncio.BufferedProtocol):
    """The protocol of a client's socket, and the ``Client`` of its requests.

    Needs a loop that reads into the buffer in the call that gets it (selectors, uvloop; not Windows' proactor): all
    connections share a receive buffer.
    """

    __slots__ = ("_frames", "_is_malformed", "_is_reading", "_is_refused", "_mute_timer", "_muted_until",
                 "_on_close", "_on_open", "_outliving", "_progress", "_share", "client_id", "client_software", "host",
                 "peer", "session")  # fmt: skip

    _listener: ConnectionOwner[ClientConnection]

    def __init__(
        self,
        listener: ConnectionOwner[ClientConnection],
        dispatch: Dispatch | None = None,
        on_open: Callable[[ClientConnection], None] | None = None,
    ) -> None:
        """``dispatch`` handles the connection's requests in place of the listener's own.

        ``on_open`` is called once the connection stands, before anything is read.
        """
        super().__init__(listener, dispatch or listener.dispatch)
        self._on_open = on_open
        self.client_id: str | None = None
        self.client_software = ("", "")
        self.session = ANONYMOUS_SESSION
        self.host = self.peer = "unknown"
        self._share: BudgetShare[ClientConnection] = BudgetShare(listener.budget)
        self._frames: FrameReader = FrameReader(listener.shared_buffer, listener.config.socket_request_max_bytes)
        self._progress = ClientProgress()
        self._on_close = Subscribers[[]]()
        self._is_malformed = False  # counted and logged so
        self._is_reading = True
        self._is_refused = False  # no further request begins, and the listener closes it soon
        self._muted_until = 0.0
        self._outliving = 0  # requests, as counted last
        self._mute_timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return (
            f"<ClientConnection {self.peer} {self._requests!r}{' gated' if self._share.is_gated else ''}"
            f"{' closed' if self.is_closed else ''}>"
        )

    # ------------------------------------------------------------------------------------------- for request handlers

    def on_close(self, call: Callable[[], None]) -> Callable[[], None]:
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
        self._requests.limited(size_max)
        self._count_in(self._listener.login_budget)

    def unlimit_frames(self) -> None:
        """Take the bounds of ``limit_frames`` away: the client has logged in."""
        self._frames.limit(self._listener.config.socket_request_max_bytes)
        self._requests.limited(UNANSWERED_BYTES_MAX)
        self._count_in(self._listener.budget)

    def identified(self) -> None:
        """Note that the session has the client's principal, after a log-in or where the listener asks for none.

        A principal with too many connections loses this one soon: nothing more is read then.  Nothing is read either
        while the memory for requests is used up: a first read counts only once it has come.
        """
        self._listener.identified(self)
        if self.is_muted or (self._share.budget.is_tight and self._is_reading and not self.is_closed):
            self._read_or_pause()

    @property
    def is_muted(self) -> bool:
        """True while the client is over its quota, or too many connections come."""
        return self._requests.is_muted

    @property
    def is_known(self) -> bool:
        """True unless the connection has yet to log in."""
        return self._share.budget is self._listener.budget

    def _count_in(self, budget: RequestBudget | LoginBudget[ClientConnection]) -> None:
        """Move the bytes that are counted to another budget."""
        if not self.is_closed:
            self._share.move(self, budget)

    def mute(self, seconds: float) -> None:
        """Mute the client.  Reading pauses at the end of the event in progress, like all that a request changes."""
        loop = self._listener.loop
        until = loop.time() + seconds
        if self.is_closed or self._requests.is_draining or until <= self._muted_until:
            return
        if self._mute_timer is not None:
            self._mute_timer.cancel()
        if not self.is_muted:
            self._progress.muted(loop.time())
        self._requests.muted()
        self._muted_until = until
        self._mute_timer = loop.call_at(until, self._unmute)

    def refuse(self, seconds: float) -> None:
        """Begin no further request: the listener closes the connection within so many seconds."""
        self._is_refused = True
        if self._requests.is_draining:  # no mute holds its requests back
            self.close()
        else:
            self.mute(seconds)

    def unmute(self) -> None:
        if self._mute_timer is not None:
            self._mute_timer.cancel()
            self._muted_until = 0.0
            self._mute_timer = self._listener.loop.call_later(0, self._unmute)

    def _unmute(self) -> None:
        if self._mute_timer is not None:
            self._mute_timer.cancel()
            self._mute_timer = None
        self._requests.unmuted()
        self._progress.let_through(self._listener.loop.time(), self._frames.partial_bytes)
        self._go_on()

    @property
    def has_begun(self) -> bool:
        """True if a part of a frame has arrived."""
        return self._frames.is_partial

    @property
    def has_left(self) -> bool:
        """True once the client is known to have gone: it reads nothing, and requests with a response do not begin."""
        return self._requests.has_left

    # ------------------------------------------------------------------------------------------ transport's events

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)  # uvloop's has the methods, not the base class
        self._transport = stream
        self.host, self.peer = names_of(transport.get_extra_info("peername"))
        self._progress.opened(self._listener.opened(self))
        if self.is_closed:
            return
        # Blocked as soon as the kernel does not take everything: whether what was written is sent is then certain.
        stream.set_write_buffer_limits(high=0)
        tune(transport.get_extra_info("socket"))
        if self._on_open is not None:
            self._on_open(self)
        if self._may_begin_at_once:
            self.identified()
        if self.is_muted:  # too many connections come: it waits
            self._read_or_pause()
        if not self._is_reading:
            self._frames = NarrowReader(self._frames, self._pause_again)
            self._listener.loop.call_soon(self._widen, self._frames)

    def _pause_again(self) -> None:
        """Pause once more: uvloop reads after ``connection_made``, also from a transport that was paused in it."""
        if not (self._is_reading or self.is_closed):
            self.transport.pause_reading()

    def _widen(self, narrow: NarrowReader) -> None:
        """End the first turn of a connection that was not to be read."""
        self._frames = narrow.reader
        self._pause_again()
        if narrow.has_kept and not self.is_closed:
            self.buffer_updated(0)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self.is_closed:
            return
        self._progress.seen = self._listener.now
        was_begun = self._frames.is_partial
        frames = self._frames.received(nbytes)
        if frames:
            self._take(frames)
            if self.is_closed:
                return
        if self._frames.error:
            self._close_malformed(self._frames.error)
            return
        if self._frames.is_partial and (frames or not was_begun):
            self._progress.frame_began(self._listener.loop.time())
        self._settle(has_completed=len(frames) > 0)

    def eof_received(self) -> bool:
        """Close the connection: at once, or when the last request without a response has begun, then return True.

        Outstanding responses are not sent.  Kafka sends them to a client that has closed its sending half alone.  Here
        such a client counts as gone: a proxy shows a close in the same way.

        The loop closes the connection, too, if the result is False, but calls ``connection_lost`` in a later turn.  A
        request that waits may not begin before.
        """
        if self.is_closed:
            return False
        self._requests.ended()
        self._frames.drop()  # a frame that has begun will not end, and others must not wait for its end
        self._share.forget(self)
        self._drop_expecting_response()
        if self._requests.waiting:
            self._begin_later()
        self._settle()
        return not self.is_closed

    def depart(self) -> None:
        """Drop the requests that have a response: the client has gone.

        The connection is read up to its end.  Only requests without a response begin.
        """
        requests = self._requests
        if self.is_closed or requests.has_left:
            return
        if requests.is_blocked and self._is_reading:  # TLS pauses by itself while its own bytes are not taken
            self._switch_reading(False)  # the next turn reads on, and TLS with it
        is_idle = self._is_reading and not (requests.started or requests.waiting)
        self._drop_expecting_response()
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

    def pause_writing(self) -> None:
        self._requests.blocked()
        unsent = self.transport.get_write_buffer_size()
        self._progress.blocked(self._listener.loop.time(), unsent, keeps_bytes=bool(self._share.held))

    def resume_writing(self) -> None:
        self._requests.unblocked()
        self._progress.seen = self._listener.now
        self._progress.unblocked(self._listener.loop.time())
        self._writer.taken()
        if not self.is_closed:
            self._send_ready()
            self._begin_waiting()
            self._settle()

    def connection_lost(self, exc: Exception | None) -> None:
        self._give_back()
        self._transport = None  # requests may outlive the connection for long: see CONNECTION_BYTES
        self._listener.lost(self)

    # --------------------------------------------------------------------------------------------------- reading

    def _settle(self, *, has_completed: bool = False) -> None:
        """End an event: write, update the budget, read on or pause.  The budget may call other connections."""
        if self._writer.pieces or self._writer.releases:
            self._write()
        requests, share = self._requests, self._share
        complete = requests.bytes_held
        held = complete + self._frames.partial_bytes
        if held != share.held or complete != share.complete or (has_completed and share.budget.is_tight):
            share.count(self, held, complete, has_completed=has_completed)
        if (requests.is_draining or requests.has_ended) and requests.is_over:
            self.close()
        elif not self.is_closed:
            self._read_or_pause()

    def _read_or_pause(self) -> None:
        if self._share.is_gated:
            return  # until ``read_on``
        reads = self._requests.may_read()
        if reads and self._share.budget.is_tight:
            reads = self._share.may_read(self)
        if reads != self._is_reading:
            self._switch_reading(reads)

    def _switch_reading(self, reads: bool) -> None:
        self._is_reading = reads
        if reads:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def read_on(self) -> None:
        """Read again: the budget has let this connection through."""
        self._share.is_gated = False
        self._progress.let_through(self._listener.loop.time(), self._frames.partial_bytes)
        if not self.is_closed:
            self._read_or_pause()

    # ------------------------------------------------------------------------------------------------------ closing

    def is_idle(self, now: float, limit_s: float) -> bool:
        """Return whether nothing has happened for ``limit_s`` seconds."""
        return self._progress.is_idle(now, limit_s, is_active=self._is_active())

    def _is_active(self) -> bool:
        """Return whether requests run, or responses are being read."""
        return self._requests.is_running or self._has_read()

    def _has_read(self) -> bool:
        return self._requests.is_blocked and self._progress.has_read(self.transport.get_write_buffer_size())

    def is_stuck(self, now: float, *, was_open: bool) -> bool:
        """Return whether its client has kept bytes for STUCK_S seconds.

        The client must read its responses: also while a request runs, and while the client waits for the budget.  A
        request that runs is not in the client's hands, but many bytes behind parked requests are.
        ``was_open``: the gate was open for moments.  Then a sending client was not in the way of others for as long,
        nor a client over its quota that keeps ``LITTLE_BYTES`` at most.
        """
        requests, progress = self._requests, self._progress
        if not self._share.held:
            return False
        if requests.is_blocked:
            return self.slow_read_rate(now) is not None
        if requests.is_running:
            return progress.is_held_up(now)
        if self._share.is_gated:
            return False
        if was_open and not (self.is_muted and self._bytes_behind > LITTLE_BYTES):
            return False
        return progress.is_stuck(now)

    @property
    def _bytes_behind(self) -> int:
        """Bytes that wait behind requests, or for the end of a mute."""
        behind = self._requests.bytes_waiting
        if self.is_muted:
            behind += self._frames.partial_bytes  # else its frame is judged by ``slow_frame_rate``
        return behind

    def look(self, now: float) -> None:
        """Note the bytes behind a request, and the parked request: the listener calls it while others wait."""
        self._look_at_queue(now)
        self._progress.looked_at_parked(now, self._requests.may_have_parked)

    def _look_at_queue(self, now: float) -> None:
        self._progress.looked_at(now, self._bytes_behind, is_parked=self._requests.is_parked)

    def _begin_waiting(self) -> None:
        super()._begin_waiting()
        if self._progress.is_queue_long:  # a parked request has ended or begun: looks alone would miss it
            self._look_at_queue(self._listener.loop.time())

    def bytes_parked(self, now: float) -> int:
        """Return the bytes of a request that may park and has run for STUCK_S seconds.  0 if there is none."""
        return self._requests.bytes_parked if self._progress.is_parked(now) else 0

    def forget_earlier(self) -> None:
        """Forget earlier pauses of writing, and bytes behind parked requests: others have begun to wait for memory."""
        self._progress.forget_pauses()
        self._progress.forget_queue()

    def slow_frame_rate(self, now: float) -> float | None:
        """Return the bytes a second at which its frame arrives, if the rate is too low: see ``ClientProgress``.

        None if no frame has begun, or if it may not be read from.
        """
        if not self._frames.is_partial or not self._is_reading:
            return None
        return self._progress.slow_frame_rate(now, self._frames.partial_bytes)

    def slow_read_rate(self, now: float) -> float | None:
        """Return the bytes a second at which its client reads, if the rate is too low: see ``ClientProgress``.

        None if the kernel has taken all responses.
        """
        if not self._requests.is_blocked:
            return None
        return self._progress.slow_read_rate(now, self.transport.get_write_buffer_size())

    def drain(self) -> None:
        """Read no more; close once everything that was read has its response.  A refused connection is closed now."""
        if self._is_refused:
            self.close()
            return
        self._requests.drained()
        if self._share.is_gated:
            self._share.forget(self)
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
        was_blocked = self._requests.is_blocked
        self._give_back()
        if was_blocked:
            self.transport.abort()  # close() would wait until the client reads
        else:
            self.transport.close()

    def abandon(self) -> None:
        """Close at once, and give up the requests that would outlive the connection.  Idempotent."""
        self.close()
        for exchange in self._requests.abandon():
            exchange.give_up()
        self._count_outliving()

    @property
    def is_outlived(self) -> bool:
        """True if the connection is closed, and requests without a response are in progress."""
        return self.is_closed and bool(self._requests.started)

    def _take_late(self, exchange: Exchange, outcome: Outcome) -> None:
        """Take the outcome of a dropped request, or of a request of a closed connection."""
        if isinstance(outcome, Response):
            release(outcome)
        elif not isinstance(outcome, asyncio.CancelledError | CloseConnection):
            self._listener.bug(self, outcome)
        if exchange.is_dropped:
            return
        if isinstance(outcome, CloseConnection) and not isinstance(outcome, CloseQuietly):
            self._malformed(str(outcome))
        self._listener.loop.call_soon(self._finish, exchange)

    def _finish(self, exchange: Exchange) -> None:
        """End a request that has outlived the connection, in a turn of the loop of its own."""
        if exchange.is_dropped:
            return
        self._requests.finished(exchange)
        self._count_outliving()
        if not self._requests.started:
            self._listener.finished(self)

    def _count_outliving(self) -> None:
        """Update the counter and the budget after the close.  The budget may call other connections."""
        outliving = len(self._requests.started)
        self._listener.metrics.requests_outliving += outliving - self._outliving
        self._outliving = outliving
        held, share = self._requests.bytes_held, self._share
        if held != share.held or held != share.complete:
            share.count(self, held, held, has_completed=False)

    def _close_malformed(self, why: str) -> None:
        self._write()  # responses to what came before
        self._malformed(why)
        self.close()

    def _malformed(self, why: str) -> None:
        """Count and log the connection once, however many of its requests fail."""
        if not self._is_malformed:
            self._is_malformed = True
            self._listener.malformed(self, why)

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

    def _give_back(self) -> None:
        """Give back everything that the connection holds.  Idempotent.

        Requests without a response go on, with their bytes in the budget.
        """
        if self.is_closed:
            return
        self.is_closed = True
        for exchange in self._requests.close():
            exchange.give_up()
        self._writer.drop()
        self._writer.taken()
        if self._mute_timer is not None:
            self._mute_timer.cancel()
            self._mute_timer = None
        self._on_close.notify_last()
        self._frames.drop()
        self._count_outliving()
        self._share.forget(self)
