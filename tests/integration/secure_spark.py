"""Spark's driver for a secure HDFS, a process of its own: its environment has the log-in, its Python workers' has none.

    python -m tests.integration.secure_spark batch|stream ROOT FOLDER COUNT [SETTING=VALUE ...]

It prints the workers' environment, the plan and the values that it has read, as JSON, a line each.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StringType

from tests.services.processes import wait_for
from tests.services.spark import frame, start_spark

LOG_IN = ("KRB5", "HADOOP_", "BMQ_")
"""How the names of variables begin by which a process finds a log-in or a configuration of Hadoop."""
BARE = """#!/bin/sh
# Python workers of executors, and not the driver's processes for planning, run as on another machine.
case "$*" in
*pyspark.worker*)
    for name in $(env | sed -n 's/^\\(KRB5[A-Z_]*\\|HADOOP_[A-Z_]*\\|BMQ_[A-Z_]*\\)=.*/\\1/p'); do unset "$name"; done
    export KRB5_CONFIG=/dev/null KRB5CCNAME=FILE:/dev/null/none
esac
exec "{python}" "$@"
"""
TIMEOUT_S = 300


def main() -> None:
    """Run the query that the arguments name."""
    kind, root, folder, count, *given = sys.argv[1:]
    place = Path(folder)
    (place / "events").mkdir()
    settings = {
        "spark_eventLog_enabled": "true",
        "spark_eventLog_dir": (place / "events").as_uri(),
        "spark_eventLog_compress": "false",
        "spark_python_worker_reuse": "false",  # each task logs in
        **dict(setting.split("=", 1) for setting in given),
    }
    spark = start_spark(str(bare_python(place)), **settings)
    try:
        show_environment(spark)
        (read_batch if kind == "batch" else read_stream)(spark, root, place, int(count))
    finally:
        spark.stop()


def bare_python(folder: Path) -> Path:
    """Write the program of Python workers that have neither a log-in nor a configuration, and return its path."""
    python = folder / "python"
    python.write_text(BARE.format(python=sys.executable))
    python.chmod(0o755)
    return python


def show_environment(spark: SparkSession) -> None:
    """Print the variables of a log-in that a Python worker has."""

    def variables() -> str:
        return json.dumps({name: value for name, value in os.environ.items() if name.startswith(LOG_IN)})

    (row,) = spark.range(1).select(sql.udf(variables, StringType())().alias("found")).collect()
    say(environment=json.loads(row.found))


def read_batch(spark: SparkSession, root: str, _: Path, count: int) -> None:
    """Read the topic, and print its plan."""
    data = frame(spark, root, topic="orders", minPartitions=2)
    rows = data.select("offset").collect()
    data.explain(extended=True)
    say(offsets=sorted(row.offset for row in rows))
    assert len(rows) == count


def read_stream(spark: SparkSession, root: str, place: Path, count: int) -> None:
    """Read the topic until ``count`` records have come."""
    reader = spark.readStream.format("bmq").option("root", root).option("topic", "orders")
    data = reader.option("startingOffsets", "earliest").load().select("offset")
    writer = data.writeStream.format("memory").queryName("taken").trigger(processingTime="1 second")
    query = writer.option("checkpointLocation", str(place / "checkpoint")).start()

    def is_whole() -> bool:
        if query.exception() is not None:
            raise AssertionError(str(query.exception()))
        return spark.table("taken").count() >= count

    say(started=True)
    wait_for(is_whole, f"{count} records", timeout_s=TIMEOUT_S, interval_s=1)
    query.explain(extended=True)
    query.stop()
    say(offsets=sorted(row.offset for row in spark.table("taken").collect()))


def say(**facts: object) -> None:
    """Print a line of JSON."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
