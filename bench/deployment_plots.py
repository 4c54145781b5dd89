"""The parts that pictures of deployments share: their colours, an axis of milliseconds, the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

SETTINGS: Any = {
    "svg.fonttype": "none", "svg.hashsalt": "bmq", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3,
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
}  # fmt: skip
"""Settings of matplotlib: text stays text, and the same results give the same file."""
STYLES = {
    "kafka-1": ("#d55e00", "s"),
    "kafka-3": ("#d55e00", "s"),
    "bmq-local": ("#0072b2", "o"),
    "bmq-3": ("#0072b2", "o"),
    "bmq-hdfs": ("#009e73", "^"),
}
"""Colours and markers: the colours are those of Okabe and Ito, which colour-blind readers tell apart."""


def column(height: float) -> tuple[Figure, Any]:
    """Return a figure as wide as a phone shows it, with two panels, one below the other, and those panels."""
    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(4.4, height), layout="constrained")
        return figure, figure.subplots(2, 1, sharex=True)


def log_of_ms(axis: Any, title: str) -> None:
    """Give an axis of milliseconds its scale, with plain numbers and some between the powers of ten."""
    axis.set(yscale="log", title=title, ylabel="milliseconds, log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.yaxis.set_minor_formatter(NullFormatter())


def save(figure: Figure, folder: Path, name: str) -> None:
    """Write a figure as SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(SETTINGS):
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
