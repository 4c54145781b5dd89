"""The measurements of bench.against: throughput, latency, restart and memory of one deployment."""

from __future__ import annotations

import contextlib
import shlex
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench import raw_client
from bench.deployments import ETCD, HDFS, OWN, Deployment
from bench.open_loop import open_loop
from bench.open_loop_clients import Load
from bench.perf_tools import PRODUCER, consume, consume_arguments, produce, produce_arguments
from bench.results import Sample, latency_metrics

GB = 1000**3
PARTITIONS = 6
RECORD_BYTES = 1000
"""Bytes of a record whose latency is measured."""
STORED_RECORD_BYTES = 10_000
RESTARTS = 3
ACK_TIMEOUT_S = 300.0
SETTLE_S = 3.0
"""Seconds for new partitions to settle before memory is read."""
CPU_NAMES = {OWN: "cpu", HDFS: "storage_cpu", ETCD: "etcd_cpu"}
"""The first part of the metrics of each group of processes; ``all_cpu`` is their sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Amounts and repetitions of a run."""

    rounds: int = 10
    """Rounds that count; those before end once no rate of producing rises (``bench.warm_up``)."""
    warm_rounds_most: int = 8
    records: tuple[tuple[int, int], ...] = ((100, 3_000_000), (1000, 600_000), (10_000, 60_000))
    """Bytes of a record, and how many: 300 to 600 MB a measurement."""
    warm_share: float = 0.15
    """Share of the records that is sent first and not counted: the client's compiler needs them."""
    latency_records_s: int = 1000
    """A rate that each deployment holds on two cores: librdkafka sends each record in a request of its own."""
    latency_s: float = 15.0
    latency_warm_s: float = 3.0
    partitions: tuple[int, ...] = (1000, 10_000)
    connections: int = 1000
    stored_gb: tuple[int, ...] = (1, 10)


FULL = Plan()
QUICK = Plan(
    rounds=2,
    warm_rounds_most=1,
    records=((100, 100_000), (1000, 20_000), (10_000, 2000)),
    latency_records_s=500,
    latency_s=2.0,
    latency_warm_s=0.5,
    partitions=(100,),
    connections=100,
    stored_gb=(0,),
)


def clients(plan: Plan) -> dict[str, str]:
    """Return the clients' command lines, or what stands for one, by what they measure."""
    size, count = plan.records[0]
    sent = produce_arguments(
        "BOOTSTRAP", "TOPIC", count=count, record_bytes=size, properties=PRODUCER,
        warm_count=int(count * plan.warm_share),
    )  # fmt: skip
    return {
        "produce": shlex.join(sent),
        "consume": shlex.join(consume_arguments("BOOTSTRAP", "TOPIC", count=count)),
        "latency": "bench.open_loop: librdkafka, acks=all linger.ms=0",
        "restart": "bench.raw_client.first_ack",
    }


def throughput(deployment: Deployment, plan: Plan, number: int) -> Iterator[Sample]:
    """Measure producing and then consuming the same records, each size on a fresh topic."""
    for size, count in plan.records:
        topic = deployment.create_topic(PARTITIONS)
        warm = int(count * plan.warm_share)
        total_gb = size * (count + warm) / GB
        with cpu_cost(deployment, "s_gb", total_gb) as cost:
            figures = produce(
                deployment.bootstrap, topic, count=count, record_bytes=size, properties=PRODUCER, warm_count=warm
            )
        yield _sample(deployment, "produce", f"{size} B", number, _rates(figures) | cost)
        with cpu_cost(deployment, "s_gb", total_gb) as cost:
            figures = consume(deployment.bootstrap, topic, count=count + warm)
        yield _sample(deployment, "consume", f"{size} B", number, _rates(figures) | cost)
        deployment.delete_topic(topic)


def latency(deployment: Deployment, plan: Plan, number: int) -> Iterator[Sample]:
    """Measure producing at a steady rate, from when a record is due to its acknowledgement."""
    topic = deployment.create_topic(PARTITIONS)
    for seconds in (plan.latency_warm_s, plan.latency_s):
        load = Load(
            bootstrap=deployment.bootstrap, topic=topic, partitions=PARTITIONS, records_s=plan.latency_records_s,
            seconds=seconds, record_bytes=RECORD_BYTES,
        )  # fmt: skip
        with open_loop(load, readers=0) as loop, cpu_cost(deployment, "us_record", load.count / 1e6) as cost:
            timed = loop.run()
    found = timed.ack_latencies_s
    if len(found) < load.count:
        raise RuntimeError(f"{len(found):,} of {load.count:,} records could be sent: the rate is more than it takes")
    metrics = latency_metrics(found, "us")
    yield _sample(deployment, "latency", f"{RECORD_BYTES} B", number, metrics | cost)
    deployment.delete_topic(topic)


