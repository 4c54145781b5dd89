"""The physical limit beside BMQ: the same bytes by bare clients of the same HDFS, by the kernel, and through BMQ.

    python -m bench.limits [--quick] [--only java-flush,...] [--out docs] [--folder DIR]
    python -m bench.limits --render         draw again from the results that are there

It writes docs/benchmarks-limits.md.  One HDFS; all sides live on one machine, and each round measures each of them, in
another order each time.  Rounds do not count until no rate rises any more.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from bench import command, limits_report, provenance
from bench.deployments import REPLICATED_ENVIRONMENT, Deployment, start, start_hdfs
from bench.limits_measure import BENCH, FULL, QUICK, Plan, Side, Site, measure, moved, perf_tool, put, ready_made
from bench.mover import hadoop_mover, python_mover
from bench.results import Results, saver
from bench.rounds import keep, warm_up
from bench.warm_up import ordered
from bmq.broker.config import BrokerConfig

DEPLOYMENTS = ("bmq-hdfs", "bmq-3")
GROUPS = ("java-flush", "java-stream", "bare", "put", "loopback", "append", *DEPLOYMENTS)
"""The names that ``--only`` takes."""
PACKET_STEP = 64 << 10
"""Packets are rounded to this, the largest checksum chunk: a packet that ends inside a chunk is sent in part again."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write the page, and return the exit status."""
    options = _parse(arguments)
    path = options.out / "benchmarks" / "limits.json"
    if not options.render:
        plan = QUICK if options.quick else FULL
        given = sys.argv[1:] if arguments is None else arguments
        recorded = asdict(plan) | {"settings": REPLICATED_ENVIRONMENT, "warm_up": {}}
        results = provenance.begin("bench.limits", given, recorded, options.folder)
        _run(options.only.split(","), options.folder, plan, results, saver(results, path))
    return command.finish(path, lambda results: limits_report.write(results, options.out))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = command.parser("bench.limits", "Measure BMQ beside bare storage.", only=GROUPS, what="sides")
    options = parser.parse_args(arguments)
    command.require_known(parser, "side", options.only, GROUPS)
    return options


def _run(wanted: Sequence[str], parent: Path | None, plan: Plan, results: Results, save: Callable[[], None]) -> None:
    folder = Path(tempfile.mkdtemp(prefix="bmq-limits-", dir=parent))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        hdfs = stack.enter_context(start_hdfs(folder / "hdfs"))
        provenance.note_servers(results, hdfs.processes)
        site = Site(hdfs, folder, BrokerConfig().gather_bytes)
        deployments = [stack.enter_context(start(name, folder, hdfs=hdfs)) for name in DEPLOYMENTS if name in wanted]
        for each in deployments:
            own = [process for process in each.processes if process not in hdfs.processes]
            provenance.note_servers(results, own, each.name)
        if deployments:
            site = Site(hdfs, folder, _packet_bytes(deployments[0], plan, site))
        results.plan |= {"packet_bytes": site.packet_bytes, "chunk_bytes": site.chunk_bytes}
        sides = [*_bare_sides(stack, site, wanted), *(side(each) for each in deployments for side in SIDES)]
        results.plan["warm_up"] = warm_up(
            [side for side in sides if side.is_resident], lambda side, number: measure(side, plan, site, number),
            plan.warm_rounds_most, results, rates_of={BENCH: "mb_s"},
        )  # fmt: skip
        for number in range(1, plan.rounds + 1):
            results.load.append(round(os.getloadavg()[0], 2))
            for side in ordered(sides, number):
                keep(results, side.name, BENCH, measure(side, plan, site, number), results.samples.append)
            save()


SIDES: tuple[Callable[[Deployment], Side], ...] = (ready_made, perf_tool)


def _packet_bytes(deployment: Deployment, plan: Plan, site: Site) -> int:
    """Return the mean flush of BMQ under this load, which the bare clients then send as a packet."""
    side = ready_made(deployment)
    found = [side.write(plan, site)["flush_bytes"] for _ in range(2)]
    return max(PACKET_STEP, round(found[-1] / PACKET_STEP) * PACKET_STEP)


def _bare_sides(stack: contextlib.ExitStack, site: Site, wanted: Sequence[str]) -> list[Side]:
    """Start the programs that move bytes, and return their sides."""
    hdfs, folder, window = site.hdfs, site.folder, BrokerConfig().flushes_per_partition
    sides = []
    if {"java-flush", "java-stream"} & set(wanted):
        java = stack.enter_context(hadoop_mover("hadoop", hdfs, folder=folder))
        for name, flushes in (("java-flush", 1), ("java-stream", 0)):
            if name in wanted:
                sides.append(moved(name, java, window=flushes, is_storage=True))
    for name, program, is_storage in (
        ("bare", ("hdfs", hdfs.root), True),
        ("loopback", ("loopback",), False),
        ("append", ("append", str(folder / "append")), False),
    ):
        if name in wanted:
            mover = stack.enter_context(python_mover(name, *program, folder=folder))
            sides.append(moved(name, mover, window=window, is_storage=is_storage))
    if "put" in wanted:
        sides.append(Side("put", put, is_resident=False))
    return sides


if __name__ == "__main__":
    sys.exit(main())
