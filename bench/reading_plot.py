"""The picture of docs/benchmarks-reading.md: p99 of producers and of tail readers, with and without a catch-up."""

from __future__ import annotations

from matplotlib.figure import Figure

from bench.deployments import NAMES
from bench.plots import DEPLOYMENTS, column, log_of_ms
from bench.reading_measure import ALONE, EFFECT, FULL_SPEED
from bench.results import Results

PICTURE = "reading-effect"
TITLES = {"ack": "Producer, p99", "end": "Reader of the tail, p99"}
WIDTH = 0.18
"""The distance between the marks of two deployments."""


def in_order(results: Results) -> list[str]:
    """Return the cases, the one without a catch-up first; rounds measure them in another order."""
    return sorted(results.cases(EFFECT), key=lambda case: (case != ALONE, case == FULL_SPEED))


def effect_of_catch_up(results: Results) -> Figure:
    """Return the picture: a panel for each latency, a mark for each deployment and case, with its spread."""
    figure, panels = column([3.0] * 2, is_x_shared=True)
    cases = in_order(results)
    names = results.adapters(EFFECT)
    for axis, (kind, title) in zip(panels, TITLES.items(), strict=True):
        for index, name in enumerate(names):
            colour, marker = DEPLOYMENTS[name]
            for place, case in enumerate(cases):
                spread = results.spread(EFFECT, name, case, f"{kind}_p99_us")
                if spread is not None:
                    middle, low, high = (value / 1000 for value in (spread.middle, spread.low, spread.high))
                    axis.errorbar(
                        place + (index - (len(names) - 1) / 2) * WIDTH, middle, yerr=[[middle - low], [high - middle]],
                        fmt=marker, color=colour, capsize=3, label=NAMES[name] if place == 0 else None,
                    )  # fmt: skip
        log_of_ms(axis, title)
    panels[-1].set_xticks(range(len(cases)), [case.replace("catch-up ", "catch-up\n") for case in cases], fontsize=8)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", fontsize=7)
    return figure
