"""The page docs/benchmarks-reading.md and its picture, drawn from the results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from bench.comparison import Comparison, compare_rounds
from bench.deployments import NAMES
from bench.latency_measure import PARTITIONS, RECORD_BYTES
from bench.page import failed, ms, number, ratio_cell, short, table, verdicts
from bench.plots import save
from bench.reading_measure import ALONE, BACKLOG, EFFECT, TAIL, Parts, in_words
from bench.reading_plot import PICTURE, effect_of_catch_up, in_order
from bench.results import Results, Spread
from bench.rounds_page import beside_kafka, opening, pairs
from bmq.core.config import NodeConfig

OBJECTIONS = Path(__file__).with_name("reading_objections.md")
"""What the page does not show, and what an expert would object to: true of the method, whatever the figures are."""
GROUPS = {"cpu_s_gb": "own", "storage_cpu_s_gb": "HDFS", "etcd_cpu_s_gb": "etcd"}
LATENCIES = {
    f"{kind}_{percentile}_us": f"{title}, {percentile}"
    for kind, title in (("ack", "produce"), ("end", "tail reader"))
    for percentile in ("p50", "p95", "p99", "p99.9")
}


def write(results: Results, out: Path) -> None:
    """Write the page and its picture into folder ``out``."""
    (out / "benchmarks-reading.md").write_text(page(results))
    if results.of_bench(EFFECT):
        save(effect_of_catch_up(results), out / "benchmarks", PICTURE)


def page(results: Results) -> str:
    """Return the page.  Raises ValueError for results that do not name their commit."""
    parts = [opening(results, "reading", "Reading", _what())]
    parts += [section(results) for bench, section in SECTIONS.items() if results.of_bench(bench)]
    parts += [failed(results), OBJECTIONS.read_text().strip()]
    return "\n\n".join(filter(None, parts)) + "\n"


def _what() -> str:
    return f"""Consumers at the end of the log, consumers of a backlog that no cache holds, and what those that catch up
do to the others. Records of {RECORD_BYTES:,} bytes, {PARTITIONS} partitions. A group is one consumer of all partitions,
by assignment. *HDFS* is the bytes that BMQ read from HDFS for each byte that consumers got, by its own metrics, *disk*
what the kernel read from disk on behalf of all server processes, datanodes too. Hit rates are by bytes: of BMQ's tail
cache among fetches, and of its block cache among the blocks that the rest was read from. Kafka has neither; its cache
is the kernel's page cache."""


def _tail(results: Results) -> str:
    plan = results.plan
    head = (
        "", "end to end p50, ms", "p99, ms", "p99.9, ms", "from the tail cache", "HDFS", "all CPU s/GB", "of it",
    )  # fmt: skip
    parts = [
        f"## The end of the log\n\nOne producer writes {plan['tail_records_s']:,} records/s for {plan['tail_s']:g} s,"
        " and every group reads them all. End to end is from when a record was due until a group has it, over all"
        " groups. Processor time is for each GB that groups got, and includes what writing it cost."
    ]
    for case in results.cases(TAIL):
        rows = []
        for name in results.adapters(TAIL):
            found = partial(results.spread, TAIL, name, case)
            times = [ms(found(f"end_{each}_us")) for each in ("p50", "p99", "p99.9")]
            cells = (_percent(found("tail_share")), _ratio(found("read_bytes_byte")), number(found("all_cpu_s_gb")))
            rows.append((NAMES[name], *times, *cells, _parts(results, TAIL, name, case)))
        parts.append(f"### {case}\n\n{table(head, rows)}")
    metrics = {"end_p50_us": "p50", "end_p99_us": "p99", "end_p99.9_us": "p99.9", "all_cpu_s_gb": "all CPU s/GB"}
    return "\n\n".join([*parts, *_beside(results, TAIL, metrics)])


def _backlog(results: Results) -> str:
    head = ("", "MB/s of all groups", "HDFS", "disk", "tail cache", "block cache", "all CPU s/GB", "of it")
    parts = [_backlog_head(results)]
    for case in results.cases(BACKLOG):
        rows = []
        for name in results.adapters(BACKLOG):
            found = partial(results.spread, BACKLOG, name, case)
            read = [_ratio(found(f"{each}_bytes_byte")) for each in ("read", "disk")]
            cells = (_percent(found("tail_share")), _percent(found("block_share")), number(found("all_cpu_s_gb")))
            rows.append((NAMES[name], number(found("mb_s")), *read, *cells, _parts(results, BACKLOG, name, case)))
        parts.append(f"### {case}\n\n{table(head, rows)}")
    return "\n\n".join([*parts, *_beside(results, BACKLOG, {"mb_s": "MB/s", "all_cpu_s_gb": "all CPU s/GB"})])


