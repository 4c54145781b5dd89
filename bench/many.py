"""The many-partitions benchmark: opening them, writing to all of them at once, and losing their broker."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack

from bench.load import ClosedLoop, make_batch, renew
from bench.plan import SIZES, Plan
from bench.results import Sample, latency_metrics, spread_of
from bench.roots import REPLICAS, Site, flushes_of
from bench.single import Place, new_places, rates
from bmq.broker.broker import Broker
from bmq.broker.config import BrokerConfig
from bmq.broker.partition.driver import PartitionDriver

SIZE = SIZES["1 KB"]
LONE_OPENS = 20
LOADS = {"one each": 1, "2,000 in all": 2000}
"""Batches in flight: a producer per partition that waits for each response, or enough of them for group commit."""


async def partitions(site: Site, plan: Plan, number: int) -> AsyncIterator[Sample]:
    """Grow one broker through the counts; kill it; a second opens them all and hands them over, and a third opens
    them."""
    total = max(plan.counts)
    places = new_places(total)
    config = BrokerConfig(block_bytes=_block_bytes(total), open_pipelines_max=max(total, 1000))

    def sample(bench: str, count: int, metrics: dict[str, float], suffix: str = "") -> Sample:
        case = f"{count:,}{suffix}"
        return Sample(adapter=site.adapter, bench=bench, case=case, round=number, metrics=metrics)

    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(site.broker(config))
        yield sample("open alone", 1, await _open_one_by_one(first))
        drivers: list[PartitionDriver] = []
        for count in sorted(plan.counts):
            added = places[len(drivers) : count]
            started = time.perf_counter()
            drivers += await _open_all(first, added)
            took_s = time.perf_counter() - started
            yield sample("open", len(added), {"seconds": took_s, "partitions_s": len(added) / took_s})
            for name, in_all in LOADS.items():
                yield sample("partitions", count, await _write(first, drivers, in_all, plan), f", {name}")

        second = await stack.enter_async_context(site.broker(config))
        for driver in drivers:
            await driver.abandon()
        yield sample("open after a crash", total, await _timed_open(second, places))
        await asyncio.gather(*(_append_one(second, place) for place in places))  # a segment each, to be closed
        started = time.perf_counter()
        await asyncio.gather(*(second.move(place.key) for place in places))
        took_s = time.perf_counter() - started
        yield sample("hand over", total, {"seconds": took_s, "partitions_s": total / took_s})
        third = await stack.enter_async_context(site.broker(config))
        yield sample("open after a hand-over", total, await _timed_open(third, places))


def _block_bytes(partitions: int) -> int:
    """Return the block size: each open block reserves it on the datanodes' disk, a quarter of the free space at
    most."""
    free = shutil.disk_usage("/").free // 4 // REPLICAS // partitions
    return max(4 << 20, min(BrokerConfig().block_bytes, free >> 20 << 20))


async def _open_one_by_one(broker: Broker) -> dict[str, float]:
    """Measure new partitions, one after another: until one accepts batches, and until its first batch is flushed."""
    opened, flushed = [], []
    batch = make_batch(SIZE)
    for place in new_places(LONE_OPENS):
        started = time.perf_counter()
        driver = await broker.open(place.path, place.key)
        opened.append((time.perf_counter() - started) * 1000)
        await driver.append(renew(batch))
        flushed.append((time.perf_counter() - started) * 1000)
        await broker.move(place.key)
    opening, answer = spread_of(opened), spread_of(flushed)
    return {
        "open_ms": opening.middle,
        "first_flush_ms": answer.middle,
        "first_flush_min_ms": answer.low,
        "first_flush_max_ms": answer.high,
    }


async def _open_all(broker: Broker, places: Sequence[Place]) -> list[PartitionDriver]:
    """Open all at once, each with one batch flushed: its segment is created, registered, named and written."""

    async def one(place: Place) -> PartitionDriver:
        driver = await broker.open(place.path, place.key)
        await driver.append(make_batch(SIZE))
        return driver

    return list(await asyncio.gather(*(one(place) for place in places)))


async def _append_one(broker: Broker, place: Place) -> None:
    driver = broker.get(place.key)
    assert driver is not None
    await driver.append(make_batch(SIZE))


async def _timed_open(broker: Broker, places: Sequence[Place]) -> dict[str, float]:
    """Open partitions that hold data: fence and recover if necessary, until all accept batches."""
    started = time.perf_counter()
    await asyncio.gather(*(broker.open(place.path, place.key) for place in places))
    took_s = time.perf_counter() - started
    return {"seconds": took_s, "partitions_s": len(places) / took_s}


async def _write(broker: Broker, drivers: Sequence[PartitionDriver], in_all: int, plan: Plan) -> dict[str, float]:
    loop = ClosedLoop(drivers, size=SIZE, in_flight=max(1, in_all // len(drivers)))
    flushes = flushes_of(broker)
    started = time.perf_counter()
    measured = await loop.measure(
        warm_s=min(plan.warm_s, plan.partitions_s / 3), seconds=plan.partitions_s, bytes_max=plan.throughput_bytes_max
    )
    flushes_s = (flushes_of(broker) - flushes) / (time.perf_counter() - started)  # warm-up included: the same loop
    return rates(measured) | latency_metrics(measured.latencies_s) | {"flushes_s": flushes_s}
