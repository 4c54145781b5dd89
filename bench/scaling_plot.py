"""The picture of docs/benchmarks-scaling.md: throughput by processes, and a plan by partitions, one narrow column."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.plots import DEPLOYMENTS, column, save
from bench.results import Results
from bench.scaling_planning import BENCH as PLANNING

STYLES = list(dict.fromkeys(DEPLOYMENTS.values()))
PANEL_INCHES = 3.2


def draw(results: Results, folder: Path, name: str) -> bool:
    """Draw the panels that have samples; return False, without a file, if none has."""
    panels: list[Callable[[Any], None]] = []
    if results.cases("produce"):
        panels.append(lambda axis: _throughput(axis, results))
    if results.cases(PLANNING):
        panels.append(lambda axis: _plans(axis, results))
    if not panels:
        return False
    figure, axes = column([PANEL_INCHES for _ in panels])
    for axis, panel in zip(axes, panels, strict=True):
        panel(axis)
    save(figure, folder, name)
    return True


def _throughput(axis: Any, results: Results) -> None:
    """Draw the rates of separate processes and of workers, with whiskers from the lowest to the highest round."""
    counts = set()
    for index, (bench, is_workers) in enumerate((b, w) for b in ("produce", "consume") for w in (False, True)):
        places, middles, lows, highs = [], [], [], []
        for case in results.cases(bench):
            spread = results.spread(bench, "bmq", case, "mb_s")
            if case.startswith("--") == is_workers and spread is not None:
                places.append(int("".join(filter(str.isdigit, case))))
                middles.append(spread.middle)
                lows.append(spread.middle - spread.low)
                highs.append(spread.high - spread.middle)
        if places:
            order = sorted(range(len(places)), key=lambda at: places[at])
            colour, marker = STYLES[index // 2]
            line = "--" if is_workers else "-"
            label = f"{bench}, {'--workers' if is_workers else 'processes'}"
            axis.errorbar(
                [places[at] for at in order], [middles[at] for at in order],
                yerr=[[lows[at] for at in order], [highs[at] for at in order]],
                color=colour, marker=marker, linestyle=line, capsize=2, label=label,
            )  # fmt: skip
            counts |= set(places)
    axis.set(title="Throughput of one cluster", xlabel="processes", ylabel="MB/s", ylim=(0, None))
    axis.set_xticks(sorted(counts))
    axis.legend(fontsize=8)


def _plans(axis: Any, results: Results) -> None:
    """Draw the time of a plan of all partitions, a line for each number of brokers."""
    lines: dict[int, list[tuple[int, float]]] = {}
    for case in results.cases(PLANNING):
        brokers, partitions = size_of(case)
        spread = results.spread(PLANNING, "planner", case, "all_seconds")
        if spread is not None:
            lines.setdefault(brokers, []).append((partitions, spread.middle))
    for index, (brokers, points) in enumerate(sorted(lines.items())):
        colour, marker = STYLES[index % len(STYLES)]
        places, middles = zip(*sorted(points), strict=True)
        axis.plot(places, middles, color=colour, marker=marker, linestyle=":", label=f"{brokers:,} brokers")
    axis.set(title="Plan of all partitions", xlabel="partitions", ylabel="seconds", xscale="log", yscale="log")
    axis.legend(fontsize=8)


def size_of(case: str) -> tuple[int, int]:
    """Return the brokers and the partitions of a case of planning: ``10 brokers, 100 topics of 1,000``."""
    words = case.replace(",", "").split(" ")
    return int(words[0]), int(words[2]) * int(words[5])
