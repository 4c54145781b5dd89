"""The plots of docs/benchmarks.md, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from bench.many import LOADS
from bench.plan import SIZES
from bench.results import CURVE, Results

COLOURS = {"memory": "#8da0cb", "local": "#66c2a5", "hdfs": "#fc8d62"}
DEPLOYMENTS = {
    "kafka-1": ("#d55e00", "s"),
    "kafka-3": ("#d55e00", "s"),
    "bmq-local": ("#0072b2", "o"),
    "bmq-3": ("#0072b2", "o"),
    "bmq-hdfs": ("#009e73", "^"),
}
"""Colours and markers of deployments: those of Okabe and Ito, which colour-blind people tell apart."""
PARTS = ("#0072b2", "#cc79a7", "#e69f00", "#009e73", "#56b4e9", "#d55e00", "#999999")
"""Colours of the lines or the parts of one figure: theirs as well."""
COLUMN_INCHES = 4.8
"""Width of a picture that a phone shows whole."""
AIM_MB_S, AIM_LATENCY_MS, AIM_CPU_S_GB = 140.0, 1.0, 1.5
_AIM = {"color": "#555555", "linestyle": "--", "linewidth": 1}

# Text stays text, and the same results give the same file.
mpl.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "bmq", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3}
mpl.rcParams |= {"axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True}


def draw(results: Results, folder: Path) -> list[str]:
    """Draw the plots and return the names of their files; a plot without samples is left out."""
    drawn = []
    for name, bench, plot in (
        ("throughput", "throughput", _throughput),
        ("latency", "latency", _latency),
        ("partitions", "partitions", _partitions),
        ("takeover", "takeover", _takeover),
    ):
        if set(results.adapters(bench)) & COLOURS.keys():
            figure = plot(results)
            save(figure, folder, name)
            drawn.append(name)
    return drawn


def save(figure: Figure, folder: Path, name: str) -> None:
    """Write a figure as SVG; the same results give the same file."""
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.svg", metadata={"Date": None})


def column(heights: Sequence[float], *, is_x_shared: bool = False) -> tuple[Figure, list[Any]]:
    """Return a figure of one column that a phone shows whole, with an axis of each height, in inches."""
    figure = Figure(figsize=(COLUMN_INCHES, sum(heights)), layout="constrained")
    axes = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights, sharex=is_x_shared)
    return figure, list(axes[:, 0])


def log_of_ms(axis: Any, title: str) -> None:
    """Give an axis of milliseconds its scale, with plain numbers and some between the powers of ten."""
    axis.set(yscale="log", title=title, ylabel="milliseconds, log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.yaxis.set_minor_formatter(NullFormatter())


def _figure(columns: int) -> tuple[Figure, Sequence[Any]]:
    figure = Figure(figsize=(COLUMN_INCHES * columns, 3.3), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False)[0]
    return figure, list(axes)


def _bars(axis: Any, results: Results, bench: str, cases: Sequence[str], metric: str) -> None:
    """Draw a group of bars per case, with whiskers from the lowest to the highest round."""
    adapters = [adapter for adapter in results.adapters(bench) if adapter in COLOURS]
    width = 0.8 / max(1, len(adapters))
    for index, adapter in enumerate(adapters):
        for place, case in enumerate(cases):
            spread = results.spread(bench, adapter, case, metric)
            if spread is None:
                continue
            at = place + (index - (len(adapters) - 1) / 2) * width
            whiskers = [[spread.middle - spread.low], [spread.high - spread.middle]]
            label = adapter if place == 0 else None
            axis.bar(at, spread.middle, width, yerr=whiskers, color=COLOURS[adapter], label=label, capsize=2)
            axis.annotate(f"{spread.middle:.3g}", (at, spread.high), ha="center", va="bottom", fontsize=7)
    axis.set_xticks(range(len(cases)), cases)


def _throughput(results: Results) -> Figure:
    figure, (rate, cost) = _figure(2)
    cases = list(SIZES)
    _bars(rate, results, "throughput", cases, "mb_s")
    rate.axhline(AIM_MB_S, **_AIM)
    rate.set(title="Throughput of one partition", ylabel="MB/s, log", yscale="log", xlabel="batch")
    rate.legend()
    _bars(cost, results, "throughput", cases, "cpu_s_gb")
    cost.axhline(AIM_CPU_S_GB, **_AIM)
    cost.set(title="CPU of our process", ylabel="CPU seconds per GB", xlabel="batch")
    return figure


def _latency(results: Results) -> Figure:
    cases = results.cases("latency")
    figure, axes = _figure(len(cases))
    for axis, case in zip(axes, cases, strict=True):
        for adapter in results.adapters("latency"):
            curves = [sample.series["curve_ms"] for sample in results.of("latency", adapter, case)]
            # On a scale of nines the tail is as wide as the middle.
            places = [1 / (1 - percent / 100) for percent in CURVE]
            for curve in curves:
                axis.plot(places, curve, color=COLOURS[adapter], alpha=0.8, linewidth=1.2)
            axis.plot([], [], color=COLOURS[adapter], label=adapter)
        axis.set(xscale="log", yscale="log", title=f"{case}, one at a time", xlabel="percentile")
        axis.set_xticks([2, 10, 100, 1000], ["50", "90", "99", "99.9"])
        if case == "1 KB":
            axis.axhline(AIM_LATENCY_MS, **_AIM)
    axes[0].set_ylabel("milliseconds, log")
    axes[0].legend()
    return figure


def _partitions(results: Results) -> Figure:
    figure, axes = _figure(3)
    counts = sorted({int(case.partition(", ")[0].replace(",", "")) for case in _part_cases(results)})
    metrics = (("appends_s", "appends/s"), ("flushes_s", "flushes/s"), ("p50_ms", "median latency, ms"))
    for axis, (metric, title) in zip(axes, metrics, strict=True):
        for adapter in results.adapters("partitions"):
            for load, style in zip(LOADS, ("o:", "s-"), strict=True):
                spreads = [results.spread("partitions", adapter, f"{count:,}, {load}", metric) for count in counts]
                known = [(count, spread) for count, spread in zip(counts, spreads, strict=True) if spread]
                places = [count for count, _ in known]
                middles = [spread.middle for _, spread in known]
                axis.plot(places, middles, style, color=COLOURS[adapter], markersize=4, label=f"{adapter}, {load}")
                lows, highs = [spread.low for _, spread in known], [spread.high for _, spread in known]
                axis.fill_between(places, lows, highs, color=COLOURS[adapter], alpha=0.2, linewidth=0)
        axis.set(xscale="log", yscale="log", title=f"1 KB batches: {title}", xlabel="active partitions")
        axis.set_xticks(counts, [f"{count:,}" for count in counts])
        axis.minorticks_off()
    axes[0].legend(fontsize=7)
    return figure


def _part_cases(results: Results) -> list[str]:
    return [case for case in results.cases("partitions") if ", " in case]


def _takeover(results: Results) -> Figure:
    figure, axes = _figure(2)
    titles = (("open_ms", "until it accepts batches"), ("first_flush_ms", "until its first batch is flushed"))
    for axis, (name, title) in zip(axes, titles, strict=True):
        adapters = results.adapters("takeover")
        values = [results.series("takeover", adapter, "1 KB", name) for adapter in adapters]
        boxes = axis.boxplot(values, whis=(0, 100), patch_artist=True, medianprops={"color": "black"})
        for box, adapter in zip(boxes["boxes"], adapters, strict=True):
            box.set_facecolor(COLOURS[adapter])
        axis.set_xticks(range(1, len(adapters) + 1), adapters)
        axis.set(title=f"Takeover, {title}", ylabel="milliseconds", ylim=(0, None))
    return figure
