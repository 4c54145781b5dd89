"""The page docs/benchmarks-kafka.md, written from the results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench import machine
from bench.comparison import compare_rounds
from bench.deployments import NAMES, SITES
from bench.page import VERDICTS, failed, listed, number, parts, ratio, short, table
from bench.raw_client import RETRY_S
from bench.results import Results
from bench.warm_up import RISE_MAX

OBJECTIONS = Path(__file__).with_name("against_objections.md")
"""What the page does not show, and what an expert would object to: true of the method, whatever the figures are."""
NOTES = Path(__file__).with_name("against_notes.md")
"""The conclusions, written by hand: to be checked again after each change of the hot path."""
TITLES = {
    "local": "One node on a local disk",
    "replicas": "Three nodes, three copies, two of them in sync at least",
}
PERCENTILES = ("p50_us", "p95_us", "p99_us", "p99.9_us", "max_us")
HELD_US = 100_000
"""A side whose median record waited longer did not hold the rate: in an open loop that is its backlog, which grew."""
MEMORY = {"rss_mb": "", "storage_rss_mb": ", HDFS", "etcd_rss_mb": ", etcd"}


def write(results: Results, out: Path) -> None:
    """Write the page into folder ``out``."""
    (out / "benchmarks-kafka.md").write_text(page(results))


def page(results: Results) -> str:
    """Return the page.  Raises ValueError for results of before commits were recorded: they have another form."""
    if not results.commit:
        raise ValueError(f"{results.measured_at} Their form is an earlier one: measure again.")
    parts = [_head(results)]
    for site, (kafka, *ours) in SITES.items():
        sections = [_beside(results, kafka, name) for name in ours]
        sections += [
            _once(results, (kafka, *ours), "restart", {"seconds": ""}, _restart_title()),
            _once(results, (kafka, *ours), "memory", MEMORY, "Resident memory, MB"),
        ]
        if any(sections):
            parts += [f"## {TITLES[site]}", _warmth(results, site), *filter(None, sections)]
    parts.append(failed(results))
    parts += [OBJECTIONS.read_text().strip(), NOTES.read_text().strip()]
    return "\n\n".join(filter(None, parts)) + "\n"


def _head(results: Results) -> str:
    plan, settings = results.plan, results.plan["settings"]
    rounds = plan["rounds"]
    clients = "\n".join(f"    {line}" for line in plan["clients"].values())
    return f"""# Beside Apache Kafka

{results.head}

Written by `make bench`; do not edit. Every round, with the command line of each process, is in `benchmarks/kafka.json`.

    {results.command}

{results.started}, {results.took_s / 60:.0f} minutes. The deployments of a section run on one machine at the same time,
and each round measures all of them in turn, in another order each time. Rounds come first that do not count, until no
deployment's rate of producing is more than {RISE_MAX:.0%} above its best before; then {rounds} that do. Each round
gives a ratio, BMQ's figure to Kafka's.
{VERDICTS}

Throughput is that of Kafka's own perf tools, six partitions, no compression; the first part of each measurement warms
the client up and is not counted. Latency is an open loop of librdkafka with `linger.ms=0`: from when a record was due,
in microseconds. Clients, with one of the sizes:

{clients}

| settings, beside defaults | |
| --- | --- |
{chr(10).join(f"| {name} | {listed(values)} |" for name, values in settings.items())}

Kafka has the JVM options of its own start scripts. "All CPU" counts every server process of that side: for BMQ on HDFS
the NameNode, the datanodes and etcd too.

{table(("", ""), machine.rows(results))}

Clients, servers and storage share these cores: time that one uses is not there for the others. Load average before
each round: {", ".join(f"{load:g}" for load in results.load)}."""


def _warmth(results: Results, site: str) -> str:
    found = results.plan["warm_up"].get(site)
    if found is None:
        return ""
    if found["is_warm"]:
        return f"Warm after {found['rounds']} rounds, which do not count."
    return f"**Not warm**: the rounds that do not count ended at {found['rounds']}, before rates had stopped rising."


def _beside(results: Results, kafka: str, name: str) -> str:
    tables = [
        _throughput(results, kafka, name, "produce", "Producing"),
        _throughput(results, kafka, name, "consume", "Consuming what was just produced"),
        _latency(results, kafka, name),
    ]
    if not any(tables):
        return ""
    return "\n\n".join([f"### {NAMES[name]}, beside {NAMES[kafka]}", *filter(None, tables)])


def _throughput(results: Results, kafka: str, name: str, bench: str, title: str) -> str:
    rates, costs = [], []
    for case in results.cases(bench):
        rate = compare_rounds(results, bench, "records_s", before=(kafka, case), after=(name, case))
        cost = compare_rounds(results, bench, "all_cpu_s_gb", before=(kafka, case), after=(name, case))
        if rate is None or cost is None:
            continue
        rates.append((case, short(rate.before), short(rate.after), *ratio(rate)))
        costs.append((case, short(cost.before), short(cost.after), *ratio(cost), parts(results, bench, name, case)))
    if not rates:
        return ""
    head = ("record", "Kafka", "BMQ", "ratio", "quartiles", "")
    return (
        f"#### {title}\n\nRecords a second:\n\n{table(head, rates)}\n\n"
        f"Processor seconds a GB, all server processes:\n\n{table((*head, 'of BMQ'), costs)}"
    )


def _latency(results: Results, kafka: str, name: str) -> str:
    case = next(iter(results.cases("latency")), "")
    found = {
        metric: compare_rounds(results, "latency", metric, before=(kafka, case), after=(name, case))
        for metric in (*PERCENTILES, "all_cpu_us_record")
    }
    middle = found["p50_us"]
    if middle is None:
        return ""
    late = [NAMES[each] for each, waited in ((kafka, middle.before), (name, middle.after)) if waited > HELD_US]
    rows = []
    for metric, comparison in found.items():
        if comparison is None:
            continue
        is_cost = metric.startswith("all_")
        title = "CPU a record, all server processes" if is_cost else metric.removesuffix("_us")
        cells = ratio(comparison) if is_cost or not late else ("-", "-", "")
        rows.append((title, short(comparison.before), short(comparison.after), *cells))
    head = ("µs", "Kafka", "BMQ", "ratio", "quartiles", "")
    text = f"#### Latency of producing {results.plan['latency_records_s']:,} records/s of {case}\n\n{table(head, rows)}"
    if late:
        text += (
            f"\n\n**No comparison**: {' and '.join(late)} did not hold this rate on these cores, so that records waited"
            " for those before them, the longer the run."
        )
    return text


def _restart_title() -> str:
    return (
        "From `kill -9` of the only node to its first acknowledgement, seconds\n\nThe node is started again at once;"
        f" the client tries every {RETRY_S * 1000:.0f} ms, which is what the figure is exact to. Three nodes:"
        " [benchmarks-failover](benchmarks-failover.md)."
    )


def _once(results: Results, names: Sequence[str], bench: str, metrics: dict[str, str], title: str) -> str:
    columns = [
        (name, metric, f"{NAMES[name]}{part}")
        for name in names
        for metric, part in metrics.items()
        if any(results.spread(bench, name, case, metric) for case in results.cases(bench))
    ]
    rows = []
    for case in results.cases(bench):
        cells = [results.spread(bench, name, case, metric) for name, metric, _ in columns]
        if any(cells):
            rows.append((case, *map(number, cells)))
    head = ("", *(title for *_, title in columns))
    return f"### {title}\n\n{table(head, rows)}" if rows else ""
