"""Streaming queries of the Spark benchmark: how late records are, which rates a query keeps up with, how it catches up.

A query writes to Spark's sink `noop`, with a checkpoint on the local disk.  Its load comes from a process of its own.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.deployments import Deployment
from bench.results import Sample, latency_metrics
from bench.spark_cpu import SparkMeter, costs, spending
from bench.spark_plan import PARTITIONS, StreamPlan, Topic
from bench.spark_progress import Commit, Seconds, commits_of, drain_rate, growth, keeps_up, latencies, taken
from bench.spark_rounds import Measurement
from bench.spark_sites import BASE, ENDPOINT, STORAGE, Way, create
from bench.steady_load import SteadyLoad, steady
from tests.services.processes import NotReady, wait_for

WAYS = (STORAGE, ENDPOINT, BASE)
LATENCY, KEEPS_UP, DRAIN = "streaming/latency", "streaming/keeps up", "streaming/drain"
TAKEN_TIMEOUT_S = 180.0
BEHIND_MAX_S = 2.0
"""A load that its own client or the servers delay by more than this shows nothing of the query."""


@dataclass(frozen=True, slots=True)
class Streams:
    """The streaming queries of one session; ``pool`` runs their loads, ``backlog`` is the topic that they drain."""

    spark: SparkSession
    meter: SparkMeter
    site: dict[str, Deployment]
    plan: StreamPlan
    pool: ProcessPoolExecutor
    backlog: Topic

    def measurements(self, ways: Sequence[Way]) -> list[Measurement]:
        """Return the measurements; draining warms up."""
        return [
            Measurement(name=f"{bench}, {case_of(trigger_s)}", ways=ways, run=partial(run, trigger_s), is_warming=warms)
            for trigger_s in self.plan.triggers_s
            for bench, run, warms in (
                (DRAIN, self.drain, trigger_s == self.plan.triggers_s[0]),
                (LATENCY, self.latency, False),
                (KEEPS_UP, self.steps, False),
            )
        ]

    def drain(self, trigger_s: float, way: Way) -> Iterator[Sample]:
        """Let a new query take a topic from its beginning, in several micro-batches."""
        deployment = self.site[way.deployment]
        limit = {"maxOffsetsPerTrigger": str(-(-self.backlog.count // self.plan.backlog_batches))}
        with (
            spending(self.meter, deployment) as spent,
            self._query(way, self.backlog.name, trigger_s, limit) as query,
        ):
            commits = _taken(query, self.backlog.name, rows=self.backlog.count)
        rate = drain_rate(commits)
        metrics = {
            "records_s": rate, "mb_s": rate * self.backlog.record_bytes / 1e6, "batches": len(commits),
            **costs(spent.cpu_s, self.backlog.count / 1e6, "us_record"),
        }  # fmt: skip
        yield _sample(way, DRAIN, trigger_s, metrics)

    def latency(self, trigger_s: float, way: Way) -> Iterator[Sample]:
        """Send records at a modest rate, and take the time from when each was due to its micro-batch's commit."""
        waited, load, commits, cost = self._follow(way, trigger_s, self.plan.latency_records_s, self.plan.latency_s)
        metrics = latency_metrics(waited.tolist(), "ms")
        metrics |= {"batches": len(commits), "behind_ms": load.behind_s * 1e3, **cost}
        yield _sample(way, LATENCY, trigger_s, metrics)

    def steps(self, trigger_s: float, way: Way) -> Iterator[Sample]:
        """Raise the rate step by step until the query does not keep up; the sample has the highest rate that it did."""
        kept, grown, is_limited = 0, 0.0, 0.0
        for rate in self.plan.steps_records_s:
            waited, load, *_ = self._follow(way, trigger_s, rate, self.plan.step_s)
            if load.behind_s > BEHIND_MAX_S:
                is_limited = 1.0
                break
            grown = growth(waited, self.plan.step_s)
            if not keeps_up(waited, load):
                break
            kept = rate
        metrics = {"kept_records_s": float(kept), "growth": grown, "is_limited_by_load": is_limited}
        yield _sample(way, KEEPS_UP, trigger_s, metrics)

    def _follow(
        self, way: Way, trigger_s: float, records_s: int, seconds: float
    ) -> tuple[Seconds, SteadyLoad, list[Commit], dict[str, float]]:
        """Run a query over a new topic while a load is sent to it; return how long records waited, the load, the
        micro-batches and the processor time a record."""
        deployment, topic = self.site[way.deployment], f"stream-{uuid.uuid4().hex[:12]}"
        create(deployment, topic)
        send = partial(steady, deployment.bootstrap, topic, record_bytes=self.plan.record_bytes, partitions=PARTITIONS)
        self.pool.submit(send, records_s=PARTITIONS, seconds=1.0).result(TAKEN_TIMEOUT_S)
        with self._query(way, topic, trigger_s, {}) as query:
            _taken(query, topic, rows=PARTITIONS)
            with spending(self.meter, deployment) as spent:
                load = self.pool.submit(send, records_s=records_s, seconds=seconds).result(seconds + TAKEN_TIMEOUT_S)
                commits = _taken(query, topic, rows=PARTITIONS + load.count)
        deployment.delete_topic(topic)
        return latencies(commits, load, 1), load, commits, costs(spent.cpu_s, load.count / 1e6, "us_record")

    @contextlib.contextmanager
    def _query(self, way: Way, topic: str, trigger_s: float, options: Mapping[str, str]) -> Iterator[StreamingQuery]:
        """Start a query at the topic's beginning, and stop it at the end."""
        deployment, reader = self.site[way.deployment], self.spark.readStream.format(way.source).options(**options)
        if way.is_storage:
            reader = reader.option("root", deployment.root)
        else:
            reader = reader.option("kafka.bootstrap.servers", deployment.bootstrap)
        data = reader.option("subscribe", topic).option("startingOffsets", "earliest").load()
        with tempfile.TemporaryDirectory(prefix="bmq-bench-checkpoint-", ignore_cleanup_errors=True) as checkpoint:
            writer = data.writeStream.format("noop").option("checkpointLocation", Path(checkpoint).as_uri())
            query = writer.trigger(processingTime=f"{trigger_s:g} seconds").start()
            try:
                yield query
            finally:
                query.stop()


@contextlib.contextmanager
def load_pool() -> Iterator[ProcessPoolExecutor]:
    """Start a process that sends loads, one at a time, and end it; each load ends by itself."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


def case_of(trigger_s: float) -> str:
    """Return the case's name in the results."""
    return f"a trigger every {trigger_s:g} s" if trigger_s else "as fast as possible"


def _taken(query: StreamingQuery, topic: str, *, rows: int) -> list[Commit]:
    """Wait until the query has taken so many records from the topic's beginning on; return its micro-batches.

    Raises ValueError if their records are not as many.
    """

    def is_done() -> bool:
        if (error := query.exception()) is not None:
            raise NotReady(f"the query over {topic} failed: {error}")
        return taken(query.lastProgress, topic) >= rows

    wait_for(is_done, f"{rows} records of {topic} in micro-batches", timeout_s=TAKEN_TIMEOUT_S)
    commits = commits_of(query.recentProgress, topic)
    if (found := sum(commit.rows for commit in commits)) != rows:
        raise ValueError(f"the query over {topic} took {found} records, not {rows}")
    return commits


def _sample(way: Way, bench: str, trigger_s: float, metrics: dict[str, float]) -> Sample:
    return Sample(adapter=way.name, bench=bench, case=case_of(trigger_s), round=0, metrics=metrics)
