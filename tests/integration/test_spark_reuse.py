"""One ``load()`` asked many times: each query gets its own rows, and all of them the same snapshot.

Spark keeps the plan of a Python data source for each ``load()``, so what one query asks for must not show in the next
one.  Every query here shares a DataFrame or a view with others and is compared with a Kafka consumer's records.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import DataFrame, SparkSession

from tests.services.bmq import BmqServer
from tests.services.processes import wait_for
from tests.services.spark import frame, readable, start_spark

TOPIC, PARTITIONS, RECORDS = "orders", 3, 300
FIRST_MS = 1_700_000_000_000
PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"
SEED = 20260101


@dataclass(frozen=True, slots=True)
class Told:
    """A record as a consumer gets it; ``time`` is its timestamp."""

    partition: int
    offset: int
    time: datetime
    key: bytes


Condition = Callable[[Told], bool]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BmqServer]:
    folder = tmp_path_factory.mktemp("reuse")
    with BmqServer((folder / "root").as_uri(), folder=folder) as server:
        yield server


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = start_spark()
    yield session
    session.stop()


@pytest.fixture(params=["true", "false"], ids=["push-down", "no push-down"])
def asking(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """Yield a session with Spark's push-down of filters switched on, and off, as it is by default."""
    spark.conf.set(PUSH_DOWN, request.param)
    yield spark
    spark.conf.unset(PUSH_DOWN)


def root_of(server: BmqServer) -> str:
    return (server.folder / "root").as_uri()


def produce(server: BmqServer, topic: str, first: int, count: int) -> None:
    """Produce records in turn to all partitions, a second apart, and wait until readers of storage see all of them."""
    producer = Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 0})
    for number in range(first, first + count):
        producer.produce(
            topic,
            key=b"k%d" % (number % 7),
            value=b"%d" % number,
            partition=number % PARTITIONS,
            timestamp=FIRST_MS + 1000 * number,
        )
    assert producer.flush(60) == 0
    wait_for(lambda: readable(root_of(server), topic) == first + count, "checkpoints of all there is", timeout_s=60)


