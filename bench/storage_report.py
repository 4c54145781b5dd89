"""The page docs/benchmarks-storage.md and its picture: what was measured, and the bill that follows from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from statistics import median

from matplotlib.figure import Figure

from bench import machine, plots
from bench.page import failed, listed, number, short, table
from bench.results import Results, Spread, spread_of
from bench.storage_measure import CALL, per_partition
from bench.storage_model import Bill, Limits, Measured, bill

OBJECTIONS = Path(__file__).with_name("storage_objections.md")
PLOT = "storage"
BENCH, HEAP = "storage", "heap"
ADAPTER = "bmq-3"
PARTITIONS = 10_000
IDLE, IDLE_AFTER, CREATED, OPENED, LIVES = "idle, before", "idle, after", "created", "opened", "segments' lives"
RATES = {
    "a batch a second": (1.0, "a batch a second"),
    "a batch a minute": (60.0, "a batch a minute"),
    "a batch in ten minutes": (600.0, IDLE_AFTER),
    "idle": (math.inf, IDLE_AFTER),
}
"""The write rates of the bill: seconds between batches, and the case whose steady calls are taken."""
METHODS_MOST = 5
LIMITS = Limits()


def write(results: Results, out: Path) -> None:
    """Write the page and its picture into folder ``out``."""
    plots.save(_figure(results), out / "benchmarks", PLOT)
    (out / "benchmarks-storage.md").write_text(page(results))


def page(results: Results) -> str:
    """Return the page."""
    parts = [_head(results), _bills(results), _inputs(results), _methods(results)]
    parts.append(failed(results))
    parts.append(OBJECTIONS.read_text().strip())
    return "\n\n".join(filter(None, parts)) + "\n"


def over_rounds(results: Results, case: str, value: Callable[[dict[str, float]], float]) -> Spread | None:
    """Return the spread of a figure that is computed from each round's case; None if none has it."""
    found = [value(sample.metrics) for sample in results.of(BENCH, ADAPTER, case)]
    return spread_of(found) if found else None


def steady_calls(results: Results, case: str) -> Spread | None:
    """Return the calls a second of one partition in a case, beside those of an idle deployment in the same round."""
    idle = {sample.round: sample.metrics for sample in results.of(BENCH, ADAPTER, IDLE)}
    pairs = [(each.metrics, idle[each.round]) for each in results.of(BENCH, ADAPTER, case) if each.round in idle]
    found = [per_partition(metrics, before, results.plan["partitions"]) for metrics, before in pairs]
    return spread_of(found) if found else None


def segment_calls(results: Results) -> Spread | None:
    """Return the calls of one segment's life, those of an idle deployment left out."""
    return over_rounds(results, LIVES, lambda found: _calls_beside_idle(results, found) / found["batches"])


def _calls_beside_idle(results: Results, metrics: dict[str, float]) -> float:
    """Return the calls of a case without those that an idle deployment makes in that time."""
    return metrics["calls"] - _idle_calls_s(results) * metrics["seconds"]


def measured(results: Results, case: str) -> Measured | None:
    """Return the inputs of the bill for a write rate; None if a measurement is missing.

    A cost that is lost in noise may come out below 0: it is 0 then.
    """
    partitions = results.plan["partitions"]
    found = {
        "steady_calls_s": steady_calls(results, case) or (_NONE if case == IDLE_AFTER else None),
        "segment_calls": segment_calls(results),
        "segment_etcd_writes": over_rounds(results, LIVES, lambda each: each["etcd_writes"] / each["batches"]),
        "inode_bytes": over_rounds(results, HEAP, lambda each: each["inode_bytes"]),
        "block_bytes": over_rounds(results, HEAP, lambda each: each["block_bytes"]),
        "etcd_partition_bytes": over_rounds(results, CREATED, lambda each: each["etcd_bytes"] / partitions),
        "etcd_write_bytes": over_rounds(results, LIVES, lambda each: each["etcd_bytes"] / max(1, each["etcd_writes"])),
    }
    values = {name: max(0.0, spread.middle) for name, spread in found.items() if spread is not None}
    if len(values) < len(found) or not results.of(BENCH, ADAPTER, IDLE):
        return None
    return Measured(idle_calls_s=_idle_calls_s(results), **values)


_NONE = Spread(0.0, 0.0, 0.0)
"""Steady calls of partitions whose segments are closed, where that was not measured: nothing asks for them."""


def bills(results: Results) -> dict[str, Bill]:
    """Return the bill of each write rate, as far as it was measured."""
    batch_bytes = results.plan["batch_bytes"]
    found = {}
    for name, (every_s, case) in RATES.items():
        inputs = measured(results, case)
        if inputs is not None:
            found[name] = bill(PARTITIONS, every_s, batch_bytes, inputs, LIMITS)
    return found


