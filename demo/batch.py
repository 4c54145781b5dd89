"""Spark's half: flights, mean delay and worst day by carrier, from the segments alone, checked and drawn."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from bmq.spark import BmqDataSource
from demo import flights
from demo.delays import Carrier, Day, differences, from_data_set, print_delays
from demo.picture import draw
from demo.progress import Progress

TASKS = 8
"""Pieces that the segments are cut into: enough to see progress and to use some cores."""
_GROUP = "demo"
_POLL_S = 0.2
_VALUE = "carrier string, year int, month int, day int, arr_delay bigint"


def analyse(root: str, topic: str, archive: Path, records: int, picture: Path) -> list[str]:
    """Print the table and the picture's path.  Returns a text for each fault, none if the figures are the data
    set's."""
    started = time.monotonic()
    with _session() as spark:
        opened = time.monotonic()
        days = _by_day(spark, root, topic).persist()
        by_carrier = _in_sight(spark, lambda: _by_carrier(days))
        by_day = [Day(*row) for row in days.collect()]
        seconds = time.monotonic() - opened
    expected = from_data_set(flights.read_csv(archive), records)
    problems = differences(by_carrier, expected)
    airlines = flights.read_airlines(archive)
    print_delays(by_carrier, expected, airlines)
    print(f"{'Spark':<11}{records:,} records from the segments in {seconds:.1f} s, no server running;", end=" ")
    print(f"{opened - started:.1f} s before that to start Spark")
    for line in problems or ["flights, mean delays and worst days are those of the data set itself, to the last bit"]:
        print(f"{'WRONG' if problems else 'right':<11}{line}")
    picture.parent.mkdir(parents=True, exist_ok=True)
    draw(by_carrier, by_day, airlines, picture)
    print(f"{'picture':<11}{picture.resolve()}")
    return problems


@contextmanager
def _session() -> Iterator[SparkSession]:
    """Yield a session on two cores of this machine, with as few log lines as possible.  Ctrl-C stays the demo's."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",  # it runs for seconds
        "spark.sql.shuffle.partitions": "2",
    }
    builder = SparkSession.builder.master("local[2]").appName("flights")
    for name, value in settings.items():
        builder = builder.config(name, value)
    on_interrupt = signal.getsignal(signal.SIGINT)
    spark: SparkSession = builder.getOrCreate()
    signal.signal(signal.SIGINT, on_interrupt)  # Spark installs its own
    spark.dataSource.register(BmqDataSource)
    try:
        yield spark
    finally:
        spark.stop()


def _by_day(spark: SparkSession, root: str, topic: str) -> DataFrame:
    """Return the columns of ``Day`` for each carrier and day."""
    options = {"root": root, "topic": topic, "minPartitions": str(TASKS)}
    values = spark.read.format("bmq").schema("value binary").options(**options).load()
    flight = values.select(sql.from_json(sql.col("value").cast("string"), _VALUE).alias("flight")).select("flight.*")
    return flight.groupBy("carrier", sql.make_date("year", "month", "day").alias("day")).agg(
        sql.count(sql.lit(1)).alias("flights"),
        sql.count("arr_delay").alias("arrived"),
        sql.coalesce(sql.sum("arr_delay"), sql.lit(0)).alias("delay"),
    )


def _by_carrier(days: DataFrame) -> list[Carrier]:
    mean = sql.when(sql.col("arrived") > 0, sql.col("delay") / sql.col("arrived"))
    first = -sql.unix_date("day")
    worst = sql.max_by(sql.struct("day", mean.alias("mean")), sql.when(mean.isNotNull(), sql.struct(mean, first)))
    rows = days.groupBy("carrier").agg(
        sql.sum("flights").alias("flights"),
        (sql.try_divide(sql.sum("delay"), sql.sum("arrived"))).alias("mean"),
        worst.alias("worst"),
    )
    return [
        Carrier(row.carrier, row.flights, row.mean, *((row.worst.day, row.worst.mean) if row.worst else (None, None)))
        for row in rows.collect()
    ]


def _in_sight(spark: SparkSession, work: Any) -> Any:
    """Return the result of ``work``, and show Spark's progress meanwhile."""
    result: list[Any] = []
    errors: list[BaseException] = []
    context = spark.sparkContext

    def run() -> None:
        context.setJobGroup(_GROUP, "delays by carrier")
        try:
            result.append(work())
        except BaseException as error:  # noqa: BLE001 - raised below, in the thread that waits
            errors.append(error)

    thread = threading.Thread(target=run, name="spark", daemon=True)
    with Progress("Spark reading", TASKS, "pieces") as progress:
        thread.start()
        while thread.is_alive():
            thread.join(_POLL_S)
            progress.at(min(TASKS, _done(spark)))
        if errors:
            raise errors[0]
        progress.at(TASKS)
    return result[0]


def _done(spark: SparkSession) -> int:
    """Return the number of tasks that have ended; the tasks that read run first."""
    tracker = spark.sparkContext.statusTracker()
    stages = {stage for job in tracker.getJobIdsForGroup(_GROUP) for stage in _stages(tracker.getJobInfo(job))}
    found = [tracker.getStageInfo(stage) for stage in stages]
    return sum(info.numCompletedTasks for info in found if info is not None)


def _stages(job: Any) -> list[int]:
    return [] if job is None else list(job.stageIds)
