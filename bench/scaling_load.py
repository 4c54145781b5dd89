"""Throughput of one cluster under several producers, and several consumers, at once.

Producers send as much as they can until they are ended.  A rate is what all partitions together acknowledged between
two moments at which every producer was at work: no client's start or end is in it.
"""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from bench import client_load
from bench.against_measure import GB, cpu_cost
from bench.deployments import OWN, Deployment
from bench.matrix_measure import fresh_topic
from bench.payloads import Payloads
from bench.perf_tools import CLIENT_JAVA, HEAP_MB, PRODUCER, consume, consume_arguments, produce_arguments
from bench.results import Sample
from tests.services.kafka_tools import tool_command
from tests.services.processes import ServiceProcess, wait_for

RECORD_BYTES = 1000
PARTITIONS = 24
RECORDS_MOST = 1_000_000_000
"""Records that a producer would send if it were not ended."""
BEGIN_TIMEOUT_S = 60.0
OFFSETS_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """The clients of a measurement, and how long it takes."""

    producers: int
    warm_s: float
    window_s: float
    consumed_mb: int
    """Bytes that each consumer reads."""


def clients() -> dict[str, str]:
    """Return the clients' command lines."""
    sent = produce_arguments(
        "BOOTSTRAP", "TOPIC", count=RECORDS_MOST, record_bytes=RECORD_BYTES, properties=PRODUCER,
        payloads=Path("PAYLOADS"),
    )  # fmt: skip
    return {"produce": shlex.join(sent), "consume": shlex.join(consume_arguments("BOOTSTRAP", "TOPIC", count=1))}


def measure(
    deployment: Deployment, amounts: Amounts, payloads: Payloads, number: int, folder: Path
) -> Iterator[Sample]:
    """Yield a sample of producing, then one of consuming the same records, which each consumer reads for itself."""
    with fresh_topic(deployment, PARTITIONS) as topic:
        client_load.touch(deployment.bootstrap, topic, partitions=PARTITIONS)
        with producing(deployment.bootstrap, topic, amounts.producers, payloads, folder):
            metrics = _window(deployment, topic, amounts)
        yield _sample(deployment, "produce", number, metrics)
        stored = end_offsets(deployment.bootstrap, topic)
        count = min(stored, amounts.consumed_mb * 1_000_000 // RECORD_BYTES)
        begun, busy = time.monotonic(), own_cpu_s(deployment)
        with cpu_cost(deployment, "s_gb", amounts.producers * count * RECORD_BYTES / GB) as cost:
            rates = _consume(deployment.bootstrap, topic, amounts.producers, count)
        rates |= busy_shares(busy, own_cpu_s(deployment), time.monotonic() - begun)
        yield _sample(deployment, "consume", number, rates | cost)


@contextlib.contextmanager
def producing(bootstrap: str, topic: str, count: int, payloads: Payloads, folder: Path) -> Iterator[None]:
    """Run so many ``kafka-producer-perf-test`` until the end of the block."""
    arguments = produce_arguments(
        bootstrap, topic, count=RECORDS_MOST, record_bytes=RECORD_BYTES, properties=PRODUCER, payloads=payloads.path
    )
    command = tool_command(*arguments, heap_mb=HEAP_MB, java_options=CLIENT_JAVA)
    clients = [ServiceProcess(f"producer-{n}", command, log=folder / f"producer-{n}.log") for n in range(count)]
    try:
        for client in clients:
            client.start()
        yield
        for client in clients:
            client.require_running()
    finally:
        for client in clients:
            client.kill()


def _window(deployment: Deployment, topic: str, amounts: Amounts) -> dict[str, float]:
    """Return the figures between two moments, after the producers have begun and a time for them to warm up."""

    def has_begun() -> bool:
        return end_offsets(deployment.bootstrap, topic) > PARTITIONS

    wait_for(has_begun, f"records of producers in {topic}", timeout_s=BEGIN_TIMEOUT_S)
    time.sleep(amounts.warm_s)
    own = own_cpu_s(deployment)
    begun, before = time.monotonic(), end_offsets(deployment.bootstrap, topic)
    with cpu_cost(deployment, "s", 1.0) as used:
        time.sleep(amounts.window_s)
    records, elapsed_s = end_offsets(deployment.bootstrap, topic) - before, time.monotonic() - begun
    sent_gb = records * RECORD_BYTES / GB
    costs = {f"{name}_gb": seconds / sent_gb for name, seconds in used.items()} if records else {}
    return _rates(records / elapsed_s) | costs | busy_shares(own, own_cpu_s(deployment), elapsed_s)


def end_offsets(bootstrap: str, topic: str) -> int:
    """Return the sum of the partitions' high watermarks: the records that are acknowledged."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = {TopicPartition(topic, partition): latest for partition in range(PARTITIONS)}
    found = admin.list_offsets(asked, request_timeout=OFFSETS_TIMEOUT_S)
    return sum(future.result(OFFSETS_TIMEOUT_S).offset for future in found.values())


def own_cpu_s(deployment: Deployment) -> list[float]:
    """Return the processor seconds of each process of BMQ."""
    return [process.cpu_seconds for process in deployment.groups[OWN]]


def busy_shares(before: list[float], after: list[float], elapsed_s: float) -> dict[str, float]:
    """Return which share of a core the busiest process used, and all of them together.

    A process has one event loop, which does nearly all of its work: near 1 it can do no more.
    """
    used = [(late - early) / elapsed_s for early, late in zip(before, after, strict=True)]
    return {"busiest_share": max(used), "all_share": sum(used)}


def _consume(bootstrap: str, topic: str, consumers: int, count: int) -> dict[str, float]:
    """Return the sum of the rates of consumers that read at the same time, each without the time to join its group."""
    with ThreadPoolExecutor(consumers) as pool:
        running = [pool.submit(consume, bootstrap, topic, count=count) for _ in range(consumers)]
        return _rates(sum(each.result()["records_s"] for each in running))


def _rates(records_s: float) -> dict[str, float]:
    return {"records_s": records_s, "mb_s": records_s * RECORD_BYTES / 1e6}


def _sample(deployment: Deployment, bench: str, number: int, metrics: Mapping[str, float]) -> Sample:
    return Sample(adapter="bmq", bench=bench, case=deployment.name, round=number, metrics=dict(metrics))
