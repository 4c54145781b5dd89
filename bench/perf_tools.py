"""The runners of Kafka's own performance tools, and the parsers of their output."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from tests.services.kafka_tools import run_tool

CLIENT_JAVA = ("-XX:+UseG1GC", "-Xshare:auto")
HEAP_MB = 512
TIMEOUT_S = 300.0
PRODUCER = {"acks": "all", "batch.size": "65536", "linger.ms": "5", "buffer.memory": "67108864"}
"""Producer settings for throughput: Kafka's documentation says to raise batch.size and linger.ms first."""
_PRODUCED = re.compile(
    r"(\d+) (?:steady state )?records sent, ([\d.]+) records/sec \(([\d.]+) MB/sec\),"
    r" ([\d.]+) ms avg latency, ([\d.]+) ms max latency,"
    r" (\d+) ms 50th, (\d+) ms 95th, (\d+) ms 99th, (\d+) ms 99.9th"
)


def produce_arguments(
    bootstrap: str,
    topic: str,
    *,
    count: int,
    record_bytes: int,
    properties: Mapping[str, str],
    warm_count: int = 0,
    payloads: Path | None = None,
) -> list[str]:
    """Return the class of ``kafka-producer-perf-test`` and its arguments.

    Records are random capital letters, or lines of the file ``payloads``, which have ``record_bytes`` each.
    """
    values = ["--record-size", str(record_bytes)] if payloads is None else ["--payload-file", str(payloads)]
    settings = [f"{name}={value}" for name, value in {"bootstrap.servers": bootstrap, **properties}.items()]
    return [
        "ProducerPerformance", "--topic", topic, "--num-records", str(count + warm_count), *values,
        "--throughput", "-1", "--warmup-records", str(warm_count),
        "--reporting-interval", "60000", "--command-property", *settings,
    ]  # fmt: skip


def consume_arguments(bootstrap: str, topic: str, *, count: int) -> list[str]:
    """Return the class of ``kafka-consumer-perf-test`` and its arguments."""
    return [
        "ConsumerPerformance", "--bootstrap-server", bootstrap, "--topic", topic, "--num-records", str(count),
        "--hide-header", "--timeout", "60000",
    ]  # fmt: skip


def produce(
    bootstrap: str,
    topic: str,
    *,
    count: int,
    record_bytes: int,
    properties: Mapping[str, str],
    warm_count: int = 0,
    payloads: Path | None = None,
) -> dict[str, float]:
    """Run ``kafka-producer-perf-test``; return records/s, MB/s (2^20) and latencies in ms, after ``warm_count``
    records.

    Raises ValueError if its output has no summary.
    """
    arguments = produce_arguments(
        bootstrap, topic, count=count, record_bytes=record_bytes, properties=properties, warm_count=warm_count,
        payloads=payloads,
    )  # fmt: skip
    output = run_tool(*arguments, timeout_s=TIMEOUT_S, heap_mb=HEAP_MB, java_options=CLIENT_JAVA)
    found = _PRODUCED.findall(output.stdout)
    if not found:
        raise ValueError(f"no summary in: {output.stdout}\n{output.stderr}")
    names = ("records", "records_s", "mb_s", "mean_ms", "max_ms", "p50_ms", "p95_ms", "p99_ms", "p99.9_ms")
    return dict(zip(names, map(float, found[-1]), strict=True))


def consume(bootstrap: str, topic: str, *, count: int) -> dict[str, float]:
    """Run ``kafka-consumer-perf-test``; return records/s and MB/s while fetching, without the time to join the group.

    Raises ValueError if it consumed less than ``count``.
    """
    arguments = consume_arguments(bootstrap, topic, count=count)
    output = run_tool(*arguments, timeout_s=TIMEOUT_S, heap_mb=HEAP_MB, java_options=CLIENT_JAVA)
    # start, end, MB, MB/s, records, records/s, rebalance ms, fetch ms, fetch MB/s, fetch records/s
    fields = [field.strip() for field in output.lines[-1].split(",")]
    if len(fields) < 10 or int(fields[4]) < count:
        raise ValueError(f"consumed less than {count}: {output.stdout}\n{output.stderr}")
    return {"records": float(fields[4]), "mb_s": float(fields[8]), "records_s": float(fields[9])}
