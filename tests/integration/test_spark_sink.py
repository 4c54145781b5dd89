"""Rows of Spark queries into topics, through `bmq serve` on a local folder and on a real HDFS."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka.partitioner.default import murmur2
from pyspark.sql import DataFrame, SparkSession

from tests.integration.test_spark_batch import consume
from tests.integration.test_spark_streaming import TIMEOUT_S, local_root, settle, stream
from tests.services.bmq import BmqServer
from tests.services.processes import wait_for
from tests.services.spark import frame, readable, start_spark

HEADERS = "array<struct<key:string,value:binary>>"
TIME_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = start_spark(spark_sql_execution_arrow_maxRecordsPerBatch="500")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BmqServer]:
    """Start a server that creates no topics, over a local folder: all tests that do not break it share it."""
    folder = tmp_path_factory.mktemp("serve")
    with BmqServer(local_root(folder), folder=folder, environment={"BMQ_AUTO_CREATE_TOPICS_ENABLE": "false"}) as server:
        yield server


def create(server: BmqServer, name: str, partitions: int = 1) -> str:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_topics([NewTopic(name, partitions)])[name].result(30)
    return name


def save(data: DataFrame, server: BmqServer, **options: str) -> None:
    writer = data.write.format("bmq").mode("append").option("kafka.bootstrap.servers", server.bootstrap)
    for name, value in options.items():
        writer = writer.option(name.replace("kafka_", "kafka.").replace("_", "."), value)
    writer.save()


def rows_of_every_kind(spark: SparkSession, count: int = 600) -> DataFrame:
    """Keys, values and headers that are there, empty and null; partitions given by turns."""
    return spark.range(count).selectExpr(
        "case id % 3 when 0 then null when 1 then '' else concat('k', id) end as key",
        "case id % 5 when 0 then null when 1 then cast('' as binary)"
        " else cast(cast(id as string) as binary) end as value",
        "case id % 4 when 0 then null"
        " when 1 then array(named_struct('key', 'h', 'value', cast(cast(id as string) as binary)),"
        f" named_struct('key', 'h', 'value', cast(null as binary))) else cast(array() as {HEADERS}) end as headers",
        "cast(id % 2 as int) as partition",
        f"timestamp_millis({TIME_MS} + id) as timestamp",
        "id as offset",
    )


def round_trip(spark: SparkSession, root: str, server: BmqServer) -> None:
    topic = create(server, "all", 2)
    given = rows_of_every_kind(spark)
    save(given, server, topic=topic)
    settle(root, topic, 600)
    found = frame(spark, root, topic=topic, includeHeaders="true")
    columns = "cast(key as binary) as key", "value", "partition", "timestamp"
    normal = (*columns, f"case when size(headers) > 0 then headers else cast(null as {HEADERS}) end as headers")
    seen = [tuple(row) for row in given.selectExpr(*normal).collect()]
    assert sorted(map(repr, seen)) == sorted(repr(tuple(row)) for row in found.selectExpr(*normal).collect())
    assert len(consume(server.bootstrap, topic, 2)) == 600, "and a Kafka client reads as many"


@pytest.mark.smoke
def test_a_round_trip_on_a_local_folder(spark: SparkSession, server: BmqServer) -> None:
    round_trip(spark, local_root(server.folder), server)


def test_keys_lie_where_kafkas_clients_put_them(spark: SparkSession, server: BmqServer) -> None:
    topic = create(server, "keyed", 5)
    save(spark.range(100).selectExpr("cast(id as string) as key", "'v' as value"), server, topic=topic)
    consumed = consume(server.bootstrap, topic, 5)
    assert len(consumed) == 100
    assert all(each[0] == (murmur2(each[2]) & 0x7FFFFFFF) % 5 for each in consumed)


def test_a_row_as_large_as_the_java_client_takes_and_the_earliest_time(spark: SparkSession, server: BmqServer) -> None:
    """librdkafka's own default ends at 1,000,000 bytes."""
    topic, size = create(server, "large"), (1 << 20) - 100
    data = spark.sql(f"select cast(repeat('v', {size}) as binary) as value, timestamp_millis(1) as timestamp")
    save(data, server, topic=topic)
    consumed = consume(server.bootstrap, topic, 1)
    assert [(len(value or b""), time) for _, _, _, value, time, _ in consumed] == [(size, 1)]


def test_rows_name_their_topics(spark: SparkSession, server: BmqServer) -> None:
    names = [create(server, name) for name in ("left", "right")]
    data = spark.range(30).selectExpr("if(id < 10, 'left', 'right') as topic", "cast(id as string) as value")
    save(data, server)
    assert [len(consume(server.bootstrap, name, 1)) for name in names] == [10, 20]
    save(data, server, topic="left")
    assert len(consume(server.bootstrap, "left", 1)) == 40, "the option goes before the column"


