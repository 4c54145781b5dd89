"""The page docs/benchmarks-kafka.md, written from the results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.perf_tools import PRODUCER, PRODUCER_PROMPT
from bench.results import Results, Spread
from bench.servers import BMQ_ENVIRONMENT, KAFKA_HEAP_MB, KAFKA_PROPERTIES, PAIRS

NOTES = Path(__file__).with_name("against_notes.md")
"""The conclusions, written by hand: to be checked again after each change of the hot path."""
TITLES = {"local": "One node, local disk", "hdfs": "Three replicas: BMQ on HDFS, three Kafka brokers"}


def write(results: Results, out: Path) -> None:
    """Write the page into folder ``out``."""
    parts = [_head(results)]
    for pair, (kafka, bmq) in PAIRS.items():
        tables = [
            _throughput(results, kafka, bmq, "produce", "Producing"),
            _throughput(results, kafka, bmq, "consume", "Consuming"),
            _latency(results, kafka, bmq),
            _once(results, (kafka, bmq), "restart", "seconds", "From `kill -9` to the first acknowledgement, seconds"),
            _once(results, (kafka, bmq), "memory", "rss_mb", "Resident memory of the server, MB"),
        ]
        if any(tables):
            parts += [f"## {TITLES[pair]}", *filter(None, tables)]
    if NOTES.exists():
        parts.append(NOTES.read_text().strip())
    (out / "benchmarks-kafka.md").write_text("\n\n".join(parts) + "\n")


def _head(results: Results) -> str:
    tuned = ", ".join(f"`{name}={value}`" for name, value in KAFKA_PROPERTIES.items())
    ours = ", ".join(f"`{name}={value}`" for name, value in BMQ_ENVIRONMENT.items())
    rounds = results.plan["rounds"]
    return f"""# Beside Apache Kafka

Written by `make bench`; do not edit. The raw figures are in `benchmarks/kafka.json`.

    {results.command}

{results.started}, {results.took_s:.0f} seconds. Both servers of a pair run on the same machine at the same time;
{rounds} {"round" if rounds == 1 else "rounds"} alternate between them, after a first one that is dropped. A figure is
the median of the rounds; ± is half of the distance between the lowest and the highest, as a share of it. The ratio is
BMQ's median to Kafka's. Clients are Kafka's own `producer-perf-test` ({_listed(PRODUCER)};
for latency {_listed(PRODUCER_PROMPT)}) and `consumer-perf-test` on defaults, six partitions, no compression; the first
part of each measurement warms the client up and is not counted.

Kafka runs with a heap of {KAFKA_HEAP_MB} MB and the JVM options of its own start script, default settings except
{tuned}; three nodes with `min.insync.replicas=2`.
`bmq serve` runs on defaults except {ours}.
"All CPU" counts every server process of that side: for HDFS the NameNode and four datanodes too.

{_table(("", ""), results.machine.items())}

Client, servers and storage share these cores: time that one uses is not there for the others."""


def _throughput(results: Results, kafka: str, bmq: str, bench: str, title: str) -> str:
    rows = []
    for case in results.cases(bench):
        theirs, ours = (results.spread(bench, name, case, "records_s") for name in (kafka, bmq))
        if theirs is None or ours is None:
            continue
        costs = [results.spread(bench, name, case, "all_cpu_s_gb") for name in (kafka, bmq)]
        own = results.spread(bench, bmq, case, "cpu_s_gb")
        rows.append((case, _number(theirs), _number(ours), _ratio(ours, theirs), *map(_number, costs), _number(own)))
    if not rows:
        return ""
    head = ("record", "Kafka records/s", "BMQ records/s", "ratio", "Kafka all CPU s/GB", "BMQ all CPU", "`bmq serve`")
    return f"### {title}\n\n{_table(head, rows)}"


def _latency(results: Results, kafka: str, bmq: str) -> str:
    rows = []
    for metric in ("p50_ms", "p95_ms", "p99_ms", "p99.9_ms", "max_ms"):
        theirs, ours = (results.spread("latency", name, "1000 B", metric) for name in (kafka, bmq))
        if theirs is not None and ours is not None:
            rows.append((metric.removesuffix("_ms"), _number(theirs), _number(ours), _ratio(ours, theirs)))
    if not rows:
        return ""
    rate = results.plan["latency_records_s"]
    head = ("", "Kafka ms", "BMQ ms", "ratio")
    return f"### Latency of producing {rate:,} records/s of 1 KB\n\n{_table(head, rows)}"


def _once(results: Results, names: Sequence[str], bench: str, metric: str, title: str) -> str:
    rows = []
    for case in results.cases(bench):
        cells = [results.spread(bench, name, case, metric) for name in names]
        if any(cells):
            rows.append((case, *map(_number, cells)))
    return f"### {title}\n\n{_table(('', *names), rows)}" if rows else ""


def _listed(properties: dict[str, str]) -> str:
    return " ".join(f"`{name}={value}`" for name, value in properties.items())


def _ratio(ours: Spread, theirs: Spread) -> str:
    return f"**{ours.middle / theirs.middle:.2f}**" if theirs.middle else "-"


def _number(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    shown = f"{spread.middle:,.0f}" if spread.middle >= 1000 else f"{spread.middle:.3g}"
    return f"{shown} ±{spread.share / 2:.0%}" if spread.low != spread.high else shown


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
