"""The sections of the Spark page about batch reads: of what was just written, from disk, on a cluster.  Pure."""

from __future__ import annotations

from bench.page import number, short, table
from bench.results import Results
from bench.spark_batch import COUNT, QUERIES
from bench.spark_plan import GB, NOTHING, Plan
from bench.spark_session import EXECUTOR_MEMORY
from bench.spark_sites import READS
from bench.spark_tables import beside, parts_of, titled, warmth

RESIDENT_MAX = 0.01
"""The share of its files above which the page says that the page cache could not be dropped."""


def sections(results: Results, plan: Plan) -> list[str]:
    """Return the sections, without those that nothing was measured for."""
    return [
        _section(results, "batch", "Batch reads of what was just written", _written(plan)),
        _section(results, "cold", "Batch reads of data that no cache holds", _cold(results, plan)),
        _section(results, "cluster", "Batch reads on a Spark cluster", _cluster(plan)),
        _fixed(results),
        _serving(results),
        _decoder(results),
    ]


def _section(results: Results, part: str, title: str, text: str) -> str:
    queries = [name for name in QUERIES if results.cases(f"{part}/{name}")]
    found = [_query(results, f"{part}/{name}", name) for name in queries]
    if not any(found):
        return ""
    return "\n\n".join(filter(None, [f"## {title}", text, warmth(results, part), *found]))


def _query(results: Results, bench: str, name: str) -> str:
    tables = {
        "Records a second:": beside(results, bench, READS, "records_s"),
        "Processor time a record, µs, of Spark and of the servers that it reads from:": beside(
            results, bench, READS, "all_cpu_us_record"
        ),
        "Where it goes, µs a record:": parts_of(results, bench, READS, "us_record"),
    }
    text = titled(tables)
    return f"### {name[0].upper()}{name[1:]}\n\n{text}" if text else ""


def _written(plan: Plan) -> str:
    sizes = " and ".join(f"{count:,} of {size} B" for size, count in plan.records)
    return f"Topics of {sizes}. Both sides read from memory: datanodes and Kafka's brokers from the page cache."


def _cold(results: Results, plan: Plan) -> str:
    shares = _metrics(results, "cold", "resident_share")
    if not shares:
        return ""
    topic = plan.cold_topic
    held = (
        f"**The page cache could not be dropped**: it held up to {max(shares):.0%} of the files when a query began."
        if max(shares) > RESIDENT_MAX
        else f"The page cache held {max(shares):.1%} of the files at most when a query began."
    )
    return (
        f"One topic of {topic.plain_bytes / GB:.3g} GB, {topic.count:,} records of {topic.record_bytes} B,"
        " uncompressed. Before each query all files of both sides are written to disk and dropped from the page cache"
        f" (`posix_fadvise`). {held} A disk below this machine may have a cache of its own, for both sides;"
        " `--cold-gb` takes more than its memory."
    )


def _cluster(plan: Plan) -> str:
    return (
        f"A standalone cluster: one master and {plan.workers} worker processes on this machine, each with an executor"
        f" of one core and {EXECUTOR_MEMORY}. Executors use the Python environment in which the package is installed."
        " The driver is a process apart. There are no more cores than before: what a cluster adds here is its cost."
    )


def _fixed(results: Results) -> str:
    bench = f"batch/{COUNT}"
    rows = []
    for way in READS:
        took, used = (results.spread(bench, way.name, NOTHING, name) for name in ("seconds", "all_cpu_s"))
        if took is not None:
            rows.append((way.title, number(took), number(used)))
    if not rows:
        return ""
    told = "Counting an empty topic: planning, scheduling, Python processes. It is part of every figure above."
    return f"## Before the first record\n\n{told}\n\n{table(('', 'seconds', 'processor seconds'), rows)}"


def _serving(results: Results) -> str:
    shares = _metrics(results, "batch", "serve_share")
    if not shares:
        return ""
    return (
        "## Load on the cluster\n\nWhile segments are read from storage, BMQ's processes and etcd get no request of it."
        f" All of them together used {min(shares):.1%} to {max(shares):.1%} of a core meanwhile, as they do when"
        " nothing is read. That is in no figure of reading from storage; for every other way, all servers count."
    )


def _decoder(results: Results) -> str:
    rows = []
    for case in results.cases("decoder/decode"):
        rate, size = (results.spread("decoder/decode", "decoder", case, name) for name in ("records_s", "mb_s"))
        rows.append((case, number(rate), number(size)))
    if not rows:
        return ""
    loading = results.spread("decoder/import", "decoder", "machine code kept", "seconds")
    loads = (
        f"\n\nWith its machine code kept, as executors have it, it loads in {short(loading.middle)} s."
        if loading
        else ""
    )
    return (
        "## The decoder alone\n\nOne core, from batches of 16 KB in memory to Arrow, all columns, CRC checked; by"
        f" processor time. Median, lowest and highest round.\n\n{table(('', 'records/s', 'MB/s'), rows)}{loads}"
    )


def _metrics(results: Results, part: str, metric: str) -> list[float]:
    """Return a metric of all samples of a part that have records."""
    return [
        sample.metrics[metric]
        for sample in results.samples
        if sample.bench.startswith(f"{part}/") and sample.case != NOTHING and metric in sample.metrics
    ]
