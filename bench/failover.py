"""Failover: how long producers and consumers wait when a part is lost, drained, added or restarted, beside Kafka.

    python -m bench.failover [--quick] [--sites nodes,roles] [--only node-killed,...] [--sizes 10MB,10GB]
    python -m bench.failover --partitions 10000 ...   of which 24 get records (bench.crowd has what so many cost)
    python -m bench.failover --add ...      keep what an earlier run of the same code measured and this one does not
    python -m bench.failover --resume ...   go on where a run of the same code was ended: what it has, it keeps
    python -m bench.failover --render       draw again from the results that are there

Writes docs/benchmarks-failover.md.  In each round each deployment is started afresh, one after the other in turns, a
topic is filled, and under a steady stream of records part after part is killed, silenced, drained, restarted and added,
in another order each round.  10 GB is 30 GB on disk.  Cables can be pulled where network namespaces can be made (root
on Linux); elsewhere these acts are left out, and the page says so.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from bench import command, failover_report, provenance
from bench.deployments import REPLICATED_ENVIRONMENT
from bench.failover_acts import ACTS, KILL, NODE, SITES, chosen, in_order
from bench.failover_measure import run
from bench.failover_plan import FULL, QUICK, Plan, bytes_of
from bench.failover_sites import Site
from bench.results import Results, Sample, saver
from bench.servers import KAFKA_PROPERTIES
from bench.stream_client import CONSUMER, PRODUCER, SOON
from bench.warm_up import ordered
from tests.services import netns

Place = tuple[str, str, int]
"""A deployment, a case and a round."""
QUICK_ACTS = (f"{NODE}-{KILL}", f"{NODE}-drained")
"""What shows in two minutes that everything works."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write the page, and return the exit status."""
    options = _parse(arguments)
    path = options.out / "benchmarks" / "failover.json"
    if not options.render:
        why_not = "it was not asked for" if options.local else netns.why_not()
        results = provenance.begin(
            "bench.failover", sys.argv[1:] if arguments is None else arguments, _recorded(options, why_not),
            options.folder,
        )  # fmt: skip
        kept = options.add or options.resume
        earlier = command.earlier(path, results, besides=("sizes", "rounds")) if kept else None
        save = saver(results, path, earlier, _place if options.resume else _case)
        if earlier is not None:
            results.plan["sizes"] = list(dict.fromkeys([*earlier.plan["sizes"], *options.plan.sizes]))
            results.plan["rounds"] = max(earlier.plan["rounds"], options.plan.rounds)
        done = {_place(sample) for sample in earlier.samples} if earlier is not None and options.resume else set()
        _measure(options, results, done, save, can_unplug=why_not is None)
    try:
        return command.finish(path, lambda results: failover_report.write(results, options.out))
    except failover_report.EarlierForm as error:
        print(error, file=sys.stderr)
        return 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.failover", description="Lose a part, and get one more.")
    parser.add_argument("--quick", action="store_true", help="one round of two acts: shows that everything works")
    parser.add_argument("--sites", help=f"comma-separated, of {', '.join(SITES)}")
    parser.add_argument("--only", help="comma-separated acts, such as node-killed or datanode-paused")
    parser.add_argument("--sizes", help="bytes of data, comma-separated, such as 10MB,10GB,50GB")
    parser.add_argument("--partitions", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument(
        "--client-timeout-ms", type=int, help="socket.timeout.ms of the clients; their default is 60000"
    )
    parser.add_argument("--local", action="store_true", help="all processes on localhost: no cable is pulled")
    parser.add_argument("--out", type=Path, default=Path("docs"), help="folder for the page and its figures")
    parser.add_argument("--folder", type=Path, default=None, help="where servers put their data")
    keeping = parser.add_mutually_exclusive_group()
    keeping.add_argument("--add", action="store_true", help="keep earlier figures of what is not measured now")
    keeping.add_argument("--resume", action="store_true", help="go on: keep what an earlier run measured")
    parser.add_argument("--render", action="store_true", help="only draw again from benchmarks/failover.json")
    options = parser.parse_args(arguments)
    base = QUICK if options.quick else FULL
    sites = options.sites or ("nodes" if options.quick else ",".join(SITES))
    cases = options.only or ",".join(QUICK_ACTS if options.quick else ACTS)
    options.sites, options.only = sites.split(","), cases.split(",")
    for what, given, known in (("site", options.sites, SITES), ("act", options.only, ACTS)):
        if unknown := set(given) - set(known):
            parser.error(f"unknown {what} {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    options.plan = replace(
        base,
        sizes=base.sizes if options.sizes is None else tuple(options.sizes.split(",")),
        partitions=options.partitions or base.partitions,
        rounds=options.rounds or base.rounds,
        timeout_ms=options.client_timeout_ms or base.timeout_ms,
    )
    try:
        for size in options.plan.sizes:
            bytes_of(size)
    except ValueError as error:
        parser.error(str(error))
    return options


def _recorded(options: argparse.Namespace, why_not: str | None) -> dict[str, object]:
    """Return the plan as the results keep it, with all settings."""
    settings = {
        "kafka": KAFKA_PROPERTIES | {"min.insync.replicas": "2"},
        "bmq": REPLICATED_ENVIRONMENT,
        "both clients": SOON | {"socket.timeout.ms": options.plan.timeout_ms},
        "producer": PRODUCER,
        "consumer": CONSUMER,
    }
    return asdict(options.plan) | {
        "sizes": list(options.plan.sizes),
        "streamed": options.plan.streamed,
        "settings": {name: {key: str(value) for key, value in found.items()} for name, found in settings.items()},
        "not_unplugged": why_not or "",
    }


def _case(sample: Sample) -> tuple[str, str]:
    return sample.adapter, sample.case


def _place(sample: Sample) -> Place:
    return sample.adapter, sample.case, sample.round


def _measure(
    options: argparse.Namespace, results: Results, done: Collection[Place], save: Callable[[], None], *,
    can_unplug: bool,
) -> None:  # fmt: skip
    """Measure what is not ``done``; ``save`` is called after each act, so that of a run that is ended all is kept."""
    plan: Plan = options.plan
    for number in range(1, plan.rounds + 1):
        for size in plan.sizes:
            for site in options.sites:
                for name in ordered(SITES[site], number):
                    acts = chosen(name, options.only, is_first_size=size == plan.sizes[0], can_unplug=can_unplug)
                    wanted = [act for act in acts if (name, act.case_at(size), number) not in done]
                    if not wanted:
                        continue
                    results.load.append(round(os.getloadavg()[0], 2))

                    def opened(found: Site, name: str = name) -> None:
                        if not any(server.startswith(f"{name}/") for server in results.servers):
                            provenance.note_servers(results, [part.process for part in found.parts.values()], name)

                    for sample in run(
                        name, size, in_order(wanted, number), plan, number, folder=options.folder,
                        can_unplug=can_unplug, opened=opened, failed=partial(_failed, results),
                    ):  # fmt: skip
                        _note(sample, results)
                        save()
                    save()


def _failed(results: Results, failure: str) -> None:
    print(f"FAILED {failure}", file=sys.stderr, flush=True)
    results.failures.append(failure)


def _note(sample: Sample, results: Results) -> None:
    shown = "  ".join(f"{name}={value:.4g}" for name, value in sample.metrics.items())
    print(f"round {sample.round}  {sample.adapter:11}  {sample.case}:  {shown}", flush=True)
    results.samples.append(sample)


if __name__ == "__main__":
    sys.exit(main())
