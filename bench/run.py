"""The main benchmark: measure, and write docs/benchmarks.md with its plots.

    python -m bench.run [--quick] [--adapters memory,local,hdfs] [--out docs] [--folder DIR]
    python -m bench.run --render        draw again from the results that are there

HDFS is started for it, on this machine and free ports, and stopped at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import uvloop

from bench import provenance, report
from bench.many import partitions
from bench.plan import FULL, QUICK, Plan
from bench.results import Results, Sample
from bench.roots import ADAPTERS, Roots, Site, open_roots
from bench.single import generator, latency, throughput
from bench.takeover import takeover

Bench = Callable[[Site, Plan, int], AsyncIterator[Sample]]
BENCHES: dict[str, Bench] = {
    "throughput": throughput,
    "latency": latency,
    "takeover": takeover,
    "partitions": partitions,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write the page, and return the exit status."""
    options = _parse(arguments)
    path = options.out / "benchmarks" / "results.json"
    if options.render:
        report.write(Results.load_from(path), options.out)
        return 0
    plan = QUICK if options.quick else FULL
    results = provenance.begin("bench.run", _arguments(options), plan.to_json(), options.folder)
    started = time.monotonic()
    with open_roots(options.adapters, settle_s=plan.settle_s, parent=options.folder) as roots:
        if roots.cluster is not None:
            provenance.note_servers(results, roots.cluster.processes)
        uvloop.run(_measure(roots, options.adapters, options.only, plan, results))
    results.took_s = time.monotonic() - started
    results.save(path)
    report.write(results, options.out)
    print(f"{len(results.samples)} samples in {results.took_s:.0f} s; see {options.out / 'benchmarks.md'}")
    for failure in results.failures:
        print(f"FAILED {failure}", file=sys.stderr)
    return 1 if results.failures else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description="Measure BMQ's log on each adapter.")
    parser.add_argument("--quick", action="store_true", help="one short round: two minutes")
    parser.add_argument("--adapters", type=_names(ADAPTERS), default=list(ADAPTERS), help="comma-separated")
    parser.add_argument("--only", type=_names(tuple(BENCHES)), default=list(BENCHES), help="comma-separated benches")
    parser.add_argument("--out", type=Path, default=Path("docs"), help="folder for benchmarks.md and benchmarks/")
    parser.add_argument("--folder", type=Path, default=None, help="where local and HDFS write (a temporary folder)")
    parser.add_argument("--render", action="store_true", help="only draw again from benchmarks/results.json")
    return parser.parse_args(arguments)


def _names(known: tuple[str, ...]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        unknown = sorted(set(names) - set(known))
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: known are {', '.join(known)}")
        return names

    return parse


def _arguments(options: argparse.Namespace) -> list[str]:
    """Return the arguments that the figures depend on, without the folders."""
    told = ["--quick"] if options.quick else []
    if options.adapters != list(ADAPTERS):
        told += ["--adapters", ",".join(options.adapters)]
    if options.only != list(BENCHES):
        told += ["--only", ",".join(options.only)]
    return told


async def _measure(roots: Roots, adapters: Sequence[str], only: Sequence[str], plan: Plan, results: Results) -> None:
    """Run the rounds, in each every bench on every adapter in turn.  Round 0 is the warm-up."""
    for number in range(0 if plan.is_warmed else 1, plan.rounds + 1):
        results.load.append(round(os.getloadavg()[0], 2))
        short = plan if number else QUICK
        async for sample in generator(short, number):
            _note(sample, results)
        for bench in only:
            for adapter in adapters:
                try:
                    async with asyncio.timeout(plan.step_timeout_s):
                        async with roots.site(adapter) as site:
                            async for sample in BENCHES[bench](site, short, number):
                                _note(sample, results)
                except Exception as error:  # noqa: BLE001 - one failure must not cost the other figures
                    results.failures.append(f"round {number}, {bench} on {adapter}: {error!r}")
                    print(results.failures[-1], file=sys.stderr, flush=True)


def _note(sample: Sample, results: Results) -> None:
    shown = "  ".join(f"{name}={value:.4g}" for name, value in sample.metrics.items())
    print(f"round {sample.round}  {sample.adapter:6}  {sample.bench}, {sample.case}:  {shown}", flush=True)
    if sample.round:
        results.samples.append(sample)


if __name__ == "__main__":
    sys.exit(main())
