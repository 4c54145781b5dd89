"""Samples of measurements, and statistics over their rounds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

PERCENTILES = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p99.9": 99.9}
SECOND = {"ms": 1e3, "us": 1e6}
"""A second in the units of latencies."""
CURVE = (1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measurement of one round.  ``case`` is the size or the number of partitions, in words."""

    adapter: str
    bench: str
    case: str
    round: int
    metrics: dict[str, float]
    series: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Spread:
    """One number over all rounds."""

    middle: float
    low: float
    high: float

    @property
    def share(self) -> float:
        """The highest less the lowest value, as a share of the median."""
        return (self.high - self.low) / self.middle if self.middle else 0.0


@dataclass(slots=True, kw_only=True)
class Results:
    """A run: its command, machine and plan, its samples, and its failures."""

    command: str
    machine: dict[str, str]
    plan: dict[str, Any]
    started: str
    took_s: float = 0.0
    load: list[float] = field(default_factory=list)
    """The machine's load average before each round: other work, and our own round before."""
    samples: list[Sample] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def of(self, bench: str, adapter: str, case: str) -> list[Sample]:
        """Return the samples of one case, round by round."""
        wanted = (bench, adapter, case)
        return [sample for sample in self.samples if (sample.bench, sample.adapter, sample.case) == wanted]

    def cases(self, bench: str) -> list[str]:
        """Return the cases in the order of measuring."""
        return list(dict.fromkeys(sample.case for sample in self.samples if sample.bench == bench))

    def adapters(self, bench: str) -> list[str]:
        """Return the adapters that a bench was measured on, in the order of measuring."""
        return list(dict.fromkeys(sample.adapter for sample in self.samples if sample.bench == bench))

    def spread(self, bench: str, adapter: str, case: str, metric: str) -> Spread | None:
        """Return a metric's spread over the rounds; None if no round has it."""
        values = [sample.metrics[metric] for sample in self.of(bench, adapter, case) if metric in sample.metrics]
        return Spread(median(values), min(values), max(values)) if values else None

    def series(self, bench: str, adapter: str, case: str, name: str) -> list[float]:
        """Return all rounds' values together."""
        return [value for sample in self.of(bench, adapter, case) for value in sample.series.get(name, ())]

    def save(self, path: Path) -> None:
        """Write the results as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        state = asdict(self)
        state["samples"] = [_rounded(sample) for sample in state["samples"]]
        path.write_text(json.dumps(state, indent=1) + "\n")

    @classmethod
    def load_from(cls, path: Path) -> Results:
        """Return the results that ``save`` wrote."""
        state = json.loads(path.read_text())
        state["samples"] = [Sample(**sample) for sample in state["samples"]]
        return cls(**state)


def latency_metrics(latencies_s: Sequence[float], unit: str = "ms") -> dict[str, float]:
    """Return percentiles in ``unit``, a key of ``SECOND``, each only if a value lies beyond it."""
    values = np.asarray(latencies_s, dtype=np.float64) * SECOND[unit]
    if not len(values):
        return {}
    metrics = {"n": float(len(values)), f"max_{unit}": float(values.max())}
    for name, percent in PERCENTILES.items():
        if len(values) * (100 - percent) >= 100:
            metrics[f"{name}_{unit}"] = float(np.percentile(values, percent))
    return metrics


def latency_curve(latencies_s: Sequence[float]) -> list[float]:
    """Return the milliseconds at each percentile of ``CURVE``."""
    return [float(value) for value in np.percentile(np.asarray(latencies_s, dtype=np.float64) * 1000, CURVE)]


def spread_of(values: Iterable[float]) -> Spread:
    """Return the median, the least and the largest of some values."""
    listed = list(values)
    return Spread(median(listed), min(listed), max(listed))


def _rounded(sample: dict[str, Any]) -> dict[str, Any]:
    """Round to six digits, which are more than any figure here is exact to, and keep the file small."""
    sample["metrics"] = {name: float(f"{value:.6g}") for name, value in sample["metrics"].items()}
    sample["series"] = {name: [float(f"{value:.4g}") for value in values] for name, values in sample["series"].items()}
    return sample