def restart(deployment: Deployment, plan: Plan) -> Iterator[Sample]:
    """Measure the time from ``kill -9`` of the only node to its first acknowledgement, with so much stored.

    The node is started again at once.  Exact to ``raw_client.RETRY_S`` and the time of one request.
    """
    topic, stored = deployment.create_topic(PARTITIONS), 0
    addresses = raw_client.addresses_of(deployment.bootstrap)
    frame = raw_client.produce_frame(topic, b"after")
    for gigabytes in plan.stored_gb:
        while stored < gigabytes:
            _store(deployment, topic, 100_000)
            stored += 1
        for number in range(1, RESTARTS + 1):
            _store(deployment, topic, 2000)
            (kill_and_start,) = deployment.restart.values()
            begun = time.monotonic()
            kill_and_start()
            acked = raw_client.first_ack(addresses, topic, frame, timeout_s=ACK_TIMEOUT_S)
            yield _sample(deployment, "restart", f"{gigabytes} GB", number, {"seconds": acked - begun})
    deployment.delete_topic(topic)


def memory(deployment: Deployment, plan: Plan) -> Iterator[Sample]:
    """Measure resident memory of a fresh deployment, with idle partitions, then with idle connections too."""
    yield _rss(deployment, "fresh")
    made = 0
    for count in plan.partitions:
        while made < count:
            deployment.create_topics([f"idle-{made}"], 100)
            made += 100
        yield _rss(deployment, f"{count:,} idle partitions")
    address = raw_client.addresses_of(deployment.bootstrap)[0]
    with contextlib.ExitStack() as stack:
        for _ in range(plan.connections):
            stack.enter_context(socket.create_connection(address))
        yield _rss(deployment, f"and {plan.connections:,} idle connections")


ROUNDS: dict[str, Callable[[Deployment, Plan, int], Iterator[Sample]]] = {"throughput": throughput, "latency": latency}
ONCE: dict[str, Callable[[Deployment, Plan], Iterator[Sample]]] = {"restart": restart, "memory": memory}
NOT_MEASURED = {
    ("restart", "kafka-3"): "two other nodes live: see benchmarks-failover.md",
    ("restart", "bmq-3"): "two other nodes live: see benchmarks-failover.md",
    ("memory", "kafka-3"): "three replicas of 10,000 partitions are more than this machine can take",
}


@contextlib.contextmanager
def cpu_cost(deployment: Deployment, unit: str, amount: float) -> Iterator[dict[str, float]]:
    """Measure processor seconds by ``amount``, of each group of processes and of all; filled in at the end."""
    before = deployment.cpu_s()
    cost: dict[str, float] = {}
    yield cost
    used = {name: (seconds - before[name]) / amount for name, seconds in deployment.cpu_s().items()}
    cost |= {f"{CPU_NAMES[name]}_{unit}": value for name, value in used.items()}
    cost[f"all_cpu_{unit}"] = sum(used.values())


def _rates(figures: dict[str, float]) -> dict[str, float]:
    """Return the rates alone: a latency of a producer that sends as much as it can is one of its own queue."""
    return {name: figures[name] for name in ("records", "records_s", "mb_s")}


def _store(deployment: Deployment, topic: str, count: int) -> None:
    produce(deployment.bootstrap, topic, count=count, record_bytes=STORED_RECORD_BYTES, properties=PRODUCER)


def _rss(deployment: Deployment, case: str) -> Sample:
    time.sleep(SETTLE_S)
    names = {OWN: "rss_mb", HDFS: "storage_rss_mb", ETCD: "etcd_rss_mb"}
    found = {names[name]: size / 1e6 for name, size in deployment.rss_bytes().items()}
    return _sample(deployment, "memory", case, 1, found)


def _sample(deployment: Deployment, bench: str, case: str, number: int, metrics: dict[str, float]) -> Sample:
    return Sample(adapter=deployment.name, bench=bench, case=case, round=number, metrics=metrics)
