"""The Spark benchmark: BMQ's source over segments, beside Spark's own Kafka source; writes docs/benchmarks-spark.md.

    python -m bench.spark [--quick] [--out docs] [--folder DIR]
    python -m bench.spark --render      draw again from the results that are there

One Spark session runs the same queries on the same records in turn: from segments on HDFS, from BMQ's endpoint and from
Apache Kafka.  Results are compared with the records that were written; a wrong one is a failure, not a figure.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from bench import provenance, spark_report
from bench.decode import by_decoder, import_seconds, sample, seconds
from bench.results import Results, Sample
from bench.spark_cpu import SparkMeter
from bench.spark_sites import EMPTY, KEYS, PARTITIONS, Site, Topic, open_site
from bmq.spark.decoding.decoder import COLUMNS
from tests.services.spark import KAFKA_SOURCE_VERSION, kafka_source_jars, start_spark

STORAGE, NARROW, ENDPOINT, KAFKA = "storage", "storage, narrow", "endpoint", "kafka"
SOURCES = (STORAGE, NARROW, ENDPOINT, KAFKA)
IDLE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Amounts and repetitions of a run."""

    rounds: int = 3
    records: tuple[tuple[int, int], ...] = ((100, 3_000_000), (1000, 500_000))
    """Bytes of a record, and how many: 300 to 500 MB a measurement."""
    codecs: tuple[str, ...] = ("none", "lz4")
    decoder_mb: int = 64
    decoder_rounds: int = 5

    @property
    def topics(self) -> list[Topic]:
        """The topics of the run: each size with each codec."""
        return [Topic(size, codec, count) for size, count in self.records for codec in self.codecs]


FULL = Plan()
QUICK = Plan(rounds=1, records=((100, 400_000), (1000, 100_000)), decoder_mb=16, decoder_rounds=2)


# --------------------------------------------------------------------------------------------------------- queries


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


QUERIES = {
    "count": Query("offset bigint", lambda data: data.count(), lambda topic: topic.count),
    "sum of value lengths": Query("value binary", _total, lambda topic: topic.count * topic.value_bytes),
    "group by key": Query("key binary, value binary", _groups, lambda topic: (KEYS, topic.count)),
}


def frame(spark: SparkSession, site: Site, source: str, topic: Topic, schema: str) -> DataFrame:
    """Return a read of all of a topic, in at least as many tasks as it has partitions, from any source."""
    if source in (STORAGE, NARROW):
        reader = spark.read.format("bmq").option("root", site.root)
        if source == NARROW:
            reader = reader.schema(schema)
    else:
        bootstrap = site.bmq.bootstrap if source == ENDPOINT else site.kafka.bootstrap
        reader = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    return reader.option("subscribe", topic.name).option("minPartitions", str(PARTITIONS)).load()


def measure(spark: SparkSession, meter: SparkMeter, site: Site, source: str, topic: Topic, name: str) -> Sample:
    """Run one query and return its sample.  Raises ValueError if its result is wrong."""
    query = QUERIES[name]
    jvm, python = meter.read()
    hdfs, bmq, kafka = site.hdfs_cpu_s, site.bmq_cpu_s, site.kafka_cpu_s
    begun = time.perf_counter()
    answer = query.ask(frame(spark, site, source, topic, query.schema))
    took = time.perf_counter() - begun
    if answer != query.expected(topic):
        raise ValueError(f"{name} of {topic.name} from {source} is {answer}, not {query.expected(topic)}")
    jvm_after, python_after = meter.read()
    cost = {"jvm": jvm_after - jvm, "python": python_after - python}
    bmq_used = site.bmq_cpu_s - bmq
    if source == KAFKA:
        cost["server"] = site.kafka_cpu_s - kafka
    else:
        cost["server"] = site.hdfs_cpu_s - hdfs + (bmq_used if source == ENDPOINT else 0)
    metrics = {"seconds": took, "serve_share": bmq_used / took, "cpu_s": sum(cost.values())}
    if topic.count:
        metrics |= {"records_s": topic.count / took, "mb_s": topic.count * topic.record_bytes / took / 1e6}
        metrics |= {f"{part}_us": used / topic.count * 1e6 for part, used in cost.items()}
        metrics["all_us"] = metrics["cpu_s"] / topic.count * 1e6
    return Sample(adapter=source, bench=name, case=topic.case, round=0, metrics=metrics)


