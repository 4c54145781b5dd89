"""A Spark session of this checkout: two local cores, Python workers from this environment."""

from __future__ import annotations

import os
import sys
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

from bmq.spark import BmqDataSource


def start_spark(**settings: str) -> SparkSession:
    """One a process; stop it in the end.  ``settings`` have ``_`` for ``.`` in their names."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master("local[2]").appName("bmq tests")
    fixed = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "ERROR",
    }
    for name, value in {**fixed, **{name.replace("_", "."): value for name, value in settings.items()}}.items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    spark.dataSource.register(BmqDataSource)
    return spark


def frame(spark: SparkSession, root: str, *, schema: str | None = None, **options: Any) -> DataFrame:
    """A read; ``options`` as for the source."""
    reader = spark.read.format("bmq").option("root", root)
    if schema is not None:
        reader = reader.schema(schema)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def rows(data: DataFrame) -> list[Row]:
    """In order of topic, partition and offset."""
    return sorted(data.collect(), key=lambda row: (row.topic, row.partition, row.offset))
