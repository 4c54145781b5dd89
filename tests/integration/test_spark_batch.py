"""Spark reads topics straight from storage: every option, every shape of a log, and the same as a Kafka consumer.

Real Spark, two local cores; logs are written by real brokers on a local folder and on a real HDFS, and by the test
itself where it wants what no broker would do today.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import Row, SparkSession

from bmq.broker.config import BrokerConfig, LogConfig
from bmq.core.model import PartitionKey
from bmq.core.records.batch import Batch, BatchRules, Record, build_batch
from bmq.meta.open import open_keyvalue
from bmq.spark.options import ReadOptions
from bmq.spark.reading.batch_reader import _plan
from bmq.storage.cluster_files import StoredTopics
from bmq.storage.filesystem import FileSystem
from bmq.storage.layout import PartitionPath
from bmq.storage.log_segments import FOR_EVER
from bmq.storage.open import open_filesystem
from tests.harness.cleaned import cleaned_log
from tests.integration.driver import TOPIC, DriverProcess
from tests.integration.history import broker_on, report
from tests.services.bmq import BmqServer
from tests.services.hdfs import HdfsCluster
from tests.services.processes import wait_for
from tests.services.spark import frame, readable, rows, start_spark
from tests.simulation.world import MARK, encode
from tests.unit.spark.counting import Counting
from tests.unit.spark.storing import Store, batch, marker, series, transactional

TIMEOUT_S = 600.0
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = start_spark()
    yield session
    session.stop()


def stored(
    root: str,
    work: Callable[[Store], Any],
    *,
    partitions: int = 1,
    topic: str = "orders",
    is_compacted: bool = False,
) -> str:
    """``root``, in which ``work`` writes a topic's files."""

    async def main() -> None:
        fs = await open_filesystem(root, holder="test")
        await work(await Store(fs, topic, uuid.uuid4()).create(partitions, is_compacted=is_compacted))
        await fs.close()

    asyncio.run(main())
    return root


