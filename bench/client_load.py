"""Loads from librdkafka, Kafka's client in C: produce, consume, produce at a fixed rate, and one record at a time.

A latency is measured here and not by ``kafka-producer-perf-test``, which rounds to whole milliseconds and counts from
when it sent: a client that is held up sends less, and does not see what it would have waited (coordinated omission).
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

TIMEOUT_S = 120.0
RECORDS_A_TURN = 64
"""Records that go to one partition before the next one's: a batch of 64 KB, if a record has 1 KB."""


QUEUE_BACKOFF_MS = 5
"""Milliseconds that librdkafka waits when it has fetched enough in advance.  A second, its default, would make a faster
server look slower: its records come sooner, and the next ones a second later."""
PARTITION_OF_CLIENT = -1
"""librdkafka's number for a partition that its partitioner chooses: of records without a key, some time each."""
NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


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


def produce(
    bootstrap: str,
    topic: str,
    *,
    count: int,
    record_bytes: int,
    partitions: int,
    values: Sequence[bytes] = (),
    properties: Mapping[str, str] = NO_PROPERTIES,
    warm_count: int = 0,
) -> float:
    """Produce as fast as acknowledgements come, to the partitions in turns, or as librdkafka chooses if they are 0.

    Records are ``values`` one after another, or one of random bytes.  Returns the records acknowledged a second, from
    the acknowledgement of the last of ``warm_count`` further ones.  Raises RuntimeError if one is not acknowledged.
    """
    producer, deliveries = _producer(bootstrap, linger_ms=5, properties=properties), Deliveries()
    values = values or (os.urandom(record_bytes),)
    begun, base = time.monotonic(), 0
    for number in range(count + warm_count):
        partition = number // RECORDS_A_TURN % partitions if partitions else PARTITION_OF_CLIENT
        while True:
            try:
                producer.produce(topic, values[number % len(values)], partition=partition, on_delivery=deliveries)
                break
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
        if base < warm_count <= deliveries.count:
            begun, base = time.monotonic(), deliveries.count
    producer.flush(TIMEOUT_S)
    deliveries.check(count + warm_count)
    return (deliveries.count - base) / (time.monotonic() - begun)


def touch(bootstrap: str, topic: str, *, partitions: int) -> float:
    """Produce a small record to each partition; return the seconds until the last acknowledgement.

    Raises RuntimeError if one is not acknowledged.
    """
    producer, deliveries = _producer(bootstrap, linger_ms=0), Deliveries()
    begun = time.monotonic()
    for partition in range(partitions):
        producer.produce(topic, b"first", partition=partition, on_delivery=deliveries)
    producer.flush(TIMEOUT_S)
    deliveries.check(partitions)
    return time.monotonic() - begun


def consume(
    bootstrap: str, topic: str, *, count: int, partitions: int, properties: Mapping[str, str] = NO_PROPERTIES
) -> float:
    """Consume from the beginning, without a group; return the records a second after the first ones came.

    Raises TimeoutError if ``count`` records do not come.
    """
    settings = {"bootstrap.servers": bootstrap, "group.id": topic, "enable.auto.commit": False, "log_level": 0}
    consumer = Consumer({**settings, "fetch.queue.backoff.ms": QUEUE_BACKOFF_MS, **properties})
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        begun = time.monotonic()
        seen, first, end = 0, 0, begun + TIMEOUT_S
        while seen < count:
            messages = consumer.consume(10_000, timeout=0.05)
            for message in messages:
                if message.error() is not None:
                    raise RuntimeError(f"consuming {topic} failed: {message.error()}")
            seen += len(messages)
            if seen and not first and seen < count:
                begun, first = time.monotonic(), seen
            if time.monotonic() > end:
                raise TimeoutError(f"{seen} of {count} records consumed in {TIMEOUT_S:.0f} s")
        return (seen - first) / (time.monotonic() - begun)
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


def _producer(bootstrap: str, *, linger_ms: int, properties: Mapping[str, str] = NO_PROPERTIES) -> Producer:
    settings = {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": linger_ms, "log_level": 0}
    return Producer({**settings, **properties})


def _connect(producer: Producer, topic: str, value: bytes, partitions: int) -> None:
    """Produce one record to each partition, so that connections are made before the clock starts."""
    for partition in range(partitions):
        producer.produce(topic, value, partition=partition)
    producer.flush(TIMEOUT_S)
