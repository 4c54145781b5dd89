"""Samples of measurements, and statistics over their rounds."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

PERCENTILES = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p99.9": 99.9, "p99.99": 99.99}
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
    commit: str = ""
    """The commit that was measured; "" in results from before commits were recorded."""
    is_dirty: bool = False
    """Whether files of that commit were changed, documentation apart."""
    versions: dict[str, str] = field(default_factory=dict)
    servers: dict[str, str] = field(default_factory=dict)
    """The command line of each server process, by a name that ends in its kind and number: ``kafka-3/kafka-1``."""
    corrections: list[str] = field(default_factory=list)
    """Sentences about figures that were found wrong after they were published, and withdrawn."""
    remarks: list[str] = field(default_factory=list)
    """Sentences about the run that its figures do not show, such as other work on the machine."""
    warm_up: list[Sample] = field(default_factory=list)
    """The rounds that came first and do not count."""
    samples: list[Sample] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def measured_at(self) -> str:
        """The line at the top of the page: which code these figures are of.  The page's check compares it."""
        if not self.commit:
            return f"Measured before commits were recorded ({self.started})."
        changed = ", with changes that were not committed" if self.is_dirty else ""
        return f"Measured at commit `{self.commit[:12]}`{changed} ({self.started})."

    @property
    def head(self) -> str:
        """The first lines below a page's title: the measured code, and what a reader must know of the figures."""
        corrected = (f"**Corrected:** {each}" for each in self.corrections)
        return "\n\n".join([self.measured_at, *corrected, *(f"**Remark:** {each}" for each in self.remarks)])

    def require_same_code(self, earlier: Results) -> None:
        """Raise ValueError if ``earlier`` is of another commit: a page shows one."""
        if (earlier.commit, earlier.is_dirty) != (self.commit, self.is_dirty) or not self.commit:
            raise ValueError(f"the earlier figures are not of commit {self.commit}: {earlier.measured_at}")

    def require_same_plan(self, earlier: Results, *, besides: Collection[str] = ()) -> None:
        """Raise ValueError if ``earlier``, which was loaded, had other amounts, clients or settings."""
        asked = json.loads(json.dumps(self.plan))  # as the earlier plan was stored: without tuples
        for name in sorted(asked.keys() - set(besides)):
            if asked[name] != earlier.plan.get(name):
                raise ValueError(f"the earlier run had another {name}: {earlier.plan.get(name)}")

    def add_earlier(self, earlier: Results, key: Callable[[Sample], object]) -> None:
        """Keep the earlier samples whose ``key`` no sample of now has.  Raises ValueError if they are of other code."""
        self.require_same_code(earlier)
        measured = {key(sample) for sample in self.samples}
        self.samples = [sample for sample in earlier.samples if key(sample) not in measured] + self.samples
        self.warm_up = earlier.warm_up + self.warm_up
        self.failures = earlier.failures + self.failures
        self.servers = earlier.servers | self.servers
        self.versions = earlier.versions | self.versions
        self.load = earlier.load + self.load
        self.command = f"{earlier.command}\n    {self.command}"
        self.took_s += earlier.took_s

    def of(self, bench: str, adapter: str, case: str) -> list[Sample]:
        """Return the samples of one case, round by round."""
        wanted = (bench, adapter, case)
        return [sample for sample in self.samples if (sample.bench, sample.adapter, sample.case) == wanted]

    def of_bench(self, bench: str) -> list[Sample]:
        """Return the samples of one bench."""
        return [sample for sample in self.samples if sample.bench == bench]

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
        for kind in ("samples", "warm_up"):
            state[kind] = [_rounded(sample) for sample in state[kind]]
        path.write_text(json.dumps(state, indent=1) + "\n")

    @classmethod
    def load_from(cls, path: Path) -> Results:
        """Return the results that ``save`` wrote."""
        state = json.loads(path.read_text())
        for kind in ("samples", "warm_up"):
            state[kind] = [Sample(**sample) for sample in state.get(kind, ())]
        return cls(**state)


def saver(
    results: Results, path: Path, earlier: Results | None = None, key: Callable[[Sample], object] = id
) -> Callable[[], None]:
    """Return a function that saves what was measured so far, and how long it took from here on.

    Called after each step, it leaves a run that is ended what it has.  The samples of ``earlier`` are kept, but for
    those whose ``key`` a sample of now has; without a ``key`` all.  Raises ValueError if they are of other code.
    """
    if earlier is not None:
        results.require_same_code(earlier)
    begun = time.monotonic()

    def save() -> None:
        results.took_s = time.monotonic() - begun
        found = copy(results)
        if earlier is not None:
            found.add_earlier(earlier, key)
        found.save(path)

    return save


def latency_metrics(
    latencies_s: Sequence[float] | NDArray[np.float64], unit: str = "ms", *, beyond: int = 1
) -> dict[str, float]:
    """Return percentiles in ``unit``, a key of ``SECOND``, each only if at least ``beyond`` values lie beyond it."""
    values = np.asarray(latencies_s, dtype=np.float64) * SECOND[unit]
    if not len(values):
        return {}
    metrics = {"n": float(len(values)), f"max_{unit}": float(values.max())}
    for name, percent in PERCENTILES.items():
        if len(values) * (100 - percent) >= 100 * beyond:
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
