"""Time-outs of many waiters for the price of a few timers: those of one grain of time share one.

Waiters that come due together expire in several turns of the loop: a request may name 100,000 partitions, each with
something that waits for the same moment.
"""

from __future__ import annotations

import asyncio
import math
from itertools import islice
from typing import Protocol

GRAIN_S = 0.1
"""Width of a bucket, for what clients wait for, in seconds."""
LONGEST_S = 900.0
"""The longest time-out, whatever a client asks for: buckets live until their time comes."""
EXPIRED_A_TURN = 100
"""Waiters that expire in one turn: at 10 us for a partition's route, and up to 100 us for a request."""


class Expiring(Protocol):
    """A waiter with a time-out."""

    def expire(self) -> None:
        """Handle the end of the wait.  Called once, a grain or a few turns late at most.

        Never called early, except for time-outs beyond `LONGEST_S`.
        """


class Deadlines:
    """The time-outs of one process, or of one part of it."""

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
            loop.call_at(number * self._grain_s, self._ring, number)
        bucket[item] = None
        return number

    def remove(self, item: Expiring, number: int) -> None:
        """Remove a waiter that is done.  No effect if it has expired already."""
        bucket = self._buckets.get(number)
        if bucket is not None:
            bucket.pop(item, None)

    def _ring(self, number: int) -> None:
        """Expire some of the bucket's waiters, and the rest in the next turns: until then they may be removed."""
        bucket = self._buckets[number]
        try:
            for item in list(islice(bucket, EXPIRED_A_TURN)):
                if item in bucket:  # an earlier one's expiry may have removed it
                    del bucket[item]
                    item.expire()
        finally:  # a bug in one of them does not keep the others waiting
            if bucket:
                asyncio.get_running_loop().call_soon(self._ring, number)
            else:
                del self._buckets[number]
