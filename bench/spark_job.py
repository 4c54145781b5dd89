"""The Parquet job of the Spark benchmark: `bmq job to_parquet`, beside Spark's own streaming from Apache Kafka."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyarrow import parquet

from bench import process_cost
from bench.deployments import Deployment
from bench.results import Sample
from bench.spark_cpu import costs, spending
from bench.spark_plan import GB, NOTHING, Topic
from bench.spark_rounds import Measurement
from bench.spark_session import DRIVER_MEMORY, LOCAL
from bench.spark_sites import BASE, BMQ, KAFKA, Way

JOB = Way("job", "`bmq job to_parquet`", BMQ, "bmq")
STREAM = Way("stream", "Spark's streaming, from BMQ's source", BMQ, "bmq")
KAFKA_STREAM = Way(BASE.name, "Spark's streaming, from Apache Kafka", KAFKA, "kafka")
JOBS = (JOB, STREAM, KAFKA_STREAM)
BENCH = "job/table"
TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True)
class Tables:
    """The programs that make tables, each a process of its own; ``parent`` is where tables are written."""

    site: dict[str, Deployment]
    parent: Path | None

    def measurements(self, topics: Sequence[Topic], ways: Sequence[Way]) -> list[Measurement]:
        """Return a measurement for each topic.  An empty one shows what starting Spark costs, and warms nothing up."""
        return [
            Measurement(
                name=f"table of {topic.name}", ways=ways, run=partial(self.measure, topic), is_warming=bool(topic.count)
            )
            for topic in topics
        ]

    def measure(self, topic: Topic, way: Way) -> Iterator[Sample]:
        """Write a new table and yield the sample.  Raises ValueError if the table has not every record once."""
        folder = Path(tempfile.mkdtemp(prefix="bmq-bench-table-", dir=self.parent))
        deployment = self.site[way.deployment]
        try:
            with spending(None, deployment) as spent:
                cost = process_cost.run(command(way, deployment, topic, folder / "table"), timeout_s=TIMEOUT_S)
            spent.cpu_s["program"] = cost.cpu_s
            rows = rows_of(folder / "table")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if rows != topic.count:
            raise ValueError(f"the table of {topic.name} by {way.name} has {rows} records, not {topic.count}")
        metrics = {"seconds": cost.seconds}
        if topic.case != NOTHING:
            metrics |= {
                "records_s": topic.count / cost.seconds,
                "mb_s": topic.plain_bytes / cost.seconds / 1e6,
                **costs(spent.cpu_s, topic.plain_bytes / GB, "s_gb"),
            }
        metrics["all_cpu_s"] = spent.all_cpu_s()
        yield Sample(adapter=way.name, bench=BENCH, case=topic.case, round=0, metrics=metrics)


def command(way: Way, deployment: Deployment, topic: Topic, table: Path) -> list[str]:
    """Return the command line that writes the table."""
    if way == JOB:
        return [
            str(Path(sys.executable).with_name("bmq")), "job", "to_parquet", "--master", LOCAL,
            "--conf", f"spark.driver.memory={DRIVER_MEMORY}",
            "--root", deployment.root, "--topic", topic.name, "--table", table.as_uri(),
        ]  # fmt: skip
    place = ["--root", deployment.root] if way.is_storage else ["--bootstrap", deployment.bootstrap]
    return [
        sys.executable, "-m", "bench.spark_to_parquet", "--source", way.source, "--topic", topic.name,
        "--table", str(table), *place,
    ]  # fmt: skip


def rows_of(table: Path) -> int:
    """Return the number of records in the folders of a table."""
    return sum(parquet.read_metadata(file).num_rows for file in table.glob("date=*/*.parquet"))
