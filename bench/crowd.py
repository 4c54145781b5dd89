"""Ten thousand partitions in one cluster: their cost, idle and under load, and how soon they are moved.

    python -m bench.crowd [--quick] [--topics 10] [--partitions 1000] [--active 100] [--block-bytes N]
    python -m bench.crowd --render       write the page again from the results that are there

Writes docs/benchmarks-crowd.md.  Three proxies, three brokers, two controllers, two coordinators, an etcd and an HDFS
of four datanodes, on this machine.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench import crowd_report, provenance
from bench.results import Results, Sample
from bench.roots import DATANODES, JAVA_OPTIONS
from bench.stream import Stream, middle_and_longest
from tests.services.bmq_cluster import BROKER, BmqCluster
from tests.services.etcd import EtcdCluster
from tests.services.hdfs import HdfsCluster
from tests.services.processes import ServiceProcess, wait_for

WATCHED = "watched"
WATCHED_PARTITIONS = 24
WATCHED_EVERY_MS = 25.0
CLIENT_TIMEOUT_MS = 2000
CHECK_S = 0.5
"""Seconds between checks of the owners: each reads all of etcd, half a second of processor time for 10,000
partitions."""
VALUE = bytes(1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Amounts and durations of a run."""

    topics: int = 10
    partitions: int = 1000
    idle_s: float = 60.0
    active: int = 100
    """Partitions that are written to: each needs its open file on three datanodes, and room for a block on each."""
    rates: tuple[int, ...] = (1000, 5000)
    """Records of 1 KB a second, over the active partitions."""
    load_s: float = 30.0


