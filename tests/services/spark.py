"""A Spark session of this checkout: two local cores, Python workers from this environment."""

from __future__ import annotations

import asyncio
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame, Row, SparkSession

from bmq.spark import BmqDataSource
from bmq.spark.options import ReadOptions
from bmq.spark.planning.discover import find_logs
from bmq.storage.open import open_filesystem
from tests.services import jars

ROOT = Path(__file__).resolve().parents[2]
KAFKA_SOURCE_POM = Path(__file__).with_name("spark-kafka-pom.xml")


def chosen_version() -> str:
    """Return the version of PySpark, and so of Spark's Kafka source, that pyproject.toml's extra `dev` names."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (version,) = (text.removeprefix("pyspark==") for text in extras["dev"] if text.startswith("pyspark=="))
    return str(version)


KAFKA_SOURCE_VERSION = chosen_version()


def start_spark(python: str = sys.executable, **settings: str) -> SparkSession:
    """Return this process's only session; stop it in the end.

    ``python`` is the program of Python workers.  ``settings`` have ``_`` for ``.`` in their names.
    """
    os.environ["PYSPARK_PYTHON"] = python
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master("local[2]").appName("bmq tests")
    fixed = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "ERROR",
        "spark.python.authenticate.socketTimeout": "120s",  # a worker's interpreter starts slowly on a busy machine
    }
    for name, value in {**fixed, **{name.replace("_", "."): value for name, value in settings.items()}}.items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    spark.dataSource.register(BmqDataSource)
    return spark


def frame(spark: SparkSession, root: str, *, schema: str | None = None, **options: Any) -> DataFrame:
    """Return a data frame that reads this root; ``options`` are those of the source."""
    reader = spark.read.format("bmq").option("root", root)
    if schema is not None:
        reader = reader.schema(schema)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def rows(data: DataFrame) -> list[Row]:
    """Return the rows in order of topic, partition and offset."""
    return sorted(data.collect(), key=lambda row: (row.topic, row.partition, row.offset))


def readable(root: str, topic: str) -> int:
    """Return the sum of the topic's partition ends that readers of storage see now."""

    async def ends() -> int:
        fs = await open_filesystem(root, holder="look")
        logs = await find_logs(fs, ReadOptions.parse({"root": root, "topic": topic}))
        await fs.close()
        return sum(view.log.end for view in logs)

    return asyncio.run(ends())


def kafka_source_jars() -> list[Path]:
    """Return the jars of Spark's own Kafka source, to compare with, after a download if this is the first time.

    Raises ServiceUnavailable if the environment's PySpark is not the one that the source was built for.
    """
    if pyspark.__version__ != KAFKA_SOURCE_VERSION:
        raise jars.ServiceUnavailable(
            f"Spark's Kafka source {KAFKA_SOURCE_VERSION} is for PySpark {KAFKA_SOURCE_VERSION}, and here is PySpark"
            f" {pyspark.__version__}: run `make setup`"
        )
    folder = jars.cache_base() / f"spark-kafka-{KAFKA_SOURCE_VERSION}"
    version = {"connector.version": KAFKA_SOURCE_VERSION}
    jars.fetch(folder, KAFKA_SOURCE_POM, version, witness=f"spark-sql-kafka-0-10_2.13-{KAFKA_SOURCE_VERSION}.jar")
    return sorted((folder / "jars").glob("*.jar"))
