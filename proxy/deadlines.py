"""Time-outs of many requests for the price of a few timers: those of the same tenth of a second share one."""

from __future__ import annotations

import asyncio
import math
from typing import Protocol

GRAIN_S = 0.1
LONGEST_S = 900.0
"""A time-out is at most this, whatever a client asks for: buckets are not given up before their time."""


class Expiring(Protocol):
    def expire(self) -> None:
        """Its time is up; called once, a grain late at most."""


class Deadlines:
    """One process's."""

    __slots__ = ("_buckets",)

    def __init__(self) -> None:
        self._buckets: dict[int, dict[Expiring, None]] = {}  # at most LONGEST_S / GRAIN_S; dicts keep their order

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    def add(self, item: Expiring, after_s: float) -> int:
        """Have it expire; the answer is its bucket, for ``remove``."""
        loop = asyncio.get_running_loop()
        number = math.ceil((loop.time() + min(max(after_s, 0.0), LONGEST_S)) / GRAIN_S)
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = {}
            loop.call_at(number * GRAIN_S, self._ring, number)
        bucket[item] = None
        return number

    def remove(self, item: Expiring, number: int) -> None:
        """It is done; no harm if its time has come already."""
        bucket = self._buckets.get(number)
        if bucket is not None:
            bucket.pop(item, None)

    def _ring(self, number: int) -> None:
        for item in self._buckets.pop(number):
            item.expire()
