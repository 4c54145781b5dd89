"""The rounds of one part of the Spark benchmark: first those that warm up, then those that count, all ways in turn."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from bench.results import Results, Sample
from bench.spark_plan import Plan
from bench.spark_sites import Way
from bench.warm_up import is_warm, ordered

Run = Callable[[Way], Iterator[Sample]]
RATE = "records_s"
"""The metric that must not rise any more before rounds count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One measurement, made by each of its ways in turn.  ``name`` tells it from others in a failure's text."""

    name: str
    ways: Sequence[Way]
    run: Run
    is_warming: bool = True
    """Whether it is made in the rounds that warm up; one at least has to be, with a rate."""


def play(part: str, measurements: Sequence[Measurement], plan: Plan, results: Results) -> None:
    """Run the part's rounds and keep their samples; ``results.plan["warm_up"]`` tells how it was warmed up."""
    rates: dict[str, list[float]] = {}
    number = 0
    while number < plan.warm_rounds_most and not is_warm(rates):
        for sample in _round(number, [each for each in measurements if each.is_warming], results):
            results.warm_up.append(replace(sample, round=-number))
            if RATE in sample.metrics:
                rates.setdefault(f"{sample.adapter}, {sample.bench}, {sample.case}", []).append(sample.metrics[RATE])
        number += 1
    results.plan.setdefault("warm_up", {})[part] = {"rounds": number, "is_warm": is_warm(rates)}
    for number in range(1, plan.rounds + 1):
        for sample in _round(number, measurements, results):
            results.samples.append(replace(sample, round=number))


def _round(number: int, measurements: Sequence[Measurement], results: Results) -> Iterator[Sample]:
    """Yield the samples of one round.  A failure is a result too, and costs no other figure."""
    results.load.append(round(os.getloadavg()[0], 2))
    for measurement in measurements:
        for way in ordered(measurement.ways, max(0, number - 1)):  # rounds that count are from 1 on
            try:
                for sample in measurement.run(way):
                    show(number, sample)
                    yield sample
            except Exception as error:  # noqa: BLE001
                fail(results, f"round {number}, {measurement.name}, {way.name}", error)


def show(number: int, sample: Sample) -> None:
    """Print a sample."""
    shown = "  ".join(f"{name}={value:.4g}" for name, value in sample.metrics.items())
    print(f"round {number}  {sample.adapter:21}  {sample.bench}, {sample.case}:  {shown}", flush=True)


def fail(results: Results, what: str, error: Exception) -> None:
    """Keep a failure and print it."""
    lines = str(error).strip().splitlines()
    results.failures.append(f"{what}: {type(error).__name__}: {lines[0] if lines else ''}")
    print(f"{results.failures[-1]}\n{error}", file=sys.stderr, flush=True)