def _backlog_head(results: Results) -> str:
    plan = results.plan
    size, cache = plan["backlog_records"] * RECORD_BYTES / 1e9, NodeConfig().cache_bytes / 1e9
    shares = [
        sample.metrics["page_cache_share"]
        for sample in results.of_bench(BACKLOG)
        if "page_cache_share" in sample.metrics
    ]
    left = f"at most {max(shares):.1%} of the files' bytes were left in it" if shares else "which was not done here"
    parts = "; ".join(
        f"{in_words(groups)}: {_part(Parts(**each))}"
        for groups, each in zip(plan["groups"], plan["parts"], strict=True)
    )
    return f"""## A backlog

{size:.3g} GB, written once before the rounds; a process of BMQ caches {cache:.3g} GB at most, and three of them
{3 * cache:.3g}. Groups begin at the same time and read the same offsets ({parts}). Before each measurement but the
first, the files of the deployment are synced and dropped from the page cache: {left}."""


def _part(parts: Parts) -> str:
    if parts.count == 1:
        return "all"
    found = sorted({parts.of_round(number) + 1 for number in range(parts.count)})
    which = f"part {found[0]}" if len(found) == 1 else f"one of the parts {found[0]} to {found[-1]} in turn"
    return f"{which}, of {parts.count}"


def _effect(results: Results) -> str:
    plan, cases = results.plan, in_order(results)
    parts = [
        f"## A catch-up beside producers and readers of the tail\n\nOne producer writes {plan['effect_records_s']:,}"
        f" records/s for {plan['effect_s']:g} s and one consumer reads them at the end of the log, while another"
        " consumer reads the backlog over and over, from the disk the first time. Rounds alternate which case comes"
        " first.",
        f"![p99 with and without a catch-up](benchmarks/{PICTURE}.svg)",
    ]
    for name in results.adapters(EFFECT):
        rows: list[tuple[str, ...]] = []
        for metric, title in LATENCIES.items():
            cells = [ms(results.spread(EFFECT, name, case, metric)) for case in cases]
            ratios = [
                ratio_cell(compare_rounds(results, EFFECT, metric, before=(name, ALONE), after=(name, case)))
                for case in cases
                if case != ALONE
            ]
            if set(cells) != {"-"}:
                rows.append((title, *cells, *ratios))
        rates = [number(results.spread(EFFECT, name, case, "catch_up_mb_s")) for case in cases]
        rows.append(("MB/s of the catch-up", *rates, *("" for case in cases if case != ALONE)))
        head = ("ms", *cases, *(f"to none: {case}" for case in cases if case != ALONE))
        parts.append(f"### {NAMES[name]}\n\n{table(head, rows)}")
    return "\n\n".join([*parts, *_beside(results, EFFECT, LATENCIES | {"catch_up_mb_s": "MB/s of the catch-up"})])


def _beside(results: Results, bench: str, metrics: Mapping[str, str]) -> Iterable[str]:
    """Give a table of ratios to Kafka's figures for each deployment of BMQ, and a list of the verdicts."""
    for kafka, name in pairs(results, bench):
        found: dict[tuple[str, str], Comparison | None] = {
            (case, metric): beside_kafka(results, bench, case, kafka, name, metric)
            for case in results.cases(bench)
            for metric in metrics
        }
        known = {f"{metrics[metric]} ({case})": value for (case, metric), value in found.items() if value is not None}
        if known:
            cases = results.cases(bench) if bench != EFFECT else in_order(results)
            rows = [
                (title, *(ratio_cell(found[case, metric]) for case in cases)) for metric, title in metrics.items()
            ]  # fmt: skip
            head = ("", *cases)
            yield f"### {NAMES[name]}, beside {NAMES[kafka]}\n\n{table(head, rows)}\n\nBMQ is\n\n{verdicts(known)}"


def _parts(results: Results, bench: str, name: str, case: str) -> str:
    """Return which group of processes used how much processor time, in words."""
    spreads = {title: results.spread(bench, name, case, metric) for metric, title in GROUPS.items()}
    return ", ".join(f"{title} {short(spread.middle)}" for title, spread in spreads.items() if spread is not None)


def _percent(spread: Spread | None) -> str:
    return f"{spread.middle:.0%} ({spread.low:.0%} to {spread.high:.0%})" if spread is not None else "-"


def _ratio(spread: Spread | None) -> str:
    return f"{spread.middle:.2f} ({spread.low:.2f} to {spread.high:.2f})" if spread is not None else "-"


SECTIONS = {TAIL: _tail, BACKLOG: _backlog, EFFECT: _effect}
