"""A picture of an audit: records and bytes over the hours, and where in which partition they lie."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from bmq.spark.jobs.audit_report import AuditReport, hours_and_partitions

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HOUR = timedelta(hours=1)
_LAST_EDGE = datetime(9999, 12, 31, 23, 59, tzinfo=UTC)
"""The latest time of a picture: neither Python nor matplotlib has a date for the end of the year 9999."""
COLUMNS_MAX = 2000
"""Columns of the picture; if there are more hours, several share a column."""
_INK, _RECORDS, _VALUES, _STORED, _FAULT = "#333333", "#33658a", "#86bbd8", "#f6ae2d", "#c1121f"


def draw(report: AuditReport, path: Path) -> None:
    """Write the picture in the format that the name of ``path`` ends in."""
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "bmq"}):
        rows = max(1, len(report.ranges))
        figure = Figure(figsize=(11, 6.2 + min(4.0, 0.18 * rows)), layout="constrained")
        top, middle, bottom = figure.subplots(3, 1, sharex=True, height_ratios=[1, 1, 0.7 + min(2.0, 0.09 * rows)])
        figure.suptitle(_title(report), x=0.01, ha="left", fontsize=11, color=_INK)
        if not report.by_hour:
            for axes in (top, middle, bottom):
                axes.set_axis_off()
            middle.text(0.5, 0.5, "no records with a time", ha="center", color=_INK, transform=middle.transAxes)
        else:
            grid = _Grid(report)
            _bars(top, grid)
            _lines(middle, grid)
            _map(figure, bottom, grid, report)
        figure.savefig(path, dpi=140)


def _title(report: AuditReport) -> str:
    totals = report.totals
    verdict = (
        "every offset accounted for"
        if not report.faults
        else f"{len(report.faults)} fault{'s' * (len(report.faults) > 1)}"
    )
    return f"{report.topic}: {totals['records']:,} records in {len(report.ranges)} partitions, {verdict}"


class _Grid:
    """Sums by partition and column of the picture; a column is an hour, or as many hours as make ``COLUMNS_MAX``."""

    def __init__(self, report: AuditReport) -> None:
        self.first: datetime = report.by_hour[0]["hour"]
        hours = int((report.by_hour[-1]["hour"] - self.first) / HOUR) + 1
        self.hours_each = -(-hours // COLUMNS_MAX)
        self.columns = -(-hours // self.hours_each)
        self.partitions = sorted(report.ranges)
        names = ("records", "value_bytes", "key_bytes", "stored_bytes", "missing", "resent")
        self._sums = {name: np.zeros((len(self.partitions), self.columns)) for name in names}
        place = {partition: row for row, partition in enumerate(self.partitions)}
        for cell in hours_and_partitions(report.cells):
            column = int((cell["hour"] - self.first) / HOUR) // self.hours_each
            for name in names:
                self._sums[name][place[cell["partition"]], column] += cell[name]

    def of(self, name: str) -> Any:
        return self._sums[name]

    @property
    def edges(self) -> Any:
        """The bounds of the columns, as matplotlib's dates."""
        step = HOUR * self.hours_each
        room = _LAST_EDGE - self.first
        times = [self.first + min(step * column, room) for column in range(self.columns + 1)]
        return date2num(times)  # type: ignore[no-untyped-call]

    @property
    def unit(self) -> str:
        return "hour" if self.hours_each == 1 else f"{self.hours_each} hours"


def _bars(axes: Axes, grid: _Grid) -> None:
    edges = grid.edges
    axes.stairs(grid.of("records").sum(axis=0), edges, fill=True, color=_RECORDS)
    axes.set_ylabel(f"records / {grid.unit}")
    axes.yaxis.set_major_formatter(EngFormatter())
    axes.set_ylim(bottom=0)
    _grid_lines(axes)


def _lines(axes: Axes, grid: _Grid) -> None:
    edges = grid.edges
    plain = (grid.of("value_bytes") + grid.of("key_bytes")).sum(axis=0)
    axes.stairs(plain, edges, fill=True, color=_VALUES, label="keys and values")
    stored = grid.of("stored_bytes").sum(axis=0)
    axes.stairs(stored, edges, color=_STORED, linewidth=1.6, label="in the log, one replica")
    axes.set_ylabel(f"bytes / {grid.unit}")
    axes.yaxis.set_major_formatter(EngFormatter("B"))
    axes.set_ylim(bottom=0)
    # Above the bars: a swatch in front of a bar of its own colour cannot be seen.
    axes.legend(frameon=False, ncols=2, loc="lower right", bbox_to_anchor=(1, 0.98))
    _grid_lines(axes)


def _map(figure: Figure, axes: Axes, grid: _Grid, report: AuditReport) -> None:
    edges, counts = grid.edges, grid.of("records")
    rows = np.arange(len(grid.partitions) + 1) - 0.5
    mesh = axes.pcolormesh(edges, rows, np.ma.masked_equal(counts, 0), cmap="Blues", vmin=0, rasterized=True)
    faulty = np.argwhere(grid.of("missing") + grid.of("resent") > 0)
    if len(faulty):
        centres = ((edges[:-1] + edges[1:]) / 2)[faulty[:, 1]]
        axes.plot(centres, faulty[:, 0], "x", color=_FAULT, markersize=6, label="missing or twice", clip_on=False)
        axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 0.98))
    axes.set_ylabel("partition")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
    axes.yaxis.set_major_formatter(lambda value, _: _label(grid.partitions, value))
    axes.invert_yaxis()
    locator = AutoDateLocator()  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz="UTC"))  # type: ignore[no-untyped-call]
    axes.set_xlim(edges[0], edges[-1])
    axes.set_xlabel("time of the records, UTC")
    bar = figure.colorbar(mesh, ax=axes, pad=0.01, format=EngFormatter())
    bar.set_label(f"records / {grid.unit}")
    bar.outline.set_visible(False)


def _label(partitions: list[int], value: float) -> str:
    row = round(value)
    return str(partitions[row]) if 0 <= row < len(partitions) and abs(value - row) < 1e-6 else ""


def _grid_lines(axes: Axes) -> None:
    axes.grid(axis="y", color="#e3e3e3", linewidth=0.7)
    axes.set_axisbelow(True)
