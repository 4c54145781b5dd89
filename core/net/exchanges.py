"""The requests of a connection: their order, and their fate when the client has gone.

Requests stand in two queues, oldest first::

    started                                waiting
    [response ready?] [running] [running]  [frame] [frame] ...
     └ sent as soon as it is first          └ begins when it may: ``next_waiting``

A pipelined request (Produce) may begin while others run.  Any other begins when nothing is started, so that all before
it have their responses.  Nothing begins out of order, and nothing begins while the client does not read its responses.

The end of a connection drops its requests, except for requests without a response (a produce with acks=0).  The client
of such a request counts it as done once it is sent: the client sends, flushes and closes.  As in Kafka, a request from
before the end is served::

    event        requests with a response   without one, begun     without one, waiting
    ``leave``      dropped                    go on                  begin
    ``close``      dropped                    outlive the end        dropped
    ``abandon``    dropped                    dropped                dropped

A request that outlives its connection keeps its bytes in the budget until it is done, and so does the connection.

Pure: events in; frames to begin, responses to send and requests to give up out.  ``core.net.request_runner`` begins
the frames and writes the responses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from bmq.core.net.request import Response
from bmq.core.net.request_budget import CONNECTION_BYTES, FRAME_BYTES
from bmq.core.net.response_writer import release

UNANSWERED_MAX = 256
"""Requests of a connection that are read and have no response yet; librdkafka would send a million."""
UNANSWERED_BYTES_MAX = 16 << 20
"""Bytes of those requests.

