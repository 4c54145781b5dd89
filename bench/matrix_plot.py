"""The picture of docs/benchmarks-matrix.md: ratios to Kafka with their quartiles, as SVG, one narrow column."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.comparison import Comparison
from bench.deployments import NAMES
from bench.plots import DEPLOYMENTS, column, save

ROW_INCHES = 0.36
SHIFT = 0.24
Dot = tuple[str, str, Comparison]
"""A case, one of our deployments, and how it compares."""


def draw(panels: Sequence[tuple[str, Sequence[Dot]]], folder: Path, name: str) -> None:
    """Draw a panel below the other, with a row for each case and a dot for each deployment."""
    shown = [(title, dots) for title, dots in panels if dots]
    heights = [len({case for case, *_ in dots}) + 3 for _, dots in shown]
    figure, axes = column([ROW_INCHES * height for height in heights])
    for axis, (title, dots) in zip(axes, shown, strict=True):
        cases = list(dict.fromkeys(case for case, *_ in dots))
        adapters = list(dict.fromkeys(adapter for _, adapter, _ in dots))
        for index, adapter in enumerate(adapters):
            found = {case: comparison for case, each, comparison in dots if each == adapter}
            places = [cases.index(case) + (index - (len(adapters) - 1) / 2) * SHIFT for case in found]
            middles = [each.ratio for each in found.values()]
            whiskers = [
                [each.ratio - each.low for each in found.values()],
                [each.high - each.ratio for each in found.values()],
            ]
            colour, marker = DEPLOYMENTS[adapter]
            style = {"color": colour, "marker": marker, "linestyle": "none", "capsize": 2}
            axis.errorbar(middles, places, xerr=whiskers, label=NAMES[adapter], **style)
        axis.axvline(1, color="#555555", linewidth=1)
        axis.set_yticks(range(len(cases)), [case.replace(", ", ",\n", 1) for case in cases])
        axis.invert_yaxis()
        axis.set(title=f"{title}: BMQ's rate / Kafka's", xscale="log", xlabel="slower  |  1 = equal  |  faster")
        low, high = (pick(getattr(each, side) for *_, each in dots) for pick, side in ((min, "low"), (max, "high")))
        ticks = [tick for tick in (0.1, 0.25, 0.5, 1, 2, 4, 10) if low / 2.5 <= tick <= high * 2.5 or tick == 1]
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.minorticks_off()
    if shown:
        axes[0].legend(fontsize=8)
    save(figure, folder, name)
