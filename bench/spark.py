"""The Spark benchmark: BMQ's source, sink and job beside Spark's own Kafka source and sink at Apache Kafka.

    python -m bench.spark [--quick] [--only batch,cold,...] [--workers N] [--cold-gb N] [--out docs] [--folder DIR]
    python -m bench.spark --add ...         keep what an earlier run of the same commit measured and this one does not
    python -m bench.spark --render          draw again from the results that are there

writes docs/benchmarks-spark.md.  The deployments (``bench.deployments``) run all the time; each round takes all ways of
reading or writing in turn.  Results are compared with the records that were written: a wrong one is a failure, not a
figure.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path

from bench import command, provenance, spark_report
from bench.decode import by_decoder, import_seconds, sample, seconds
from bench.deployments import REPLICATED_ENVIRONMENT, Deployment
from bench.results import Results, Sample, saver
from bench.servers import KAFKA_PROPERTIES
from bench.spark_batch import GROUP, SUM, Reader
from bench.spark_job import JOBS, Tables
from bench.spark_plan import FULL, QUICK, Plan, Topic
from bench.spark_rounds import fail, play, show
from bench.spark_session import DRIVER_MEMORY, LOCAL, cluster_session, local_session, standalone_cluster
from bench.spark_sink import TUNED, Sinks, frames
from bench.spark_sites import BASE, ENDPOINT, NARROW, READS, STORAGE, WRITES, Way, filled, open_site
from bench.spark_streaming import WAYS, Streams, load_pool
from bmq.spark.decoding.decoder import COLUMNS
from tests.services.spark import KAFKA_SOURCE_VERSION, kafka_source_jars

COLD = (STORAGE, NARROW, ENDPOINT, BASE)
CLUSTER = (STORAGE, NARROW, ENDPOINT, BASE)


@dataclass(frozen=True, slots=True)
class Run:
    """A run of the benchmark: its deployments, and where its results go."""

    plan: Plan
    site: dict[str, Deployment]
    results: Results
    folder: Path | None

    def ways(self, wanted: Sequence[Way]) -> list[Way]:
        """Return those of the ways whose deployments run."""
        return [way for way in wanted if way.deployment in self.site]

    def using(self, wanted: Sequence[Way]) -> list[Deployment]:
        """Return the deployments that these ways use."""
        names = {way.deployment for way in wanted}
        return [deployment for name, deployment in self.site.items() if name in names]


def decoder(run: Run) -> None:
    """Measure the decoder alone, on one core, with all columns; and its import, an executor's wait for its first
    batch."""
    plan = run.plan
    for size, _ in plan.records:
        for codec in plan.codecs:
            case = sample(size, codec, plan.decoder_mb << 20)
            name = Topic("decoder", size, codec, case.rows).case
            for number in range(plan.rounds + 1):
                took = seconds(by_decoder, case, COLUMNS)
                metrics = {"records_s": case.rows / took, "mb_s": case.plain_bytes / took / 1e6}
                _keep(run, Sample(adapter="decoder", bench="decoder/decode", case=name, round=number, metrics=metrics))
    metrics = {"seconds": import_seconds()}
    _keep(run, Sample(adapter="decoder", bench="decoder/import", case="machine code kept", round=1, metrics=metrics))


def batch(run: Run) -> None:
    """Measure batch reads of what was just written."""
    topics = run.plan.topics("batch", run.plan.codecs)
    topics.append(Topic("batch", 100, "none", 0))
    with filled(run.using(READS), topics), local_session() as (spark, meter):
        play(
            "batch",
            Reader("batch", spark, meter, run.site).measurements(topics, run.ways(READS)),
            run.plan,
            run.results,
        )


def cold(run: Run) -> None:
    """Measure batch reads from disk."""
    topic = run.plan.cold_topic
    with filled(run.using(COLD), [topic]), local_session() as (spark, meter):
        reader = Reader("cold", spark, meter, run.site, is_cold=True)
        play("cold", reader.measurements([topic], run.ways(COLD), (SUM,)), run.plan, run.results)


def cluster(run: Run) -> None:
    """Measure batch reads by the executors of a Spark cluster."""
    topics = run.plan.topics("cluster", run.plan.cluster_codecs)
    with filled(run.using(CLUSTER), topics), standalone_cluster(run.plan.workers, run.folder) as workers:
        provenance.note_servers(run.results, workers.processes, "Spark")
        with cluster_session(workers) as (spark, meter):
            reader = Reader("cluster", spark, meter, run.site)
            play("cluster", reader.measurements(topics, run.ways(CLUSTER), (SUM, GROUP)), run.plan, run.results)


def streaming(run: Run) -> None:
    """Measure streaming queries: latency, the rate that they keep up with, a backlog."""
    stream = run.plan.stream
    backlog = Topic("backlog", stream.record_bytes, "none", stream.backlog)
    with filled(run.using(WAYS), [backlog]), load_pool() as pool, local_session() as (spark, meter):
        streams = Streams(spark, meter, run.site, stream, pool, backlog)
        play("streaming", streams.measurements(run.ways(WAYS)), run.plan, run.results)


def sink(run: Run) -> None:
    """Measure writes."""
    with local_session() as (spark, meter), frames(spark, run.plan.sink_records) as given:
        play("sink", Sinks(meter, run.site).measurements(given, run.ways(WRITES)), run.plan, run.results)


def job(run: Run) -> None:
    """Measure the Parquet job, each time a process of its own."""
    topics = [Topic("job", size, "lz4", count) for size, count in run.plan.job_records]
    topics.append(Topic("job", 1000, "lz4", 0))
    with filled(run.using(JOBS), topics):
        play("job", Tables(run.site, run.folder).measurements(topics, run.ways(JOBS)), run.plan, run.results)


PARTS: Mapping[str, tuple[Callable[[Run], None], Sequence[Way]]] = {
    "decoder": (decoder, ()),
    "batch": (batch, READS),
    "cold": (cold, COLD),
    "cluster": (cluster, CLUSTER),
    "streaming": (streaming, WAYS),
    "sink": (sink, WRITES),
    "job": (job, JOBS),
}
"""Each part, and the ways whose deployments it needs.  A bench's name begins with its part's."""


# ----------------------------------------------------------------------------------------------------------- a run


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write the page, and return the exit status."""
    options = _parse(arguments)
    path = options.out / "benchmarks" / "spark.json"
    if not options.render:
        plan = _plan(options)
        parts = options.only.split(",")
        jars = kafka_source_jars()
        given = sys.argv[1:] if arguments is None else arguments
        settings = {"kafka": KAFKA_PROPERTIES, "bmq": REPLICATED_ENVIRONMENT, "both sinks, tuned": TUNED}
        recorded = asdict(plan) | {"settings": settings, "warm_up": {}}
        results = provenance.begin("bench.spark", given, recorded, options.folder)
        results.machine |= _software(jars)
        earlier = command.earlier(path, results) if options.add else None
        save = saver(results, path, earlier, lambda sample: sample.bench.partition("/")[0])
        if earlier is not None:
            results.plan["warm_up"] |= earlier.plan["warm_up"]
        _measure(parts, plan, results, options.folder, save)
    return command.finish(path, lambda results: spark_report.write(results, options.out))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = command.parser(
        "bench.spark", "Measure Spark with BMQ beside Kafka.", only=PARTS, what="parts", can_add=True
    )
    parser.add_argument("--rounds", type=int, help=f"rounds that count ({FULL.rounds})")
    parser.add_argument("--workers", type=int, help=f"cluster: worker processes, one core each ({FULL.workers})")
    parser.add_argument("--cold-gb", type=float, help=f"cold: GB of the topic ({FULL.cold_gb:g})")
    options = parser.parse_args(arguments)
    command.require_known(parser, "part", options.only, PARTS)
    for name in ("rounds", "workers", "cold_gb"):
        value = getattr(options, name)
        if value is not None and value <= 0:
            parser.error(f"--{name.replace('_', '-')} {value}: expected more than 0")
    return options