A single read may bring more than both bounds, and a frame that has begun is read to its end.
"""


class Work(Protocol):
    """A future, or a pending response."""

    def cancel(self) -> object: ...


class Exchange:
    """A request that has begun, until its response is sent."""

    __slots__ = ("bytes_held", "expects_response", "is_dropped", "may_park", "response", "work")

    def __init__(
        self, bytes_held: int, response: Response | None, *, expects_response: bool = True, may_park: bool = False
    ) -> None:
        self.bytes_held = bytes_held
        self.response = response
        self.expects_response = expects_response
        """False if the request has no response by protocol (acks=0).  Then the request outlives its connection."""
        self.may_park = may_park
        """True if the response may wait for other clients."""
        self.is_dropped = False
        """True once the request is given up.  Then the connection ignores its outcome."""
        self.work: Work | None = None
        """The work of the request, until its outcome is known."""

    def __repr__(self) -> str:
        state = "dropped" if self.is_dropped else "running" if self.response is None else "ready"
        return f"<Exchange {state} held={self.bytes_held}{'' if self.expects_response else ' without a response'}>"

    def give_up(self) -> None:
        """Cancel the work of a dropped request, or give the memory of its response back."""
        if self.work is not None:
            self.work.cancel()  # a parked fetch must not linger; a produce goes on in its partition's owner
        elif self.response is not None:
            release(self.response)


class Due(Enum):
    """The time at which a response is sent, and the requests behind it begin."""

    AT_ONCE = "at once"
    NEXT_TURN = "in the next turn: other responses may come in this one, and go out in the same write"
    LATER = "after the response before it"


AT_ONCE, NEXT_TURN, LATER = Due.AT_ONCE, Due.NEXT_TURN, Due.LATER  # a member costs a call in Python 3.11


class Exchanges:
    """The requests of a connection, in the order of their arrival."""

    __slots__ = ("_is_pipelined", "bytes_held", "bytes_max", "bytes_waiting", "has_ended", "has_left", "is_blocked",
                 "is_draining", "is_muted", "may_have_parked", "started", "waiting")  # fmt: skip

    def __init__(self, is_pipelined: Callable[[memoryview], bool]) -> None:
        """``is_pipelined`` returns whether a request may begin while others run: see ``core.net.request.Dispatch``."""
        self._is_pipelined = is_pipelined
        self.started: deque[Exchange] = deque()
        self.waiting: deque[memoryview] = deque()
        self.bytes_waiting = 0
        """Bytes of the requests that wait."""
        self.may_have_parked = 0
        """Requests that may park, and have begun."""
        self.bytes_held = 0
        """Bytes of complete requests without a response.  After the close, also of a connection that they outlive."""
        self.bytes_max = UNANSWERED_BYTES_MAX
        self.is_blocked = False
        """True while the kernel does not take all that was written."""
        self.is_muted = False
        """True while the client is over its quota, or too many connections come."""
        self.is_draining = False
        """True once nothing more is read, and the connection closes when all that was read has its response."""
        self.has_left = False
        """True once the client has gone: only requests without a response begin, and nothing is sent."""
        self.has_ended = False
        """True once the client has gone, and all bytes are read."""

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} started={len(self.started)} waiting={len(self.waiting)} held={self.bytes_held}"
            f"{' blocked' if self.is_blocked else ''}{' muted' if self.is_muted else ''}"
            f"{' draining' if self.is_draining else ''}{' left' if self.has_left else ''}>"
        )

    # ------------------------------------------------------------------------------------------------- what may happen

    def may_begin(self, frame: memoryview) -> bool:
        """Return whether a request may begin, if no other is ``waiting`` before it."""
        if self.is_muted:
            return False
        if self.has_left:
            return True  # in any order: there are no responses
        if self.is_blocked:
            return False
        return not self.started or self._is_pipelined(frame)

    def may_read(self) -> bool:
        """Return whether the connection may bring further requests."""
        return (
            (not self.is_blocked or self.has_left)
            and not self.is_muted
            and not self.is_draining
            and not self.has_ended
            and len(self.started) + len(self.waiting) < UNANSWERED_MAX
            and self.bytes_held < self.bytes_max
        )

    @property
    def is_quiet(self) -> bool:
        """True if no request is in progress, and no response is unsent whose client may read it."""
        return (not self.is_blocked or self.has_left) and not (self.started or self.waiting)

    @property
    def is_over(self) -> bool:
        """True if the connection has nothing left to do: its stop or its client's end is due."""
        return (self.is_draining and self.is_quiet) or (self.has_ended and not self.waiting)

    @property
    def is_running(self) -> bool:
        """True if a request has no outcome yet."""
        return any(exchange.response is None for exchange in self.started)

    @property
    def is_parked(self) -> bool:
        """True if a request runs that may park.  Such a request is not pipelined, so it is the oldest."""
        if not self.started:
            return False
        oldest = self.started[0]
        return oldest.may_park and oldest.response is None

    @property
    def bytes_parked(self) -> int:
        """Bytes of the request that runs and may park."""
        return self.started[0].bytes_held if self.is_parked else 0

    # ----------------------------------------------------------------------------------------------------- the client

    def blocked(self) -> None:
        """Note that the kernel does not take all responses: the client does not read."""
        self.is_blocked = True

    def unblocked(self) -> None:
        """Note that the kernel has taken all responses."""
        self.is_blocked = False

    def muted(self) -> None:
        """Begin no further request, until ``unmuted``."""
        self.is_muted = True

    def unmuted(self) -> None:
        """End a mute."""
        self.is_muted = False

    def limited(self, bytes_max: int) -> None:
        """Bound the bytes of requests without a response."""
        self.bytes_max = bytes_max

    def drained(self) -> None:
        """Note that nothing more is read, by this process's will."""
        self.is_draining = True

    def ended(self) -> None:
        """Note that nothing more comes from the client; ``leave`` follows."""
        self.has_ended = True

    # ------------------------------------------------------------------------------------------------ requests begin

    def hold(self, frame: memoryview) -> None:
        """Let a request wait."""
        self.bytes_held += len(frame) + FRAME_BYTES
        self.bytes_waiting += len(frame) + FRAME_BYTES
        self.waiting.append(frame)

    def next_waiting(self) -> memoryview:
        """Return the oldest waiting request, which begins now."""
        frame = self.waiting.popleft()
        self.bytes_held -= len(frame) + FRAME_BYTES
        self.bytes_waiting -= len(frame) + FRAME_BYTES
        return frame

    def begun(self, exchange: Exchange) -> None:
        """Take a request that has begun, unless its response is sent at once."""
        self.bytes_held += exchange.bytes_held
        self.may_have_parked += exchange.may_park
        self.started.append(exchange)

    # --------------------------------------------------------------------------------------------- responses are sent

    def responded(self, exchange: Exchange, response: Response) -> Due:
        """Take the response of a request.  Return when it is sent."""
        exchange.work = None
        exchange.response = response
        self.bytes_held -= exchange.bytes_held
        if self.has_left:
            return NEXT_TURN
        started = self.started
        if exchange is not started[0]:
            return LATER
        return NEXT_TURN if len(started) > 1 else AT_ONCE

    def failed(self, exchange: Exchange) -> None:
        """Take the failure of a request: it gets no response, and its connection closes."""
        exchange.work = None

    def next_response(self) -> Response | None:
        """Return the response of the oldest request, which is sent now.  None if it may not be sent, or is to come."""
        if self.is_blocked and not self.has_left:
            return None
        response = self.started[0].response
        if response is not None:
            self.started.popleft()
        return response

    # ---------------------------------------------------------------------------------------------------------- the end

    def leave(self) -> list[Exchange]:
        """Note that the client has gone.  Return the dropped requests: those with a response.

        Waiting requests with a response are dropped instead of being begun.
        """
        self.has_left = True
        dropped = [each for each in self.started if each.expects_response]
        for exchange in dropped:
            self.started.remove(exchange)
            exchange.is_dropped = True
            if exchange.work is not None:
                self.bytes_held -= exchange.bytes_held
        return dropped

    def close(self) -> list[Exchange]:
        """Note that the connection is closed.  Return the dropped requests: these do not outlive it."""
        dropped = [each for each in self.started if not self._outlives(each)]
        outliving = [each for each in self.started if self._outlives(each)]
        for exchange in dropped:
            exchange.is_dropped = True
        self.started = deque(outliving)
        self.waiting.clear()
        self.bytes_waiting = 0
        self.bytes_held = sum(exchange.bytes_held for exchange in outliving)
        if outliving:
            self.bytes_held += CONNECTION_BYTES
        self.is_muted = False
        return dropped

    def _outlives(self, exchange: Exchange) -> bool:
        """Return whether a request goes on after the close: it has no response, and is in progress."""
        return exchange.work is not None and not exchange.expects_response

    def finished(self, exchange: Exchange) -> None:
        """Take the end of a request that has outlived the connection."""
        self.started.remove(exchange)
        self.bytes_held -= exchange.bytes_held
        if not self.started:
            self.bytes_held -= CONNECTION_BYTES

    def abandon(self) -> list[Exchange]:
        """Give up the requests that have outlived the connection, and return them."""
        dropped = list(self.started)
        for exchange in dropped:
            exchange.is_dropped = True
        self.started.clear()
        self.bytes_held = 0
        return dropped
