"""The page docs/benchmarks.md, written from the results: tables, plots, and what the figures include."""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench import machine, plots
from bench.many import LOADS, LONE_OPENS
from bench.plan import SIZES
from bench.results import Results, Spread
from bench.takeover import IN_FLIGHT

Row = Sequence[str]
NOTES = Path(__file__).with_name("profile_notes.md")
"""The conclusions from the profile, written by hand: to be checked again after each change of the hot path."""
AIMS = (
    ("1 KB flush, lone writer, median", "latency", "1 KB", "p50_ms", "under", plots.AIM_LATENCY_MS, "ms"),
    ("1 MB batches, one partition", "throughput", "1 MB", "mb_s", "over", plots.AIM_MB_S, "MB/s"),
    ("CPU of BMQ's process, 1 MB batches", "throughput", "1 MB", "cpu_s_gb", "at most", plots.AIM_CPU_S_GB, "s/GB"),
    ("Takeover from a live writer, median", "takeover", "1 KB", "open_ms", "under", 60.0, "ms"),
)
RELATIONS = {"under": operator.lt, "over": operator.gt, "at most": operator.le}
NOISE = (
    ("throughput", "mb_s"),
    ("throughput", "cpu_s_gb"),
    ("latency", "p50_ms"),
    ("latency", "p99_ms"),
    ("partitions", "appends_s"),
    ("takeover", "open_ms"),
)


def write(results: Results, out: Path) -> None:
    """Write ``out``/benchmarks.md, and the plots in ``out``/benchmarks/."""
    folder = out / "benchmarks"
    drawn = plots.draw(results, folder)
    profile = folder / "profile.json"
    parts = [
        _head(results),
        _aims(results),
        _throughput(results),
        _latency(results),
        _partitions(results),
        _opening(results),
        _takeover(results),
        _time(json.loads(profile.read_text())) if profile.exists() else "",
        _noise(results),
    ]
    text = "\n\n".join(part for part in parts if part) + "\n"
    for name in ("throughput", "latency", "partitions", "takeover"):
        shown = f"![{name}](benchmarks/{name}.svg)\n\n" if name in drawn else ""
        text = text.replace(f"<{name}>\n\n", shown)
    (out / "benchmarks.md").write_text(text)


# ------------------------------------------------------------------------------------------------------ the parts


def _head(results: Results) -> str:
    machine_table = _table(("", ""), machine.rows(results))
    taken = _times(results.plan["rounds"], "round") + ", after a first one that is dropped" * results.plan["is_warmed"]
    return f"""# Benchmarks

{results.head}

Written by `make bench`; do not edit. The raw figures are in `benchmarks/results.json`.

    {results.command}

{results.started}, {results.took_s:.0f} seconds, {taken}.
Each round takes every adapter in turn. A figure is the median of the rounds; ± is half of the distance between the
lowest and the highest round, as a share of it. MB and GB are powers of ten; batches of 1 KB, 64 KB and 1 MB are powers
of two.

{machine_table}

Clients, broker, NameNode and datanodes share these cores: every acknowledged byte is received and written three times
on the same machine. The memory adapter is the broker without storage; the local one writes to the page cache."""


def _aims(results: Results) -> str:
    rows = []
    for name, bench, case, metric, relation, aim, unit in AIMS:
        spread = results.spread(bench, "hdfs", case, metric)
        if spread is not None:
            is_met = RELATIONS[relation](spread.middle, aim)
            wanted = f"{relation} {aim:g} {unit}"
            rows.append((name, wanted, f"{_number(spread)} {unit}", "yes" if is_met else "**no**"))
    return "## Aims, on HDFS with three replicas\n\n" + _table(("", "aim", "measured", "met"), rows) if rows else ""


