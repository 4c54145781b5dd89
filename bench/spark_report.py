"""The page docs/benchmarks-spark.md, written from the results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from bench import machine
from bench.results import Results, Spread
from bench.servers import KAFKA_HEAP_MB
from bench.spark_sites import BMQ_ENVIRONMENT, DATANODES, EMPTY, KEYS, PARTITIONS, SEGMENT_BYTES

NOTES = Path(__file__).with_name("spark_notes.md")
"""The conclusions, written by hand: to be checked again after each change of the source or the decoder."""
TITLES = {
    "storage": "BMQ's source, all columns",
    "storage, narrow": "BMQ's source, columns selected",
    "endpoint": "Kafka source, from BMQ",
    "kafka": "Kafka source, from Apache Kafka",
}
OURS, BASE = ("storage", "storage, narrow"), "kafka"
AIMS = (
    ("storage", "100", "records_s", 2.0),
    ("storage", "100", "all_us", 0.5),
    ("storage", "1000", "records_s", 1.5),
    ("storage, narrow", "100", "records_s", 5.0),
    ("storage, narrow", "1000", "records_s", 5.0),
)
"""Source, bytes of a record, metric, and its ratio to Kafka's: at least for a rate, at most for a cost."""
DECODER_AIMS = {"100": ("records_s", 4e6, "4 million records/s"), "1000": ("mb_s", 1300.0, "1.3 GB/s")}


def write(results: Results, out: Path) -> None:
    """Write the page into folder ``out``."""
    benches = dict.fromkeys(sample.bench for sample in results.samples)
    queries = [name for name in benches if name not in ("decoder", "import", "idle")]
    parts = [_head(results), "## Queries"]
    parts += [_query(results, name) for name in queries]
    parts += [_aims(results, queries), _where(results, queries), _decoder(results), _fixed(results), _idle(results)]
    if NOTES.exists():
        parts.append(NOTES.read_text().strip())
    (out / "benchmarks-spark.md").write_text("\n\n".join(filter(None, parts)) + "\n")


def _head(results: Results) -> str:
    rounds = results.plan["rounds"]
    sizes = " and ".join(f"{count:,} of {size} B" for size, count in results.plan["records"])
    ours = ", ".join(f"`{name}={value}`" for name, value in BMQ_ENVIRONMENT.items())
    return f"""# Spark

{results.head}

Written by `make bench-spark`; do not edit. The raw figures are in `benchmarks/spark.json`.

    {results.command}

{results.started}, {results.took_s:.0f} seconds; load average of the machine before each round:
{", ".join(f"{load:.1f}" for load in results.load)}. Sources take turns in each round ({rounds}), after a first one that
is dropped. A figure is the median of the rounds; ± is half of the distance between the lowest and the highest, as a
share of it.

One Spark session runs the same queries on the same records ({sizes}; keys of 10 B, {KEYS:,} different ones;
values of words; batches of 64 KB; {PARTITIONS} partitions; segments of {SEGMENT_BYTES >> 20} MB, the last of each still
open). They are on HDFS, three replicas on {DATANODES} datanodes, written through `bmq serve`, and in one node of Apache
Kafka on a local disk with a heap of {KAFKA_HEAP_MB} MB. `bmq serve` runs on defaults except {ours}.

"All columns" is `load()` without a schema: seven columns, of which a query uses one or two. "Columns selected" is
`.schema(...)` with these, which belongs to the `load()`: nothing that a query selects or filters is pushed down to the
source, and no query here filters. Spark's Kafka source always builds its seven. MB/s are of keys and values before
compression.
CPU is user and system time of all processes: Spark's JVM, all its Python processes, and the servers read from (HDFS's
NameNode and datanodes; `bmq serve` with them; Kafka).

{_table(("", ""), machine.rows(results))}

Spark and the servers share these cores: time that one uses is not there for the others."""


# ---------------------------------------------------------------------------------------------------------- tables


def _cases(results: Results, query: str) -> list[str]:
    return [case for case in results.cases(query) if case != EMPTY.case]


def _query(results: Results, query: str) -> str:
    rows = []
    for case in _cases(results, query):
        for source, title in TITLES.items():
            rate, cost = (results.spread(query, source, case, metric) for metric in ("records_s", "all_us"))
            base, base_cost = (results.spread(query, BASE, case, metric) for metric in ("records_s", "all_us"))
            if rate is None or cost is None:
                continue
            megabytes = results.spread(query, source, case, "mb_s")
            cells = (_number(rate), _ratio(rate, base), _number(megabytes), _number(cost), _ratio(cost, base_cost))
            rows.append((case, title, *cells))
    if not rows:
        return ""
    head = ("records", "read by", "records/s", "to Kafka's", "MB/s", "CPU µs/record", "to Kafka's")
    return f"### {query[0].upper()}{query[1:]}\n\n{_table(head, rows)}"


