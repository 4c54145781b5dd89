"""Spark gives a record the time that a consumer sees, also where the topic has the broker's (`LogAppendTime`)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession

from tests.services.bmq import BmqServer
from tests.services.processes import wait_for
from tests.services.spark import frame, readable, rows, start_spark

BMQ = str(Path(sys.executable).with_name("bmq"))
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
EACH = 30
CLIENT_TIME_MS = 1_700_000_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
KAFKA_SOURCE_TYPES = {TIMESTAMP_CREATE_TIME: 0, TIMESTAMP_LOG_APPEND_TIME: 1}
"""Spark's Kafka source gives the ids of Kafka's `TimestampType`."""

Time = tuple[int, int, int]
"""Offset, milliseconds, `timestampType`."""


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = start_spark()
    yield session
    session.stop()


def produce(bootstrap: str, topic: str, codec: str) -> None:
    """One batch or a few, each record with a time of the client's own."""
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 20})
    for number in range(EACH):
        producer.produce(topic, b"value", timestamp=CLIENT_TIME_MS + number)
    assert producer.flush(60) == 0


def use_producers_time(bootstrap: str, topic: str) -> None:
    config = ("--config", "message.timestamp.type=CreateTime")
    subprocess.run(
        [BMQ, "topic", "alter", topic, *config, "--bootstrap-server", bootstrap, "--timeout", "60"], check=True
    )


def consume(consumer: Consumer, topic: str, count: int) -> list[Time]:
    consumer.assign([TopicPartition(topic, 0, 0)])
    times: list[Time] = []
    while len(times) < count:
        messages = consumer.consume(count - len(times), 30)
        assert messages, f"{topic} ends at {len(times)}"
        for message in messages:
            assert message.error() is None, message.error()
            kind, milliseconds = message.timestamp()
            offset = message.offset()
            assert offset is not None
            times.append((offset, milliseconds, KAFKA_SOURCE_TYPES[kind]))
    return times


def spark_times(spark: SparkSession, root: str, topic: str, **options: str) -> list[Time]:
    return [
        (row.offset, (row.timestamp.astimezone(UTC) - EPOCH) // timedelta(milliseconds=1), row.timestampType)
        for row in rows(frame(spark, root, topic=topic, **options))
    ]


def test_the_broker_s_time(spark: SparkSession, tmp_path: Path) -> None:
    """Five codecs under `LogAppendTime`, then a batch under `CreateTime`; also as a start for the next query."""
    root, topic, count = (tmp_path / "root").as_uri(), "clock", EACH * (len(CODECS) + 1)
    begun_ms = int(datetime.now(UTC).timestamp() * 1000)
    server = BmqServer(root, folder=tmp_path)
    server.start()
    try:
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        config = {"message.timestamp.type": "LogAppendTime"}
        admin.create_topics([NewTopic(topic, 1, config=config)])[topic].result(30)
        for codec in CODECS:
            produce(server.bootstrap, topic, codec)
        use_producers_time(server.bootstrap, topic)
        produce(server.bootstrap, topic, "zstd")
        consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "reference"})
        seen = consume(consumer, topic, count)
        starts = sorted({milliseconds for _, milliseconds, kind in seen if kind == 1})[-2:]
        places = [TopicPartition(topic, 0, start) for start in starts]
        first = [consumer.offsets_for_times([place], timeout=30)[0].offset for place in places]
        consumer.close()
        wait_for(lambda: readable(root, topic) == count, "checkpoints of all there is", timeout_s=30)
    finally:
        server.kill()

    brokers, producers = seen[:-EACH], seen[-EACH:]
    assert {kind for *_, kind in brokers} == {1}
    assert all(begun_ms <= milliseconds for _, milliseconds, _ in brokers), "none is the client's"
    assert [each[1:] for each in producers] == [(CLIENT_TIME_MS + number, 0) for number in range(EACH)]
    assert spark_times(spark, root, topic) == seen
    for start, offset in zip(starts, first, strict=True):
        found = spark_times(spark, root, topic, startingTimestamp=str(start))
        assert found == seen[offset:], f"from {start}, where a consumer begins at {offset}"
