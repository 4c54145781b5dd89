"""Turns to flush: the order of the partitions, and the bounds on flushes in flight.

Group commit without a timer: a single writer is flushed in the loop turn in which it appends. While a flush of a
partition is in flight, the partition's next flush waits for its acknowledgement, or until enough bytes have come
together. It is Nagle's rule (RFC 896): acknowledgements come in order, so a small flush behind another gains nothing.
With many active partitions the window of flushes in flight is the limit, as the datanodes' threads are. Partitions then
queue for a turn, and one flush takes all that was appended meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol


class Flusher(Protocol):
    """One partition as the scheduler uses it; the scheduler keeps ``is_queued`` and ``in_flight``."""

    is_queued: bool
    in_flight: int

    def send(self) -> bool:
        """Send one flush; return False if there was nothing to send."""

    @property
    def has_unsent(self) -> bool:
        """True while there is something to send."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes that no flush has taken yet."""


class FlushScheduler:
    """Turns for flushes, in the order of the requests.

    At most ``window`` flushes are in flight, and at most ``per_partition`` of one partition. A partition's flush behind
    another one in flight has at least ``gather_bytes``.
    """

    def __init__(self, window: int, per_partition: int, gather_bytes: int = 0) -> None:
        self._window = window
        self._per_partition = per_partition
        self._gather_bytes = gather_bytes
        self._line: deque[Flusher] = deque()
        self._is_armed = False
        self.outstanding = 0

    def want(self, flusher: Flusher) -> None:
        """Queue ``flusher`` for a turn.

        Does nothing if it is queued, has ``per_partition`` flushes in flight, or has too few bytes behind a flush in
        flight.
        """
        if flusher.is_queued or flusher.in_flight >= self._per_partition:
            return
        if flusher.in_flight and flusher.unsent_bytes < self._gather_bytes:
            return  # `on_flush_ended` queues it
        flusher.is_queued = True
        self._line.append(flusher)
        self._arm()

    def on_flush_ended(self, flusher: Flusher) -> None:
        """Count one flush of ``flusher`` as over, and queue what it has unsent.

        The flush may have been acknowledged, have failed, or been given up.
        """
        self.outstanding -= 1
        flusher.in_flight -= 1
        if flusher.has_unsent:
            self.want(flusher)
        if self._line:
            self._arm()

    def _arm(self) -> None:
        if not self._is_armed and self.outstanding < self._window:
            self._is_armed = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._is_armed = False
        try:
            while self._line and self.outstanding < self._window:
                flusher = self._line.popleft()
                flusher.is_queued = False
                if flusher.send():
                    self.outstanding += 1
                    flusher.in_flight += 1
                    if flusher.has_unsent:
                        self.want(flusher)
        finally:  # an exception in one partition must not stop the others' flushes
            if self._line:
                self._arm()
