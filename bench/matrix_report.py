"""The page docs/benchmarks-matrix.md, written from the results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import machine, matrix_plot
from bench.comparison import Comparison, compare_rounds
from bench.deployments import NAMES
from bench.matrix_cases import axis_of, label_of
from bench.page import VERDICTS, failed, listed, number, parts, ratio, short, table
from bench.results import Results
from bench.warm_up import RISE_MAX

OBJECTIONS = Path(__file__).with_name("matrix_objections.md")
"""What the page does not show, and what an expert would object to: true of the method, whatever the figures are."""
PICTURE = "matrix"
AXES = {
    "sizes": ("Record size", "12 partitions, no codec, the Java client."),
    "partitions": (
        "Active partitions",
        "Records of 1 KB, no codec, the Java client. Every partition is written to before the clock starts. Where each"
        " record goes to the next partition, as with keys, the client sends many small batches; by default it fills a"
        " batch of one partition before the next.",
    ),
    "codecs": ("Codecs", "Records of 1 KB, 12 partitions, the Java client. A GB is one of records before the codec."),
    "clients": ("Clients", "Records of 1 KB, 12 partitions, no codec. C is librdkafka."),
    "corners": ("Corners", "What is far from the centre in two ways; no codec, the Java client."),
}
BENCHES = {"produce": "Producing", "consume": "Consuming what was just produced"}
RATE, COST, OPEN = "records_s", "all_cpu_s_gb", "open_seconds"
METRICS = {RATE: "records a second", COST: "processor seconds a GB"}
HEAD = ("", "BMQ as", "Kafka", "BMQ", "ratio", "quartiles", "")


@dataclass(frozen=True, slots=True)
class Row:
    """One case of one of our deployments beside Kafka's."""

    bench: str
    case: str
    theirs: str
    ours: str
    found: Comparison

    @property
    def name(self) -> str:
        """The deployment in one or two words: its column is narrow."""
        return NAMES[self.ours].removeprefix("BMQ, ").removesuffix(" over etcd and HDFS").removesuffix(" over HDFS")


def write(results: Results, out: Path) -> None:
    """Write the page into folder ``out``, and its picture."""
    drawn = [
        (BENCHES[bench], [(label_of(row.case), row.ours, row.found) for row in _rows(results, bench, RATE)])
        for bench in BENCHES
    ]
    is_drawn = any(rows for _, rows in drawn)
    if is_drawn:
        matrix_plot.draw(drawn, out / "benchmarks", PICTURE)
    (out / "benchmarks-matrix.md").write_text(page(results, has_picture=is_drawn))


def page(results: Results, *, has_picture: bool = True) -> str:
    """Return the page."""
    sections = [_head(results), _payloads(results), _summary(results)]
    if has_picture:
        sections.append(f"![records a second, BMQ's beside Kafka's](benchmarks/{PICTURE}.svg)")
    for axis, (title, text) in AXES.items():
        tables = [_tables(results, axis, bench) for bench in BENCHES]
        if axis == "partitions":
            tables.append(_opening(results))
        if any(tables):
            sections += [f"## {title}", text, _warmth(results, axis), *filter(None, tables)]
    sections.append(failed(results))
    sections.append(OBJECTIONS.read_text().strip())
    return "\n\n".join(filter(None, sections)) + "\n"


def _head(results: Results) -> str:
    plan = results.plan
    clients = "\n".join(f"    {line}" for line in plan["clients"].values())
    return f"""# Throughput by record size, partitions, codec and client

{results.head}

Written by `python -m bench.matrix`; do not edit. Every round, with the command line of each process, is in
`benchmarks/matrix.json`.

    {results.command}

{results.started}, {results.took_s / 60:.0f} minutes. One axis at a time around a centre (records of 1 KB, 12
partitions, no codec, Kafka's own perf tools in Java), and the corners that lie far from it. {plan["megabytes"]} MB a
measurement, after another {plan["warm_share"]:.0%} that warm the client up. The deployments run on one machine at the
same time; each case is measured on all of them, one right after the other, in another order each time. Rounds of the
centre come first until no rate of producing is more than {RISE_MAX:.0%} above its best before, then one round of the
axis; neither counts. Then {plan["rounds"]} rounds that do. Each gives a ratio, BMQ's figure to Kafka's of the same
round.
{VERDICTS}

Clients, at the centre; the last line is set where each record goes to the next partition:

{clients}

Cores: {plan["cores"]}.

| settings, beside defaults | |
| --- | --- |
{chr(10).join(f"| {name} | {listed(values)} |" for name, values in plan["settings"].items())}

Kafka has the JVM options of its own start scripts. Processor seconds count every server process of that side: for BMQ
on HDFS the NameNode, the datanodes and etcd too; not the clients, which have a column of their own.

{table(("", ""), machine.rows(results))}

Load average before each round: {", ".join(f"{load:g}" for load in results.load)}."""


