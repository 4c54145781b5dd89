"""Timers: time-outs of many waiters, and deadlines of many users, for the price of a few timers of the loop.

==================  ==================================================================================================
``Deadlines``       what clients wait for: most are removed before their time, and a tenth of a second is exact enough;
                    those of one tenth share a timer, as a slot of Kafka's ``TimingWheel``
``TimerHeap``       what partitions and their files do later: to the millisecond, never removed; a heap with one timer
                    (for 10,000 of them a quarter of the memory, and a sixth of the time, that slots of 1 ms cost)
``NextDeadline``    one user's next deadline in a ``TimerHeap``, which nears and recedes with each write: a few entries
                    of the heap serve all
==================  ==================================================================================================

Three others are made for their use: ``coordinator.group.timers`` is pure, and a heartbeat moves its timer by one
assignment; ``storage.hdfs.pipeline_timer`` counts its own ticks, so that a process that stood still blames no datanode;
``broker.cleanup.janitor`` has jobs in the order of their times, and does some in each of its rounds.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable
from itertools import islice
from typing import Protocol

GRAIN_S = 0.1
"""Width of a bucket, for what clients wait for, in seconds."""
LONGEST_S = 900.0
"""The longest time-out, whatever a client asks for: buckets live until their time comes."""
EXPIRED_A_TURN = 100
"""Waiters that expire in one turn: at 10 us for a partition's route, and up to 100 us for a request."""
CALLS_A_TURN = 500
"""Calls of a heap in one turn: 3 us for a partition in a queue, 20 us for a task."""


class Expiring(Protocol):
    """A waiter with a time-out."""

    def expire(self) -> None:
        """Handle the end of the wait.  Called once, a grain or a few turns late at most.

        Never called early, except for time-outs beyond ``LONGEST_S``.
        """


class Deadlines:
    """The time-outs of one process, or of one part of it.

    Waiters that come due together expire in several turns of the loop: a request may name 100,000 partitions with a
    waiter each for the same moment.
    """

    __slots__ = ("_buckets", "_grain_s")

    def __init__(self, grain_s: float = GRAIN_S) -> None:
        self._grain_s = grain_s
        self._buckets: dict[int, dict[Expiring, None]] = {}  # at most LONGEST_S / grain_s; dicts keep their order

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    def add(self, item: Expiring, after_s: float) -> int:
        """Let ``item`` expire after ``after_s`` seconds.  Return its bucket's number, for ``remove``."""
        loop = asyncio.get_running_loop()
        due = loop.time() + min(max(after_s, 0.0), LONGEST_S)
        number = math.ceil(due / self._grain_s)
        if number * self._grain_s < due:  # by rounding: it would expire early, and then ask to expire at once, for ever
            number += 1
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = {}
            loop.call_at(number * self._grain_s, self._expire, number)
        bucket[item] = None
        return number

    def remove(self, item: Expiring, number: int) -> None:
        """Remove a waiter that is done.  No effect if it has expired already."""
        bucket = self._buckets.get(number)
        if bucket is not None:
            bucket.pop(item, None)

    def _expire(self, number: int) -> None:
        """Expire some of the bucket's waiters, and the rest in the next turns: until then they may be removed."""
        bucket = self._buckets[number]
        try:
            for item in list(islice(bucket, EXPIRED_A_TURN)):
                if item in bucket:  # an earlier one's expiry may have removed it
                    del bucket[item]
                    item.expire()
        finally:  # a bug in one of them does not keep the others waiting
            if bucket:
                asyncio.get_running_loop().call_soon(self._expire, number)
            else:
                del self._buckets[number]


class TimerHeap:
    """Deadlines of many users, to the millisecond and never removed, for the price of one timer of the loop.

    ``now_ms`` is the clock of the deadlines, in milliseconds; it need not be the loop's. ``len()`` returns how many
    deadlines wait.  Calls due together are made in several turns of the loop: 100,000 partitions may have been
    assigned at the same moment.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.now_ms = now_ms
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, time_ms: int, call: Callable[[], None]) -> None:
        """Call ``call`` once, at ``time_ms`` or a few turns later; never once closed."""
        if self._is_closed:
            return
        self._count += 1  # keeps equal times in order, and callables uncompared
        heapq.heappush(self._heap, (time_ms, self._count, call))
        self._set()

    def close(self) -> None:
        """Cancel the timer and drop every deadline."""
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
        delay_s = max(0, due - self.now_ms()) / 1000
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._run)

    def _run(self) -> None:
        self._timer = None
        now = self.now_ms()
        try:
            for _ in range(CALLS_A_TURN):
                if not self._heap or self._heap[0][0] > now:
                    break
                heapq.heappop(self._heap)[2]()
        finally:  # an exception in one call must not stop the others' deadlines
            self._set()


class NextDeadline:
    """The nearest deadline of one user, in entries of a ``TimerHeap``.

    The heap removes nothing: an overtaken entry stays until its time, and serves the deadlines behind it meanwhile. An
    entry is made only for a time before every entry that waits.
    """

    __slots__ = ("_call", "_timers", "_times_ms")

    def __init__(self, timers: TimerHeap, call: Callable[[], None]) -> None:
        self._timers = timers
        self._call = call
        self._times_ms: list[int] = []  # of the entries that wait, the nearest at the end

    def by(self, time_ms: int) -> None:
        """Call once at ``time_ms`` or earlier: the user looks then whether its deadline has come, and sets the next."""
        times_ms = self._times_ms
        if not times_ms or time_ms < times_ms[-1]:
            times_ms.append(time_ms)
            self._timers.at(time_ms, self._expire)

    def _expire(self) -> None:
        times_ms, now_ms = self._times_ms, self._timers.now_ms()
        while times_ms and times_ms[-1] <= now_ms:
            times_ms.pop()
        self._call()
