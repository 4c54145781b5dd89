"""The bill that BMQ leaves with HDFS and etcd: measured with some partitions, computed for ten thousand.

    python -m bench.storage_bill [--quick] [--only cases,heap] [--out docs] [--folder DIR]
    python -m bench.storage_bill --render         draw again from the results that are there

It writes docs/benchmarks-storage.md.  ``bench.storage_model`` has the arithmetic.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from bench import command, provenance, storage_report
from bench.deployments import REPLICATED_ENVIRONMENT
from bench.results import Results, Sample, saver
from bench.rounds import started
from bench.storage_measure import BATCH_BYTES, FULL, QUICK, Metrics, Plan, Site, cases, heap
from bench.storage_report import BENCH, HEAP

PARTS = ("cases", "heap")
DEPLOYMENT = "bmq-3"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write the page, and return the exit status."""
    options = _parse(arguments)
    path = options.out / "benchmarks" / "storage.json"
    if not options.render:
        plan = QUICK if options.quick else FULL
        given = sys.argv[1:] if arguments is None else arguments
        recorded = asdict(plan) | {"settings": REPLICATED_ENVIRONMENT, "batch_bytes": BATCH_BYTES}
        results = provenance.begin("bench.storage_bill", given, recorded, options.folder)
        _run(options.only.split(","), options.folder, plan, results, saver(results, path))
    return command.finish(path, lambda results: storage_report.write(results, options.out))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = command.parser("bench.storage_bill", "The bill of HDFS and etcd.", only=PARTS, what="parts")
    options = parser.parse_args(arguments)
    command.require_known(parser, "part", options.only, PARTS)
    return options


def _run(wanted: Sequence[str], folder: Path | None, plan: Plan, results: Results, save: Callable[[], None]) -> None:
    with contextlib.ExitStack() as stack:
        deployment = started(stack, DEPLOYMENT, folder, results)
        if deployment is None:
            save()
            return
        assert deployment.hdfs is not None
        assert deployment.etcd is not None
        site = Site(deployment, deployment.hdfs, deployment.etcd)
        for number in range(1, plan.rounds + 1):
            results.load.append(round(os.getloadavg()[0], 2))
            if "cases" in wanted:
                _keep(results, number, cases(site, plan))
            if "heap" in wanted:
                _keep(results, number, ((HEAP, heap(site, plan)) for _ in range(1)))
            save()


def _keep(results: Results, number: int, found: Iterable[tuple[str, Metrics]]) -> None:
    """Print and keep the figures of a round's cases.  A failure is a result too, and ends this round's cases."""
    try:
        for case, metrics in found:
            shown = "  ".join(f"{name}={value:.4g}" for name, value in metrics.items())
            print(f"round {number}  {case}:  {shown}", flush=True)
            results.samples.append(Sample(adapter=DEPLOYMENT, bench=BENCH, case=case, round=number, metrics=metrics))
    except Exception as error:  # noqa: BLE001
        results.failures.append(f"round {number}: {error!r}")
        print(results.failures[-1], file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
