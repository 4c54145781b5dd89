"""Hours of steady load with changes, sampled all the time: does anything rise?  It writes docs/benchmarks-soak.md.

    python -m bench.soak [--hours 4] [--quick] [--only bmq-3] [--out docs] [--folder DIR]
    python -m bench.soak --render         draw again from the results that are there

Records are produced at a steady rate and consumed, and expire after minutes.  Meanwhile topics are made and deleted,
consumers join and leave groups, and a process is restarted now and then, by turns politely and by ``kill -9``.  Node 0
is never restarted: its memory is that of the whole time.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import psutil

from bench import command, hdfs_facts, provenance, soak_report
from bench.deployments import REPLICATED_ENVIRONMENT, Deployment
from bench.results import Results, Sample, saver
from bench.rounds import started
from bench.soak_load import PARTITIONS, Failures, Load, running
from bench.soak_report import BENCH, HOUR_S, RESTART
from tests.services.processes import NotReady, ServiceProcess

DEPLOYMENTS = ("bmq-3", "bmq-hdfs", "bmq-local")
KEYS = "/bmq/"
"""The prefix of the cluster's keys in etcd."""
MB = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Rates and times of a run."""

    hours: float = 4.0
    records_s: int = 1000
    """Records of 1 KB."""
    sample_s: float = 60.0
    """Seconds between samples; a window of latencies is as long."""
    retention_s: float = 600.0
    segment_s: float = 120.0
    topics_every_s: float = 30.0
    groups_every_s: float = 20.0
    restart_every_s: float = 900.0


FULL = Plan()
QUICK = Plan(
    hours=30 / HOUR_S,
    records_s=200,
    sample_s=1.5,
    retention_s=10.0,
    segment_s=5.0,
    topics_every_s=2.0,
    groups_every_s=2.0,
    restart_every_s=12.0,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write the page, and return the exit status: 1 if something failed, whatever rises."""
    options = _parse(arguments)
    path = options.out / "benchmarks" / "soak.json"
    if not options.render:
        plan = QUICK if options.quick else FULL
        if options.hours is not None:
            plan = replace(plan, hours=options.hours)
        given = sys.argv[1:] if arguments is None else arguments
        recorded = asdict(plan) | {"settings": REPLICATED_ENVIRONMENT, "partitions": PARTITIONS}
        results = provenance.begin("bench.soak", given, recorded, options.folder)
        save = saver(results, path)
        for name in options.only.split(","):
            with contextlib.ExitStack() as stack:
                deployment = started(stack, name, options.folder, results)
                if deployment is not None:
                    _keep(deployment, plan, results, save)
        save()
    return command.finish(path, lambda results: soak_report.write(results, options.out))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = command.parser(
        "bench.soak",
        "Hours of steady load: what rises?",
        only=DEPLOYMENTS[:1],
        what=f"deployments: {', '.join(DEPLOYMENTS)}",
    )
    parser.add_argument("--hours", type=float, default=None, help=f"{FULL.hours:g} if not given")
    options = parser.parse_args(arguments)
    command.require_known(parser, "deployment", options.only, DEPLOYMENTS)
    if options.hours is not None and options.hours <= 0:
        parser.error("--hours is not above 0")
    return options


def _keep(deployment: Deployment, plan: Plan, results: Results, save: Callable[[], None]) -> None:
    """Run the load, and keep every failure: one that ends it costs no sample taken before, and no other deployment."""
    failures = Failures()
    try:
        soak(deployment, plan, results, failures, save)
    except Exception as error:  # noqa: BLE001
        failures.note(f"soak of {deployment.name}", error)
    results.failures += failures.texts


