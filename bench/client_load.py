"""Loads from librdkafka, Kafka's client in C: produce, consume, produce at a fixed rate, and one record at a time.

A latency is measured here and not by ``kafka-producer-perf-test``, which rounds to whole milliseconds and counts from
when it sent: a client that is held up sends less, and does not see what it would have waited (coordinated omission).
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

TIMEOUT_S = 120.0
RECORDS_A_TURN = 64
"""Records that go to one partition before the next one's: a batch of 64 KB, if a record has 1 KB."""


class Deliveries:
    """Counts acknowledgements.  Raises RuntimeError, when asked, if a record was refused."""

    def __init__(self) -> None:
        self.count = 0
        self.error: KafkaError | None = None

    def __call__(self, error: KafkaError | None, _: Message) -> None:
        self.count += 1
        self.error = self.error or error

    def check(self, count: int) -> None:
        """Raise RuntimeError if not so many records were acknowledged without an error."""
        if self.error is not None or self.count != count:
            raise RuntimeError(f"{self.count} of {count} records acknowledged: {self.error}")


def produce(bootstrap: str, topic: str, *, count: int, record_bytes: int, partitions: int) -> None:
    """Produce as fast as acknowledgements come.  Raises RuntimeError if a record is not acknowledged."""
    producer, deliveries = _producer(bootstrap, linger_ms=5), Deliveries()
    value = os.urandom(record_bytes)
    for number in range(count):
        while True:
            try:
                producer.produce(topic, value, partition=number // RECORDS_A_TURN % partitions, on_delivery=deliveries)
                break
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
    producer.flush(TIMEOUT_S)
    deliveries.check(count)


def consume(bootstrap: str, topic: str, *, count: int, partitions: int) -> None:
    """Consume from the beginning, without a group.  Raises TimeoutError if ``count`` records do not come."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": topic, "enable.auto.commit": False, "log_level": 0}
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        seen, end = 0, time.monotonic() + TIMEOUT_S
        while seen < count:
            messages = consumer.consume(10_000, timeout=0.05)
            for message in messages:
                if message.error() is not None:
                    raise RuntimeError(f"consuming {topic} failed: {message.error()}")
            seen += len(messages)
            if time.monotonic() > end:
                raise TimeoutError(f"{seen} of {count} records consumed in {TIMEOUT_S:.0f} s")
    finally:
        consumer.close()


def paced(
    bootstrap: str, topic: str, *, records_s: int, seconds: float, record_bytes: int, partitions: int
) -> array[float]:
    """Produce at a fixed rate, an open loop; return the seconds from when each record was due to its acknowledgement.

    A record that is sent late, because client or server was held up, counts from when it was due.
    Raises RuntimeError if a record is not acknowledged.
    """
    producer, deliveries, latencies = _producer(bootstrap, linger_ms=0), Deliveries(), array("d")
    value = os.urandom(record_bytes)
    count = int(records_s * seconds)

    def on_delivery(due: float) -> Callable[[KafkaError | None, Message], None]:
        def delivered(error: KafkaError | None, message: Message) -> None:
            latencies.append(time.monotonic() - due)
            deliveries(error, message)

        return delivered

    _connect(producer, topic, value, partitions)
    begun = time.monotonic()
    for number in range(count):
        due = begun + number / records_s
        while (left := due - time.monotonic()) > 0:
            producer.poll(left)
        producer.produce(topic, value, partition=number % partitions, on_delivery=on_delivery(due))
        producer.poll(0)
    producer.flush(TIMEOUT_S)
    deliveries.check(count)
    return latencies


def lone(bootstrap: str, topic: str, *, count: int, record_bytes: int) -> array[float]:
    """Produce one record at a time, to partition 0; return the seconds of each, from the call to its acknowledgement.

    Raises RuntimeError if a record is not acknowledged.
    """
    producer, deliveries, latencies = _producer(bootstrap, linger_ms=0), Deliveries(), array("d")
    value = os.urandom(record_bytes)
    _connect(producer, topic, value, 1)
    for number in range(count):
        begun = time.monotonic()
        producer.produce(topic, value, partition=0, on_delivery=deliveries)
        while deliveries.count <= number:
            producer.poll(1.0)
            if time.monotonic() - begun > TIMEOUT_S:
                raise RuntimeError(f"a record to {topic} was not acknowledged in {TIMEOUT_S:.0f} s")
        latencies.append(time.monotonic() - begun)
    deliveries.check(count)
    return latencies


def _producer(bootstrap: str, *, linger_ms: int) -> Producer:
    return Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": linger_ms, "log_level": 0})


def _connect(producer: Producer, topic: str, value: bytes, partitions: int) -> None:
    """Produce one record to each partition, so that connections are made before the clock starts."""
    for partition in range(partitions):
        producer.produce(topic, value, partition=partition)
    producer.flush(TIMEOUT_S)
