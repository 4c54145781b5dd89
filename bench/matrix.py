"""Throughput and its cost by record size, partitions, codec and client, beside Apache Kafka.

    python -m bench.matrix [--quick] [--only sizes,partitions,codecs,clients,corners] [--out docs] [--folder DIR]
    python -m bench.matrix --add --only ...   keep what an earlier run of the same commit measured of other axes
    python -m bench.matrix --render           draw docs/benchmarks-matrix.md again from the results that are there

One axis after another, each around the same centre; after each round the results are written, so that a run that was
ended loses one axis and goes on by ``--add``.  Clients have cores of their own where there are enough.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from bench import command, matrix_report, payloads, pinning, provenance, rounds
from bench.deployments import NAMES, REPLICATED_ENVIRONMENT, SITES, Deployment
from bench.matrix_cases import FULL, QUICK, Case, Plan, axes, axis_of, centre
from bench.matrix_measure import clients, measure
from bench.open_files import allow_files
from bench.payloads import Payloads
from bench.results import Results
from bench.servers import KAFKA_PROPERTIES
from bench.warm_up import ordered

MEASURED = ("payloads", "warm_up")
"""What the plan in the results has of each axis that was measured."""
FILES = 65_536
"""Open files that are allowed: Kafka keeps some for every partition."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write the page, and return the exit status."""
    options = _parse(arguments)
    path = options.out / "benchmarks" / "matrix.json"
    if not options.render:
        _run(options, sys.argv[1:] if arguments is None else arguments, path)
    return command.finish(path, lambda results: matrix_report.write(results, options.out))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = command.parser(
        "bench.matrix", "Throughput by one axis at a time.", only=axes(FULL), what="axes", can_add=True
    )
    parser.add_argument("--deployments", default=",".join(SITES["replicas"]), help="comma-separated, Kafka's first")
    options = parser.parse_args(arguments)
    command.require_known(parser, "axis", options.only, axes(FULL))
    command.require_known(parser, "deployment", options.deployments, NAMES)
    return options


def _run(options: argparse.Namespace, given: Sequence[str], path: Path) -> None:
    plan, wanted = QUICK if options.quick else FULL, options.only.split(",")
    cores = pinning.of_this_machine()
    settings = {"kafka": KAFKA_PROPERTIES, "bmq": REPLICATED_ENVIRONMENT}
    recorded = asdict(plan) | {"settings": settings, "clients": clients(plan), "cores": str(cores)}
    recorded |= {"deployments": options.deployments.split(","), "payloads": {}, "warm_up": {}}
    results = provenance.begin("bench.matrix", given, recorded, options.folder)
    if options.add:
        add_axes(results, command.earlier(path, results, besides=MEASURED), wanted)
    allow_files(FILES)
    begun, earlier_s = time.monotonic(), results.took_s

    def save() -> None:
        results.took_s = earlier_s + time.monotonic() - begun
        results.save(path)

    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bmq-bench-matrix-", dir=options.folder)))
        chosen = {axis: cases for axis, cases in axes(plan).items() if axis in wanted}
        written = write_payloads(folder, [case for cases in chosen.values() for case in cases])
        results.plan["payloads"] |= {str(size): each.describe() for size, each in written.items()}
        with pinning.on(cores.servers):
            deployments = [
                deployment
                for name in options.deployments.split(",")
                if (deployment := rounds.started(stack, name, options.folder, results)) is not None
            ]
        for deployment in deployments:
            pinning.require(deployment.processes, cores.servers)
        with pinning.on(cores.clients):
            warmth = rounds.warm_up(
                deployments, lambda each, number: measure(each, centre(axes(plan)), plan, written, number),
                plan.warm_rounds_most, results,
            )  # fmt: skip
            for axis, cases in chosen.items():
                results.plan["warm_up"][axis] = warmth
                for number in range(plan.rounds + 1):
                    measure_round(results, deployments, cases, plan, written, number)
                    save()
    save()


def add_axes(results: Results, earlier: Results, wanted: Sequence[str]) -> None:
    """Take over what ``earlier``, of the same code and plan, has of the axes that are not measured now."""
    for kind in ("samples", "warm_up"):
        kept = [sample for sample in getattr(earlier, kind) if axis_of(sample.case) not in wanted]
        setattr(earlier, kind, kept)
    earlier.failures = [failure for failure in earlier.failures if axis_of(failure) not in wanted]
    for name in MEASURED:
        results.plan[name] = earlier.plan[name] | results.plan[name]
    results.add_earlier(earlier, lambda sample: (sample.bench, sample.adapter, sample.case))


def write_payloads(folder: Path, cases: Sequence[Case]) -> dict[int, Payloads]:
    """Write the file of records of each size, the centre's too."""
    sizes = {case.record_bytes for case in cases} | {centre(axes(FULL)).record_bytes}
    return {size: payloads.write(folder, size) for size in sorted(sizes)}


def measure_round(
    results: Results,
    deployments: Sequence[Deployment],
    cases: Sequence[Case],
    plan: Plan,
    written: Mapping[int, Payloads],
    number: int,
) -> None:
    """Measure each case on all deployments, one right after the other; round 0 does not count."""
    results.load.append(round(os.getloadavg()[0], 2))
    note = results.samples.append if number else results.warm_up.append
    for place, case in enumerate(cases):
        for deployment in ordered(deployments, number + place):
            rounds.keep(results, deployment.name, case.key, measure(deployment, case, plan, written, number), note)


if __name__ == "__main__":
    sys.exit(main())
