"""Bytes and records that clients move, by topic and partition, in windows of some seconds: the source of rates.

Counted in the process that clients are connected to, so the sum over all proxies is the cluster's.  Only partitions
with traffic cost anything, and a window's end swaps two references.  Records that consumers fetch are not counted, as
in Kafka: batches are passed on as they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

WINDOW_S = 10.0
PARTITIONS_MAX = 50_000
"""Partitions with counters of their own in a window, 200 bytes each; further partitions count in the total only."""
_NOTHING: Mapping[int, Counts] = MappingProxyType({})


class Counts:
    """Traffic of one partition, or of several."""

    __slots__ = ("bytes_in", "bytes_out", "records_in")

    def __init__(self, records_in: int = 0, bytes_in: int = 0, bytes_out: int = 0) -> None:
        self.records_in = records_in
        self.bytes_in = bytes_in
        self.bytes_out = bytes_out

    def __repr__(self) -> str:
        return f"<Counts records_in={self.records_in} bytes_in={self.bytes_in} bytes_out={self.bytes_out}>"

    def add(self, other: Counts) -> None:
        """Add the numbers of ``other``."""
        self.records_in += other.records_in
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out


class Window(NamedTuple):
    """Traffic of ``seconds`` that are over; 0 seconds before the first window's end."""

    seconds: float
    total: Counts
    topics: Mapping[str, Mapping[int, Counts]]

    def partition(self, topic: str, partition: int) -> Counts | None:
        """Return the partition's traffic, None if it had none."""
        return self.topics.get(topic, _NOTHING).get(partition)

    def topic(self, topic: str) -> Counts | None:
        """Return the sum over the topic's partitions, None if it had no traffic."""
        partitions = self.topics.get(topic)
        if partitions is None:
            return None
        total = Counts()
        for counts in partitions.values():
            total.add(counts)
        return total


class TrafficMeter:
    """A process's traffic in windows, which ``start`` and ``stop`` end by a timer.  ``last`` is the last that ended."""

    def __init__(self, partitions_max: int = PARTITIONS_MAX) -> None:
        self.last = Window(0.0, Counts(), {})
        self._partitions_max = partitions_max
        self._topics: dict[str, dict[int, Counts]] = {}
        self._partitions = 0
        self._total = Counts()
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<TrafficMeter partitions={self._partitions} {self._total!r}>"

    def wrote(self, topic: str, partition: int, records: int, size: int) -> None:
        """Count an accepted batch: ``records`` of ``size`` bytes in all."""
        total = self._total
        total.records_in += records
        total.bytes_in += size
        counts = self._counts(topic, partition)
        if counts is not None:
            counts.records_in += records
            counts.bytes_in += size

    def read(self, topic: str, partition: int, size: int) -> None:
        """Count ``size`` bytes of batches sent to a consumer."""
        self._total.bytes_out += size
        counts = self._counts(topic, partition)
        if counts is not None:
            counts.bytes_out += size

    def _counts(self, topic: str, partition: int) -> Counts | None:
        partitions = self._topics.get(topic)
        counts = partitions.get(partition) if partitions is not None else None
        return counts or self._begin(topic, partition)

    def _begin(self, topic: str, partition: int) -> Counts | None:
        if self._partitions >= self._partitions_max:
            return None
        self._partitions += 1
        counts = self._topics.setdefault(topic, {})[partition] = Counts()
        return counts

    def roll(self, seconds: float) -> None:
        """End the window, which took ``seconds``."""
        self.last = Window(seconds, self._total, self._topics)
        self._topics, self._partitions, self._total = {}, 0, Counts()

    def start(self, window_s: float = WINDOW_S) -> None:
        """End a window each ``window_s`` seconds, on the running loop."""
        loop = asyncio.get_running_loop()
        self._arm(loop, loop.time(), window_s)

    def stop(self) -> None:
        """End no more windows by the timer.  Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, loop: asyncio.AbstractEventLoop, began: float, window_s: float) -> None:
        self._timer = loop.call_at(began + window_s, self._tick, loop, began, window_s)

    def _tick(self, loop: asyncio.AbstractEventLoop, began: float, window_s: float) -> None:
        now = loop.time()
        self.roll(now - began)
        self._arm(loop, now, window_s)