def _payloads(results: Results) -> str:
    rows = [
        (
            f"{int(size):,} B",
            f"{found['records']:,}",
            f"{found['lz4']:.0%}",
            f"{found['zstd']:.0%}",
            found["sha256"][:12],
        )
        for size, found in sorted(results.plan["payloads"].items(), key=lambda each: int(each[0]))
    ]
    return f"""## The records

JSON events of a made-up shop (`bench/payloads.py`): random ids, fields of few values. All deployments and all codecs
are sent the same files; the digest tells whether another run had the same. The shares are what a batch of 64 KB of
records becomes under each codec, at the level that Kafka's clients use.

{table(("record", "different ones", "lz4", "zstd", "SHA-256"), rows)}"""


def _summary(results: Results) -> str:
    """Return how often BMQ is ahead, and each case in which it is not: those first, the widest one at the top."""
    counts, behind = [], []
    for metric, words in METRICS.items():
        rows = [row for bench in BENCHES for row in _rows(results, bench, metric)]
        for ours in dict.fromkeys(row.ours for row in rows):
            found = Counter(row.found.verdict for row in rows if row.ours == ours)
            counts.append((NAMES[ours], words, *(str(found[verdict]) for verdict in ("better", "equal", "WORSE"))))
        for row in rows:
            if row.found.verdict == "WORSE":
                what = f"{BENCHES[row.bench].split(' ')[0].lower()}, {words}"
                behind.append(
                    (max(row.found.ratio, 1 / row.found.ratio), (row.case, row.name, what, *ratio(row.found)[:2]))
                )
    if not counts:
        return ""
    shown = [cells for _, cells in sorted(behind, key=lambda each: -each[0])]
    listed_behind = (
        table(("", "BMQ as", "", "ratio", "quartiles"), shown) if shown else "In no case beyond the quartiles."
    )
    return f"""## In short

Cases in which BMQ is better, equal or worse than three Kafka brokers:

{table(("", "", "better", "equal", "WORSE"), counts)}

### Where BMQ is behind

{listed_behind}"""


def _tables(results: Results, axis: str, bench: str) -> str:
    rates, costs = [], []
    for row in _rows(results, bench, RATE, axis):
        cells = [_rate(results, row, adapter) for adapter in (row.theirs, row.ours)]
        rates.append((label_of(row.case), row.name, *cells, *ratio(row.found)))
    for row in _rows(results, bench, COST, axis):
        clients = [results.spread(bench, adapter, row.case, "client_cpu_s_gb") for adapter in (row.theirs, row.ours)]
        costs.append((
            label_of(row.case), row.name, short(row.found.before), short(row.found.after), *ratio(row.found),
            parts(results, bench, row.ours, row.case), " / ".join(short(each.middle) for each in clients if each),
        ))  # fmt: skip
    if not rates:
        return ""
    return (
        f"### {BENCHES[bench]}\n\nRecords a second:\n\n{table(HEAD, rates)}\n\n"
        "Processor seconds a GB, all server processes; the last column is the client's, of Kafka's and of BMQ's:\n\n"
        f"{table((*HEAD, 'of BMQ', 'client'), costs)}"
    )


def _opening(results: Results) -> str:
    """Return how long the first record of every partition takes: its log is created, or its file is opened."""
    adapters = results.plan["deployments"]
    rows = []
    for case in (case for case in results.cases("produce") if axis_of(case) == "partitions"):
        cells = [results.spread("produce", adapter, case, OPEN) for adapter in adapters]
        rows.append((label_of(case), *map(number, cells)))
    if not rows:
        return ""
    return (
        "### The first record\n\nSeconds from the first record sent to the acknowledgement of the last, one record to"
        " each partition of a topic that was just created; median, lowest and highest round. Not a part of the figures"
        f" above.\n\n{table(('', *(NAMES[adapter] for adapter in adapters)), rows)}"
    )


def _warmth(results: Results, axis: str) -> str:
    found = results.plan["warm_up"].get(axis)
    if found is None:
        return ""
    if found["is_warm"]:
        return f"Warm after {found['rounds']} rounds of the centre, which do not count."
    return f"**Not warm**: the rounds of the centre that do not count ended at {found['rounds']}, with rates rising."


def _rate(results: Results, row: Row, adapter: str) -> str:
    records, megabytes = (results.spread(row.bench, adapter, row.case, name) for name in (RATE, "mb_s"))
    assert records is not None
    assert megabytes is not None
    return f"{short(records.middle)} ({short(megabytes.middle)} MB/s)"


def _rows(results: Results, bench: str, metric: str, axis: str = "") -> Iterator[Row]:
    """Yield the comparisons of each case with each of our deployments, of one axis or of all."""
    theirs, ours = _sides(results)
    for case in results.cases(bench):
        if not axis or axis_of(case) == axis:
            for name in ours:
                found = compare_rounds(results, bench, metric, before=(theirs, case), after=(name, case))
                if found is not None:
                    yield Row(bench, case, theirs, name, found)


def _sides(results: Results) -> tuple[str, Sequence[str]]:
    """Return Kafka's deployment, "" if there is none, and ours."""
    names = results.plan["deployments"]
    return next((name for name in names if name.startswith("kafka-")), ""), [n for n in names if n.startswith("bmq-")]
