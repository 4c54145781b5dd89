"""Real clients and Spark read a log that compaction took records from, from every offset and by time, to its end.

The log is a real one, whose closed segments the test cleans while the server is down.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPartition

from bmq.core.records.cursor import read_batches
from tests.harness.cleaned import clean_segment
from tests.integration.clients.drivers.program import Franz, Java, KafkaJs, Program, Sarama
from tests.services.bmq import BmqServer
from tests.services.processes import wait_for
from tests.services.spark import frame, readable, start_spark

TIMEOUT_S = 120.0
TOPIC = "orders"
COUNT = 60
BATCH = 2
LIFE = 10
"""Records in one life of the server, which begins a segment."""
START_MS = 1_700_000_000_000
HORIZON_MS = START_MS + 500_000
KEPT_LAST = 2 * LIFE
"""Offsets at the log's end that stay whole: those of the segments that the partition's record may name."""
GONE = {*range(4), 5, 7, *range(12, 30), 31, 34, 39}
"""Offsets whose records are removed: at the log's start, within batches, and over whole batches and segments."""
SURVIVORS = [offset for offset in range(COUNT) if offset not in GONE]


def time_of(offset: int) -> int:
    return START_MS + 1000 * offset


def produce(bootstrap: str, offsets: range) -> None:
    """Produce records as one batch; each has a time and a key of its own."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 10_000, "batch.num.messages": len(offsets)})
    for offset in offsets:
        producer.produce(TOPIC, key=b"k%d" % offset, value=b"%d" % offset * 50, partition=0, timestamp=time_of(offset))
    assert producer.flush(TIMEOUT_S) == 0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BmqServer]:
    """Yield a server with the cleaned log."""
    folder = tmp_path_factory.mktemp("cleaned")
    root = folder / "log"
    settings = {
        "BMQ_OFFSETS_TOPIC_NUM_PARTITIONS": "1",
        "BMQ_CACHE_BYTES": str(64 << 20),
        "BMQ_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    }
    server = BmqServer(f"file://{root}", f"sqlite://{folder}/meta.db", environment=settings, folder=folder)
    try:
        server.start()
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        config = {"cleanup.policy": "compact"}
        admin.create_topics([NewTopic(TOPIC, 1, -1, config=config)])[TOPIC].result(30)
        for life in range(0, COUNT, LIFE):
            for base in range(life, life + LIFE, BATCH):
                produce(server.bootstrap, range(base, base + BATCH))
            server.stop()
            if life + LIFE < COUNT:
                server.start()
        clean(root)
        server.start()
        yield server
        server.stop()
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)


def indexed(root: Path) -> list[Path]:
    """Return the closed segments' logs, oldest first."""
    found = sorted(root.glob(f"topics/{TOPIC}/*/0/*.log"))
    return [log for log in found if log.with_suffix(".idx").exists()]


def clean(root: Path) -> None:
    """Clean the closed segments below the last offsets; some with a horizon, some with their empty batches kept."""
    cleaned = 0
    for number, log in enumerate(indexed(root)):
        batches = list(read_batches(memoryview(log.read_bytes())))
        if batches[-1].next_offset <= COUNT - KEPT_LAST:
            horizon = HORIZON_MS if number % 2 else None
            clean_segment(log, SURVIVORS, horizon=horizon, keeps_empty=number % 3 == 1)
            cleaned = batches[-1].next_offset
    assert cleaned > max(GONE)


def test_librdkafka(server: BmqServer) -> None:
    consumer = Consumer(
        {"bootstrap.servers": server.bootstrap, "group.id": "g", "enable.auto.commit": False, "check.crcs": True}
    )
    try:
        for start in range(COUNT):
            consumer.assign([TopicPartition(TOPIC, 0, start)])
            found: list[tuple[int | None, int]] = []
            wanted = [(offset, time_of(offset)) for offset in SURVIVORS if offset >= start]
            while len(found) < len(wanted):
                message = consumer.poll(TIMEOUT_S)
                assert message is not None, f"{found} from {start}"
                assert message.error() is None, message.error()
                found.append((message.offset(), message.timestamp()[1]))
            assert found == wanted
        for start in range(COUNT):
            for time in (time_of(start), time_of(start) - 1):
                (at,) = consumer.offsets_for_times([TopicPartition(TOPIC, 0, time)], timeout=TIMEOUT_S)
                assert at.offset == next(offset for offset in SURVIVORS if offset >= start)
    finally:
        consumer.close()


