"""Time-outs of many waiters for the price of a few timers: those of one grain of time share one.

Those that come due together expire in turns of the loop: a request may name 100,000 partitions, each of which has
something that waits for the same moment.
"""

from __future__ import annotations

import asyncio
import math
from itertools import islice
from typing import Protocol

GRAIN_S = 0.1
"""For what clients wait for."""
LONGEST_S = 900.0
"""A time-out is at most this, whatever a client asks for: buckets are not given up before their time."""
EXPIRED_A_TURN = 100
"""At 10 us for a partition's route, up to 100 us for a request."""


class Expiring(Protocol):
    def expire(self) -> None:
        """Its time is up; called once, never before its time but for `LONGEST_S`, and a grain late or a few turns."""


class Deadlines:
    """One process's, or one part's of it."""

    __slots__ = ("_buckets", "_grain_s")

    def __init__(self, grain_s: float = GRAIN_S) -> None:
        self._grain_s = grain_s
        self._buckets: dict[int, dict[Expiring, None]] = {}  # at most LONGEST_S / grain_s; dicts keep their order

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    def add(self, item: Expiring, after_s: float) -> int:
        """Have it expire.  Return its bucket, for ``remove``."""
        loop = asyncio.get_running_loop()
        due = loop.time() + min(max(after_s, 0.0), LONGEST_S)
        number = math.ceil(due / self._grain_s)
        if number * self._grain_s < due:  # by a rounding: it would expire early, and ask to expire now, for ever
            number += 1
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = {}
            loop.call_at(number * self._grain_s, self._ring, number)
        bucket[item] = None
        return number

    def remove(self, item: Expiring, number: int) -> None:
        """It is done; no harm if its time has come already."""
        bucket = self._buckets.get(number)
        if bucket is not None:
            bucket.pop(item, None)

    def _ring(self, number: int) -> None:
        """Expire some of the bucket's, and the rest in the next turns: until then they may be removed."""
        bucket = self._buckets[number]
        try:
            for item in list(islice(bucket, EXPIRED_A_TURN)):
                if item in bucket:  # it may have been removed by one before it
                    del bucket[item]
                    item.expire()
        finally:  # one's bug does not keep the others waiting
            if bucket:
                asyncio.get_running_loop().call_soon(self._ring, number)
            else:
                del self._buckets[number]
