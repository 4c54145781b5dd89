"""The single-partition benchmark: its throughput, and the time of one flush."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass

from bench.load import ClosedLoop, Measured, NoTarget, one_at_a_time
from bench.plan import GB, MB, SIZES, Plan
from bench.results import Sample, latency_curve, latency_metrics
from bench.roots import Site, flushes_of
from bmq.broker.config import LogConfig
from bmq.core.model import PartitionKey
from bmq.storage.layout import PartitionPath

TOPIC = "bench"


@dataclass(frozen=True, slots=True)
class Place:
    """A partition that no broker has opened yet."""

    path: PartitionPath
    key: PartitionKey


def new_places(count: int) -> list[Place]:
    """Return partitions of one new topic."""
    topic_id = uuid.uuid4()
    return [Place(PartitionPath(TOPIC, str(topic_id), n), PartitionKey(topic_id, n)) for n in range(count)]


def in_flight(plan: Plan, size: int) -> int:
    """Return how many batches of that size a closed loop keeps in flight."""
    return max(1, min(plan.in_flight_max, plan.in_flight_bytes // size))


def rates(measured: Measured) -> dict[str, float]:
    """Return rates a second and CPU costs of a measured load."""
    gigabytes = measured.bytes / GB
    return {
        "mb_s": measured.bytes / MB / measured.seconds,
        "appends_s": measured.batches / measured.seconds,
        "cpu_s_gb": (measured.cpu.user_s + measured.cpu.system_s) / gigabytes,
        "cpu_user_s_gb": measured.cpu.user_s / gigabytes,
        "cpu_system_s_gb": measured.cpu.system_s / gigabytes,
        "cpu_us_append": (measured.cpu.user_s + measured.cpu.system_s) / measured.batches * 1e6,
        "seconds": measured.seconds,
    }


async def throughput(site: Site, plan: Plan, number: int) -> AsyncIterator[Sample]:
    """Measure a closed loop of each size; rolls every 128 MB and checkpoints are part of it."""
    for name, size in SIZES.items():
        async with site.broker() as broker:
            place = new_places(1)[0]
            driver = await broker.open(place.path, place.key)
            loop = ClosedLoop([driver], size=size, in_flight=in_flight(plan, size))
            before = flushes_of(broker)
            measured = await loop.measure(
                warm_s=plan.warm_s, seconds=plan.throughput_s, bytes_max=plan.throughput_bytes_max
            )
            metrics = rates(measured) | latency_metrics(measured.latencies_s)
            metrics["appends_flush"] = loop.batches / max(1, flushes_of(broker) - before)
        yield Sample(adapter=site.adapter, bench="throughput", case=name, round=number, metrics=metrics)


async def generator(plan: Plan, number: int) -> AsyncIterator[Sample]:
    """Measure the same loop without a broker."""
    for name, size in SIZES.items():
        loop = ClosedLoop([NoTarget()], size=size, in_flight=in_flight(plan, size))
        measured = await loop.measure(warm_s=0.1, seconds=plan.throughput_s / 8, bytes_max=1 << 62)
        yield Sample(adapter="none", bench="throughput", case=name, round=number, metrics=rates(measured))
        await asyncio.sleep(0)


async def latency(site: Site, plan: Plan, number: int) -> AsyncIterator[Sample]:
    """Measure a lone writer, one batch at a time, without other load; then 1 KB on disk, not only in memory."""
    cases = [(name, size, False) for name, size in SIZES.items()] + [("1 KB, hsync", SIZES["1 KB"], True)]
    async with site.broker() as broker:
        for name, size, sync in cases:
            place = new_places(1)[0]
            driver = await broker.open(place.path, place.key, LogConfig(flush_sync=sync))
            await one_at_a_time(driver, size=size, count=max(5, plan.lone_count // 20), seconds=plan.warm_s)
            taken = await one_at_a_time(driver, size=size, count=plan.lone_count, seconds=plan.lone_s)
            yield Sample(
                adapter=site.adapter,
                bench="latency",
                case=name,
                round=number,
                metrics=latency_metrics(taken),
                series={"curve_ms": latency_curve(taken)},
            )
