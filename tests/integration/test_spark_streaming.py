"""Streaming queries over topics on a local folder and on a real HDFS: limits, growth, restarts, losses.

Real Spark, two local cores; topics are written by real clients through `bmq serve`.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bmq.spark.reading.storage_loop import storage_loop
from bmq.storage.layout import base_name
from bmq.storage.open import open_filesystem
from tests.services.bmq import BmqServer
from tests.services.processes import ServiceProcess, wait_for
from tests.services.spark import readable, start_spark
from tests.unit.spark.storing import Store, series

TIMEOUT_S = 600
ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.needs_spark("stream reader")


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = start_spark()
    yield session
    session.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BmqServer]:
    """Start a server over a local folder: all tests that do not break it share it."""
    folder = tmp_path_factory.mktemp("serve")
    with BmqServer(local_root(folder), folder=folder) as server:
        yield server


@pytest.fixture(params=["local", "hdfs"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return a folder of one test, on the local disk and on HDFS."""
    return tmp_path.as_uri() if request.param == "local" else str(request.getfixturevalue("hdfs_root"))


def local_root(folder: Path) -> str:
    return (folder / "root").as_uri()


class Topic:
    """A topic that a test writes: ``told`` holds (partition, offset, value) of what was acknowledged."""

    def __init__(self, root: str, bootstrap: str, name: str, partitions: int = 2) -> None:
        self.root = root
        self.name = name
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self._bootstrap = bootstrap
        self._admin.create_topics([NewTopic(name, partitions)])[name].result(30)
        self.acknowledged: set[tuple[int, int, bytes]] = set()

    def write(self, partition: int, count: int) -> None:
        """Produce so many records to the partition, and wait until readers of storage see them."""
        producer = Producer({"bootstrap.servers": self._bootstrap, "enable.idempotence": True})
        for number in range(count):
            value = b"%d-%d" % (partition, number)
            producer.produce(self.name, value, partition=partition, on_delivery=self._acknowledged)
        assert producer.flush(60) == 0
        self.settle()

    def _acknowledged(self, error: Any, message: Any) -> None:
        assert error is None, error
        self.acknowledged.add((message.partition(), message.offset(), message.value()))

    def settle(self) -> None:
        settle(self.root, self.name, len(self.acknowledged))

    def resize(self, partitions: int) -> None:
        self._admin.create_partitions([NewPartitions(self.name, partitions)])[self.name].result(30)

    def delete_before(self, partition: int, offset: int) -> None:
        place = TopicPartition(self.name, partition, offset)
        self._admin.delete_records([place])[TopicPartition(self.name, partition)].result(30)


def settle(root: str, topic: str, count: int) -> None:
    """Wait until so many records were ever to be seen by readers of storage."""
    wait_for(lambda: readable(root, topic) >= count, "checkpoints of what was written", timeout_s=TIMEOUT_S)


def stream(spark: SparkSession, root: str, **options: Any) -> DataFrame:
    reader = spark.readStream.format("bmq").option("root", root)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def into_table(data: DataFrame, name: str, folder: Path, **trigger: Any) -> StreamingQuery:
    """Start a query into a table in memory; its checkpoint outlives it.  ``trigger``: of ``DataStreamWriter``."""
    writer = data.writeStream.format("memory").queryName(name).option("checkpointLocation", str(folder / name))
    return (writer.trigger(**trigger) if trigger else writer).start()


def taken(spark: SparkSession, table: str) -> list[tuple[int, int, bytes]]:
    rows = spark.table(table).select("partition", "offset", "value").collect()
    return sorted((row.partition, row.offset, bytes(row.value)) for row in rows)


def batches(query: StreamingQuery) -> list[int]:
    """Return the number of records of each micro-batch that had any."""
    return [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]


# --------------------------------------------------------------------------------------------------- what is there


