"""The delays as a picture: means by carrier, and every day of the year."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.dates import ConciseDateFormatter, MonthLocator, date2num
from matplotlib.figure import Figure

from demo.delays import Carrier, Day

_LATE, _EARLY, _INK = "#c1440e", "#2a6f97", "#333333"
SHOWN_MIN, SHOWN_MAX = -30.0, 90.0
"""Minutes at which colours end: a day of one flight may be hours late."""


def draw(carriers: Sequence[Carrier], days: Sequence[Day], airlines: Mapping[str, str], path: Path) -> None:
    """Draw a PNG at ``path``."""
    known = sorted((each for each in carriers if each.mean is not None), key=lambda each: each.mean or 0.0)
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(13, 0.34 * len(known) + 2.2), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=[1, 2.4])
        total = sum(each.flights for each in carriers)
        figure.suptitle(
            f"{total:,} flights from New York in 2013: delay at arrival, read by Spark from the segments",
            x=0.01, ha="left", fontsize=12, color=_INK,
        )  # fmt: skip
        _bars(left, known, airlines)
        _year(figure, right, known, days)
        figure.savefig(path, dpi=130)


def _bars(axes: Axes, carriers: Sequence[Carrier], airlines: Mapping[str, str]) -> None:
    means = [each.mean or 0.0 for each in carriers]
    rows = np.arange(len(carriers))
    axes.barh(rows, means, color=[_LATE if mean > 0 else _EARLY for mean in means], height=0.72)
    for row, (mean, each) in enumerate(zip(means, carriers, strict=True)):
        text = f"{mean:.1f}  ({each.flights:,} flights)"
        axes.annotate(text, (max(mean, 0.0), row), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks(rows, [f"{airlines.get(each.carrier, '')}  {each.carrier}" for each in carriers])
    axes.set_xlabel("mean delay, minutes")
    axes.axvline(0, color=_INK, linewidth=0.8)
    axes.margins(x=0.45)


def _year(figure: Figure, axes: Axes, carriers: Sequence[Carrier], days: Sequence[Day]) -> None:
    first, last = min(each.day for each in days), max(each.day for each in days)
    rows = {each.carrier: row for row, each in enumerate(carriers)}
    grid = np.full((len(carriers), (last - first).days + 1), np.nan)
    for each in days:
        if each.mean is not None:
            grid[rows[each.carrier], (each.day - first).days] = each.mean
    edges = [_number(first + timedelta(days=day)) for day in range(grid.shape[1] + 1)]
    mesh = axes.pcolormesh(
        edges, np.arange(len(carriers) + 1) - 0.5, np.ma.masked_invalid(grid),
        cmap="RdYlBu_r", norm=TwoSlopeNorm(0, SHOWN_MIN, SHOWN_MAX), rasterized=True,
    )  # fmt: skip
    worst = [(each.worst_day, rows[each.carrier]) for each in carriers if each.worst_day is not None]
    axes.plot(
        [_number(day) + 0.5 for day, _ in worst], [row for _, row in worst],
        "o", markerfacecolor="none", markeredgecolor=_INK, markersize=7, label="worst day",
    )  # fmt: skip
    locator = MonthLocator()  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1))
    bar = figure.colorbar(mesh, ax=axes, pad=0.01, extend="both")
    bar.set_label("mean delay of the day, minutes")
    bar.outline.set_visible(False)


def _number(day: date) -> float:
    return float(date2num(day))  # type: ignore[no-untyped-call]
