"""Turns: which partition may flush now, and who wants to be woken when.

Group commit without a timer.  A lone writer is flushed in the loop turn in which it appends; while a flush is under
way, the next one of its partition waits for that to land, or until enough has come together (Nagle's rule, RFC 896:
acknowledgements come in order, so a small flush behind another gains nothing).  With many active partitions the window
of flushes in flight is the limit (the datanodes' threads are): partitions wait in line, and what they gather meanwhile
goes out in one flush.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from typing import Protocol


class Flusher(Protocol):
    """A partition's side of the bargain."""

    in_line: bool
    flights: int

    def send(self) -> bool:
        """Send one flush; False when there was nothing to send."""

    @property
    def has_unsent(self) -> bool: ...

    @property
    def unsent_bytes(self) -> int: ...


class FlushScheduler:
    """At most ``window`` flushes in flight, at most ``per_partition`` of one partition; first come, first served.

    A partition's second flush and later ones have ``gather_bytes`` at least.
    """

    def __init__(self, window: int, per_partition: int, gather_bytes: int = 0) -> None:
        self._window = window
        self._per_partition = per_partition
        self._gather_bytes = gather_bytes
        self._line: deque[Flusher] = deque()
        self._is_armed = False
        self.outstanding = 0

    def want(self, flusher: Flusher) -> None:
        """``flusher`` has something to send."""
        if flusher.in_line or flusher.flights >= self._per_partition:
            return
        if flusher.flights and flusher.unsent_bytes < self._gather_bytes:
            return  # when the flight lands
        flusher.in_line = True
        self._line.append(flusher)
        self._arm()

    def landed(self, flusher: Flusher) -> None:
        """One of its flushes is over, well or badly."""
        self.outstanding -= 1
        flusher.flights -= 1
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
                flusher.in_line = False
                if flusher.send():
                    self.outstanding += 1
                    flusher.flights += 1
                    if flusher.has_unsent:
                        self.want(flusher)
        finally:  # one partition's bug must not hold up the line
            if self._line:
                self._arm()


class Alarms:
    """One timer for all partitions' deadlines: idle ones cost nothing."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._is_closed = False

    def at(self, time_ms: int, call: Callable[[], None]) -> None:
        """Call once at ``time_ms`` or shortly after."""
        if self._is_closed:
            return
        self._count += 1  # keeps equal times in order, and callables uncompared
        heapq.heappush(self._heap, (time_ms, self._count, call))
        self._set()

    def close(self) -> None:
        self._is_closed = True
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self) -> None:
        if not self._heap:
            return
        due = self._heap[0][0]
        if self._timer is not None:
            if self._timer_ms <= due:
                return
            self._timer.cancel()
        self._timer_ms = due
        delay_s = max(0, due - self._now_ms()) / 1000
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._run)

    def _run(self) -> None:
        self._timer = None
        now = self._now_ms()
        try:
            while self._heap and self._heap[0][0] <= now:
                heapq.heappop(self._heap)[2]()
        finally:  # one partition's bug must not stop the others' time
            self._set()
