"""The sections of the Spark page about streaming queries, sinks and the Parquet job.  Pure."""

from __future__ import annotations

from bench.page import number, table
from bench.results import Results
from bench.spark_job import BENCH as JOB_BENCH
from bench.spark_job import JOBS
from bench.spark_plan import NOTHING, PARTITIONS, Plan
from bench.spark_progress import GROWTH_MAX
from bench.spark_sink import BENCH as SINK_BENCH
from bench.spark_sink import TUNED
from bench.spark_sites import WRITES
from bench.spark_streaming import BEHIND_MAX_S, DRAIN, KEEPS_UP, LATENCY, WAYS
from bench.spark_tables import beside, parts_of, titled, warmth


def sections(results: Results, plan: Plan) -> list[str]:
    """Return the sections, without those that nothing was measured for."""
    return [_streaming(results, plan), _sink(results), _job(results)]


def _streaming(results: Results, plan: Plan) -> str:
    found = [_latency(results, plan), _keeps_up(results, plan), _drain(results, plan)]
    if not any(found):
        return ""
    told = (
        "A query over one topic into Spark's sink `noop`, its checkpoint on the local disk. Records are of"
        f" {plan.stream.record_bytes} B, in {PARTITIONS} partitions. BMQ's source sees a record when a checkpoint in"
        " its broker's journal covers it, a second or 4 MB after the acknowledgement: **that second is in every latency"
        " of it**, and Kafka's source does not have it. Processor time is that of Spark and of all servers, which are"
        " being written to meanwhile."
    )
    return "\n\n".join(filter(None, ["## Streaming queries", told, warmth(results, "streaming"), *found]))


def _latency(results: Results, plan: Plan) -> str:
    stream = plan.stream
    tables = {
        f"{title}:": beside(results, LATENCY, WAYS, metric)
        for title, metric in (
            ("Median, ms", "p50_ms"),
            ("p99, ms", "p99_ms"),
            ("Processor time a record, µs", "all_cpu_us_record"),
        )
    }
    text = titled(tables)
    told = (
        f"{stream.latency_records_s:,} records/s for {stream.latency_s:g} s, an open loop: from when a record was due"
        " to the commit of its micro-batch."
    )
    return f"### Latency\n\n{told}\n\n{text}" if text else ""


def _keeps_up(results: Results, plan: Plan) -> str:
    rows = []
    for case in results.cases(KEEPS_UP):
        for way in WAYS:
            kept = results.spread(KEEPS_UP, way.name, case, "kept_records_s")
            if kept is not None:
                samples = results.of(KEEPS_UP, way.name, case)
                stopped = sum(sample.metrics["is_limited_by_load"] > 0 for sample in samples)
                rows.append((case, way.title, number(kept), f"{stopped} of {len(samples)}"))
    if not rows:
        return ""
    steps = ", ".join(f"{step:,}" for step in plan.stream.steps_records_s)
    told = (
        f"The highest of {steps} records/s, {plan.stream.step_s:g} s each, at which records of the last third of the"
        f" load wait not more than {GROWTH_MAX:g} s longer, for each second of it, than those of the first. It is as"
        " exact as the steps are, so there is no ratio. In the rounds of the last column it was not the query that"
        f" ended the search: the load itself came more than {BEHIND_MAX_S:g} s late, its client or the servers being"
        " too slow."
    )
    return f"### The rate that it keeps up with\n\n{told}\n\n{table(('', '', 'records/s', 'ended by the load'), rows)}"


def _drain(results: Results, plan: Plan) -> str:
    tables = {
        "Records a second:": beside(results, DRAIN, WAYS, "records_s"),
        "Processor time a record, µs:": beside(results, DRAIN, WAYS, "all_cpu_us_record"),
    }
    text = titled(tables)
    told = (
        f"A new query over a topic of {plan.stream.backlog:,} records, in {plan.stream.backlog_batches} micro-batches"
        " by `maxOffsetsPerTrigger`; the rate of all but the first, which waits for the query to begin. A trigger of a"
        " second is the least that a micro-batch can take, so there it may be the trigger that is compared."
    )
    return f"### A backlog drained\n\n{told}\n\n{text}" if text else ""


def _sink(results: Results) -> str:
    tables = {
        "Records a second:": beside(results, SINK_BENCH, WRITES, "records_s"),
        "Processor seconds a GB, of Spark and of all servers:": beside(results, SINK_BENCH, WRITES, "all_cpu_s_gb"),
        "Where they go:": parts_of(results, SINK_BENCH, WRITES, "s_gb"),
    }
    text = titled(tables)
    tuned = " ".join(f"`{name}={value}`" for name, value in TUNED.items())
    told = (
        f"A DataFrame of {PARTITIONS} partitions in Spark's memory, written to a new topic of as many. Defaults are"
        " each sink's own, and they differ: librdkafka gathers for 5 ms and up to 1 MB, the Java client of Spark's sink"
        f" sends at once and up to 16 KB. So both are measured with {tuned} too. All wait for all replicas, idempotent."
    )
    return "\n\n".join(["## Writing a DataFrame", told, warmth(results, "sink"), text]) if text else ""


def _job(results: Results) -> str:
    tables = {
        "MB a second, from the program's start to its end:": beside(results, JOB_BENCH, JOBS, "mb_s"),
        "Processor seconds a GB, of the program and of all servers, idle ones too:": beside(
            results, JOB_BENCH, JOBS, "all_cpu_s_gb"
        ),
    }
    text = titled(tables)
    if not text:
        return ""
    rows = [
        (way.title, number(took))
        for way in JOBS
        if (took := results.spread(JOB_BENCH, way.name, NOTHING, "seconds")) is not None
    ]
    fixed = (
        f"Seconds for an empty topic, which are in the figures above:\n\n{table(('', 'seconds'), rows)}" if rows else ""
    )
    told = (
        "A topic into a new Parquet table on the local disk, in folders by date, zstd, each record once. Every figure"
        " is a program of its own, with the start of Python and Java. Beside `bmq job to_parquet` stands what a Spark"
        " user writes: a streaming query with `trigger(availableNow=True)` and a checkpoint"
        " (`python -m bench.spark_to_parquet`)."
    )
    return "\n\n".join(filter(None, ["## A topic into a Parquet table", told, warmth(results, "job"), text, fixed]))