@pytest.fixture(params=["local", "hdfs"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the root of one test, on a local folder and on HDFS."""
    return local_root(tmp_path) if request.param == "local" else str(request.getfixturevalue("hdfs_root"))


def local_root(folder: Path) -> str:
    return (folder / "root").as_uri()


# ---------------------------------------------------------------------------------------------------- what it costs

SEGMENTS = 10_000
HOUR_MS = 3_600_000


def test_one_hour_of_ten_thousand_segments_on_a_folder(spark: SparkSession, tmp_path: Path) -> None:
    """A year of a topic, in files: an hour is a segment.  What planning opens has nothing to do with the rest."""

    async def write(store: Store) -> None:
        for first in range(0, SEGMENTS, 200):
            hours = range(first, first + 200)
            made = [store.segment(series(2 * n, 2, timestamp=n * HOUR_MS, step=HOUR_MS // 2), n=n) for n in hours]
            await asyncio.gather(*made)

    root = stored(local_root(tmp_path), write)
    assert len(list(tmp_path.rglob("*.log"))) == len(list(tmp_path.rglob("*.idx"))) == SEGMENTS
    given = {"startingTimestamp": str(7000 * HOUR_MS), "endingTimestamp": str(7001 * HOUR_MS)}

    async def planned(**options: str) -> Counting:
        fs = await open_filesystem(root, holder="count")
        counting = Counting(fs)
        tasks = await _plan(cast(FileSystem, counting), ReadOptions.parse({"root": root, "topic": "orders"} | options))
        assert [(piece.start, piece.end) for task in tasks for piece in task] == [(14_000, 14_002)]
        await fs.close()
        return counting

    reads = asyncio.run(planned(**given)).reads
    assert reads["idx"] <= 60, "twice the logarithm, and what may be out of order"
    assert reads["log"] <= 2
    by_offset = {"startingOffsets": '{"orders":{"0":14000}}', "endingOffsets": '{"orders":{"0":14002}}'}
    reads = asyncio.run(planned(**by_offset)).reads
    assert (reads["idx"], reads["log"]) == (2, 0), "offsets stand in the names: the last segment's, and the one read"
    assert [row.offset for row in rows(frame(spark, root, topic="orders", **given))] == [14_000, 14_001]


# ------------------------------------------------------------------------------------------- as a consumer reads it

Told = tuple[int, int, bytes | None, bytes | None, int, Any]
HEADERS: list[list[tuple[str, str | bytes | None]]] = [[], [("a", b"1"), ("a", None), ("\u00fc", b"")], [("n", b"x")]]


def produce(bootstrap: str, topic: str) -> None:
    """All codecs; keys, values and headers of every kind; some records nearly as large as they may be."""
    for codec in CODECS:
        producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 20})
        for number in range(400):
            producer.produce(
                topic,
                key=[None, b"", b"k%d" % number][number % 3],
                value=[None, b"", f"{codec}-{number}".encode() * (number % 50)][number % 7 % 3],
                headers=HEADERS[number % 5 % 3],
                timestamp=1_700_000_000_000 + number,
            )
        producer.produce(topic, value=os.urandom(700_000), key=b"large")
        assert producer.flush(60) == 0


def consume(bootstrap: str, topic: str, partitions: int) -> list[Told]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reference", "enable.auto.commit": False})
    notified: list[Told] = []
    for partition in range(partitions):
        begin, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
        consumer.assign([TopicPartition(topic, partition, begin)])
        while left := end - begin - sum(each[0] == partition for each in notified):
            for message in consumer.consume(left, 30):
                assert message.error() is None, message.error()
                offset = message.offset()
                assert offset is not None
                notified.append(
                    (
                        partition,
                        offset,
                        message.key(),
                        message.value(),
                        message.timestamp()[1],
                        message.headers() or None,
                    )
                )
    consumer.close()
    return sorted(notified, key=lambda each: each[:2])


def as_told(row: Row) -> Told:
    headers = None if row.headers is None else [(header.key, _bytes(header.value)) for header in row.headers]
    milliseconds = (row.timestamp.astimezone(UTC) - EPOCH) // timedelta(milliseconds=1)
    return row.partition, row.offset, _bytes(row.key), _bytes(row.value), milliseconds, headers


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


def same_as_a_consumer(spark: SparkSession, root: str, folder: Path) -> None:
    server = BmqServer(root, folder=folder)
    try:
        server.start()
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        admin.create_topics([NewTopic("all", 3)])["all"].result(30)
        produce(server.bootstrap, "all")
        prefix = TopicPartition("all", 1, 100)
        assert admin.delete_records([prefix])[TopicPartition("all", 1)].result(30).low_watermark == 100
        consumed = consume(server.bootstrap, "all", 3)
        assert len(consumed) == len(CODECS) * 401 - 100
        wait_for(lambda: readable(root, "all") == len(consumed) + 100, "checkpoints of all there is", timeout_s=30)
    finally:
        server.kill()
    data = frame(spark, root, topic="all", includeHeaders="true")
    assert [field.name for field in data.schema.fields] == [
        "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers",
    ]  # fmt: skip
    found = rows(data)
    assert [as_told(row) for row in found] == consumed
    assert {row.topic for row in found} == {"all"}
    assert {row.timestampType for row in found} == {0}


@pytest.mark.smoke
def test_the_same_as_a_consumer_on_a_local_folder(spark: SparkSession, tmp_path: Path) -> None:
    same_as_a_consumer(spark, local_root(tmp_path), tmp_path)


def test_the_same_as_a_consumer_on_hdfs(spark: SparkSession, hdfs_root: str, tmp_path: Path) -> None:
    same_as_a_consumer(spark, hdfs_root, tmp_path)


# --------------------------------------------------------------------------------------------- logs of real brokers


def driven(folder: Path, root: str, **options: Any) -> DriverProcess:
    return DriverProcess(folder, root, f"sqlite://{folder / 'meta.db'}", uuid.uuid4(), **options)


async def register(root: str, driver: DriverProcess, partitions: int = 1) -> None:
    """Write the topic's file for the driver, which has no controller."""
    fs = await open_filesystem(root, holder="register")
    topic_id = uuid.UUID(driver_topic(driver))
    await StoredTopics(fs).write(TOPIC, 1, topic_id, partitions, {})
    await fs.close()


def driver_topic(driver: DriverProcess) -> str:
    command = driver.process.command
    return command[command.index("--topic-id") + 1]


def agree(found: list[Row], driver: DriverProcess, *, is_all: bool) -> None:
    """Check that offsets are dense from 0, and that every acknowledged record is at its acknowledged offset."""
    assert [row.offset for row in found] == list(range(len(found)))
    for ack in driver.transcript.acks:
        if ack.offset < len(found):
            assert bytes(found[ack.offset].value).startswith(MARK + encode(ack.producer, ack.number))
    if is_all:
        assert max(ack.offset for ack in driver.transcript.acks) < len(found)


def test_an_open_segment_under_load_and_its_processes_killed(
    spark: SparkSession, hdfs: HdfsCluster, hdfs_root: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Read a segment while it is written, after its broker was killed, and after the next one fenced the file.

    Also with a datanode killed under it, so that the file ends in a failed write.
    """

    async def test() -> list[int]:
        counts = []
        broker = {"checkpoint_bytes": 50_000}
        log = {"retention_ms": FOR_EVER}  # its records are of 1970
        driver = driven(tmp_path, hdfs_root, pause_ms=20, broker=broker, log=log)
        try:
            await register(hdfs_root, driver)
            driver.start()
            await driver.until_acks(1000)
            for _ in range(2):
                found = await asyncio.to_thread(lambda: rows(frame(spark, hdfs_root, topic=TOPIC)))
                driver.transcript.refresh()
                agree(found, driver, is_all=False)
                counts.append(len(found))
                await driver.until_acks(1000)  # more bytes than lie between two checkpoints
            assert 0 < counts[0] < counts[1], "it goes on being written"

            segment = next(e for e in reversed(driver.transcript.of("created")) if "/.spare-" in e["path"])
            hdfs.kill_datanode(hdfs.datanode_of(segment["nodes"][0]))
            before = len(driver.transcript.of("created"))
            await driver.until(lambda seen: len(seen.of("created")) > before, "another segment")
            await driver.until_acks(500)
            driver.kill()
            found = await asyncio.to_thread(lambda: rows(frame(spark, hdfs_root, topic=TOPIC)))
            agree(found, driver, is_all=False)
            counts.append(len(found))
            assert counts[2] > counts[1]
            visible = frame(spark, hdfs_root, topic=TOPIC, consistency="latest")
            latest = await asyncio.to_thread(lambda: rows(visible))
            agree(latest, driver, is_all=True)

            driver.start()
            await driver.until_ready()
            await driver.until_acks(300)
            driver.terminate()
            await driver.until(lambda seen: bool(seen.of("closed")), "an orderly end")
            driver.kill()
            found = await asyncio.to_thread(lambda: rows(frame(spark, hdfs_root, topic=TOPIC)))
            agree(found, driver, is_all=True)
            counts.append(len(found))
        finally:
            driver.kill()
        return counts

    async def bounded() -> list[int]:
        async with asyncio.timeout(TIMEOUT_S):
            return await test()

    report(request, f"read under load, killed, taken over: {uvloop.run(bounded())} records")


def test_large_records_rolls_and_a_deleted_prefix(spark: SparkSession, root: str, tmp_path: Path) -> None:
    """Records over a packet (1 MB) and over a block (1 MB here), many segments, then a moved log start."""
    values = [os.urandom(size) for size in (10, 3 << 20, 100_000, 1_500_000, 0, 5 << 20, 7)]

    async def write() -> None:
        kv = await open_keyvalue(f"sqlite://{tmp_path / 'meta.db'}")
        topic_id = uuid.uuid4()
        path, key = PartitionPath("big", str(topic_id), 0), PartitionKey(topic_id, 0)
        fs = await open_filesystem(root, holder="register")
        await StoredTopics(fs).write("big", 1, topic_id, 1, {})
        await fs.close()
        log = LogConfig(segment_bytes=4 << 20, rules=BatchRules(max_message_bytes=8 << 20))
        async with broker_on(root, kv, config=BrokerConfig(block_bytes=1 << 20)) as broker:
            writer = await broker.open(path, key, log)
            for value in values:
                await writer.append(memoryview(build_batch([Record(value=value)])))
            await writer.delete_before(2)
        await kv.close()

    uvloop.run(write())
    found = rows(frame(spark, root, topic="big", maxPartitionBytes="1m"))
    assert [row.offset for row in found] == list(range(2, len(values)))
    assert [bytes(row.value) for row in found] == values[2:]
    with pytest.raises(Exception, match="records from offset 0 are gone, the log begins at 2"):
        frame(spark, root, topic="big", startingOffsets='{"big":{"0":0}}').collect()
    lenient = frame(spark, root, topic="big", startingOffsets='{"big":{"0":0}}', failOnDataLoss="false")
    assert lenient.count() == len(values) - 2


def test_webhdfs(spark: SparkSession, hdfs: HdfsCluster, hdfs_root: str, tmp_path: Path) -> None:
    """Read by WebHDFS, after the server has ended: all records of the closed segments are there."""
    with BmqServer(hdfs_root, folder=tmp_path) as server:
        producer = Producer({"bootstrap.servers": server.bootstrap})
        for number in range(1000):
            producer.produce("web", b"%d" % number, partition=0)
        assert producer.flush(60) == 0
    root = hdfs_root.replace(hdfs.root, hdfs.webhdfs_root)
    found = rows(frame(spark, root, topic="web"))
    assert [bytes(row.value) for row in found] == [b"%d" % number for number in range(1000)]


# --------------------------------------------------------------------------------------------------------- options


@pytest.fixture(scope="module", params=["local", "hdfs"])
def topics(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """``orders``, two partitions, segments of ten records a second apart; ``other`` with one."""

    async def orders(store: Store) -> None:
        for partition in range(2):
            for n in range(5):
                start = 10 * n
                timestamp = 1_700_000_000_000 + 1000 * start + partition
                await store.segment(series(start, 10, timestamp=timestamp, step=1000), partition=partition, n=n)

    async def other(store: Store) -> None:
        await store.segment(series(0, 3))

    if request.param == "local":
        root = local_root(tmp_path_factory.mktemp("spark"))
    else:
        root = f"{request.getfixturevalue('shared_hdfs').root}/spark-{uuid.uuid4().hex[:8]}"
    stored(root, orders, partitions=2)
    return stored(root, other, topic="other")


ALL = {(partition, offset) for partition in range(2) for offset in range(50)}
SECOND = 1_700_000_000_000


def both(low: int, high: int) -> set[tuple[int, int]]:
    return {(partition, offset) for partition in range(2) for offset in range(low, high)}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ALL),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, ALL),
        ({"topic": "", "assign": '{"orders":[1]}'}, {(1, n) for n in range(50)}),
        ({"topic": "", "assign": '{"orders":[0]}', "startingOffsets": '{"orders":{"0":48}}'}, {(0, 48), (0, 49)}),
        ({"startingOffsets": '{"orders":{"0":47,"1":-2}}'}, {*both(0, 50)} - {(0, n) for n in range(47)}),
        ({"endingOffsets": '{"orders":{"0":3,"1":-1}}'}, {*both(0, 50)} - {(0, n) for n in range(3, 50)}),
        ({"startingTimestamp": str(SECOND + 12_000), "endingTimestamp": str(SECOND + 20_000)},
         {(0, n) for n in range(12, 20)} | {(1, n) for n in range(12, 20)}),
        ({"startingOffsetsByTimestamp": f'{{"orders":{{"0":{SECOND + 48_000},"1":{SECOND + 49_001}}}}}'},
         {(0, 48), (0, 49), (1, 49)}),
        ({"endingOffsetsByTimestamp": f'{{"orders":{{"0":{SECOND + 1000},"1":{SECOND}}}}}'}, {(0, 0)}),
        ({"startingTimestamp": str(SECOND + 10**9), "startingOffsetsByTimestampStrategy": "latest"}, set()),
        ({"isolationLevel": "read_uncommitted"}, ALL),
        ({"consistency": "latest"}, ALL),
        ({"mode": "PERMISSIVE"}, ALL),
        ({"maxPartitionBytes": "1000", "minPartitions": "9"}, ALL),
    ],
)  # fmt: skip
def test_options(spark: SparkSession, topics: str, options: dict[str, str], expected: set[tuple[int, int]]) -> None:
    given = {"topic": "orders"} | options
    given = {name: value for name, value in given.items() if value}
    data = frame(spark, topics, schema="partition int, offset bigint", **given)
    assert {(row.partition, row.offset) for row in data.collect()} == expected


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topic": "none"}, "there is no topic none"),
        ({"topic": "orders", "speed": "fast"}, "unknown option"),
        ({"topic": "orders", "subscribe": "other"}, "exactly one of"),
        ({"topic": "orders", "startingOffsets": '{"orders":{"0":1}}'}, "missing are orders-1"),
        ({"topic": "orders", "endingOffsets": '{"orders":{"0":51,"1":-1}}'}, "ending offset 51 is past the end"),
        ({"topic": "orders", "startingTimestamp": str(SECOND * 2)}, "no record is as young"),
    ],
)
def test_errors(spark: SparkSession, topics: str, options: dict[str, str], text: str) -> None:
    with pytest.raises(Exception, match=text):
        frame(spark, topics, **options).collect()


def test_subscriptions(spark: SparkSession, topics: str) -> None:
    for given, expected in {
        ("subscribe", "orders, other"): {"orders": 100, "other": 3},
        ("subscribePattern", "o.*"): {"orders": 100, "other": 3},
        ("subscribePattern", "other"): {"other": 3},
        ("subscribePattern", "o"): {},
    }.items():
        data = frame(spark, topics, **{given[0]: given[1]})
        assert {row.topic: row["count"] for row in data.groupBy("topic").count().collect()} == expected


def test_partitions_of_even_size(spark: SparkSession, topics: str) -> None:
    assert frame(spark, topics, topic="orders").rdd.getNumPartitions() == 1
    data = frame(spark, topics, topic="orders", minPartitions="8")
    sizes = [len(part) for part in data.rdd.glom().collect()]
    assert len(sizes) == 8
    assert max(sizes) - min(sizes) <= 4
    assert sum(sizes) == 100


def test_columns_by_schema(spark: SparkSession, topics: str) -> None:
    """Choose columns by a schema, in any order and case; another type, an unknown column or NOT NULL is refused."""
    schema = "Offset bigint, VALUE binary, headers array<struct<key:string,value:binary>>"
    data = frame(spark, topics, topic="other", schema=schema)
    assert [tuple(row)[:1] for row in data.orderBy("offset").collect()] == [(0,), (1,), (2,)]
    assert frame(spark, topics, topic="other", schema="topic string").distinct().count() == 1
    for schema in ("offset int", "offset bigint, colour string"):
        with pytest.raises(Exception, match="Cast after reading"):
            frame(spark, topics, topic="other", schema=schema).collect()
    with pytest.raises(Exception, match="declares value NOT NULL"):
        frame(spark, topics, topic="other", schema="offset bigint, value binary NOT NULL").collect()


def test_a_query_of_a_schema_with_not_null_alone(spark: SparkSession, tmp_path: Path) -> None:
    """Pin a limit of docs/spark.md: Spark folds ``is null`` before the source can see the schema.

    If this fails since the query is refused, or counts: take the limit out of the page.
    """

    async def write(store: Store) -> None:
        await store.segment([bytes(build_batch([Record(key=None, value=b"v")], base_offset=0, base_timestamp=0))])

    root = stored(local_root(tmp_path), write)
    believed = frame(spark, root, topic="orders", schema="key binary NOT NULL")
    assert frame(spark, root, topic="orders").where("key is null").count() == 1
    assert believed.where("key is null").count() == 0
    with pytest.raises(Exception, match="declares key NOT NULL"):
        believed.where("key is not null").count()


# ---------------------------------------------------------------------------------------- logs that no broker writes


def test_transactions(spark: SparkSession, root: str) -> None:
    """Aborted records are left out wherever the log is cut; open transactions end what is committed."""

    async def write(store: Store) -> None:
        await store.segment(
            [batch(0, b"plain"), transactional(1, b"gone", b"gone", pid=7), transactional(3, b"kept", pid=8)]
        )
        await store.segment(
            [
                transactional(4, b"gone", pid=7),
                marker(5, pid=8, is_abort=False),
                marker(6, pid=7, is_abort=True),
                transactional(7, b"kept", pid=7),
                marker(8, pid=7, is_abort=False),
            ],
            n=1,
        )
        await store.segment([transactional(9, b"open", pid=9), batch(10, b"behind")], n=2)

    stored(root, write)
    for least in ("1", "100"):
        found = rows(frame(spark, root, topic="orders", minPartitions=least))
        assert [(row.offset, bytes(row.value)) for row in found] == [(0, b"plain"), (3, b"kept"), (7, b"kept")]
    found = rows(frame(spark, root, topic="orders", isolationLevel="read_uncommitted"))
    assert [row.offset for row in found] == [0, 1, 2, 3, 4, 7, 9, 10], "markers are never records"


def test_a_compacted_log(spark: SparkSession, root: str) -> None:
    """Records missing within batches, and whole batches up to the ends of segments; the topic's policy is another now.

    A horizon in a batch's base timestamp, later than all records, is no record's time.
    """
    full = [batch(base, *(b"%d" % n for n in range(base, base + 10)), timestamp=base) for base in range(0, 60, 10)]
    kept = {5, 20, 21, 28, 59}
    made = cleaned_log(full, kept, horizon=1_000_000)

    async def write(store: Store) -> None:
        await store.segment(made[:2])
        await store.segment(made[2:4], n=1, has_idx=False)
        await store.segment(made[4:], n=2)
        await store.segment([batch(60, b"60", timestamp=60)], n=3)

    stored(root, write)
    assert [Batch(memoryview(data)).count for data in made] == [1, 0, 3, 0, 1]
    found = rows(frame(spark, root, topic="orders"))
    assert [(row.offset, bytes(row.value)) for row in found] == [(n, b"%d" % n) for n in (*sorted(kept), 60)]
    assert [(row.timestamp.astimezone(UTC) - EPOCH) // timedelta(milliseconds=1) for row in found] == [
        *sorted(kept),
        60,
    ]
    for start in range(61):
        left = [n for n in (*sorted(kept), 60) if n >= start]
        assert frame(spark, root, topic="orders", startingOffsets=f'{{"orders":{{"0":{start}}}}}').count() == len(left)
    for time in (0, 6, 20, 22, 29, 59, 60):
        left = [n for n in (*sorted(kept), 60) if n >= time]
        found = rows(frame(spark, root, topic="orders", startingTimestamp=str(time)))
        assert [row.offset for row in found] == left


def test_rule_5_leftovers_of_failed_writes_and_of_a_fenced_writer(spark: SparkSession, root: str) -> None:
    """Read each file up to the next one's base, whatever it holds behind that, and with or without an index.

    Values are of another length in each file.
    """
    lengths = {range(12): 50, range(12, 15): 70, range(15, 21): 20, range(21, 26): 90}

    async def write(store: Store) -> None:
        await store.segment(series(0, 20, size=50), covered=12, leftovers=series(20, 1)[0][:40])
        await store.segment(series(12, 3, size=70), n=1)
        await store.segment(series(15, 5, size=10), n=2, has_idx=False)
        await store.segment(series(15, 10, size=20), n=3, has_idx=False)
        await store.segment(series(21, 5, size=90), epoch=2)

    stored(root, write)
    found = rows(frame(spark, root, topic="orders"))
    assert [row.offset for row in found] == list(range(26))
    for offsets, size in lengths.items():
        assert [bytes(found[offset].value) for offset in offsets] == [
            b"%d" % offset + b"." * size for offset in offsets
        ]


@pytest.mark.parametrize("byte", [0, 3, 7])
def test_a_flipped_bit_in_a_base_offset(spark: SparkSession, tmp_path: Path, byte: int) -> None:
    """The rest of the slice is not lost in silence, whatever a query asks for."""
    good = series(0, 30)
    wrong = bytearray(good[20])
    wrong[byte] ^= 0x40

    async def write(store: Store) -> None:
        written = await store.segment(good)
        log = tmp_path / "root" / store.path().log(written.name)[1:]
        log.chmod(0o644)  # it was closed
        log.write_bytes(b"".join([*good[:20], wrong, *good[21:]]))

    root = stored(local_root(tmp_path), write)
    for schema in (None, "offset bigint"):
        with pytest.raises(Exception, match=r"\.log: at \d+, offset 20: a batch "):
            frame(spark, root, topic="orders", schema=schema).count()
        left = frame(spark, root, topic="orders", schema=schema, mode="PERMISSIVE")
        assert sorted(row.offset for row in left.collect()) == [n for n in range(30) if n != 20]
    assert frame(spark, root, topic="orders", endingOffsets='{"orders":{"0":20}}').count() == 20


def test_corrupt_data(spark: SparkSession, tmp_path: Path) -> None:
    """The error names file, position and offset; PERMISSIVE reads what is right."""
    good = series(0, 20)
    bad_crc = good[5][:-1] + b"!"
    bad_head = b"\xff" * len(good[11])

    async def write(store: Store) -> None:
        written = await store.segment(good)
        log = tmp_path / "root" / store.path().log(written.name)[1:]
        log.chmod(0o644)  # it was closed
        log.write_bytes(b"".join([*good[:5], bad_crc, *good[6:11], bad_head, *good[12:]]))

    root = stored(local_root(tmp_path), write)
    position = len(b"".join(good[:5]))
    with pytest.raises(Exception, match=rf"0000-0000.*\.log: at {position}, offset 5: .*CRC"):
        frame(spark, root, topic="orders").collect()
    found = rows(frame(spark, root, topic="orders", mode="PERMISSIVE"))
    assert [row.offset for row in found] == [n for n in range(20) if n not in (5, 11)]