@pytest.mark.parametrize("place", ["local", pytest.param("hdfs", marks=pytest.mark.smoke)], indirect=True)
def test_available_now_ends_and_goes_on_where_it_ended(spark: SparkSession, place: str, tmp_path: Path) -> None:
    """Run the query twice while the server is dead: storage is enough, and the second run goes on after the first."""
    server = BmqServer(f"{place}/root", folder=tmp_path)
    seen: list[tuple[int, int, bytes]] = []

    def keep(data: DataFrame, _: int) -> None:
        rows = data.select("partition", "offset", "value").collect()
        seen.extend((row.partition, row.offset, bytes(row.value)) for row in rows)

    try:
        server.start()
        topic = Topic(f"{place}/root", server.bootstrap, "orders")
        for count in (100, 70):
            for partition in range(2):
                topic.write(partition, count)
            server.kill()
            data = stream(spark, topic.root, topic="orders", startingOffsets="earliest", maxOffsetsPerTrigger="80")
            writer = data.writeStream.foreachBatch(keep).option("checkpointLocation", f"{place}/checkpoint")
            query = writer.trigger(availableNow=True).start()
            assert query.awaitTermination(TIMEOUT_S)
            assert query.exception() is None
            assert sorted(seen) == sorted(topic.acknowledged)
            assert max(batches(query)) <= 80
            server.start()
    finally:
        server.kill()
    last = query.recentProgress[-1]["sources"][0]
    assert json.loads(last["endOffset"]) == json.loads(last["latestOffset"]) == {"orders": {"0": 170, "1": 170}}


@pytest.fixture(scope="module")
def sized(server: BmqServer) -> Topic:
    """600 records of 1000 bytes that no codec makes smaller."""
    topic = Topic(local_root(server.folder), server.bootstrap, "sized", 1)
    producer = Producer({"bootstrap.servers": server.bootstrap, "batch.size": 10_000})
    for _ in range(600):
        producer.produce("sized", os.urandom(1000))
    assert producer.flush(60) == 0
    settle(topic.root, "sized", 600)
    return topic


@pytest.mark.parametrize(
    ("name", "trigger"),
    [("at_once", {}), ("timed", {"processingTime": "200 milliseconds"}), ("now", {"availableNow": True})],
)
def test_limits_of_bytes(spark: SparkSession, sized: Topic, tmp_path: Path, name: str, trigger: dict[str, Any]) -> None:
    data = stream(spark, sized.root, topic="sized", startingOffsets="earliest", maxBytesPerTrigger="200k")
    query = into_table(data, name, tmp_path, **trigger)
    try:
        if "availableNow" in trigger:
            assert query.awaitTermination(TIMEOUT_S)
        wait_for(lambda: sum(batches(query)) >= 600, "all records", timeout_s=TIMEOUT_S)
    finally:
        query.stop()
    assert query.exception() is None
    assert [row.offset for row in spark.table(f"`{name}`").sort("offset").select("offset").collect()] == [*range(600)]
    assert len(batches(query)) >= 3
    assert max(batches(query)) * 1000 <= (200 << 10) + (64 << 10) + 10_000, "give or take an index entry"


def test_once_goes_past_all_limits(spark: SparkSession, sized: Topic, tmp_path: Path) -> None:
    limits = {"maxOffsetsPerTrigger": "7", "maxBytesPerTrigger": "1k", "minOffsetsPerTrigger": "7"}
    data = stream(spark, sized.root, topic="sized", startingOffsets="earliest", **limits)
    query = into_table(data, "once", tmp_path, once=True)
    assert query.awaitTermination(TIMEOUT_S)
    assert batches(query) == [600]


@pytest.mark.parametrize(
    ("trigger", "text"),
    [
        ({"continuous": "1 second"}, "does not support continuous processing"),
        ({"realTime": "5 minutes"}, "REAL_TIME"),
    ],
)
def test_triggers_that_spark_has_for_no_python_source(
    spark: SparkSession, sized: Topic, tmp_path: Path, trigger: dict[str, Any], text: str
) -> None:
    writer = stream(spark, sized.root, topic="sized").writeStream.format("noop").outputMode("update")
    with pytest.raises(Exception, match=text):
        writer.option("checkpointLocation", str(tmp_path)).trigger(**trigger).start().awaitTermination(TIMEOUT_S)


