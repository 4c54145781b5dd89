"""Scaling of BMQ: throughput by number of processes, and the controller by brokers and partitions.

    python -m bench.scaling [--quick] [--only processes,planning,control] [--out docs] [--folder DIR]
    python -m bench.scaling --add --only ...   keep what an earlier run of the same commit measured of other parts
    python -m bench.scaling --render           draw docs/benchmarks-scaling.md again from the results that are there

Parts: ``processes``, one cluster of 1 to 8 processes under several producers and consumers; ``planning``, the planner
alone; ``control``, two controllers and an etcd with up to a million partitions, the cluster of ``make scale``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import (
    command,
    payloads,
    pinning,
    provenance,
    rounds,
    scaling_control,
    scaling_load,
    scaling_planning,
    scaling_report,
)
from bench.deployments import REPLICATED_ENVIRONMENT
from bench.open_files import allow_files
from bench.payloads import Payloads
from bench.pinning import Cores
from bench.results import Results, Sample, saver
from bench.scaling_load import RECORD_BYTES, Amounts
from bench.scaling_planning import Size
from bench.scaling_sites import Shape, Storage, running, storage
from bench.warm_up import ordered

FILES = 65_536
MEASURED = ("payloads",)
"""What the plan in the results has from a part that was measured."""
SHAPES_LEAST = 4
"""Processes up to which shapes are measured on any machine: on few cores their cost is the figure."""

FULL_AMOUNTS = Amounts(producers=4, warm_s=5.0, window_s=15.0, consumed_mb=300)
QUICK_AMOUNTS = Amounts(producers=1, warm_s=0.5, window_s=1.0, consumed_mb=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Amounts and repetitions of a run."""

    rounds: int = 6
    """Rounds of processes that count, after one that does not."""
    control_rounds: int = 3
    amounts: Amounts = FULL_AMOUNTS
    shapes: tuple[Shape, ...] = (
        Shape(1), Shape(2), Shape(4), Shape(8), Shape(2, is_workers=True), Shape(4, is_workers=True),
    )  # fmt: skip
    planning: tuple[Size, ...] = (
        Size(10, 10, 1000), Size(100, 100, 1000), Size(1000, 100, 1000), Size(10, 1000, 1000), Size(100, 1000, 1000),
        Size(1000, 1000, 1000), Size(1000, 100_000, 10),
    )  # fmt: skip
    control: tuple[Size, ...] = (
        Size(5, 10, 1000), Size(5, 100, 1000), Size(5, 1000, 1000), Size(100, 1000, 1000), Size(1000, 1000, 1000),
        Size(5, 100_000, 1),
    )  # fmt: skip


FULL = Plan()
QUICK = Plan(
    rounds=1,
    control_rounds=1,
    amounts=QUICK_AMOUNTS,
    shapes=(Shape(1), Shape(2, is_workers=True)),
    planning=(Size(10, 10, 1000), Size(100, 100, 100)),
    control=(Size(20, 10, 1000),),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write the page, and return the exit status."""
    options = _parse(arguments)
    path = options.out / "benchmarks" / "scaling.json"
    if not options.render:
        _run(options, sys.argv[1:] if arguments is None else arguments, path)
    return command.finish(path, lambda results: scaling_report.write(results, options.out))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = command.parser("bench.scaling", "Scaling of BMQ.", only=PARTS, what="parts", can_add=True)
    options = parser.parse_args(arguments)
    command.require_known(parser, "part", options.only, PARTS)
    return options


def _run(options: argparse.Namespace, given: Sequence[str], path: Path) -> None:
    plan, cores = QUICK if options.quick else FULL, pinning.of_this_machine()
    recorded = asdict(plan) | {"cores": str(cores), "server_cores": len(cores.servers), "are_apart": cores.are_apart}
    recorded |= {"settings": {"bmq": REPLICATED_ENVIRONMENT}, "clients": scaling_load.clients()}
    results = provenance.begin("bench.scaling", given, recorded, options.folder)
    wanted = [part for part in PARTS if part in options.only.split(",")]
    earlier = command.earlier(path, results, besides=MEASURED) if options.add else None
    if earlier is not None:
        results.plan = earlier.plan | results.plan
        earlier.failures = [failure for failure in earlier.failures if failure.partition(" on ")[0] not in wanted]
    save = saver(results, path, earlier, lambda sample: (sample.bench, sample.case))
    allow_files(FILES)
    for part in wanted:
        try:
            PARTS[part](plan, cores, options.folder, results)
        except Exception as error:  # noqa: BLE001 - a failure is a result, and costs no other part
            results.failures.append(f"{part} on what it starts: {error!r}")
            print(results.failures[-1], file=sys.stderr, flush=True)
        save()


def shapes(plan: Plan, server_cores: int) -> list[Shape]:
    """Return the shapes that this machine is for: a process has a core, or it is one of the few measured anywhere."""
    return [shape for shape in plan.shapes if shape.count <= max(server_cores, SHAPES_LEAST)]


def measure_processes(plan: Plan, cores: Cores, folder: Path | None, results: Results) -> None:
    """Measure each shape in each round, in another order each time; round 0 does not count."""
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bmq-bench-scaling-", dir=folder)))
        written = payloads.write(home, RECORD_BYTES)
        results.plan["payloads"] = written.describe()
        with pinning.on(cores.servers):
            store = stack.enter_context(storage(home))
        pinning.require([*store.hdfs.processes, *store.etcd.members], cores.servers)
        provenance.note_servers(results, [*store.hdfs.processes, *store.etcd.members])
        for number in range(plan.rounds + 1):
            results.load.append(round(os.getloadavg()[0], 2))
            note = results.samples.append if number else results.warm_up.append
            for shape in ordered(shapes(plan, len(cores.servers)), number):
                samples = _of_shape(store, shape, cores, plan, written, number, home, results)
                rounds.keep(results, shape.name, "processes", samples, note)


def _of_shape(
    store: Storage, shape: Shape, cores: Cores, plan: Plan, written: Payloads, number: int, home: Path, results: Results
) -> Iterator[Sample]:
    with contextlib.ExitStack() as stack:
        with pinning.on(cores.servers):
            deployment = stack.enter_context(running(store, shape, home))
        pinning.require(deployment.processes, cores.servers)
        if not number:
            provenance.note_servers(results, deployment.groups["own"], shape.name)
        with pinning.on(cores.clients):
            yield from scaling_load.measure(deployment, plan.amounts, written, number, home)


def measure_planning(plan: Plan, _: Cores, __: Path | None, results: Results) -> None:
    """Measure the planner alone."""
    for number in range(1, plan.control_rounds + 1):
        results.load.append(round(os.getloadavg()[0], 2))
        for size in plan.planning:
            rounds.keep(results, size.name, "planning", scaling_planning.measure(size, number), results.samples.append)


def measure_control(plan: Plan, _: Cores, folder: Path | None, results: Results) -> None:
    """Measure controllers with a store."""
    for number in range(1, plan.control_rounds + 1):
        results.load.append(round(os.getloadavg()[0], 2))
        for size in plan.control:
            rounds.keep(
                results, size.name, "control", scaling_control.measure(size, number, folder), results.samples.append
            )


PARTS: dict[str, Callable[[Plan, Cores, Path | None, Results], None]] = {
    "processes": measure_processes,
    "planning": measure_planning,
    "control": measure_control,
}

if __name__ == "__main__":
    sys.exit(main())
