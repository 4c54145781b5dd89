"""A benchmark of deployments beside each other: started together, warmed up, measured in alternating rounds, drawn.

``bench.latency`` and ``bench.reading`` are one ``Benchmark`` each, and have the same command line:

    python -m bench.NAME [--quick] [--only ...] [--deployments ...] [--add] [--out docs] [--folder DIR] [--render]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field, asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from bench import command, provenance
from bench.deployments import NAMES, REPLICATED_ENVIRONMENT, SITES, Deployment, start
from bench.results import Results, Sample, saver
from bench.servers import BMQ_ENVIRONMENT, KAFKA_PROPERTIES
from bench.warm_up import is_warm, ordered

Note = Callable[[Sample], None]
PRODUCING: Mapping[str, str] = MappingProxyType({"produce": "records_s"})


class Named(Protocol):
    """One of the sides of a comparison: a deployment, or another writer of the same bytes."""

    @property
    def name(self) -> str:
        """The adapter of its samples."""


N = TypeVar("N", bound=Named)
Throughput = Callable[[N, int], Iterator[Sample]]
"""A measurement of throughput, for the warm-up."""


class RoundPlan(Protocol):
    """Amounts of a run.  A dataclass: the results hold its fields."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def rounds(self) -> int:
        """The rounds that count."""

    @property
    def warm_rounds_most(self) -> int:
        """The rounds of throughput at most, before any of these."""


P = TypeVar("P", bound=RoundPlan)
Measure = Callable[[Deployment, P, int], Iterator[Sample]]
"""A measurement of one deployment in the round of this number; 0 is a round that does not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark(Generic[P]):
    """A module ``bench.NAME``, with its page docs/benchmarks-NAME.md and results docs/benchmarks/NAME.json."""

    name: str
    description: str
    full: P
    quick: P
    warm_up: Callable[[Deployment, P, int], Iterator[Sample]]
    measurements: Mapping[str, Measure[P]]
    write: Callable[[Results, Path], None]
    clients: Callable[[P], Mapping[str, str]]
    """The clients' settings, by what they measure."""


def main(benchmark: Benchmark[P], arguments: Sequence[str] | None = None) -> int:
    """Measure, write the page, and return the exit status."""
    options = _parse(benchmark, arguments)
    path = options.out / "benchmarks" / f"{benchmark.name}.json"
    if not options.render:
        _run(benchmark, options, sys.argv[1:] if arguments is None else arguments, path)
    return command.finish(path, lambda results: benchmark.write(results, options.out))


def _parse(benchmark: Benchmark[P], arguments: Sequence[str] | None) -> argparse.Namespace:
    measurements = benchmark.measurements
    parser = command.parser(
        f"bench.{benchmark.name}", benchmark.description, only=measurements, what="measurements", can_add=True
    )
    parser.add_argument("--deployments", default=",".join(SITES["replicas"]), help="comma-separated")
    options = parser.parse_args(arguments)
    command.require_known(parser, "measurement", options.only, measurements)
    command.require_known(parser, "deployment", options.deployments, NAMES)
    return options


def _run(benchmark: Benchmark[P], options: argparse.Namespace, given: Sequence[str], path: Path) -> None:
    """Measure, and save the results after each round: a run that is ended loses no round that it has done."""
    plan = benchmark.quick if options.quick else benchmark.full
    settings = {"kafka": KAFKA_PROPERTIES, "bmq": REPLICATED_ENVIRONMENT | BMQ_ENVIRONMENT}
    recorded = asdict(plan) | {"settings": settings, "clients": dict(benchmark.clients(plan))}
    results = provenance.begin(f"bench.{benchmark.name}", given, recorded, options.folder)
    earlier = command.earlier(path, results, besides=()) if options.add else None
    save = saver(results, path, earlier, lambda sample: sample.bench)
    wanted = [name for name in benchmark.measurements if name in options.only.split(",")]
    with contextlib.ExitStack() as stack:
        deployments = [
            deployment
            for name in options.deployments.split(",")
            if (deployment := started(stack, name, options.folder, results)) is not None
        ]
        warmth = warm_up(
            deployments, lambda each, number: benchmark.warm_up(each, plan, number), plan.warm_rounds_most, results
        )
        if earlier is not None and not earlier.plan["warm_up"]["is_warm"]:
            warmth = earlier.plan["warm_up"]
        results.plan["warm_up"] = warmth
        for number in range(1 if options.quick else 0, plan.rounds + 1):
            results.load.append(round(os.getloadavg()[0], 2))
            note = results.samples.append if number else results.warm_up.append
            for deployment in ordered(deployments, number):
                for name in wanted:
                    keep(results, deployment.name, name, benchmark.measurements[name](deployment, plan, number), note)
            save()


def started(stack: contextlib.ExitStack, name: str, folder: Path | None, results: Results) -> Deployment | None:
    """Start a deployment; one that does not start is a failure, and the others are measured without it."""
    try:
        deployment = stack.enter_context(start(name, folder))
    except Exception as error:  # noqa: BLE001
        results.failures.append(f"start of {name}: {error!r}")
        print(results.failures[-1], file=sys.stderr, flush=True)
        return None
    provenance.note_servers(results, deployment.processes, deployment.name)
    return deployment


def warm_up(
    sides: Sequence[N],
    throughput: Throughput[N],
    rounds_most: int,
    results: Results,
    *,
    rates_of: Mapping[str, str] = PRODUCING,
) -> dict[str, object]:
    """Run rounds of throughput until no rate rises; return how many, and whether that was reached.

    ``rates_of`` names the metric of each bench that is such a rate.
    """
    rates: dict[str, list[float]] = {}

    def note(sample: Sample) -> None:
        results.warm_up.append(sample)
        if (metric := rates_of.get(sample.bench)) is not None:
            rates.setdefault(f"{sample.adapter}, {sample.bench}, {sample.case}", []).append(sample.metrics[metric])

    number = 0
    while number < rounds_most and not is_warm(rates):
        results.load.append(round(os.getloadavg()[0], 2))
        for side in ordered(sides, number):
            keep(results, side.name, "warm-up", throughput(side, -number), note)
        number += 1
    return {"rounds": number, "is_warm": is_warm(rates)}


def keep(results: Results, name: str, bench: str, samples: Iterator[Sample], note: Note) -> None:
    """Print and keep the samples.  A failure is a result too, and costs no other figure."""
    try:
        for sample in samples:
            shown = "  ".join(f"{metric}={value:.4g}" for metric, value in sample.metrics.items())
            print(f"round {sample.round}  {sample.adapter:9}  {sample.bench}, {sample.case}:  {shown}", flush=True)
            note(sample)
    except Exception as error:  # noqa: BLE001
        results.failures.append(f"{bench} on {name}: {error!r}")
        print(results.failures[-1], file=sys.stderr, flush=True)