@pytest.mark.parametrize("kind", [Java, Franz, Sarama, KafkaJs])
def test_clients_of_other_languages(server: BmqServer, kind: type[Program]) -> None:
    """Let a group whose committed offset is each offset of the log read to the end."""
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    client = kind(server.bootstrap)
    try:
        for start in range(COUNT):
            group = f"{client.name}-{start}"
            committed = [ConsumerGroupTopicPartitions(group, [TopicPartition(TOPIC, 0, start)])]
            admin.alter_consumer_group_offsets(committed)[group].result(30)
            wanted = [(offset, time_of(offset)) for offset in SURVIVORS if offset >= start]
            found = client.consume([TOPIC], group, len(wanted))
            assert [(record.offset, record.message.timestamp) for record in found] == wanted
            assert client.offsets_for_time(TOPIC, time_of(start)) == {0: wanted[0][0]}
    finally:
        client.close()


def test_kafka_python(server: BmqServer) -> None:
    at = KafkaPartition(TOPIC, 0)
    consumer = KafkaConsumer(
        bootstrap_servers=server.bootstrap, enable_auto_commit=False, consumer_timeout_ms=TIMEOUT_S * 1000
    )
    try:
        consumer.assign([at])
        for start in range(COUNT):
            consumer.seek(at, start)
            wanted = [(offset, time_of(offset)) for offset in SURVIVORS if offset >= start]
            found = [(record.offset, record.timestamp) for _, record in zip(wanted, consumer, strict=False)]
            assert found == wanted
            time = consumer.offsets_for_times({at: time_of(start)})[at]
            assert (time.offset, time.timestamp) == wanted[0]
    finally:
        consumer.close()


def test_aiokafka(server: BmqServer) -> None:
    async def read() -> None:
        at = AioPartition(TOPIC, 0)
        async with AIOKafkaConsumer(bootstrap_servers=server.bootstrap, enable_auto_commit=False) as consumer:
            consumer.assign([at])
            for start in range(COUNT):
                consumer.seek(at, start)
                wanted = [(offset, time_of(offset)) for offset in SURVIVORS if offset >= start]
                found = list[tuple[int, int]]()
                while len(found) < len(wanted):
                    record = await consumer.getone()
                    found.append((record.offset, record.timestamp))
                assert found == wanted
                time = (await consumer.offsets_for_times({at: time_of(start)}))[at]
                assert (time.offset, time.timestamp) == wanted[0]

    asyncio.run(asyncio.wait_for(read(), TIMEOUT_S))


def test_spark(server: BmqServer) -> None:
    root = f"file://{server.folder / 'log'}"
    wait_for(lambda: readable(root, TOPIC) == COUNT, "checkpoint of all records", timeout_s=TIMEOUT_S)
    spark = start_spark()
    try:
        for start in range(0, COUNT, 7):
            wanted = [offset for offset in SURVIVORS if offset >= start]
            by_offset = frame(spark, root, topic=TOPIC, startingOffsets=f'{{"{TOPIC}":{{"0":{start}}}}}')
            by_time = frame(spark, root, topic=TOPIC, startingTimestamp=str(time_of(start)))
            for data in (by_offset, by_time):
                rows = data.selectExpr("offset", "unix_millis(timestamp) time").orderBy("offset").collect()
                assert [(row.offset, row.time) for row in rows] == [(offset, time_of(offset)) for offset in wanted]
    finally:
        spark.stop()