def _idle_calls_s(results: Results) -> float:
    rates = [sample.metrics["calls"] / sample.metrics["seconds"] for sample in results.of(BENCH, ADAPTER, IDLE)]
    return median(rates) if rates else 0.0


def _head(results: Results) -> str:
    plan = results.plan
    return f"""# The bill of storage

{results.head}

Written by `make bench-storage`; do not edit. Every round, with the command line of each process, is in
`benchmarks/{PLOT}.json`.

    {results.command}

{results.started}, {results.took_s / 60:.0f} minutes, {plan["rounds"]} rounds. Three BMQ processes with all roles over
etcd and HDFS, with a topic of {plan["partitions"]} partitions. Calls are counted by the NameNode (JMX,
`RpcDetailedActivity`), those of datanodes left out; files and blocks by the NameNode, reserved room by the datanodes,
keys, revisions and bytes in use by etcd. From that the bill of {PARTITIONS:,} partitions is computed.

BMQ's settings beside defaults: {listed(plan["settings"])}

{table(("", ""), machine.rows(results))}

Load average before each round: {", ".join(f"{load:g}" for load in results.load)}."""


def _bills(results: Results) -> str:
    found = bills(results)
    if not found:
        return ""
    rows: list[tuple[str, Callable[[Bill], str]]] = [
        ("calls to the NameNode a second", lambda each: short(each.calls_s)),
        ("segments opened a day", lambda each: short(each.segments_day)),
        ("files made a day", lambda each: short(each.files_day)),
        ("blocks made a day", lambda each: short(each.blocks_day)),
        ("open files", lambda each: f"{each.open_files:,}"),
        ("brokers that may have as many open", lambda each: str(each.brokers)),
        ("datanodes with threads for as many", lambda each: str(each.datanodes)),
        ("reserved at first, all copies", lambda each: size(each.reserved_first_bytes)),
        ("reserved once segments are large", lambda each: size(each.reserved_bytes)),
        ("stored after a week, all copies", lambda each: size(each.stored_bytes)),
        ("files and folders after a week", lambda each: short(each.files_kept)),
        ("blocks after a week", lambda each: short(each.blocks_kept)),
        ("the NameNode's heap for them", lambda each: size(each.heap_bytes)),
        ("bytes in etcd", lambda each: size(each.etcd_bytes)),
    ]
    body = [(title, *(cell(each) for each in found.values())) for title, cell in rows]
    return f"""## {PARTITIONS:,} partitions, each with a small batch now and then

Computed. A batch is one record of 1 KB, {results.plan["batch_bytes"]:,} bytes. *idle*: written once, long ago.

![calls a second](benchmarks/{PLOT}.svg)

{table(("each partition gets", *found), body)}

{_arithmetic(results)}"""


def _arithmetic(results: Results) -> str:
    inputs = measured(results, "a batch a second")
    assert inputs is not None
    every_s = RATES["a batch a second"][0]
    found = bill(PARTITIONS, every_s, results.plan["batch_bytes"], inputs, LIMITS)
    segments_s = found.segments_day / 86_400
    minutes = LIMITS.idle_close_s / 60
    return f"""### The arithmetic

For "a batch a second", with the inputs below:

    calls/s   = idle + partitions x steady + segments/s x life
              = {inputs.idle_calls_s:.3g} + {PARTITIONS:,} x {inputs.steady_calls_s:.3g} \
+ {segments_s:.3g} x {inputs.segment_calls:.3g} = {found.calls_s:,.0f}
    segments  = partitions x bytes a day / block
              = {PARTITIONS:,} x {86_400 / every_s * results.plan["batch_bytes"]:,.0f} / {LIMITS.block_bytes:,} \
= {found.segments_day:,.0f} a day
    reserved  = open files x block x copies
              = {found.open_files:,} x {LIMITS.block_bytes:,} x {LIMITS.copies} = {size(found.reserved_bytes)}
    heap      = files and folders x {inputs.inode_bytes:.0f} + blocks x {inputs.block_bytes:.0f}
              = {found.files_kept:,.0f} x {inputs.inode_bytes:.0f} + {found.blocks_kept:,.0f} x \
{inputs.block_bytes:.0f} = {size(found.heap_bytes)}
    etcd      = partitions x {inputs.etcd_partition_bytes:.0f} + writes of an hour x {inputs.etcd_write_bytes:.0f} \
= {size(found.etcd_bytes)}

A partition that is written at least every {minutes:g} minutes (`idle_close_ms`) keeps its segment open; it is ended
when its block is full, after `segment.ms` (7 days) at the latest. One that is written more seldom opens a segment for
each batch, and its file is closed {minutes:g} minutes later: of partitions with a batch in ten minutes,
{LIMITS.idle_close_s / 600:.0%} have an open file at any time. The block is {LIMITS.first_block_bytes >> 20} MB at
first, and {LIMITS.block_bytes >> 20} MB after a segment that took half of that. Closed neighbours are merged up to
`segment.bytes` (1 GB): that leaves one log and one index, but as many blocks as there were logs; eight segments that
are not merged yet are counted for each partition. Each partition has a folder. The code is `bench/storage_model.py`."""