def _aims(results: Results, queries: Sequence[str]) -> str:
    cases = dict.fromkeys(case for query in queries for case in _cases(results, query))
    rows = []
    for source, size, metric, bound in AIMS:
        is_rate = metric == "records_s"
        for case in (each for each in cases if each.split(" ")[0] == size):
            found = [_times(results, query, source, case, metric) for query in queries]
            known = [each for each in found if each is not None]
            met = sum(each >= bound if is_rate else each <= bound for each in known)
            aim = f"records/s, {bound:g} at least" if is_rate else f"CPU, {bound:g} at most"
            cells = ("-" if each is None else f"{each:.2f}" for each in found)
            rows.append((TITLES[source], case, aim, *cells, f"{met} of {len(known)}"))
    head = ("read by", "records", "aim", *queries, "met")
    told = "A multiple of Spark's Kafka source that reads from Apache Kafka."
    return f"## Aims\n\n{told}\n\n{_table(head, rows)}" if rows else ""


def _times(results: Results, query: str, source: str, case: str, metric: str) -> float | None:
    ours, theirs = (results.spread(query, each, case, metric) for each in (source, BASE))
    return None if ours is None or theirs is None or not theirs.middle else ours.middle / theirs.middle


def _where(results: Results, queries: Sequence[str]) -> str:
    rows = []
    for query in queries:
        for case in _cases(results, query):
            for source, title in TITLES.items():
                spent = [results.spread(query, source, case, f"{part}_us") for part in ("jvm", "python", "server")]
                if any(spent):
                    rows.append((query, case, title, *map(_number, spent)))
    if not rows:
        return ""
    head = ("query", "records", "read by", "Spark's JVM", "Python", "servers")
    return f"## Where the time goes\n\nCPU µs a record.\n\n{_table(head, rows)}"


def _decoder(results: Results) -> str:
    rows = []
    for case in results.cases("decoder"):
        metric, least, aim = DECODER_AIMS[case.split(" ")[0]]
        rate, size = (results.spread("decoder", "decoder", case, name) for name in ("records_s", "mb_s"))
        found = results.spread("decoder", "decoder", case, metric)
        met = "yes" if found is not None and found.high >= least else "no"
        rows.append((case, _number(rate), _number(size), aim, met))
    if not rows:
        return ""
    loading = results.spread("import", "decoder", "machine code kept", "seconds")
    head = ("records", "records/s", "MB/s", "aim", "met by the best round")
    return (
        "## The decoder alone\n\nOne core, from batches of 16 KB in memory to Arrow, all columns, CRC checked; by CPU"
        f" time of the process.\n\n{_table(head, rows)}\n\nWith its machine code kept, as executors have it, it loads"
        f" in {_number(loading)} s: nothing is compiled."
    )


def _fixed(results: Results) -> str:
    rows = []
    for source, title in TITLES.items():
        took, used = (results.spread("count", source, EMPTY.case, name) for name in ("seconds", "cpu_s"))
        if took is not None:
            rows.append((title, _number(took), _number(used)))
    head = ("read by", "seconds", "CPU seconds")
    told = "Counting an empty topic: planning, scheduling, Python processes. It is part of every figure above."
    return f"## Before the first record\n\n{told}\n\n{_table(head, rows)}" if rows else ""


def _idle(results: Results) -> str:
    shares = [
        sample.metrics["serve_share"]
        for sample in results.samples
        if sample.adapter in OURS and sample.case != EMPTY.case
    ]
    idle = results.spread("idle", "bmq serve", EMPTY.case, "serve_share")
    if not shares or idle is None:
        return ""
    return (
        "## Load on the cluster\n\nWhile segments are read from storage, `bmq serve` (proxy, broker, controller and"
        f" coordinator in one) gets no request: it used {min(shares):.1%} to {max(shares):.1%} of a core,"
        f" {idle.middle:.1%} when nothing was read at all."
    )


# ----------------------------------------------------------------------------------------------------------- cells


def _ratio(ours: Spread, theirs: Spread | None) -> str:
    return f"**{ours.middle / theirs.middle:.2f}**" if theirs is not None and theirs.middle else "-"


def _number(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    shown = f"{spread.middle:,.0f}" if spread.middle >= 1000 else f"{spread.middle:.3g}"
    return f"{shown} ±{spread.share / 2:.0%}" if spread.low != spread.high else shown


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