FULL = Plan()
QUICK = Plan(topics=2, partitions=100, idle_s=10.0, load_s=10.0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write the page, and return the exit status."""
    options = _parse(arguments)
    path = options.out / "benchmarks" / "crowd.json"
    if options.render:
        crowd_report.write(Results.load_from(path), options.out)
        return 0
    plan = Plan(topics=options.topics, partitions=options.partitions, active=options.active)
    if options.quick:
        plan = QUICK
    settings = {} if options.block_bytes is None else {"BMQ_BLOCK_BYTES": str(options.block_bytes)}
    results = provenance.begin(
        "bench.crowd",
        sys.argv[1:] if arguments is None else arguments,
        asdict(plan) | {"rates": list(plan.rates)},
        options.folder,
    )
    began = time.monotonic()
    with _cluster(options.folder, settings) as (cluster, etcd, servers):
        provenance.note_servers(results, servers)
        for case, metrics in measure(cluster, etcd, plan):
            shown = "  ".join(f"{name}={value:.4g}" for name, value in metrics.items())
            print(f"{case}:  {shown}", flush=True)
            metrics = {**metrics, "machine_load": os.getloadavg()[0]}
            results.samples.append(Sample(adapter="bmq", bench="crowd", case=case, round=1, metrics=metrics))
    results.took_s = time.monotonic() - began
    results.save(path)
    crowd_report.write(Results.load_from(path), options.out)
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.crowd", description="Ten thousand partitions.")
    parser.add_argument("--quick", action="store_true", help="two hundred partitions, shorter times")
    parser.add_argument("--topics", type=int, default=FULL.topics)
    parser.add_argument("--partitions", type=int, default=FULL.partitions, help="of each topic")
    parser.add_argument("--active", type=int, default=FULL.active, help="partitions that are written to")
    parser.add_argument("--block-bytes", type=int, default=None, help="the brokers' setting block_bytes")
    parser.add_argument("--out", type=Path, default=Path("docs"), help="folder for the page and its figures")
    parser.add_argument("--folder", type=Path, default=None, help="where servers put their data")
    parser.add_argument("--render", action="store_true", help="only write again from benchmarks/crowd.json")
    return parser.parse_args(arguments)


def measure(cluster: BmqCluster, etcd: EtcdCluster, plan: Plan) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the name and the figures of each case, in the order of the page."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(WATCHED, WATCHED_PARTITIONS, 3)], operation_timeout=60)[WATCHED].result(90)
    cluster.wait_stable()
    yield "idle, no partitions", _idle(cluster, etcd, plan.idle_s)

    began = time.monotonic()
    names = [f"crowd-{number}" for number in range(plan.topics)]
    topics = [NewTopic(name, plan.partitions, 3) for name in names]
    for made in admin.create_topics(topics, operation_timeout=300, request_timeout=300).values():
        made.result(600)
    created_s = time.monotonic() - began
    wait_for(lambda: not cluster.unstable(), "all with their owners", timeout_s=600, interval_s=CHECK_S)
    yield "from scratch", {"created_s": created_s, "owned_s": time.monotonic() - began}

    yield "idle", _idle(cluster, etcd, plan.idle_s)
    for rate in plan.rates:
        yield f"{rate:,} records/s", _under_load(cluster, etcd, names, plan, rate)
    yield "idle after load", _idle(cluster, etcd, plan.idle_s)

    with Stream(
        cluster.bootstrap, WATCHED, WATCHED_PARTITIONS, every_ms=WATCHED_EVERY_MS, timeout_ms=CLIENT_TIMEOUT_MS,
        group="watchers",
    ) as stream:  # fmt: skip
        for case, act in (("kill -9 of a broker", cluster.kill), ("polite stop of a broker", cluster.stop_politely)):
            victim = cluster.busiest(BROKER)
            yield case, _moved(cluster, stream, partial(act, victim), partial(cluster.is_gone, victim))
            yield (
                f"it comes back after {case.split(' of ')[0]}",
                _moved(cluster, stream, partial(_return, cluster, victim), partial(cluster.has_some, victim)),
            )


def _return(cluster: BmqCluster, name: str) -> None:
    cluster.start_again(name)
    cluster.balance()


def _moved(
    cluster: BmqCluster, stream: Stream, act: Callable[[], object], is_done: Callable[[], bool]
) -> dict[str, float]:
    """Measure the time until every partition is with its new broker, and the pauses of the watched topic's clients."""
    stream.wait_flowing(1.0)
    before, began = cluster.owners(), time.monotonic()
    act()
    acted_s = time.monotonic() - began
    stream.wait_flowing(1.0)  # before the first check: a check would take the processor from what is measured
    wait_for(is_done, "all with their owners", timeout_s=600, interval_s=CHECK_S)
    owned_s = time.monotonic() - began
    after = cluster.owners()
    moved = sum(after[key] != owner for key, owner in before.items())
    if not moved:
        raise AssertionError("nothing moved: this measured nothing")
    pause_ms, pause_max_ms = middle_and_longest(stream.waits_ms(began)["produce"])
    return {
        "acted_s": acted_s,
        "owned_s": owned_s,
        "moved": moved,
        "pause_ms": pause_ms,
        "pause_max_ms": pause_max_ms,
    }


def _idle(cluster: BmqCluster, etcd: EtcdCluster, span_s: float) -> dict[str, float]:
    time.sleep(min(10.0, span_s))  # work in progress ends, and caches are dropped
    with _counted(cluster, etcd) as counted:
        time.sleep(span_s)
    keys, size = etcd.stored("/bmq/")
    return counted | _by_role(cluster.rss_bytes, "mb", 1e6, largest=True) | {"keys": keys, "etcd_mb": size / 1e6}


def _under_load(
    cluster: BmqCluster, etcd: EtcdCluster, topics: Sequence[str], plan: Plan, rate: int
) -> dict[str, float]:
    """Measure the load that begins once each active partition has had a record."""
    places = [(topics[number // plan.partitions], number % plan.partitions) for number in range(plan.active)]
    failed: list[str] = []
    acked = 0

    def delivered(error: object, _: object) -> None:
        nonlocal acked
        if error is not None:
            failed.append(str(error))
        acked += 1

    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 5, "log_level": 0})
    for topic, partition in places:
        producer.produce(topic, VALUE, partition=partition, on_delivery=delivered)
    began = time.monotonic()
    if left := producer.flush(300):
        raise AssertionError(f"{left} of the first records were not acknowledged")
    first_s = time.monotonic() - began
    with _counted(cluster, etcd) as counted:
        began, sent, acked = time.monotonic(), 0, 0
        while (elapsed := time.monotonic() - began) < plan.load_s:
            while sent < elapsed * rate:
                topic, partition = places[sent % plan.active]
                producer.produce(topic, VALUE, partition=partition, on_delivery=delivered)
                sent += 1
            producer.poll(0.002)
        took_s = time.monotonic() - began
        left = producer.flush(120)
    if failed or left:
        raise AssertionError(f"{left} records were not acknowledged, {len(failed)} refused: {failed[:3]}")
    return counted | {"records_s": acked / took_s, "first_s": first_s}


@contextmanager
def _counted(cluster: BmqCluster, etcd: EtcdCluster) -> Iterator[dict[str, float]]:
    """Count writes to etcd and each role's share of a core, a second; the result is filled at the end."""
    counted: dict[str, float] = {}
    revision, cpu, etcd_cpu, began = etcd.revision(), cluster.cpu_seconds, etcd.cpu_seconds, time.monotonic()
    yield counted
    took_s = time.monotonic() - began
    used = {name: seconds - cpu[name] for name, seconds in cluster.cpu_seconds.items()}
    counted |= _by_role(used, "cpu", took_s / 100, largest=False)
    counted["etcd_cpu"] = (etcd.cpu_seconds - etcd_cpu) / took_s * 100
    counted["etcd_writes_s"] = (etcd.revision() - revision) / took_s


def _by_role(values: Mapping[str, float], unit: str, scale: float, *, largest: bool) -> dict[str, float]:
    """Return, for the members of each role, the largest value, or the mean."""
    of_role: dict[str, list[float]] = defaultdict(list)
    for name, value in values.items():
        of_role[name.partition("-")[0]].append(value / scale)
    return {
        f"{role}_{unit}": max(found) if largest else sum(found) / len(found) for role, found in sorted(of_role.items())
    }


@contextmanager
def _cluster(
    parent: Path | None, settings: Mapping[str, str]
) -> Iterator[tuple[BmqCluster, EtcdCluster, Sequence[ServiceProcess]]]:
    folder = Path(tempfile.mkdtemp(prefix="bmq-crowd-", dir=parent))
    try:
        hdfs = HdfsCluster(datanodes=DATANODES, java_options=JAVA_OPTIONS, folder=folder / "hdfs")
        with EtcdCluster(folder=folder / "etcd") as etcd, hdfs:
            with BmqCluster(f"{hdfs.root}/bench", etcd, folder=folder / "bmq", environment=settings) as cluster:
                yield cluster, etcd, [*cluster.processes, *etcd.members, *hdfs.processes]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
