"""The data of Spark's benchmark: the same records in a topic on HDFS and in one of Apache Kafka, and their servers."""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.roots import JAVA_OPTIONS
from bench.servers import BMQ_ENVIRONMENT as SERVER_ENVIRONMENT
from bench.servers import KAFKA_HEAP_MB, KAFKA_JAVA, KAFKA_PROPERTIES
from tests.services.bmq import BmqServer
from tests.services.hdfs import HdfsCluster
from tests.services.kafka import KafkaCluster
from tests.services.processes import ServiceProcess, wait_for
from tests.services.spark import readable

PARTITIONS = 4
DATANODES = 4
KEYS = 1000
KEY_BYTES = 10
VALUES = 5000
"""Different values, so many that a codec's window holds no two that are equal."""
SEGMENT_BYTES = 64 << 20
"""Bytes of a segment: most of a topic is closed, as of any topic that is older than an hour, and its end is open."""
PRODUCER = {"acks": "all", "batch.size": 65536, "linger.ms": 20, "queue.buffering.max.messages": 500_000}
SETTLE_S = 60.0
BMQ_ENVIRONMENT = {"BMQ_CACHE_BYTES": str(2 << 30), **SERVER_ENVIRONMENT}
"""Settings of ``bmq serve``: topics are read right after they were written, by Kafka from the machine's free memory."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of ``count`` records of ``record_bytes``, key and value, compressed by ``codec``."""

    record_bytes: int
    codec: str
    count: int

    @property
    def name(self) -> str:
        """The topic's name."""
        return f"records-{self.record_bytes}-{self.codec}" if self.count else "nothing"

    @property
    def case(self) -> str:
        """The case's name in the results."""
        if not self.count:
            return self.name
        return f"{self.record_bytes} B, {'uncompressed' if self.codec == 'none' else self.codec}"

    @property
    def value_bytes(self) -> int:
        """Bytes of a value."""
        return self.record_bytes - KEY_BYTES


EMPTY = Topic(100, "none", 0)


@dataclass(frozen=True, slots=True)
class Site:
    """HDFS with ``bmq serve`` on it, and one node of Apache Kafka on a local disk."""

    root: str
    bmq: BmqServer
    hdfs: HdfsCluster
    kafka: KafkaCluster

    @property
    def bootstraps(self) -> tuple[str, str]:
        """The bootstrap addresses of ``bmq serve`` and of Kafka."""
        return self.bmq.bootstrap, self.kafka.bootstrap

    @property
    def hdfs_cpu_s(self) -> float:
        return _cpu_s(self.hdfs.processes)

    @property
    def bmq_cpu_s(self) -> float:
        return self.bmq.cpu_seconds

    @property
    def kafka_cpu_s(self) -> float:
        return self.kafka.cpu_seconds

    @property
    def processes(self) -> dict[str, list[ServiceProcess]]:
        """The server processes, by whose they are."""
        return {"BMQ": [self.bmq.process, *self.hdfs.processes], "Kafka": self.kafka.processes}

    def fill(self, topic: Topic) -> None:
        """Write the topic to both; return when readers of storage see all of it."""
        for bootstrap in self.bootstraps:
            _create(bootstrap, topic)
            _produce(bootstrap, topic)
        wait_for(lambda: readable(self.root, topic.name) == topic.count, f"{topic.name} in storage", timeout_s=SETTLE_S)


def _cpu_s(processes: Sequence[ServiceProcess]) -> float:
    return sum(process.cpu_seconds for process in processes)


@contextlib.contextmanager
def open_site(parent: Path | None = None) -> Iterator[Site]:
    """Start all servers, with their data in a folder of ``parent``, and stop them at the end."""
    folder = Path(tempfile.mkdtemp(prefix="bmq-bench-spark-", dir=parent))
    try:
        with contextlib.ExitStack() as stack:
            hdfs = HdfsCluster(datanodes=DATANODES, java_options=JAVA_OPTIONS, folder=folder / "hdfs")
            stack.enter_context(hdfs)
            root = f"{hdfs.root}/bench"
            bmq = stack.enter_context(BmqServer(root, folder=folder, environment=BMQ_ENVIRONMENT))
            kafka = KafkaCluster(
                heap_mb=KAFKA_HEAP_MB, java_options=KAFKA_JAVA, properties=KAFKA_PROPERTIES, folder=folder / "kafka"
            )
            yield Site(root, bmq, hdfs, stack.enter_context(kafka))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _create(bootstrap: str, topic: Topic) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    wanted = NewTopic(topic.name, PARTITIONS, config={"segment.bytes": str(SEGMENT_BYTES)})
    admin.create_topics([wanted])[topic.name].result(60)


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
    left = producer.flush(120)
    if refused or left:
        raise OSError(f"{topic.name}: {left} records not sent, {len(refused)} refused: {refused[:1]}")


@cache
def values_of(size: int) -> list[bytes]:
    """Return values made of words, so that a codec can compress them."""
    chance = random.Random(size)
    words = [bytes(chance.choices(b"abcdefghijklmnopqrstuvwxyz", k=5)) + b" " for _ in range(2000)]
    return [b"".join(chance.choices(words, k=size // 6 + 1))[:size] for _ in range(VALUES)]