def create(server: BmqServer, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(30)


@pytest.fixture(scope="module")
def consumed(server: BmqServer) -> set[Told]:
    """Return all records that a consumer gets of the topic."""
    create(server, TOPIC)
    produce(server, TOPIC, 0, RECORDS)
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "reuse", "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    found: set[Told] = set()
    while len(found) < RECORDS:
        for message in consumer.consume(RECORDS, 5):
            assert message.error() is None, message.error()
            partition, offset, key = message.partition(), message.offset(), message.key()
            assert partition is not None
            assert offset is not None
            assert key is not None
            time = datetime.fromtimestamp(message.timestamp()[1] / 1000, UTC)
            found.add(Told(partition, offset, time, bytes(key)))
    consumer.close()
    return found


def places(data: DataFrame) -> list[tuple[int, int]]:
    return sorted((row.partition, row.offset) for row in data.select("partition", "offset").collect())


def expected(wanted: set[Told], is_wanted: Condition = lambda each: True) -> list[tuple[int, int]]:
    return sorted((each.partition, each.offset) for each in wanted if is_wanted(each))


def conditions(chance: random.Random) -> list[tuple[str, Condition]]:
    """Return filters in SQL, each with the condition that it means."""
    partition, offset = chance.randrange(PARTITIONS), chance.randrange(RECORDS // PARTITIONS)
    time = datetime.fromtimestamp(FIRST_MS / 1000 + chance.randrange(RECORDS), UTC)
    return [
        (f"partition = {partition}", lambda each: each.partition == partition),
        (f"partition in ({partition}, 99)", lambda each: each.partition == partition),
        (f"offset >= {offset}", lambda each: each.offset >= offset),
        (f"offset < {offset}", lambda each: each.offset < offset),
        (f"timestamp > timestamp'{time:%Y-%m-%d %H:%M:%SZ}'", lambda each: each.time > time),
        ("key in ('k1', 'k3')", lambda each: each.key in (b"k1", b"k3")),
    ]


def all_of(conditions: Sequence[Condition]) -> Condition:
    return lambda each: all(is_so(each) for is_so in conditions)


def test_a_filter_of_one_query_does_not_show_in_the_next(
    asking: SparkSession, server: BmqServer, consumed: set[Told]
) -> None:
    data = frame(asking, root_of(server), topic=TOPIC)
    assert places(data.where("offset < 10")) == expected(consumed, lambda each: each.offset < 10)
    assert places(data) == expected(consumed)
    assert data.count() == RECORDS
    assert places(data.where("partition = 2")) == expected(consumed, lambda each: each.partition == 2)
    assert places(data.where("topic = 'another'")) == []
    assert data.count() == RECORDS


def test_two_filters_of_one_query(asking: SparkSession, server: BmqServer, consumed: set[Told]) -> None:
    """A union, a join with itself, and sub-queries: Spark plans the branches before it reads the first of them."""
    data = frame(asking, root_of(server), topic=TOPIC)
    both = data.where("partition = 0").unionAll(data.where("partition = 1"))
    assert places(both) == expected(consumed, lambda each: each.partition < 2)
    low, high = data.where("offset < 60").alias("low"), data.where("offset >= 40").alias("high")
    joined = low.join(high, ["partition", "offset"]).select("partition", "offset")
    assert places(joined) == expected(consumed, lambda each: 40 <= each.offset < 60)
    data.createOrReplaceTempView("orders")
    counted = asking.sql(
        "select (select count(*) from orders where partition = 0) as zero,"
        " (select count(*) from orders where offset >= 90) as late,"
        " (select count(*) from orders) as all_of_them,"
        " (select count(*) from orders where key in (select key from orders where offset = 0)) as like_the_first"
    ).first()
    first = {each.key for each in consumed if each.offset == 0}
    assert counted is not None
    assert tuple(counted) == (
        sum(each.partition == 0 for each in consumed),
        sum(each.offset >= 90 for each in consumed),
        RECORDS,
        sum(each.key in first for each in consumed),
    )


def test_columns_of_one_query_do_not_show_in_the_next(
    asking: SparkSession, server: BmqServer, consumed: set[Told]
) -> None:
    """Select other columns in each query: Spark prunes none of a Python data source, and none may leak if it does."""
    data = frame(asking, root_of(server), topic=TOPIC)
    assert data.select("offset").distinct().count() == len({each.offset for each in consumed})
    assert {bytes(row.key) for row in data.select("key").collect()} == {each.key for each in consumed}
    both = data.selectExpr("cast(offset as string) as it").unionAll(data.selectExpr("cast(key as string) as it"))
    keys = [each.key.decode() for each in consumed]
    assert sorted(row.it for row in both.collect()) == sorted([*keys, *(str(each.offset) for each in consumed)])
    assert data.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]


def test_any_filters_one_after_the_other(asking: SparkSession, server: BmqServer, consumed: set[Told]) -> None:
    """Random ones, alone and in pairs, on one DataFrame and one view."""
    chance = random.Random(SEED)
    data = frame(asking, root_of(server), topic=TOPIC)
    data.createOrReplaceTempView("reused")
    for _ in range(15):
        queries = []
        for _ in range(chance.choice((1, 2))):
            queries.append(chance.sample(conditions(chance), chance.choice((0, 1, 2))))
        frames, wanted = [], []
        for query in queries:
            text = " and ".join(text for text, _ in query) or "true"
            source = chance.choice((data, asking.table("reused")))
            frames.append(source.where(text).select("partition", "offset"))
            wanted += expected(consumed, all_of([is_so for _, is_so in query]))
        whole = frames[0] if len(frames) == 1 else frames[0].unionAll(frames[1])
        assert places(whole) == sorted(wanted), (SEED, queries)


@pytest.mark.needs_spark("kept plan")
def test_a_load_is_a_snapshot_and_loading_again_refreshes(spark: SparkSession, server: BmqServer) -> None:
    """The documented way for a DataFrame, a view of one, and a view that SQL makes."""
    topic, root = "growing", root_of(server)
    create(server, topic)
    produce(server, topic, 0, 30)
    data = frame(spark, root, topic=topic)
    data.createOrReplaceTempView("pinned")
    made = f"create or replace temporary view made using bmq options (root '{root}', topic '{topic}')"
    spark.sql(made)

    def counts() -> list[int]:
        found = [data, data.where("offset >= 0"), spark.table("pinned"), spark.table("made")]
        return [each.count() for each in found]

    assert counts() == [30] * 4
    produce(server, topic, 30, 30)
    assert counts() == [30] * 4, "as documented, until it is loaded again"
    assert len(data.collect()) == 30
    data = frame(spark, root, topic=topic)
    data.createOrReplaceTempView("pinned")
    spark.sql(made)
    assert counts() == [60] * 4


@pytest.mark.needs_spark("kept plan")
def test_a_snapshot_of_what_was_deleted(spark: SparkSession, server: BmqServer) -> None:
    """Read a snapshot after its records were deleted: it works while the files exist; a new load sees the new log."""
    topic, root = "shrinking", root_of(server)
    create(server, topic)
    produce(server, topic, 0, 30)
    data = frame(spark, root, topic=topic)
    assert data.count() == 30
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    prefix = [TopicPartition(topic, partition, 4) for partition in range(PARTITIONS)]
    for deleted in admin.delete_records(prefix).values():
        assert deleted.result(30).low_watermark == 4
    produce(server, topic, 30, 3)
    assert frame(spark, root, topic=topic).count() == 33 - 4 * PARTITIONS
    assert data.count() == 30
    for log in Path(server.folder / "root" / "topics" / topic).rglob("*.log"):  # what retention does, without its delay
        log.unlink()
    with pytest.raises(Exception, match="were deleted while being read"):
        data.count()


def test_times_between_milliseconds(spark: SparkSession, server: BmqServer, consumed: set[Told]) -> None:
    """Spark compares microseconds; records have milliseconds."""
    data = frame(spark, root_of(server), topic=TOPIC)
    at = datetime.fromtimestamp(FIRST_MS / 1000 + 150, UTC)
    for shift, first in ((-1, at), (0, at), (1, at + timedelta(seconds=1))):
        time = at + timedelta(microseconds=shift)
        found = places(data.where(f"timestamp >= timestamp'{time:%Y-%m-%d %H:%M:%S.%fZ}'"))
        assert found == sorted((each.partition, each.offset) for each in consumed if each.time >= first)
