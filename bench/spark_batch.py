"""Batch reads of the Spark benchmark: three queries on the same records, by each way of reading them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from bench import page_cache
from bench.deployments import Deployment
from bench.results import Sample
from bench.spark_cpu import SparkMeter, costs, spending
from bench.spark_plan import KEYS, PARTITIONS, Topic
from bench.spark_rounds import Measurement
from bench.spark_sites import Way


@dataclass(frozen=True, slots=True)
class Query:
    """One query.  ``schema`` holds the columns that it needs, ``expected`` its result."""

    schema: str
    ask: Callable[[DataFrame], Any]
    expected: Callable[[Topic], Any]


def _total(data: DataFrame) -> int:
    return int(data.agg(sql.coalesce(sql.sum(sql.length("value")), sql.lit(0)).alias("bytes")).collect()[0].bytes)


def _groups(data: DataFrame) -> tuple[int, int]:
    """Return the number of groups, and of records in all of them."""
    by_key = data.groupBy("key").agg(sql.count("*").alias("records"), sql.max(sql.length("value")).alias("longest"))
    row = by_key.agg(sql.count("*").alias("groups"), sql.sum("records").alias("records")).collect()[0]
    return row.groups, row.records


COUNT, SUM, GROUP = "count", "sum of value lengths", "group by key"
QUERIES = {
    COUNT: Query("offset bigint", lambda data: data.count(), lambda topic: topic.count),
    SUM: Query("value binary", _total, lambda topic: topic.count * topic.value_bytes),
    GROUP: Query("key binary, value binary", _groups, lambda topic: (min(KEYS, topic.count), topic.count)),
}


@dataclass(frozen=True, slots=True)
class Reader:
    """A session that reads topics of these deployments.  ``part`` names the benches; ``is_cold``: drop what the page
    cache holds before each query."""

    part: str
    spark: SparkSession
    meter: SparkMeter
    site: dict[str, Deployment]
    is_cold: bool = False

    def measurements(
        self, topics: Sequence[Topic], ways: Sequence[Way], queries: Sequence[str] = tuple(QUERIES)
    ) -> list[Measurement]:
        """Return a measurement for each query of each topic; the last query warms up, of an empty topic none does."""
        return [
            Measurement(
                name=f"{name} of {topic.name}",
                ways=ways,
                run=partial(self.measure, topic, name),
                is_warming=bool(topic.count) and name == queries[-1],
            )
            for topic in topics
            for name in (queries if topic.count else (COUNT,))
        ]

    def measure(self, topic: Topic, name: str, way: Way) -> Iterator[Sample]:
        """Run one query and yield its sample.  Raises ValueError if its result is wrong."""
        query, deployment = QUERIES[name], self.site[way.deployment]
        cold = {"resident_share": page_cache.drop(deployment.folder)} if self.is_cold else {}
        with spending(self.meter, deployment) as spent:
            answer = query.ask(self.frame(topic, query.schema, way))
        if answer != query.expected(topic):
            raise ValueError(f"{name} of {topic.name} from {way.name} is {answer}, not {query.expected(topic)}")
        metrics = {"seconds": spent.seconds} | cold
        if way.is_storage:  # its server gets no request: what it uses is not the query's, and is told apart
            metrics["serve_share"] = (spent.cpu_s.pop("own") + spent.cpu_s.pop("etcd", 0.0)) / spent.seconds
        if topic.count:
            metrics |= {
                "records_s": topic.count / spent.seconds,
                "mb_s": topic.plain_bytes / spent.seconds / 1e6,
                **costs(spent.cpu_s, topic.count / 1e6, "us_record"),
            }
        metrics["all_cpu_s"] = spent.all_cpu_s()
        yield Sample(adapter=way.name, bench=f"{self.part}/{name}", case=topic.case, round=0, metrics=metrics)

    def frame(self, topic: Topic, schema: str, way: Way) -> DataFrame:
        """Return a read of all of a topic, in at least as many tasks as it has partitions."""
        deployment, reader = self.site[way.deployment], self.spark.read.format(way.source)
        if way.is_storage:
            reader = reader.option("root", deployment.root)
            if way.is_narrow:
                reader = reader.schema(schema)
        else:
            reader = reader.option("kafka.bootstrap.servers", deployment.bootstrap)
        return reader.option("subscribe", topic.name).option("minPartitions", str(PARTITIONS)).load()
