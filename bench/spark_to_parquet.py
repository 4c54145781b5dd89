"""A topic into a Parquet table by Spark's structured streaming, as its users write it: `bmq job` is measured beside it.

    python -m bench.spark_to_parquet --source kafka --topic TOPIC --table FOLDER --bootstrap HOST:PORT,...
    python -m bench.spark_to_parquet --source bmq --topic TOPIC --table FOLDER --root URL

Each record once: offsets are in a checkpoint beside the table, and the table's own log names the files of each batch.
It takes what there is and ends.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import functions as sql

from bench.spark_session import local_session

COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the table and return the exit status."""
    options = _parse(arguments)
    with local_session() as (spark, _):
        reader = spark.readStream.format(options.source).option("subscribe", options.topic)
        reader = reader.option("startingOffsets", "earliest").option("includeHeaders", "true")
        if options.source == "bmq":
            reader = reader.option("root", options.root)
        else:
            reader = reader.option("kafka.bootstrap.servers", options.bootstrap)
        records = reader.load().select(*COLUMNS, sql.to_date("timestamp").alias("date"))
        writer = records.writeStream.format("parquet").partitionBy("date").option("compression", "zstd")
        writer = writer.option("checkpointLocation", str(options.table.with_name(f"{options.table.name}-checkpoint")))
        writer.trigger(availableNow=True).start(str(options.table)).awaitTermination()
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.spark_to_parquet", description="A topic to a Parquet table.")
    parser.add_argument("--source", choices=("bmq", "kafka"), required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--table", type=Path, required=True, help="the table's folder")
    parser.add_argument("--root", help="bmq: URL of the cluster's root")
    parser.add_argument("--bootstrap", help="kafka: addresses of brokers")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
