"""The deployments that Spark reads from and writes to, the ways it does so, and the records in their topics."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from bench.deployments import Deployment
from bench.results import Results
from bench.rounds import started
from bench.spark_plan import KEY_BYTES, KEYS, PARTITIONS, SEGMENT_BYTES, Topic
from tests.services.processes import wait_for
from tests.services.spark import readable

BMQ, ONE_BMQ, KAFKA = "bmq-3", "bmq-hdfs", "kafka-3"
VALUES = 5000
"""Different values, so many that a codec's window holds no two that are equal."""
PRODUCER = {"acks": "all", "batch.size": 65536, "linger.ms": 20, "queue.buffering.max.messages": 500_000}
SETTLE_S = 120.0
FLUSH_S = 300.0
CONFIG = {"segment.bytes": str(SEGMENT_BYTES)}


@dataclass(frozen=True, slots=True)
class Way:
    """One way of reading or writing a topic with Spark."""

    name: str
    """The name of the adapter in the results."""
    title: str
    deployment: str
    source: str
    """The format that Spark is given: ``bmq`` or ``kafka``."""
    is_narrow: bool = False
    """Whether the schema names only the columns that a query uses."""

    @property
    def is_storage(self) -> bool:
        """Return whether segments are read, and no server of BMQ is asked."""
        return self.source == "bmq"


STORAGE = Way("storage", "BMQ's source, all columns", BMQ, "bmq")
NARROW = Way("storage, narrow", "BMQ's source, columns selected", BMQ, "bmq", is_narrow=True)
ENDPOINT = Way("endpoint", "Kafka source, from BMQ", BMQ, "kafka")
ONE_ENDPOINT = Way("endpoint, one process", "Kafka source, from one BMQ process", ONE_BMQ, "kafka")
BASE = Way("kafka", "Kafka source, from Apache Kafka", KAFKA, "kafka")
READS = (STORAGE, NARROW, ENDPOINT, ONE_ENDPOINT, BASE)
"""The ways of reading; every figure is a ratio to that of ``BASE``."""

SINK = Way("sink", "BMQ's sink, into BMQ", BMQ, "bmq")
ONE_SINK = Way("sink, one process", "BMQ's sink, into one BMQ process", ONE_BMQ, "bmq")
KAFKA_SINK = Way("kafka sink into BMQ", "Kafka sink, into BMQ", BMQ, "kafka")
BASE_SINK = Way("kafka", "Kafka sink, into Apache Kafka", KAFKA, "kafka")
WRITES = (SINK, ONE_SINK, KAFKA_SINK, BASE_SINK)


@contextlib.contextmanager
def open_site(names: Sequence[str], parent: Path | None, results: Results) -> Iterator[dict[str, Deployment]]:
    """Start these deployments, with their data in a folder of ``parent``, and stop them at the end.

    One that does not start is a failure in the results, and what does not need it is measured.
    """
    with contextlib.ExitStack() as stack:
        found = {name: started(stack, name, parent, results) for name in names}
        yield {name: deployment for name, deployment in found.items() if deployment is not None}


def create(deployment: Deployment, name: str) -> None:
    """Create a topic of this benchmark."""
    deployment.create_topics([name], PARTITIONS, config=CONFIG)


@contextlib.contextmanager
def filled(deployments: Sequence[Deployment], topics: Sequence[Topic]) -> Iterator[None]:
    """Write the topics to each deployment, and delete them at the end."""
    for deployment in deployments:
        for topic in topics:
            create(deployment, topic.name)
            _produce(deployment.bootstrap, topic)
    for deployment in deployments:
        for topic in topics:
            wait_readable(deployment, topic.name, topic.count)
    yield
    for deployment in deployments:
        for topic in topics:
            deployment.delete_topic(topic.name)


def wait_readable(deployment: Deployment, topic: str, count: int) -> None:
    """Return when readers of storage see so many records; at once where nothing is read from storage."""
    if deployment.root:
        is_there = partial(_is_readable, deployment.root, topic, count)
        wait_for(is_there, f"{topic} in storage of {deployment.name}", timeout_s=SETTLE_S)


def stored(deployment: Deployment, topic: str) -> int:
    """Return the sum of the ends of the topic's partitions, as a Kafka client sees them."""
    consumer = Consumer({"bootstrap.servers": deployment.bootstrap, "group.id": "bench", "log_level": 0})
    try:
        places = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        return sum(consumer.get_watermark_offsets(place, timeout=30)[1] for place in places)
    finally:
        consumer.close()


def _is_readable(root: str, topic: str, count: int) -> bool:
    return readable(root, topic) == count


def _produce(bootstrap: str, topic: Topic) -> None:
    refused: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            refused.append(error)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap, "compression.type": topic.codec, "on_delivery": delivered,
            "delivery.report.only.error": True, "log_level": 3, **PRODUCER,
        }
    )  # fmt: skip
    values = values_of(topic.value_bytes)
    for number in range(topic.count):
        while True:
            try:
                producer.produce(topic.name, values[number % VALUES], b"%0*d" % (KEY_BYTES, number % KEYS))
                break
            except BufferError:
                producer.poll(1)
        if not number % 10_000:
            producer.poll(0)
    left = producer.flush(FLUSH_S)
    if refused or left:
        raise OSError(f"{topic.name}: {left} records not sent, {len(refused)} refused: {refused[:1]}")


@cache
def values_of(size: int) -> list[bytes]:
    """Return values made of words, so that a codec can compress them."""
    chance = random.Random(size)
    words = [bytes(chance.choices(b"abcdefghijklmnopqrstuvwxyz", k=5)) + b" " for _ in range(2000)]
    return [b"".join(chance.choices(words, k=size // 6 + 1))[:size] for _ in range(VALUES)]