def _throughput(results: Results) -> str:
    cases = list(SIZES)
    rows = [
        (
            adapter,
            case,
            *_cells(results, "throughput", adapter, case, "mb_s", "appends_s", "appends_flush"),
            *_cells(results, "throughput", adapter, case, "cpu_s_gb", "cpu_user_s_gb", "cpu_system_s_gb"),
            *_cells(results, "throughput", adapter, case, "p50_ms", "p99_ms"),
        )
        for adapter in results.adapters("throughput")
        if adapter != "none"
        for case in cases
    ]
    if not rows:
        return ""
    head = ("adapter", "batch", "MB/s", "batches/s", "per flush", "CPU s/GB", "user", "system", "p50 ms", "p99 ms")
    costs = ", ".join(_cells(results, "throughput", "none", case, "cpu_s_gb")[0] for case in cases)
    window = f"{results.plan['in_flight_bytes'] >> 20} MB or {results.plan['in_flight_max']:,} batches"
    return f"""## One partition, at its limit

A closed loop: {window} are always in flight, and each is sent again when it is acknowledged.
Segments roll at 128 MB and are checkpointed meanwhile. p50 and p99 are from `append` to the
acknowledgement, behind that queue.

<throughput>

{_table(head, rows)}

CPU is that of BMQ's own process, all threads, user and system time (`getrusage`): CRC check of the batch, numbering,
segment, checkpoints, checksums for HDFS, sockets, the event loop, and the load generator. Batches are made beforehand
and used again; the generator alone, without a broker, costs {costs} CPU s/GB
for {", ".join(cases)}. Not in the figure: the network side of a produce request, and the datanodes. For memory, storage
itself is included."""


def _latency(results: Results) -> str:
    cases = results.cases("latency")
    rows = [
        (adapter, case, *_cells(results, "latency", adapter, case, "p50_ms", "p90_ms", "p99_ms", "p99.9_ms", "max_ms"))
        for adapter in results.adapters("latency")
        for case in cases
    ]
    if not rows:
        return ""
    head = ("adapter", "batch", "p50 ms", "p90 ms", "p99 ms", "p99.9 ms", "max ms")
    count = f"{results.plan['lone_count']:,} a round, or {results.plan['lone_s']:g} s"
    return f"""## One flush, a lone writer

One batch at a time, the next when the last is acknowledged, without other load; {count}.
hsync waits for the disk, as `flush.mode=hsync` does. A percentile is left out if too few values lie beyond it.

<latency>

{_table(head, rows)}"""


def _partitions(results: Results) -> str:
    rows = [
        (
            adapter,
            *case.split(", ", 1),
            *_cells(results, "partitions", adapter, case, "appends_s", "mb_s", "flushes_s", "p50_ms", "p99_ms"),
            *_cells(results, "partitions", adapter, case, "cpu_us_append"),
        )
        for adapter in results.adapters("partitions")
        for case in results.cases("partitions")
    ]
    if not rows:
        return ""
    head = ("adapter", "partitions", "in flight", "batches/s", "MB/s", "flushes/s", "p50 ms", "p99 ms", "CPU µs/batch")
    first, second = LOADS
    return f"""## Many active partitions, 1 KB batches

"{first}" is a producer per partition that waits for each response; "{second}" keeps about that many batches
in flight, shared evenly, so that flushes carry several.

<partitions>

{_table(head, rows)}"""


def _opening(results: Results) -> str:
    rows: list[Row] = []
    for adapter in results.adapters("open"):
        (case,) = results.cases("open alone")
        ready, flushed = _cells(results, "open alone", adapter, case, "open_ms", "first_flush_ms")
        rows.append(
            (adapter, f"new, one after another ({LONE_OPENS})", "1", f"{ready} ms", f"{flushed} ms to its first flush")
        )
        for bench, what in (
            ("open", "new, at once, each with its first flush"),
            ("hand over", "handed over: flushed, closed, indexed"),
            ("open after a crash", "taken over from a dead broker"),
            ("open after a hand-over", "opened after a hand-over"),
        ):
            for case in results.cases(bench):
                took, rate = _cells(results, bench, adapter, case, "seconds", "partitions_s")
                rows.append((adapter, what, case, f"{took} s", f"{rate} a second"))
    if not rows:
        return ""
    return "## Opening partitions\n\n" + _table(("adapter", "", "partitions", "took", ""), rows)


