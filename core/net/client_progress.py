"""The progress of a connection's client: does it send, and read, fast enough to keep its place and its bytes?

Pure: the time is an argument, in seconds of the loop's clock, and so are the bytes that have arrived or are unsent.

=============== ==================================== =================================================================
verdict         of a client that                     its time begins again
=============== ==================================== =================================================================
idle            does nothing                         with bytes that arrive, with requests that run, and as it reads
stuck           keeps bytes in the budget            with a frame that begins, a pause of writing, and a mute
held up         keeps many bytes behind parked       with few bytes
                requests, all such times together
parked          waits for other clients              as a request begins that may park
slow to send    sends a frame below ``LEAST_RATE``   whenever the rate is high enough
slow to read    reads below ``LEAST_RATE``           whenever the rate is high enough
=============== ==================================== =================================================================

A request is *parked* if it may wait for other clients (``Dispatch.may_park``).  Other requests are work that the
process owes, and their time never counts as held up.

A reader's time counts only during pauses of writing.  As long as the client keeps bytes in the budget, its rate is over
all pauses: else it could read each response just in time, whole.

The connection knows which verdict applies to it now; ``core.net.listener`` closes it if others wait for its bytes.
"""

from __future__ import annotations

import math

from bmq.core.net.frames import SHARED_BYTES
from bmq.core.net.request_budget import LEAST_RATE, STALL_S, STUCK_S

LITTLE_BYTES = 2 * SHARED_BYTES
"""Bytes that a client may keep in the budget although others wait: behind a parked request, or over its quota.

Two reads of small requests.  Consumers have a few small requests behind a fetch, and a client that gets over its quota
has a read.
"""


class ClientProgress:
    """Marks of when a client last made progress."""

    __slots__ = ("_earlier_bytes", "_earlier_s", "_frame_mark", "_frame_since", "_park_mark", "_park_since",
                 "_queue_s", "_queue_since", "_read_mark", "_read_since", "_since", "_unsent_bytes",
                 "seen")  # fmt: skip

    def __init__(self) -> None:
        self.seen = 0.0
        """The time of the last activity.  The connection sets it at each read."""
        self._since = 0.0  # since when the client keeps its bytes
        self._frame_since = 0.0  # when its frame began, was let through, or was last fast enough
        self._frame_mark = 0  # and what had arrived of it then
        self._queue_since = math.inf  # since when many bytes wait behind parked requests
        self._queue_s: float | None = None  # and for how long they did before; None with few bytes at the last look
        self._park_since = math.inf  # the look since which no further request that may park has begun
        self._park_mark = -1  # and how many had begun then
        self._read_since = 0.0  # when its responses were too many for the kernel, or were last read fast enough
        self._read_mark = 0  # and what the kernel had not taken of them then
        self._earlier_s = 0.0  # the pauses of writing before this one that count
        self._earlier_bytes = 0  # and what was read in them
        self._unsent_bytes = 0  # at the last look

    def __repr__(self) -> str:
        return f"<ClientProgress seen={self.seen:.3f} since={self._since:.3f} frame={self._frame_since:.3f}>"

    def opened(self, now: float) -> None:
        """Note the first activity."""
        self.seen = self._since = now

    def frame_began(self, now: float) -> None:
        """Note that a frame has begun, whose first bytes came with this read."""
        self._since = self._frame_since = now
        self._frame_mark = 0

    def let_through(self, now: float, arrived: int) -> None:
        """Note that the client may send again.  ``arrived`` bytes of its frame came before the pause."""
        self._since = self._frame_since = now
        self._frame_mark = arrived

    def blocked(self, now: float, unsent: int, *, keeps_bytes: bool) -> None:
        """Note that the kernel has not taken ``unsent`` bytes of the responses.

        ``keeps_bytes``: the client has kept bytes in the budget, so the pauses before this one count, too.
        """
        self._since = self._read_since = now
        self._read_mark = unsent
        if not keeps_bytes:
            self.forget_pauses()

    def unblocked(self, now: float) -> None:
        """Note that the kernel has taken all responses: a pause is over."""
        self._earlier_s += now - self._read_since
        self._earlier_bytes += self._read_mark

    def forget_pauses(self) -> None:
        """Judge the rate of reading by the present pause, or by the next one, and by later pauses."""
        self._earlier_s, self._earlier_bytes = 0.0, 0

    def has_read(self, unsent: int) -> bool:
        """Return whether the client has read since the last look, from the bytes that are unsent now."""
        before, self._unsent_bytes = self._unsent_bytes, unsent
        return before != unsent

    def is_idle(self, now: float, limit_s: float, *, is_active: bool) -> bool:
        """Return whether nothing has happened for ``limit_s`` seconds.  ``is_active``: the client is active now."""
        if is_active:
            self.seen = now
        return now - self.seen >= limit_s

    def is_stuck(self, now: float) -> bool:
        """Return whether the client has kept its bytes for STUCK_S seconds."""
        return now - self._since >= STUCK_S

    def muted(self, now: float) -> None:
        """Note that a mute has begun."""
        self._since = now

    def looked_at(self, now: float, behind: int, *, is_parked: bool) -> None:
        """Note the queue of requests: ``behind`` bytes wait now, and ``is_parked`` whether a parked request runs."""
        if behind <= LITTLE_BYTES:
            self.forget_queue()
            return
        self._queue_s = self._held_up_s(now)
        self._queue_since = now if is_parked else math.inf

    def forget_queue(self) -> None:
        """Begin the time of the queue again: it has few bytes, or nobody waited for memory before."""
        self._queue_since, self._queue_s = math.inf, None

    @property
    def is_queue_long(self) -> bool:
        """True if more than LITTLE_BYTES waited at the last look.  Then ``looked_at`` is due as requests begin."""
        return self._queue_s is not None

    def is_held_up(self, now: float) -> bool:
        """Return whether more than LITTLE_BYTES have waited behind parked requests for STUCK_S seconds together."""
        return self._held_up_s(now) >= STUCK_S

    def _held_up_s(self, now: float) -> float:
        return (self._queue_s or 0.0) + max(0.0, now - self._queue_since)

    def looked_at_parked(self, now: float, begun: int) -> None:
        """Note the number of requests that may park and have begun."""
        if begun != self._park_mark:
            self._park_mark, self._park_since = begun, now

    def is_parked(self, now: float) -> bool:
        """Return whether the last request that may park began STUCK_S seconds ago or earlier."""
        return now - self._park_since >= STUCK_S

    def slow_frame_rate(self, now: float, arrived: int) -> float | None:
        """Return the bytes a second at which a frame arrives, if the rate is below LEAST_RATE for STALL_S or longer.

        ``arrived``: bytes of the frame that have come.  None if it is fast enough: its time then begins again.
        """
        age = now - self._frame_since
        if age < STALL_S:
            return None
        rate = (arrived - self._frame_mark) / age
        if rate < LEAST_RATE:
            return rate
        self._frame_since, self._frame_mark = now, arrived
        return None

    def slow_read_rate(self, now: float, unsent: int) -> float | None:
        """Return the bytes a second at which the client reads, if the rate is below LEAST_RATE for STUCK_S or longer.

        None if it is fast enough: its time then begins again.
        """
        age = now - self._read_since + self._earlier_s
        if age < STUCK_S:
            return None
        rate = (self._read_mark - unsent + self._earlier_bytes) / age
        if rate < LEAST_RATE:
            return rate
        self._read_since, self._read_mark = now, unsent
        self.forget_pauses()
        return None