def _plan(options: argparse.Namespace) -> Plan:
    """Return the plan that the options ask for."""
    given = {name: getattr(options, name) for name in ("rounds", "workers", "cold_gb")}
    return replace(QUICK if options.quick else FULL, **{name: each for name, each in given.items() if each is not None})


def _software(jars: Sequence[Path]) -> dict[str, str]:
    spark, arrow, numba = (version(name) for name in ("pyspark", "pyarrow", "numba"))
    return {
        "Spark": f"{spark}, {LOCAL}, driver of {DRIVER_MEMORY}; pyarrow {arrow}, numba {numba}",
        "Kafka source": f"spark-sql-kafka-0-10 {KAFKA_SOURCE_VERSION}: {', '.join(sorted(jar.name for jar in jars))}",
    }


def _measure(parts: Sequence[str], plan: Plan, results: Results, folder: Path | None, save: Callable[[], None]) -> None:
    """Run the parts, in their own order, on one start of the deployments.  One that fails costs no other.

    ``save`` is called after each: a run that is ended loses one part, and goes on by ``--add``.
    """
    chosen = [name for name in PARTS if name in parts]
    needed = dict.fromkeys(way.deployment for name in chosen for way in PARTS[name][1])
    with open_site(list(needed), folder, results) as site:
        for name in chosen:
            try:
                PARTS[name][0](Run(plan, site, results, folder))
            except Exception as error:  # noqa: BLE001
                fail(results, name, error)
            save()


def _keep(run: Run, found: Sample) -> None:
    show(found.round, found)
    if found.round:
        run.results.samples.append(found)


if __name__ == "__main__":
    sys.exit(main())