def idle(site: Site) -> Sample:
    """Measure the processor time that ``bmq serve`` uses without any request."""
    used = site.bmq_cpu_s
    time.sleep(IDLE_S)
    metrics = {"serve_share": (site.bmq_cpu_s - used) / IDLE_S}
    return Sample(adapter="bmq serve", bench="idle", case=EMPTY.case, round=1, metrics=metrics)


# ----------------------------------------------------------------------------------------------------------- a run


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write the page, and return the exit status."""
    options = _parse(arguments)
    path = options.out / "benchmarks" / "spark.json"
    if not options.render:
        plan = QUICK if options.quick else FULL
        jars = kafka_source_jars()
        results = provenance.begin("bench.spark", ["--quick"] if options.quick else [], asdict(plan), options.folder)
        results.machine |= _software(jars)
        begun = time.monotonic()
        for found in decoder(plan):
            _note(results, found)
        with open_site(options.folder) as site:
            for place, processes in site.processes.items():
                provenance.note_servers(results, processes, place)
            spark = start_spark(spark_jars=",".join(map(str, jars)), spark_driver_memory="2g")
            try:
                _measure(spark, site, plan, results)
            finally:
                spark.stop()
        results.took_s = time.monotonic() - begun
        results.save(path)
    results = Results.load_from(path)
    spark_report.write(results, options.out)
    for failure in results.failures:
        print(f"FAILED {failure}", file=sys.stderr)
    return 1 if results.failures else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description="Measure Spark over our segments.")
    parser.add_argument("--quick", action="store_true", help="one short round: two minutes")
    parser.add_argument("--out", type=Path, default=Path("docs"), help="folder for the page and benchmarks/")
    parser.add_argument("--folder", type=Path, default=None, help="where servers put their data")
    parser.add_argument("--render", action="store_true", help="only write the page again")
    return parser.parse_args(arguments)


def _software(jars: Sequence[Path]) -> dict[str, str]:
    spark, arrow, numba = (version(name) for name in ("pyspark", "pyarrow", "numba"))
    return {
        "Spark": f"{spark}, local[2], driver of 2 GB; pyarrow {arrow}, numba {numba}",
        "Kafka source": f"spark-sql-kafka-0-10 {KAFKA_SOURCE_VERSION}: {', '.join(sorted(jar.name for jar in jars))}",
    }


def decoder(plan: Plan) -> Iterator[Sample]:
    """Measure the decoder alone, on one core, with all columns; and its import, an executor's wait for its first
    batch."""
    for size, _ in plan.records:
        for codec in plan.codecs:
            case = sample(size, codec, plan.decoder_mb << 20)
            name = Topic(size, codec, case.rows).case
            for number in range(plan.decoder_rounds + 1):
                took = seconds(by_decoder, case, COLUMNS)
                metrics = {"records_s": case.rows / took, "mb_s": case.plain_bytes / took / 1e6}
                yield Sample(adapter="decoder", bench="decoder", case=name, round=number, metrics=metrics)
    metrics = {"seconds": import_seconds()}
    yield Sample(adapter="decoder", bench="import", case="machine code kept", round=1, metrics=metrics)


def _measure(spark: SparkSession, site: Site, plan: Plan, results: Results) -> None:
    """Run the rounds, in each every query on each topic by all sources in turn.  Round 0 warms up, with one query a
    topic."""
    meter = SparkMeter(spark)
    for topic in (EMPTY, *plan.topics):
        site.fill(topic)
    _note(results, idle(site))
    for number in range(plan.rounds + 1):
        results.load.append(round(os.getloadavg()[0], 2))
        for topic in (EMPTY, *plan.topics):
            for name in _asked(topic, is_warming=not number):
                for source in SOURCES if number % 2 else reversed(SOURCES):
                    try:
                        found = measure(spark, meter, site, source, topic, name)
                    except Exception as error:  # noqa: BLE001 - one failure must not cost the other figures
                        results.failures.append(f"round {number}, {name} of {topic.name} from {source}: {error!r}")
                        print(results.failures[-1], file=sys.stderr, flush=True)
                    else:
                        found = Sample(**{**asdict(found), "round": number})
                        _note(results, found)


def _asked(topic: Topic, *, is_warming: bool) -> Sequence[str]:
    if not topic.count:
        return ("count",)
    return ("group by key",) if is_warming else tuple(QUERIES)


def _note(results: Results, found: Sample) -> None:
    shown = "  ".join(f"{name}={value:.4g}" for name, value in found.metrics.items())
    print(f"round {found.round}  {found.adapter:15}  {found.bench}, {found.case}:  {shown}", flush=True)
    if found.round:
        results.samples.append(found)


if __name__ == "__main__":
    sys.exit(main())
