"""The sinks of the Spark benchmark: a DataFrame that is in Spark's memory, written to a topic."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from bench.deployments import Deployment
from bench.results import Sample
from bench.spark_cpu import SparkMeter, costs, spending
from bench.spark_plan import GB, KEY_BYTES, KEYS, PARTITIONS, Records
from bench.spark_rounds import Measurement
from bench.spark_sites import Way, create, stored

BENCH = "sink/write"
TUNED = {"kafka.linger.ms": "20", "kafka.batch.size": "65536"}
SETTINGS: Mapping[str, Mapping[str, str]] = {"defaults": {}, "batches of 64 KB": TUNED}
"""Settings of both producers: each sink's defaults, which are different clients', and the same for both."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A DataFrame of ``count`` rows, whose keys and values have ``record_bytes`` together, in Spark's memory."""

    record_bytes: int
    count: int
    data: DataFrame


@contextlib.contextmanager
def frames(spark: SparkSession, records: Records) -> Iterator[list[Frame]]:
    """Compute the rows of each size into memory, and release them at the end."""
    found = []
    for size, count in records:
        key = sql.lpad((sql.col("id") % KEYS).cast("string"), KEY_BYTES, "0").cast("binary").alias("key")
        digest = sql.sha2(sql.col("id").cast("string"), 512)
        value = sql.substring(sql.repeat(digest, size // 128 + 1), 1, size - KEY_BYTES).cast("binary").alias("value")
        data = spark.range(0, count, numPartitions=PARTITIONS).select(key, value).persist(StorageLevel.MEMORY_ONLY)
        data.count()
        found.append(Frame(size, count, data))
    try:
        yield found
    finally:
        for frame in found:
            frame.data.unpersist()


@dataclass(frozen=True, slots=True)
class Sinks:
    """The sinks of one session."""

    meter: SparkMeter
    site: dict[str, Deployment]

    def measurements(self, given: Sequence[Frame], ways: Sequence[Way]) -> list[Measurement]:
        """Return a measurement for each size and each kind of settings."""
        return [
            Measurement(
                name=f"write of {frame.record_bytes} B, {settings}",
                ways=ways,
                run=partial(self.measure, frame, settings),
                is_warming=settings != "defaults",
            )
            for frame in given
            for settings in SETTINGS
        ]

    def measure(self, frame: Frame, settings: str, way: Way) -> Iterator[Sample]:
        """Write a new topic.  Raises ValueError if it has not as many records in the end."""
        deployment, topic = self.site[way.deployment], f"sink-{uuid.uuid4().hex[:12]}"
        create(deployment, topic)
        writer = frame.data.write.format(way.source).mode("append").options(**SETTINGS[settings])
        writer = writer.option("kafka.bootstrap.servers", deployment.bootstrap).option("topic", topic)
        with spending(self.meter, deployment) as spent:
            writer.save()
        if (found := stored(deployment, topic)) != frame.count:
            raise ValueError(f"{way.name} has written {found} records, not {frame.count}")
        deployment.delete_topic(topic)
        size = frame.count * frame.record_bytes
        metrics = {
            "records_s": frame.count / spent.seconds,
            "mb_s": size / spent.seconds / 1e6,
            **costs(spent.cpu_s, size / GB, "s_gb"),
        }
        case = f"{frame.record_bytes} B, {settings}"
        yield Sample(adapter=way.name, bench=BENCH, case=case, round=0, metrics=metrics)
