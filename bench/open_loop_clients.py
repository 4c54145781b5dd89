"""The client processes of an open loop: one that produces at a fixed rate, and readers at the log's end.  librdkafka.

Each record holds its number.  Times are those of one clock, as all processes are on one machine, and exact to 0.1 ms:
the producer sleeps so long at most between records, and takes the acknowledgements that came meanwhile when it wakes.
"""

from __future__ import annotations

import struct
import threading
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import isnan, nan

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from bench.client_load import QUEUE_BACKOFF_MS, Deliveries
from bench.load_process import Parent

NAP_S = 0.00005
TIMEOUT_S = 120.0
"""Seconds for all acknowledgements, and then for readers to have all, once the last record was due."""
LATE_MAX = 1.0
"""Records are sent for so many times the load's seconds more, if the client is held up; the rest is never sent."""
READ_MOST = 1000
READER = {
    "enable.auto.commit": False,
    "queued.max.messages.kbytes": 4096,
    "fetch.queue.backoff.ms": QUEUE_BACKOFF_MS,
    "log_level": 0,
}
"""Settings of readers.  librdkafka would fetch 64 MB in advance of each partition, and wait a second when it has them:
too much memory for fifty readers."""
_NUMBER = struct.Struct(">q")
CONNECTING = -1
"""The number of the records that come before the first one, for connections to be made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load of one open loop."""

    bootstrap: str
    topic: str
    partitions: int
    records_s: int
    seconds: float
    record_bytes: int
    properties: Mapping[str, str] = field(default_factory=dict)
    """Settings of the clients besides: how they log in."""

    @property
    def count(self) -> int:
        """All records."""
        return int(self.records_s * self.seconds)


def send(parent: Parent, *, load: Load) -> None:
    """Produce: tell that connections are made, wait for the time to begin, tell when each record was acknowledged."""
    settings = {"bootstrap.servers": load.bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0}
    producer = Producer({**settings, **load.properties})
    padding, deliveries = bytes(load.record_bytes - _NUMBER.size), Deliveries()
    for partition in range(load.partitions):
        value = _NUMBER.pack(CONNECTING) + padding
        producer.produce(load.topic, value, partition=partition, on_delivery=deliveries)
    producer.flush(TIMEOUT_S)
    deliveries.check(load.partitions)
    parent.tell("connected")
    begun = parent.wait()
    cpu_before = time.thread_time()
    acked = array("d", [nan]) * load.count
    sent = _send_all(producer, load, padding, begun, lambda number: partial(_delivered, acked, deliveries, number))
    producer.flush(TIMEOUT_S)
    deliveries.check(load.partitions + sent)
    parent.tell((acked, time.thread_time() - cpu_before))


def _send_all(
    producer: Producer, load: Load, padding: bytes, begun: float,
    on_delivery: Callable[[int], Callable[[KafkaError | None, Message], None]],
) -> int:  # fmt: skip
    """Produce each record when it is due, or as soon after as there is room; return how many were sent in time."""
    last = begun + load.seconds * (1 + LATE_MAX)
    for number in range(load.count):
        due = begun + number / load.records_s
        while (left := due - time.monotonic()) > 0:
            producer.poll(0)
            time.sleep(min(left, NAP_S))
        value = _NUMBER.pack(number) + padding
        while True:
            try:
                producer.produce(
                    load.topic, value, partition=number % load.partitions, on_delivery=on_delivery(number)
                )  # fmt: skip
                break
            except BufferError:
                producer.poll(0.01)
            if time.monotonic() > last:
                return number
        producer.poll(0)
        if time.monotonic() > last:
            return number + 1
    return load.count


def _delivered(
    acked: array[float], deliveries: Deliveries, number: int, error: KafkaError | None, message: Message
) -> None:
    if error is None:
        acked[number] = time.monotonic()
    deliveries(error, message)


def follow(parent: Parent, *, load: Load, offsets: Sequence[int], readers: int) -> None:
    """Consume from ``offsets`` on: tell when all are connected, wait for how many records come, tell when each came."""
    followers = [Follower(load, offsets, name=str(index)) for index in range(readers)]
    try:
        for each in followers:
            each.start()
        for each in followers:
            each.wait_connected()
        parent.tell("connected")
        goal = parent.wait()
        for each in followers:
            each.goal = goal
        parent.tell([each.finish() for each in followers])
    finally:
        for each in followers:
            each.stop()


class Follower:
    """One consumer, in a thread of its own, and when it had each record."""

    def __init__(self, load: Load, offsets: Sequence[int], *, name: str) -> None:
        self.goal: int | None = None
        """How many records to wait for; None until it is known."""
        self._partitions = load.partitions
        self._received = array("d", [nan]) * load.count
        self._connected = threading.Event()
        self._stopping = threading.Event()
        self._error: Exception | None = None
        settings = {"bootstrap.servers": load.bootstrap, "group.id": f"{load.topic}-{name}"}
        self._consumer = Consumer({**READER, **settings, **load.properties})
        self._consumer.assign([TopicPartition(load.topic, each, offset) for each, offset in enumerate(offsets)])
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Start to consume."""
        self._thread.start()

    def wait_connected(self) -> None:
        """Wait for a record of each partition.  Raises TimeoutError, or what consuming raised."""
        if not self._connected.wait(TIMEOUT_S):
            raise self._error or TimeoutError("no record of some partition")

    def finish(self) -> array[float]:
        """Wait for the goal, and return when each record came.  Raises TimeoutError, or what consuming raised."""
        self._thread.join(TIMEOUT_S)
        if self._error is not None:
            raise self._error
        if self._thread.is_alive():
            raise TimeoutError(f"{self._seen()} of {self.goal} records were read in {TIMEOUT_S:.0f} s")
        return self._received

    def stop(self) -> None:
        """Stop, whatever has come."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(TIMEOUT_S)
        self._consumer.close()

    def _seen(self) -> int:
        return sum(not isnan(each) for each in self._received)

    def _run(self) -> None:
        try:
            connecting, seen = self._partitions, 0
            while not self._stopping.is_set() and (self.goal is None or seen < self.goal):
                # Only what is there: librdkafka waits for all of READ_MOST, or for the time-out, if it is given one.
                messages = self._consumer.consume(1, timeout=0.05)
                if messages:
                    messages += self._consumer.consume(READ_MOST, timeout=0)
                now = time.monotonic()
                for message in messages:
                    if message.error() is not None:
                        raise RuntimeError(f"consuming failed: {message.error()}")
                    (number,) = _NUMBER.unpack_from(message.value() or b"")
                    if number == CONNECTING:
                        connecting -= 1
                    elif isnan(self._received[number]):
                        self._received[number] = now
                        seen += 1
                if connecting <= 0:
                    self._connected.set()
        except Exception as error:  # noqa: BLE001
            self._error = error
            self._connected.set()  # whoever waits finds the error at its next step
