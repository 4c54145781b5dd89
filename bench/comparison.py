"""Comparisons of two sides that were measured in turn: the ratio of each pair of rounds, and what its spread says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, quantiles

from bench.results import Results

LOWER_IS_BETTER = ("_ms", "_us", "cpu_", "seconds", "bytes_after")
"""Parts of the names of metrics of which the smaller value is the better one."""
Metrics = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One metric of two sides: medians of both, and the median and the quartiles of the pairs' ratios."""

    metric: str
    before: float
    after: float
    ratio: float
    """The later side (or ours) to the earlier one (or theirs)."""
    low: float
    high: float
    own_low: float
    """The quartiles of each side beside itself, one round to the next: what the machine's noise does to a ratio."""
    own_high: float

    @property
    def verdict(self) -> str:
        """ "equal" if 1 lies within the quartiles, or the ratio within what a side differs from itself."""
        if self.low <= 1 <= self.high or self.own_low <= self.ratio <= self.own_high:
            return "equal"
        return "better" if (self.ratio < 1) == is_cost(self.metric) else "WORSE"


def is_cost(metric: str) -> bool:
    """Return whether the smaller value of this metric is the better one."""
    return any(part in metric for part in LOWER_IS_BETTER)


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile; of one value three times that value."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return low, middle, high


def compare(metric: str, pairs: Sequence[tuple[float, float]]) -> Comparison:
    """Return the comparison of one metric; ``pairs`` are (before, after) of each pair in order, before never 0."""
    low, middle, high = quartiles([after / before for before, after in pairs])
    before, after = (median(pair[side] for pair in pairs) for side in (0, 1))
    own_low, _, own_high = quartiles([change for side in (0, 1) for change in _changes([pair[side] for pair in pairs])])
    return Comparison(metric, before, after, middle, low, high, own_low, own_high)


def _changes(values: Sequence[float]) -> list[float]:
    """Return the ratio of each value to the next, both ways around, as no round comes first by right; 1 for one."""
    ratios = [later / earlier for earlier, later in pairwise(values) if earlier and later]
    return [change for ratio in ratios for change in (ratio, 1 / ratio)] or [1.0]


def compare_all(pairs: Sequence[tuple[Metrics, Metrics]]) -> list[Comparison]:
    """Return a comparison for each metric that both sides of every pair have, in the order of the first pair."""
    names = [name for name in pairs[0][0] if all(name in after and before.get(name) for before, after in pairs)]
    return [compare(name, [(before[name], after[name]) for before, after in pairs]) for name in names]


def compare_rounds(
    results: Results, bench: str, metric: str, *, before: tuple[str, str], after: tuple[str, str]
) -> Comparison | None:
    """Return the comparison of two sides over the rounds that both have; None if there is none.

    A side is (adapter, case): two deployments in one case, or one deployment in two cases.
    """
    theirs, ours = ({each.round: each.metrics for each in results.of(bench, *side)} for side in (before, after))
    both = [(theirs[number], ours[number]) for number in sorted(theirs.keys() & ours.keys())]
    pairs = [(first[metric], second[metric]) for first, second in both if first.get(metric) and metric in second]
    return compare(metric, pairs) if pairs else None
