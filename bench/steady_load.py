"""A load at a fixed rate that takes no look at each acknowledgement, for others who follow the topic.

``bench.client_load.paced`` calls Python for every record, which is what limits it at high rates.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from confluent_kafka import Producer

from bench.client_load import TIMEOUT_S, Deliveries

TURN_S = 0.002
"""Seconds between two looks at how many records are due."""


@dataclass(frozen=True, slots=True)
class SteadyLoad:
    """A load that ``steady`` sent.  Record ``n`` was due at ``begun_s + n / records_s`` by the system's clock, and went
    to partition ``n % partitions``."""

    begun_s: float
    records_s: int
    count: int
    partitions: int
    behind_s: float
    """Seconds from when the last record was due until all were acknowledged: large if servers or client cannot."""


def steady(
    bootstrap: str, topic: str, *, records_s: int, seconds: float, record_bytes: int, partitions: int
) -> SteadyLoad:
    """Produce at a fixed rate, an open loop.

    An idempotent producer keeps the order in each partition.  Raises RuntimeError if a record is not acknowledged.
    """
    deliveries, value, count = Deliveries(), os.urandom(record_bytes), int(records_s * seconds)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0,
            "on_delivery": deliveries, "delivery.report.only.error": True, "queue.buffering.max.messages": 1_000_000,
        }
    )  # fmt: skip
    producer.list_topics(topic, timeout=TIMEOUT_S)
    begun, begun_s, sent = time.monotonic(), time.time(), 0
    while sent < count:
        due = min(count, int((time.monotonic() - begun) * records_s) + 1)
        while sent < due:
            try:
                producer.produce(topic, value, partition=sent % partitions)
                sent += 1
            except BufferError:
                producer.poll(TURN_S)
        producer.poll(TURN_S)
    left = producer.flush(TIMEOUT_S)
    behind_s = time.monotonic() - begun - (count - 1) / records_s
    if left or deliveries.error is not None:
        raise RuntimeError(f"{left} of {count} records not acknowledged: {deliveries.error}")
    return SteadyLoad(begun_s, records_s, count, partitions, behind_s)