def soak(deployment: Deployment, plan: Plan, results: Results, failures: Failures, save: Callable[[], None]) -> None:
    """Run the load for the hours of the plan.  ``save`` is called after each sample: a run that is ended is kept."""
    config = {"retention.ms": str(round(plan.retention_s * 1000)), "segment.ms": str(round(plan.segment_s * 1000))}
    topic = deployment.create_topic(PARTITIONS, config=config)
    restarts = _restarts(deployment)
    with running(
        deployment, topic, records_s=plan.records_s, window_s=plan.sample_s, topics_every_s=plan.topics_every_s,
        groups_every_s=plan.groups_every_s, failures=failures,
    ) as load:  # fmt: skip
        begun = time.monotonic()
        numbers = itertools.count(1)
        next_sample, next_restart, end = plan.sample_s, plan.restart_every_s, plan.hours * HOUR_S
        while (now := time.monotonic() - begun) < end:
            if now >= next_restart:
                next_restart += plan.restart_every_s
                results.samples.append(_restart(deployment, restarts, now, failures))
            if now >= next_sample:
                next_sample += plan.sample_s
                results.load.append(round(os.getloadavg()[0], 2))
                _sample(deployment, load, next(numbers), now, results, failures)
                save()
            time.sleep(max(0.0, min(next_sample, next_restart, end) - (time.monotonic() - begun)))
    results.plan |= {
        "acknowledged": load.producer.acknowledged,
        "consumed": load.consumer.consumed,
        "topics": load.topics.turns,
        "groups": load.groups.turns,
    }


def _sample(deployment: Deployment, load: Load, number: int, at_s: float, results: Results, failures: Failures) -> None:
    try:
        metrics = {"at_s": at_s} | facts(deployment) | load.producer.take() | {"lag": float(load.consumer.lag())}
    except Exception as error:  # noqa: BLE001 - a failure is a result, and the next sample may succeed
        failures.note("sample", error)
        return
    shown = "  ".join(f"{name}={value:.4g}" for name, value in metrics.items())
    print(f"{at_s / HOUR_S:.2f} h  {shown}", flush=True)
    results.samples.append(Sample(adapter=deployment.name, bench=BENCH, case="", round=number, metrics=metrics))


def facts(deployment: Deployment) -> dict[str, float]:
    """Return memory and descriptors of the processes, files on HDFS, and the state of etcd."""
    found: dict[str, float] = {}
    for node, server in deployment.servers.items():
        found |= {f"bmq_{node}_mb": server.rss_bytes / MB, f"bmq_{node}_fds": descriptors(server.process)}
    hdfs, etcd = deployment.hdfs, deployment.etcd
    if hdfs is not None:
        names = hdfs_facts.namespace(hdfs)
        found |= {name: names[name] for name in ("files", "blocks", "open_files")}
        found["stored_mb"] = names["stored_bytes"] / MB
        found["namenode_mb"] = sum(process.rss_bytes for process in hdfs.namenodes) / MB
        found["datanode_mb"] = max(node.process.rss_bytes for node in hdfs.datanodes) / MB
        found["datanode_fds"] = max(descriptors(node.process) for node in hdfs.datanodes)
    if etcd is not None:
        keys, in_use = etcd.stored(KEYS)
        found |= {"etcd_keys": keys, "etcd_in_use_mb": in_use / MB, "etcd_revision": etcd.revision()}
        found["etcd_file_mb"] = int(etcd.call("maintenance/status", {})["dbSize"]) / MB
        found["etcd_mb"] = max(member.rss_bytes for member in etcd.members) / MB
    return found


def descriptors(process: ServiceProcess) -> float:
    """Return how many descriptors a process has open."""
    return float(psutil.Process(process.pid).num_fds())


def _restarts(deployment: Deployment) -> Iterator[tuple[int, bool]]:
    """Yield which node is next, and whether it is killed; never the first, unless it is the only one."""
    nodes = list(deployment.servers)[1:] or list(deployment.servers)
    return itertools.cycle([(node, is_kill) for is_kill in (False, True) for node in nodes])


def _restart(deployment: Deployment, restarts: Iterator[tuple[int, bool]], at_s: float, failures: Failures) -> Sample:
    node, is_kill = next(restarts)
    server, begun = deployment.servers[node], time.monotonic()
    try:
        if is_kill:
            server.kill()
        else:
            server.stop()
    except (AssertionError, NotReady) as error:
        failures.note(f"stop of node {node}", error)
    try:
        server.start()
    except NotReady as error:
        failures.note(f"start of node {node}", error)
    took_s = time.monotonic() - begun
    case = f"{'kill -9' if is_kill else 'stop'} and start of node {node}"
    print(f"{at_s / HOUR_S:.2f} h  {case}: {took_s:.1f} s", flush=True)
    return Sample(adapter=deployment.name, bench=RESTART, case=case, round=1, metrics={"at_s": at_s, "took_s": took_s})


if __name__ == "__main__":
    sys.exit(main())