@pytest.mark.needs_spark("stream writer")
def test_a_stream_of_another_source_to_a_topic(spark: SparkSession, server: BmqServer, tmp_path: Path) -> None:
    """A restarted query writes new rows alone."""
    topic, files = create(server, "lines", 2), tmp_path / "files"
    files.mkdir()
    for number in range(2):
        (files / f"{number}.txt").write_text("".join(f"{number}-{line}\n" for line in range(100)))
        writer = spark.readStream.text(files.as_uri()).writeStream.format("bmq").option("topic", topic)
        writer = writer.option("kafka.bootstrap.servers", server.bootstrap)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(TIMEOUT_S)
        written = sorted(bytes(each[3] or b"") for each in consume(server.bootstrap, topic, 2))
        assert written == sorted(b"%d-%d" % (file, line) for file in range(number + 1) for line in range(100))


@pytest.mark.needs_spark("stream reader")
def test_a_stream_from_topic_to_topic(spark: SparkSession, server: BmqServer, tmp_path: Path) -> None:
    """A micro-batch that was committed is not written again by a restarted query."""
    root, source, target = local_root(server.folder), create(server, "source", 2), create(server, "target", 2)
    for count in (300, 500):
        save(spark.range(count - 200).selectExpr("cast(id as string) as value"), server, topic=source)
        settle(root, source, count - 200)
        data = stream(spark, root, topic=source, startingOffsets="earliest", maxOffsetsPerTrigger="250")
        writer = data.select("key", "value").writeStream.format("bmq").option("topic", target)
        writer = writer.option("kafka.bootstrap.servers", server.bootstrap)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(TIMEOUT_S)
        written = sorted(bytes(each[3] or b"") for each in consume(server.bootstrap, target, 2))
        assert written == sorted(bytes(each[3] or b"") for each in consume(server.bootstrap, source, 2))


# --------------------------------------------------------------------------------------------------------- failures


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_a_server_killed_under_a_write(spark: SparkSession, hdfs_root: str, tmp_path: Path) -> None:
    """Every row is acknowledged before the query ends, and what the producer sent again is there once."""
    gate = tmp_path / "gate"

    def half_by_half(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Values are long, since a Python worker hands on what it has made 64 KB at a time."""
        for number, batch in enumerate(batches):
            if number == 4:
                wait_for(gate.exists, "the gate", timeout_s=TIMEOUT_S)
            values = [str(each).ljust(400, ".") for each in batch.column("id").to_pylist()]
            yield pa.RecordBatch.from_pydict({"value": values})

    server = BmqServer(hdfs_root, folder=tmp_path)

    def kill_half_way() -> None:
        wait_for(lambda: readable(hdfs_root, "killed") >= 500, "the first rows in storage", timeout_s=TIMEOUT_S)
        server.kill()
        gate.touch()
        server.start()

    try:
        server.start()
        topic = create(server, "killed", 2)
        data = spark.range(0, 4000, numPartitions=1).mapInArrow(half_by_half, "value string")
        with ThreadPoolExecutor(1) as pool:
            killing = pool.submit(kill_half_way)
            save(data, server, topic=topic)  # in this thread: a session's data sources are not known to others
            killing.result(TIMEOUT_S)
        settle(hdfs_root, topic, 4000)
        values = [bytes(each[3] or b"").rstrip(b".") for each in consume(server.bootstrap, topic, 2)]
        assert sorted(values, key=int) == [b"%d" % number for number in range(4000)]
        round_trip(spark, hdfs_root, server)
    finally:
        server.kill()


@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        ("'v' as value", {}, "topic option required when no 'topic' attribute is present"),
        ("'k' as key", {"topic": "failing"}, "Required attribute 'value' not found"),
        ("1 as value", {"topic": "failing"}, "value attribute unsupported type int"),
        ("'v' as value; cast(null as string) as topic", {}, "null topic present in the data"),
        (
            "'v' as value; 7 as partition",
            {"topic": "failing"},
            "a row .*for failing-7 was (not acknowledged|refused): .*nknown partition",
        ),
        ("'v' as value", {"topic": "failing", "kafka_nonsense": "1"}, "No such configuration property"),
        ("repeat('v', 2000000) as value", {"topic": "failing"}, "a row of 2000000 bytes for failing was refused"),
        (
            "'v' as value",
            {"topic": "failing", "kafka_bootstrap_servers": "127.0.0.1:1", "kafka_delivery_timeout_ms": "1500"},
            "not acknowledged: Local: Message timed out",
        ),
    ],
)
def test_errors(spark: SparkSession, server: BmqServer, columns: str, options: dict[str, Any], text: str) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    if "failing" not in admin.list_topics(timeout=30).topics:
        create(server, "failing")
    with pytest.raises(Exception, match=text):
        save(spark.range(1).selectExpr(*columns.split("; ")), server, **options)


def test_a_topic_is_not_overwritten(spark: SparkSession, server: BmqServer) -> None:
    writer = spark.range(1).selectExpr("'v' as value").write.format("bmq").mode("overwrite").option("topic", "none")
    with pytest.raises(Exception, match="never overwritten"):
        writer.option("kafka.bootstrap.servers", server.bootstrap).save()