def test_few_records_wait(spark: SparkSession, server: BmqServer, tmp_path: Path) -> None:
    """Write few records: they wait, but not when a query begins, nor after maxTriggerDelay, nor with availableNow."""
    root = local_root(server.folder)
    topic = Topic(root, server.bootstrap, "few", 1)
    topic.write(0, 10)

    def read(delay: str, **trigger: Any) -> StreamingQuery:
        options = {"minOffsetsPerTrigger": "50", "maxTriggerDelay": delay, "startingOffsets": "earliest"}
        writer = stream(spark, root, topic="few", **options).writeStream.format("noop").trigger(**trigger)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    query = read("1h", processingTime="100 milliseconds")
    try:
        wait_for(lambda: batches(query) == [10], "what was there at first", timeout_s=TIMEOUT_S)
        topic.write(0, 20)
        query.processAllAvailable()  # it has looked, and taken nothing
        assert batches(query) == [10]
        topic.write(0, 30)
        wait_for(lambda: sum(batches(query)) >= 60, "enough records", timeout_s=TIMEOUT_S)
    finally:
        query.stop()
    assert batches(query) == [10, 50]
    topic.write(0, 1)
    restarted = read("1s", processingTime="100 milliseconds")
    try:
        wait_for(lambda: sum(batches(restarted)) == 1, "the first of another run", timeout_s=TIMEOUT_S)
        topic.write(0, 2)
        wait_for(lambda: sum(batches(restarted)) == 3, "the delay", timeout_s=TIMEOUT_S)
    finally:
        restarted.stop()
    topic.write(0, 4)
    ending = read("1h", availableNow=True)
    assert ending.awaitTermination(TIMEOUT_S)
    assert batches(ending) == [4]


def test_a_running_query_sees_what_grows(spark: SparkSession, place: str, tmp_path: Path) -> None:
    """A query from ``latest`` reads new records, then a new partition and a new topic from their beginnings."""
    root, table = f"{place}/root", f"growing_{len(place)}"
    with BmqServer(root, folder=tmp_path) as server:
        topic = Topic(root, server.bootstrap, "growing", 1)
        topic.write(0, 10)
        old = set(topic.acknowledged)
        query = into_table(stream(spark, root, subscribePattern="growing.*"), table, tmp_path)
        try:
            wait_for(lambda: bool(query.recentProgress), "the first micro-batch", timeout_s=TIMEOUT_S)
            topic.write(0, 20)
            wait_for(lambda: len(taken(spark, table)) >= 20, "new records", timeout_s=TIMEOUT_S)
            topic.resize(2)
            topic.write(1, 15)
            other = Topic(root, server.bootstrap, "growing-too", 1)
            other.write(0, 5)
            wait_for(lambda: len(taken(spark, table)) >= 40, "a new partition and topic", timeout_s=TIMEOUT_S)
            query.processAllAvailable()
        finally:
            query.stop()
    assert query.exception() is None
    assert taken(spark, table) == sorted([*(topic.acknowledged - old), *other.acknowledged])


def test_losses(spark: SparkSession, server: BmqServer, tmp_path: Path) -> None:
    root = local_root(server.folder)
    topic = Topic(root, server.bootstrap, "losing", 1)
    topic.write(0, 30)

    def read(name: str, **options: str) -> StreamingQuery:
        data = stream(spark, root, topic="losing", startingOffsets="earliest", **options)
        writer = data.writeStream.format("noop").option("checkpointLocation", str(tmp_path / name))
        return writer.trigger(availableNow=True).start()

    assert read("strict").awaitTermination(TIMEOUT_S)
    topic.write(0, 30)
    topic.delete_before(0, 40)
    topic.write(0, 1)
    strict = read("strict")
    with pytest.raises(Exception, match="records from offset 30 are gone, the log begins at 40"):
        strict.awaitTermination(TIMEOUT_S)
    lenient = read("strict", failOnDataLoss="false")
    assert lenient.awaitTermination(TIMEOUT_S)
    assert sum(batches(lenient)) == 21


def test_a_deleted_topic_and_the_next_of_its_name(spark: SparkSession, tmp_path: Path) -> None:
    """A query without failOnDataLoss outlives its only topic, over several triggers and restarts."""
    root = local_root(tmp_path)

    def create(count: int) -> None:
        async def write() -> None:
            fs = await open_filesystem(root, holder="test")
            store = await Store(fs, "passing", uuid.uuid4()).create()
            await store.segment(series(0, count))
            await fs.close()

        asyncio.run(write())

    def delete() -> None:
        shutil.rmtree(tmp_path / "root" / "topics" / "passing")

    create(30)
    data = stream(spark, root, topic="passing", startingOffsets="earliest", failOnDataLoss="false")
    writer = data.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.start()
    try:
        query.processAllAvailable()
        delete()
        for _ in range(3):
            query.processAllAvailable()
        create(7)
        query.processAllAvailable()
        assert sum(batches(query)) == 37
        delete()
        query.processAllAvailable()
    finally:
        query.stop()
    assert query.exception() is None
    again = writer.trigger(availableNow=True).start()
    assert again.awaitTermination(TIMEOUT_S)
    create(5)
    again = writer.trigger(availableNow=True).start()
    assert again.awaitTermination(TIMEOUT_S)
    assert sum(batches(again)) == 5
    delete()
    strict = stream(spark, root, topic="passing", startingOffsets="earliest")
    query = strict.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(Exception, match="passing-0 is gone"):
        query.processAllAvailable()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topic": "none"}, "there is no topic none"),
        ({"endingOffsets": "latest"}, "endingOffsets has no meaning in a streaming query"),
        ({"maxBytesPerTrigger": "much"}, "maxBytesPerTrigger='much': expected bytes"),
        ({"startingOffsets": '{"wrong":{"0":7}}'}, "startingOffsets must name every partition"),
    ],
)
def test_errors(spark: SparkSession, server: BmqServer, tmp_path: Path, options: dict[str, str], text: str) -> None:
    if "topic" not in options:
        name = f"errors-{text[:5]}"
        options = {"topic": Topic(local_root(server.folder), server.bootstrap, name).name, **options}
    data = stream(spark, local_root(server.folder), **options)
    with pytest.raises(Exception, match=text):
        into_table(data, "errors", tmp_path, availableNow=True).awaitTermination(TIMEOUT_S)


