"""The cost of TLS, of a log-in and of ACLs, beside Apache Kafka; writes docs/benchmarks-security.md.

    python -m bench.security [--quick] [--only throughput,paced,connect,neighbour] [--rounds N] [--out docs]
                             [--folder DIR]
    python -m bench.security --add ...      keep what an earlier run of the same code measured and this one does not
    python -m bench.security --render       draw again from the results that are there

One process of each server without an authorizer, and one with ACLs, run all the time.  Each round takes the
configurations in turn, each on Kafka and on BMQ, one right after the other.  The pairs of a client beside one at its
quota (``quota_pairs``) come last, on a process of their own.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from bench import command, pinning, provenance, rounds, security_report
from bench.deployments import Deployment
from bench.open_files import allow_files
from bench.quota_pairs import NEIGHBOUR, measure_pairs
from bench.results import Results, saver
from bench.rounds import PRODUCING, keep
from bench.security_measure import MEASUREMENTS, clients, warm_up
from bench.security_plan import CONFIGURATIONS, CONNECT, FULL, OPEN, QUICK, SECURED, Plan
from bench.security_sites import NAMES, SETTINGS, Site, start, without_secrets
from bench.servers import BMQ_ENVIRONMENT, KAFKA_PROPERTIES
from bench.warm_up import ordered

_NAMES = (*MEASUREMENTS, NEIGHBOUR)
FILES = 65_536
"""Open files that are allowed: Kafka keeps some for every partition."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One server in one configuration."""

    deployment: Deployment
    case: str

    @property
    def name(self) -> str:
        """The server's name: the adapter of its samples."""
        return self.deployment.name


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write the page, and return the exit status."""
    options = _parse(arguments)
    path = options.out / "benchmarks" / "security.json"
    if not options.render:
        given = sys.argv[1:] if arguments is None else arguments
        plan = replace(QUICK if options.quick else FULL, **({"rounds": options.rounds} if options.rounds else {}))
        cores = pinning.of_this_machine()
        settings = {"kafka": KAFKA_PROPERTIES, "bmq": BMQ_ENVIRONMENT}
        settings |= {f"both, {name}": without_secrets(SETTINGS[name]) for name in (OPEN, SECURED)}
        recorded = asdict(plan) | {"settings": settings, "clients": clients(plan), "cores": str(cores)}
        results = provenance.begin("bench.security", given, recorded, options.folder)
        earlier = command.earlier(path, results, besides=()) if options.add else None
        save = saver(results, path, earlier, lambda sample: sample.bench)
        allow_files(FILES)
        wanted = options.only.split(",")
        with contextlib.ExitStack() as stack:
            with pinning.on(cores.servers):
                sites = list(started(stack, options, plan, results))
            for site in sites:
                pinning.require(site.processes, cores.servers)
            with pinning.on(cores.clients):
                for _ in measure(sites, wanted, plan, results, is_quick=options.quick):
                    save()
        if NEIGHBOUR in wanted:
            results.samples.extend(measure_pairs(plan.neighbour_pairs, plan.neighbour_s, options.folder))
        save()
    return command.finish(path, lambda results: security_report.write(results, options.out))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = command.parser(
        "bench.security", "Measure the cost of TLS, log-ins and ACLs.", only=_NAMES, what="measurements",
        can_add=True,
    )  # fmt: skip
    parser.add_argument("--deployments", default=",".join(NAMES), help="comma-separated")
    parser.add_argument("--rounds", type=int, help=f"rounds that count ({FULL.rounds})")
    options = parser.parse_args(arguments)
    command.require_known(parser, "measurement", options.only, _NAMES)
    command.require_known(parser, "deployment", options.deployments, NAMES)
    if options.rounds is not None and options.rounds <= 0:
        parser.error(f"--rounds {options.rounds}: expected more than 0")
    return options


def started(stack: contextlib.ExitStack, options: argparse.Namespace, plan: Plan, results: Results) -> Iterator[Site]:
    """Start the sites, and record what TLS they speak; one that does not start is a failure."""
    results.plan["tls"] = {}
    for name in options.deployments.split(","):
        try:
            site = stack.enter_context(start(name, options.folder, plan.acls))
            results.plan["tls"][name] = {case: str(found) for case, found in site.tls.items()}
        except Exception as error:  # noqa: BLE001
            results.failures.append(f"start of {name}: {error!r}")
            print(results.failures[-1], file=sys.stderr, flush=True)
            continue
        provenance.note_servers(results, site.processes, site.name)
        yield site


def measure(
    sites: Sequence[Site], wanted: Sequence[str], plan: Plan, results: Results, *, is_quick: bool
) -> Iterator[int]:
    """Warm up, and measure round by round; yield the number of each that is done.  Round 0 does not count."""
    cells = [Cell(site.deployments[case], case) for case in CONFIGURATIONS for site in sites]
    results.plan["warm_up"] = rounds.warm_up(
        cells, lambda cell, number: warm_up(cell.deployment, cell.case, plan, number), plan.warm_rounds_most, results,
        rates_of={**PRODUCING, CONNECT: "connections_s"},
    )  # fmt: skip
    for number in range(1 if is_quick else 0, plan.rounds + 1):
        results.load.append(round(os.getloadavg()[0], 2))
        note = results.samples.append if number else results.warm_up.append
        for cell in in_turn(sites, number):
            for name, act in MEASUREMENTS.items():
                if name in wanted:
                    keep(
                        results, cell.name, f"{name}, {cell.case},", act(cell.deployment, cell.case, plan, number), note
                    )
        yield number


def in_turn(sites: Sequence[Site], number: int) -> Iterator[Cell]:
    """Yield the cells of a round: a configuration on all sites, one right after the other, then the next one."""
    for place, case in enumerate(ordered(list(CONFIGURATIONS), number)):
        for site in ordered(sites, number + place):
            yield Cell(site.deployments[case], case)


if __name__ == "__main__":
    sys.exit(main())
