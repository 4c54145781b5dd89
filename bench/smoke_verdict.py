"""The figures of bench.smoke as ratios, the file that keeps them, and the verdict about each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from bench import machine
from bench.comparison import is_cost
from bench.provenance import current_commit
from bench.reference_loop import VERSION

BASELINE = Path(__file__).with_name("smoke_baseline.json")


@dataclass(frozen=True, slots=True)
class Ratio:
    """Our figure to the reference's: the median of the rounds, the lowest and the highest."""

    middle: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure over the rounds: medians of ours and of the reference's, and the ratio of each round."""

    name: str
    ours: float
    reference: float
    ratio: Ratio

    @classmethod
    def of(cls, name: str, rounds: Sequence[tuple[float, float]]) -> Figure:
        """Return the figure of ``rounds``, pairs of ours and the reference's; no reference is 0."""
        ratios = [ours / fixed for ours, fixed in rounds]
        ratio = Ratio(median(ratios), min(ratios), max(ratios))
        return cls(name, median(ours for ours, _ in rounds), median(fixed for _, fixed in rounds), ratio)


@dataclass(frozen=True, slots=True)
class Kept:
    """The ratios that later runs are compared with, and where they come from."""

    reference_version: int
    commit: str
    measured: str
    cpu: str
    ratios: dict[str, Ratio]

    @classmethod
    def of(cls, figures: Sequence[Figure]) -> Kept:
        """Return the ratios of this run, to be kept."""
        measured = datetime.now(UTC).strftime("%Y-%m-%d")
        cpu = machine.describe(None)["CPU"]
        return cls(VERSION, current_commit().name, measured, cpu, {each.name: each.ratio for each in figures})

    @classmethod
    def load(cls, path: Path) -> Kept | None:
        """Return the ratios in a file; None if there is none, or they are to another version of the reference."""
        if not path.exists():
            return None
        state = json.loads(path.read_text())
        if state["reference_version"] != VERSION:
            return None
        state["ratios"] = {name: Ratio(**ratio) for name, ratio in state["ratios"].items()}
        return cls(**state)

    def save(self, path: Path) -> None:
        """Write the file, each ratio with four digits."""
        state = asdict(self)
        for ratio in state["ratios"].values():
            ratio.update({name: float(f"{value:.4g}") for name, value in ratio.items()})
        path.write_text(json.dumps(state, indent=1) + "\n")


def verdict(name: str, now: Ratio, kept: Ratio | None) -> str:
    """Return "equal" if the spreads meet, "better" or "SLOWER" if they do not, "new" if nothing is kept."""
    if kept is None:
        return "new"
    if now.low <= kept.high and kept.low <= now.high:
        return "equal"
    return "better" if (now.middle < kept.middle) == is_cost(name) else "SLOWER"


def verdicts(figures: Sequence[Figure], kept: Kept | None) -> dict[str, str]:
    """Return the verdict about each figure."""
    ratios = kept.ratios if kept is not None else {}
    return {figure.name: verdict(figure.name, figure.ratio, ratios.get(figure.name)) for figure in figures}


def table(figures: Sequence[Figure], kept: Kept | None) -> str:
    """Return the table that is printed, and where the kept ratios come from."""
    found = verdicts(figures, kept)
    lines = [f"{'':20}{'bmq':>10}{'reference':>11}{'ratio':>9}{'spread':>17}{'kept':>9}  verdict"]
    for each in figures:
        before = kept.ratios.get(each.name) if kept is not None else None
        spread = f"{each.ratio.low:.2f} to {each.ratio.high:.2f}"
        shown = f"{before.middle:.2f}" if before is not None else "-"
        lines.append(
            f"{each.name:20}{each.ours:10.4g}{each.reference:11.4g}{each.ratio.middle:9.2f}{spread:>17}{shown:>9}"
            f"  {found[each.name]}"
        )
    if kept is None:
        lines.append(f"nothing is kept for version {VERSION} of the reference: write it with --keep")
    else:
        lines.append(f"kept at commit {kept.commit[:12]} on {kept.measured}, {kept.cpu}")
    return "\n".join(lines)
