"""The benchmark of BMQ beside Apache Kafka; it writes docs/benchmarks-kafka.md.

    python -m bench.against [--quick] [--sites local,replicas] [--only throughput,...] [--out docs]
    python -m bench.against --add ...       keep what an earlier run of the same commit measured and this one does not
    python -m bench.against --render        draw again from the results that are there

The deployments of a site run all the time, and each round measures all of them, in another order each time.  Rounds do
not count until no deployment's rate of producing rises any more.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from bench import against_report, command, provenance, rounds
from bench.against_measure import FULL, NOT_MEASURED, ONCE, QUICK, ROUNDS, Plan, clients
from bench.deployments import REPLICATED_ENVIRONMENT, SITES, Deployment, start
from bench.open_files import allow_files
from bench.results import Results, Sample, saver
from bench.rounds import keep
from bench.servers import BMQ_ENVIRONMENT, KAFKA_PROPERTIES
from bench.warm_up import ordered

FILES = 65_536
"""Open files, beside clients' connections: Kafka keeps some for every partition."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write the page, and return the exit status."""
    options = _parse(arguments)
    path = options.out / "benchmarks" / "kafka.json"
    if not options.render:
        plan = QUICK if options.quick else FULL
        settings = {"kafka": KAFKA_PROPERTIES, "bmq": BMQ_ENVIRONMENT, "bmq on HDFS": REPLICATED_ENVIRONMENT}
        given = sys.argv[1:] if arguments is None else arguments
        recorded = asdict(plan) | {"settings": settings, "clients": clients(plan), "warm_up": {}}
        results = provenance.begin("bench.against", given, recorded, options.folder)
        earlier = command.earlier(path, results) if options.add else None
        save = saver(results, path, earlier, lambda sample: (sample.bench, sample.adapter))
        if earlier is not None:
            results.plan["warm_up"] |= earlier.plan["warm_up"]
        allow_files(FILES + plan.connections)
        for site in options.sites.split(","):
            _measure(site, options, plan, results, save)
    return command.finish(path, lambda results: against_report.write(results, options.out))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = command.parser(
        "bench.against", "Measure BMQ beside Apache Kafka.", only=(*ROUNDS, *ONCE), what="measurements", can_add=True
    )
    parser.add_argument("--sites", default=",".join(SITES), help="comma-separated")
    options = parser.parse_args(arguments)
    command.require_known(parser, "site", options.sites, SITES)
    command.require_known(parser, "measurement", options.only, {**ROUNDS, **ONCE})
    return options


def _measure(site: str, options: argparse.Namespace, plan: Plan, results: Results, save: Callable[[], None]) -> None:
    """Measure a site: its rounds, then what is measured once, each deployment alone; ``save`` after each."""
    wanted = options.only.split(",")
    alternating = {bench: measure for bench, measure in ROUNDS.items() if bench in wanted}
    if alternating:
        with contextlib.ExitStack() as stack:
            deployments = [
                deployment
                for name in SITES[site]
                if (deployment := rounds.started(stack, name, options.folder, results)) is not None
            ]
            results.plan["warm_up"][site] = warm_up(deployments, plan, results)
            for number in range(1, plan.rounds + 1):
                results.load.append(round(os.getloadavg()[0], 2))
                for deployment in ordered(deployments, number):
                    for bench, measure in alternating.items():
                        samples = measure(deployment, plan, number)
                        keep(results, deployment.name, bench, samples, results.samples.append)
                save()
    for bench, once in ONCE.items():
        for name in SITES[site] if bench in wanted else ():
            if (bench, name) not in NOT_MEASURED:
                keep(results, name, bench, _alone(name, options.folder, once, plan), results.samples.append)
                save()


def _alone(
    name: str, folder: Path | None, measure: Callable[[Deployment, Plan], Iterator[Sample]], plan: Plan
) -> Iterator[Sample]:
    """Measure a deployment that runs for this alone."""
    with start(name, folder) as deployment:
        yield from measure(deployment, plan)


def warm_up(deployments: Sequence[Deployment], plan: Plan, results: Results) -> dict[str, object]:
    """Run rounds of throughput until no rate of producing rises; return how many, and whether that was reached."""
    return rounds.warm_up(
        deployments, lambda each, number: ROUNDS["throughput"](each, plan, number), plan.warm_rounds_most, results
    )


if __name__ == "__main__":
    sys.exit(main())