def _inputs(results: Results) -> str:
    partitions = results.plan["partitions"]
    rows = [
        ("idle deployment, calls/s", over_rounds(results, IDLE, lambda each: each["calls"] / each["seconds"])),
        *((f"{case}: calls/s of a partition, steady", steady_calls(results, case)) for case in _steady_cases(results)),
        ("a segment's life, calls", segment_calls(results)),
        ("the same, writes to etcd", over_rounds(results, LIVES, lambda each: each["etcd_writes"] / each["batches"])),
        ("a new partition, bytes in etcd", over_rounds(results, CREATED, lambda each: each["etcd_bytes"] / partitions)),
        ("the same, keys", over_rounds(results, CREATED, lambda each: each["etcd_keys"] / partitions)),
        (
            "a partition's first batch, calls",
            over_rounds(results, OPENED, lambda each: _calls_beside_idle(results, each) / partitions),
        ),
        ("the same, files made", over_rounds(results, OPENED, lambda each: each["files"] / partitions)),
        (
            "the same, MB reserved on all datanodes",
            over_rounds(results, OPENED, lambda each: each["reserved_bytes"] / partitions / (1 << 20)),
        ),
        ("NameNode's heap, bytes of a file without a block", _heap(results, "inode_bytes")),
        ("NameNode's heap, bytes of a block with its replicas", _heap(results, "block_bytes")),
    ]
    shown = [(title, number(spread)) for title, spread in rows if spread is not None]
    return f"""## What was measured

With {partitions} partitions; medians, with the lowest and the highest round. "A segment's life" is measured with
`segment.ms` so short that each batch opens a segment, and `retention.ms` so short that it is merged or deleted within
the measurement: opening, registering, writing, closing, indexing and the upkeep are in it. Steady calls are those
beside an idle deployment's in the same round.

{table(("", ""), shown)}"""


def _steady_cases(results: Results) -> list[str]:
    return [case for case in ("a batch a second", "a batch a minute", IDLE_AFTER) if case in results.cases(BENCH)]


def _heap(results: Results, metric: str) -> Spread | None:
    return over_rounds(results, HEAP, lambda each: each[metric])


def _methods(results: Results) -> str:
    rows = []
    for case in results.cases(BENCH):
        totals: dict[str, list[float]] = {}
        for sample in results.of(BENCH, ADAPTER, case):
            for name, count in sample.metrics.items():
                if name.startswith(CALL):
                    totals.setdefault(name.removeprefix(CALL), []).append(count / sample.metrics["seconds"])
        most = sorted(totals, key=lambda name: -median(totals[name]))[:METHODS_MOST]
        if most:
            rows.append((case, ", ".join(f"{name} {short(median(totals[name]))}" for name in most)))
    return f"## Which calls\n\nThe most frequent ones, a second.\n\n{table(('', 'calls/s'), rows)}" if rows else ""


def size(value: float) -> str:
    """Return bytes in the largest unit of a thousand that fits."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.0f} B"


def _figure(results: Results) -> Figure:
    """Draw the calls a second of each write rate, in their parts."""
    found = bills(results)
    figure = Figure(figsize=(4.4, 1.2 + 0.4 * max(1, len(found))), layout="constrained")
    axis = figure.subplots()
    places = list(range(len(found)))[::-1]
    titles = ("idle deployment", "steady, open files", "segments' lives")
    for place, (name, each) in zip(places, found.items(), strict=True):
        inputs = measured(results, RATES[name][1])
        assert inputs is not None
        parts = (inputs.idle_calls_s, PARTITIONS * inputs.steady_calls_s,
                 each.segments_day / 86_400 * inputs.segment_calls)  # fmt: skip
        left = 0.0
        for part, colour, title in zip(parts, plots.PARTS, titles, strict=False):
            axis.barh(place, part, left=left, color=colour, label=title if place == places[0] else None)
            left += part
        axis.annotate(f" {short(each.calls_s)}", (left, place), va="center", fontsize=7)
    axis.set_yticks(places, list(found))
    axis.set_title(f"Calls/s to the NameNode, {PARTITIONS:,} partitions", fontsize=9, loc="right")
    axis.margins(x=0.15)
    if found:
        axis.legend(fontsize=7, loc="lower right")
    return figure
