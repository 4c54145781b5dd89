"""Readers of a backlog: groups that read the same offsets at once, as fast as it comes or at a given rate.  librdkafka.

Each group is one consumer of all partitions, by assignment: what is measured is reading, not the forming of groups.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from confluent_kafka import Consumer, TopicPartition

from bench.load_process import LoadProcess, Parent
from bench.open_loop_clients import READER

PROCESSES = 4
"""Processes that share the readers: one Python process makes objects of some hundred thousand records a second."""
TIMEOUT_S = 900.0
READ_MOST = 500
READ_S = 0.1
STOP_S = 30.0
BEGIN, STOP = "begin", "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """The offsets to read: of each partition from the first, up to and without the second."""

    bootstrap: str
    topic: str
    ranges: tuple[tuple[int, int], ...]
    record_bytes: int
    mb_s: float = 0.0
    """MB (10^6) a second that a reader takes at most; 0: as many as come."""
    is_repeated: bool = False
    """Whether to begin again at the end, until it is stopped."""

    @property
    def count(self) -> int:
        """The records in these ranges."""
        return sum(end - start for start, end in self.ranges)


@dataclass(frozen=True, slots=True)
class Delivered:
    """The bytes of record values that all readers got, and the time from the beginning to the last of them."""

    bytes: int
    seconds: float

    @property
    def mb_s(self) -> float:
        """MB (10^6) a second of all readers together."""
        return self.bytes / 1e6 / self.seconds


class CatchUp:
    """Readers that are connected, and wait to begin."""

    def __init__(self, backlog: Backlog, processes: Sequence[LoadProcess]) -> None:
        self._backlog = backlog
        self._processes = processes
        self._begun = 0.0

    def begin(self) -> None:
        """Let all readers begin."""
        self._begun = time.monotonic()
        for process in self._processes:
            process.send(BEGIN)

    def stop(self) -> Delivered:
        """Stop readers that repeat, and return what they got.  Raises LoadFailed if one failed."""
        for process in self._processes:
            process.send(STOP)
        return self.finish(STOP_S)

    def finish(self, timeout_s: float = TIMEOUT_S) -> Delivered:
        """Wait until all readers have all, and return what they got.  Raises LoadFailed, or TimeoutError."""
        found = [each for process in self._processes for each in process.expect(timeout_s)]
        records, ended = sum(seen for seen, _ in found), max(end for _, end in found)
        return Delivered(records * self._backlog.record_bytes, ended - self._begun)


@contextlib.contextmanager
def catch_up(backlog: Backlog, readers: int) -> Iterator[CatchUp]:
    """Start and connect the readers, and stop them at the end."""
    with contextlib.ExitStack() as stack:
        count = min(PROCESSES, readers)
        shares = [readers // count + (index < readers % count) for index in range(count)]
        firsts = [sum(shares[:index]) for index in range(count)]
        processes = [
            stack.enter_context(LoadProcess(read, backlog=backlog, readers=share, first=first))
            for share, first in zip(shares, firsts, strict=True)
        ]
        for process in processes:
            process.expect()
        yield CatchUp(backlog, processes)


# ------------------------------------------------------------------------------------------- what a client process does


def read(parent: Parent, *, backlog: Backlog, readers: int, first: int) -> None:
    """Read: tell when connected, wait for ``BEGIN``, tell of each reader how many records it got, and until when."""
    found = [Reader(backlog, group=f"catch-up-{first + index}") for index in range(readers)]
    try:
        for each in found:
            each.connect()
        parent.tell("connected")
        parent.wait()
        for each in found:
            each.start()
        while any(each.is_reading for each in found) and not parent.has_sent():
            time.sleep(READ_S / 10)
        for each in found:
            each.stop()
        parent.tell([each.result() for each in found])
    finally:
        for each in found:
            each.close()


class Reader:
    """One consumer, in a thread of its own."""

    def __init__(self, backlog: Backlog, *, group: str) -> None:
        self._backlog = backlog
        self._seen, self._ended = 0, 0.0
        self._error: Exception | None = None
        self._stopping = threading.Event()
        self._consumer = Consumer({**READER, "bootstrap.servers": backlog.bootstrap, "group.id": group})
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def is_reading(self) -> bool:
        """True until it has come to the end, or failed."""
        return self._thread.is_alive()

    def connect(self) -> None:
        """Connect to the cluster."""
        self._consumer.list_topics(self._backlog.topic, timeout=60)

    def start(self) -> None:
        """Start to read."""
        self._thread.start()

    def stop(self) -> None:
        """Stop where it is."""
        self._stopping.set()
        self._thread.join(STOP_S)

    def close(self) -> None:
        """Leave the cluster."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(STOP_S)
        self._consumer.close()

    def result(self) -> tuple[int, float]:
        """Return how many records came, and when the last did.  Raises RuntimeError if some are missing."""
        if self._error is not None:
            raise self._error
        if not self._backlog.is_repeated and self._seen < self._backlog.count:
            raise RuntimeError(f"{self._seen} of {self._backlog.count} records were read")
        return self._seen, self._ended

    def _run(self) -> None:
        try:
            begun = time.monotonic()
            while not self._stopping.is_set():
                self._read_once(begun)
                if not self._backlog.is_repeated:
                    return
        except Exception as error:  # noqa: BLE001
            self._error = error
        finally:
            self._ended = time.monotonic()

    def _read_once(self, begun: float) -> None:
        backlog = self._backlog
        ends = {each: end for each, (start, end) in enumerate(backlog.ranges) if start < end}
        self._consumer.assign([TopicPartition(backlog.topic, each, backlog.ranges[each][0]) for each in ends])
        left = set(ends)
        while left and not self._stopping.is_set():
            for message in self._consumer.consume(READ_MOST, timeout=READ_S):
                if message.error() is not None:
                    raise RuntimeError(f"reading {backlog.topic} failed: {message.error()}")
                partition, offset = message.partition(), message.offset()
                assert partition is not None, "a record has a partition"
                assert offset is not None, "a record has an offset"
                self._seen += offset < ends[partition]
                if offset >= ends[partition] - 1 and partition in left:
                    left.remove(partition)
                    self._consumer.pause([TopicPartition(backlog.topic, partition)])
            if backlog.mb_s:
                due = begun + self._seen * backlog.record_bytes / (backlog.mb_s * 1e6)
                self._stopping.wait(max(0.0, due - time.monotonic()))