def _takeover(results: Results) -> str:
    rows = [
        (
            adapter,
            what,
            *_cells(results, "takeover", adapter, "1 KB", f"{name}_min_ms", f"{name}_ms", f"{name}_max_ms"),
        )
        for adapter in results.adapters("takeover")
        for name, what in (("open", "accepts batches"), ("first_flush", "first batch flushed"))
    ]
    if not rows:
        return ""
    times = _times(results.plan["takeovers"], "time")
    return f"""## Takeover from a writer that keeps writing

A second broker opens the partition while the first keeps {IN_FLIGHT} batches of 1 KB in flight; {times} a round.
Both run in one process and share its core; the second has been used before, so that its journal is open. Each time it
is checked that nothing was acknowledged past the point where the successor began. Milliseconds.

<takeover>

{_table(("adapter", "until", "min", "median", "max"), rows)}"""


def _time(profile: dict[str, Any]) -> str:
    cases = list(profile["cases"])
    layers = list(dict.fromkeys(layer for case in cases for layer in profile["cases"][case]["layers"]))
    layers.sort(key=lambda layer: -max(profile["cases"][case]["layers"].get(layer, 0.0) for case in cases))
    rows = [(layer, *(_share(profile["cases"][case]["layers"].get(layer, 0.0)) for case in cases)) for layer in layers]
    rows.append(("CPU µs a batch", *(f"{profile['cases'][case]['cpu_us_append']:.3g}" for case in cases)))
    rows.append(("of it in the kernel", *(_share(profile["cases"][case]["system_share"]) for case in cases)))
    samples = min(case["samples"] for case in profile["cases"].values())
    return f"""## Where the time goes

CPU time of BMQ's process under the closed loop above; at least {samples:,} samples each (`python -m bench.profile`).

{_table(("", *cases), rows)}

{NOTES.read_text().strip()}"""


def _noise(results: Results) -> str:
    if results.plan["rounds"] == 1:
        return "## Noise\n\nNot known: one round is too few." + _failures(results)
    rows = []
    for bench, metric in NOISE:
        for adapter in results.adapters(bench):
            spreads = [results.spread(bench, adapter, case, metric) for case in results.cases(bench)]
            shares = sorted(spread.share for spread in spreads if spread is not None)
            if shares and adapter != "none":
                rows.append((bench, metric, adapter, _share(shares[len(shares) // 2]), _share(shares[-1])))
    load = ", ".join(f"{value:g}" for value in results.load)
    text = f"""## Noise

The highest round less the lowest, as a share of the median: of the middle case, and of the worst. Load average before
each round: {load}.

{_table(("", "figure", "adapter", "middle", "worst"), rows)}"""
    return text + _failures(results)


def _failures(results: Results) -> str:
    return "\n\nFailed:\n" + "".join(f"\n- {failure}" for failure in results.failures) if results.failures else ""


# --------------------------------------------------------------------------------------------------------- pieces


def _cells(results: Results, bench: str, adapter: str, case: str, *metrics: str) -> list[str]:
    spreads = [results.spread(bench, adapter, case, metric) for metric in metrics]
    return [_number(spread) if spread is not None else "–" for spread in spreads]


def _number(spread: Spread) -> str:
    around = f" ±{spread.share / 2:.0%}" if spread.high > spread.low else ""
    return _short(spread.middle) + around


def _short(value: float) -> str:
    """Return the value with three digits."""
    if abs(value) >= 1000:
        digits = len(str(int(abs(value)))) - 3
        return f"{round(value, -digits):,.0f}"
    return f"{value:.3g}"


def _share(value: float) -> str:
    return f"{value:.0%}" if value >= 0.005 else "–"


def _times(count: int, what: str) -> str:
    return f"{count} {what}" + ("s" if count != 1 else "")


def _table(head: Row, rows: Iterable[Row]) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])
