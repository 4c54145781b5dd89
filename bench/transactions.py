"""Transactions beside Apache Kafka's: rates, commits, costs, readers, idle ids; writes docs/benchmarks-transactions.md.

    python -m bench.transactions [--quick] [--only one,many,cost,reads,ids] [--sites local,replicas] [--rounds N]
                                 [--out docs] [--folder DIR]
    python -m bench.transactions --add ...      keep what an earlier run of the same code measured and this one does not
    python -m bench.transactions --render       draw again from the results that are there

The sites run one after the other.  Each round of a site takes its two deployments in turn, in another order each time.
``ids`` comes last, on a process of BMQ alone.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from bench import command, provenance, rounds, transactions_clients, transactions_ids, transactions_report
from bench.deployments import REPLICATED_ENVIRONMENT
from bench.results import Results, saver
from bench.rounds import keep, started
from bench.servers import BMQ_ENVIRONMENT, KAFKA_PROPERTIES
from bench.transactions_measure import MEASUREMENTS, RATES, Side, warm_up
from bench.transactions_plan import FULL, IDS, QUICK, SITES, Plan
from bench.warm_up import ordered

_NAMES = (*MEASUREMENTS, IDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write the page, and return the exit status."""
    options = _parse(arguments)
    path = options.out / "benchmarks" / "transactions.json"
    if not options.render:
        _run(options, sys.argv[1:] if arguments is None else arguments, path)
    return command.finish(path, lambda results: transactions_report.write(results, options.out))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = command.parser(
        "bench.transactions", "Measure transactions beside Apache Kafka's.", only=_NAMES, what="measurements",
        can_add=True,
    )  # fmt: skip
    parser.add_argument("--sites", default=",".join(SITES), help="comma-separated")
    parser.add_argument("--rounds", type=int, help=f"rounds that count ({FULL.rounds})")
    options = parser.parse_args(arguments)
    command.require_known(parser, "measurement", options.only, _NAMES)
    command.require_known(parser, "site", options.sites, SITES)
    if options.rounds is not None and options.rounds <= 0:
        parser.error(f"--rounds {options.rounds}: expected more than 0")
    return options


def _run(options: argparse.Namespace, given: Sequence[str], path: Path) -> None:
    """Measure, and save the results after each round: a run that is ended loses no round that it has done."""
    plan = replace(QUICK if options.quick else FULL, **({"rounds": options.rounds} if options.rounds else {}))
    settings = {"kafka": KAFKA_PROPERTIES, "bmq": BMQ_ENVIRONMENT, "bmq, replicas": REPLICATED_ENVIRONMENT}
    recorded = asdict(plan) | {"settings": settings, "clients": dict(transactions_clients.described())}
    results = provenance.begin("bench.transactions", given, recorded, options.folder)
    results.plan["warm_up"] = {"rounds": 0, "is_warm": True}
    earlier = command.earlier(path, results, besides=("warm_up",)) if options.add else None
    if earlier is not None:
        results.plan["warm_up"] = earlier.plan["warm_up"]
    save = saver(results, path, earlier, lambda sample: (sample.bench, sample.adapter))
    wanted = options.only.split(",")
    if any(name in wanted for name in MEASUREMENTS):
        for site in options.sites.split(","):
            _measure_site(site, wanted, plan, results, options.folder, is_quick=options.quick, save=save)
    if IDS in wanted:
        keep(
            results,
            transactions_ids.ADAPTER,
            IDS,
            transactions_ids.measure(plan, options.folder),
            results.samples.append,
        )
    save()


def _measure_site(
    site: str,
    wanted: Sequence[str],
    plan: Plan,
    results: Results,
    parent: Path | None,
    *,
    is_quick: bool,
    save: Callable[[], None],
) -> None:
    """Start the deployments of a site and the clients, warm up, and measure round by round."""
    logs = Path(tempfile.mkdtemp(prefix="bmq-bench-transactions-", dir=parent))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, logs, ignore_errors=True)
        clients = stack.enter_context(transactions_clients.start(logs))
        sides = [
            Side(deployment, clients)
            for name in SITES[site]
            if (deployment := started(stack, name, parent, results)) is not None
        ]
        measure(sides, wanted, plan, results, is_quick=is_quick, save=save)


def measure(
    sides: Sequence[Side],
    wanted: Sequence[str],
    plan: Plan,
    results: Results,
    *,
    is_quick: bool,
    save: Callable[[], None],
) -> None:
    """Warm up, and measure round by round.  Round 0 does not count."""
    warmth = rounds.warm_up(
        sides, lambda side, number: warm_up(side, plan, number), plan.warm_rounds_most, results, rates_of=RATES
    )
    before = results.plan["warm_up"]
    results.plan["warm_up"] = {
        "rounds": max(before["rounds"], warmth["rounds"]), "is_warm": before["is_warm"] and warmth["is_warm"],
    }  # fmt: skip
    for number in range(1 if is_quick else 0, plan.rounds + 1):
        results.load.append(round(os.getloadavg()[0], 2))
        note = results.samples.append if number else results.warm_up.append
        for name in wanted:
            if name not in MEASUREMENTS:
                continue
            for side in ordered(sides, number):
                keep(results, side.name, name, MEASUREMENTS[name](side, plan, number), note)
        save()


if __name__ == "__main__":
    sys.exit(main())