# -------------------------------------------------------------------------------------------------- killed with -9


SLOW_WORKER = b"Python worker failed to connect back"


class Job:
    """``stream_job`` as a process, with its JVM; its table and its checkpoint lie at ``place``."""

    def __init__(self, folder: Path, place: str, root: str, topic: str) -> None:
        self.table, self.checkpoint = f"{place}/table", f"{place}/checkpoint"
        self._io = storage_loop()
        self._fs = self._io.filesystem(place, must_exist=False)
        command = [sys.executable, "-m", "tests.integration.stream_job", root, topic, self.table, self.checkpoint]
        self.process = ServiceProcess("job", command, log=folder / "job.log", environment={"PYTHONPATH": str(ROOT)})
        self._life_at = 0  # in the log: where the output of its present life begins

    def start(self) -> None:
        log = self.process.log
        self._life_at = log.stat().st_size if log.exists() else 0
        self.process.start()

    def is_within_a_batch(self, least: int) -> bool:
        """Return whether a micro-batch after the first ``least`` has been begun and is not done.

        Starts the job again if Spark gave it up only because a Python worker took more than the ten seconds that
        Spark's PythonWorkerFactory grants it: on a busy machine an interpreter may need them.
        """
        if not self.process.is_running and SLOW_WORKER in self.process.log.read_bytes()[self._life_at :]:
            self.start()
        self.process.require_running()
        begun, done = self._last("offsets"), self._last("commits")
        return begun > done >= least

    def _last(self, folder: str) -> int:
        async def names() -> list[str]:
            return [base_name(child.path) async for child in self._fs.list(f"/checkpoint/{folder}")]

        return max((int(name) for name in self._io.run(names()) if name.isdecimal()), default=-1)

    def kill(self) -> None:
        """Send SIGKILL to all of it: the driver, the JVM, its Python processes."""
        pid = self.process.pid
        if pid is not None:
            os.killpg(pid, signal.SIGKILL)
        self.process.kill()


def test_killed_and_restarted_nothing_is_lost_and_nothing_twice(
    spark: SparkSession, place: str, tmp_path: Path
) -> None:
    """Twice, in the midst of a micro-batch; a partition is added while it is dead."""
    root = f"{place}/root"
    with BmqServer(root, folder=tmp_path) as server:
        topic = Topic(root, server.bootstrap, "orders")
        for partition in range(2):
            topic.write(partition, 2500)
        job = Job(tmp_path, place, root, "orders")
        try:
            for batches_done in (1, 4):
                job.start()
                is_within = partial(job.is_within_a_batch, batches_done)
                wait_for(is_within, "a micro-batch", timeout_s=TIMEOUT_S, interval_s=0.05)
                job.kill()
        finally:
            job.kill()
        topic.resize(3)
        topic.write(2, 300)
    data = stream(spark, root, topic="orders", startingOffsets="earliest", maxOffsetsPerTrigger="2000")
    writer = data.writeStream.format("parquet").option("checkpointLocation", job.checkpoint)
    rest = writer.trigger(availableNow=True).start(job.table)
    assert rest.awaitTermination(TIMEOUT_S)
    rows = spark.read.parquet(job.table).select("partition", "offset", "value").collect()
    found = [(row.partition, row.offset, bytes(row.value)) for row in rows]
    assert len(found) == len(set(found)) == 5300
    assert set(found) == topic.acknowledged
