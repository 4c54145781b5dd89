"""The page docs/benchmarks-soak.md and its picture: what was sampled over hours, and whether it rises."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from matplotlib.figure import Figure

from bench import machine
from bench.page import failed, listed, short, table
from bench.plots import PARTS, save
from bench.results import Results
from bench.trend import trend

OBJECTIONS = Path(__file__).with_name("soak_objections.md")
PLOT = "soak"
BENCH, RESTART = "soak", "restart"
HOUR_S = 3600.0
PANELS: dict[str, dict[str, str]] = {
    "Memory, MB": {
        "bmq_0_mb": "node 0, never restarted", "bmq_1_mb": "node 1", "bmq_2_mb": "node 2", "etcd_mb": "etcd, largest",
        "namenode_mb": "NameNode", "datanode_mb": "datanode, largest",
    },
    "Descriptors": {
        "bmq_0_fds": "node 0, never restarted", "bmq_1_fds": "node 1", "bmq_2_fds": "node 2",
        "datanode_fds": "datanode, most",
    },
    "HDFS": {"files": "files and folders", "blocks": "blocks", "open_files": "files being written"},
    "HDFS, MB": {"stored_mb": "on datanodes' disks, all copies"},
    "etcd, keys": {"etcd_keys": "keys of the cluster"},
    "etcd, revision": {"etcd_revision": "writes so far"},
    "etcd, MB": {"etcd_in_use_mb": "in use", "etcd_file_mb": "database file"},
    "Latency, µs": {"p50_us": "p50", "p99_us": "p99"},
    "Records": {"lag": "not consumed yet"},
}  # fmt: skip
"""The parts of the picture, and the figures in each, by their titles."""
RESTARTED = frozenset({"bmq_1_mb", "bmq_2_mb", "bmq_1_fds", "bmq_2_fds"})
"""Figures that begin again at each restart, and about which there is no verdict."""
TENTH = 10


def write(results: Results, out: Path) -> None:
    """Write the page and its picture into folder ``out``."""
    save(_figure(results), out / "benchmarks", PLOT)
    (out / "benchmarks-soak.md").write_text(page(results))


def page(results: Results) -> str:
    """Return the page."""
    parts = [_head(results)]
    parts += [_verdicts(results, name) for name in results.adapters(BENCH)]
    parts += [f"![all samples](benchmarks/{PLOT}.svg)\n\nDotted lines: restarts.", _restarts(results)]
    parts.append(failed(results))
    parts.append(OBJECTIONS.read_text().strip())
    return "\n\n".join(filter(None, parts)) + "\n"


def series(results: Results, name: str, metric: str) -> tuple[list[float], list[float]]:
    """Return the seconds and the values of a figure, of the samples that have it."""
    found = [sample.metrics for sample in results.of(BENCH, name, "") if metric in sample.metrics]
    return [metrics["at_s"] for metrics in found], [metrics[metric] for metrics in found]


def verdict(times_s: Sequence[float], values: Sequence[float]) -> tuple[str, str]:
    """Return the verdict in words, and the rise a day that would not be seen."""
    found = trend(times_s, values)
    if found is None:
        return "too few samples", "-"
    unseen = short(found.unseen_day)
    if found.verdict == "steady":
        return "steady", unseen
    return f"**{found.verdict} by {short(abs(found.rise_day))} a day**", unseen


def _head(results: Results) -> str:
    plan = results.plan
    return f"""# Hours of steady load

{results.head}

Written by `make bench-soak`; do not edit. Every sample, with the command line of each process, is in
`benchmarks/{PLOT}.json`.

    {results.command}

{results.started}, {results.took_s / HOUR_S:.1f} hours. Three BMQ processes with all roles over etcd and HDFS. One
librdkafka producer with `linger.ms=0` and `acks=all` sends {plan["records_s"]:,} records of 1 KB a second to
{plan["partitions"]} partitions, and a consumer of a group reads them: {plan.get("acknowledged", 0):,} acknowledged,
{plan.get("consumed", 0):,} consumed (with those that it read again after a fail-over). It checks that no offset is
missing. Records expire after {plan["retention_s"]:g} s; segments are rolled after {plan["segment_s"]:g} s at most.

Meanwhile {plan.get("topics", 0):,} topics were made, written and deleted, one after another with
{plan["topics_every_s"]:g} s between; {plan.get("groups", 0):,} times a consumer joined one of ten groups, read,
committed and left, with {plan["groups_every_s"]:g} s between; and every {plan["restart_every_s"]:g} s one of two nodes
was restarted, by turns by SIGTERM and by `kill -9`. A sample is taken every {plan["sample_s"]:g} s.

BMQ's settings beside defaults: {listed(plan["settings"])}

{table(("", ""), machine.rows(results))}

Load average: {min(results.load, default=0):g} to {max(results.load, default=0):g}, this load included."""


def _verdicts(results: Results, name: str) -> str:
    rows = []
    for panel, figures in PANELS.items():
        for metric, title in figures.items():
            times, values = series(results, name, metric)
            if values:
                tenth = max(1, len(values) // TENTH)
                ends = [short(median(part)) for part in (values[:tenth], values[-tenth:])]
                told = ("restarted", "-") if metric in RESTARTED else verdict(times, values)
                rows.append((f"{panel}: {title}", *ends, short(min(values)), short(max(values)), *told))
    head = ("", "first tenth", "last tenth", "least", "most", "last half", "not seen, a day")
    return f"""## {name}: does anything rise?

Medians of the first and the last tenth of the samples. The verdict is about the last half: "rises" if the line through
it (the median of the slopes of all pairs) rises by more than the samples spread around it, from the tenth to the
ninetieth percentile. What rises by less is called steady; the last column says how much that would be a day.

{table(head, rows)}"""


def _restarts(results: Results) -> str:
    found = [sample for sample in results.samples if sample.bench == RESTART]
    if not found:
        return ""
    rows = []
    for case in dict.fromkeys(sample.case for sample in found):
        times = [sample.metrics["took_s"] for sample in found if sample.case == case]
        rows.append((case, str(len(times)), short(median(times)), short(max(times))))
    head = ("", "times", "median, s", "longest, s")
    return f"## Restarts\n\nFrom the signal until the process is ready again.\n\n{table(head, rows)}"


def _figure(results: Results) -> Figure:
    """Draw one panel below the other, so that a phone shows them."""
    figure = Figure(figsize=(4.4, 1.7 * len(PANELS)), layout="constrained")
    axes = figure.subplots(len(PANELS), 1, sharex=True)
    name = next(iter(results.adapters(BENCH)), "")
    restarts = [sample.metrics["at_s"] / HOUR_S for sample in results.samples if sample.bench == RESTART]
    for axis, (panel, figures) in zip(axes, PANELS.items(), strict=True):
        is_drawn = False
        for (metric, title), colour in zip(figures.items(), PARTS, strict=False):
            times, values = series(results, name, metric)
            if values:
                is_drawn = True
                axis.plot([at / HOUR_S for at in times], values, color=colour, linewidth=1, label=title)
        for at in restarts:
            axis.axvline(at, color="#999999", linestyle=":", linewidth=0.7)
        axis.set_title(panel, fontsize=9)
        is_logarithmic = panel.startswith("Latency")
        axis.set(yscale="log" if is_logarithmic else "linear")
        if not is_logarithmic:
            axis.set_ylim(bottom=0)
        if is_drawn:
            axis.legend(fontsize=6, loc="upper left")
    axes[-1].set_xlabel("hours")
    return figure
