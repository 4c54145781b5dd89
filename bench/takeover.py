"""The takeover benchmark: a broker takes a partition over from one that writes without pause, again and again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

from bench.load import ClosedLoop, make_batch, renew
from bench.plan import SIZES, Plan
from bench.results import Sample, spread_of
from bench.roots import Site
from bench.single import new_places
from bmq.broker.broker import Broker
from bmq.core.errors import RequestError

SIZE = SIZES["1 KB"]
IN_FLIGHT = 16


async def _use(broker: Broker) -> None:
    """Open a partition, write to it, checkpoint it and hand it over."""
    place = new_places(1)[0]
    driver = await broker.open(place.path, place.key)
    await driver.append(make_batch(SIZE))
    await broker.move(place.key)


async def takeover(site: Site, plan: Plan, number: int) -> AsyncIterator[Sample]:
    """Measure the time until the successor accepts batches, and until its first one is flushed.

    Both run in this process and on its one core; the predecessor writes until it notices.  The successor has been used
    before: its journal is open.
    """
    place = new_places(1)[0]
    opened: list[float] = []
    flushed: list[float] = []
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(site.broker())
        driver = await broker.open(place.path, place.key)
        for _ in range(plan.takeovers):
            loop = ClosedLoop([driver], size=SIZE, in_flight=IN_FLIGHT)
            await loop.measure(warm_s=0.0, seconds=0.05, bytes_max=1 << 30)
            successor = await stack.enter_async_context(site.broker())
            await _use(successor)
            loop = ClosedLoop([driver], size=SIZE, in_flight=IN_FLIGHT)
            loop.start()
            await asyncio.sleep(0.02)
            started = time.perf_counter()
            taken = await successor.open(place.path, place.key)
            opened.append((time.perf_counter() - started) * 1000)
            base = await taken.append(renew(make_batch(SIZE)))
            flushed.append((time.perf_counter() - started) * 1000)
            await loop.drain()  # ends when the predecessor has noticed, and refused what it could not flush
            if not isinstance(loop.error, RequestError):
                raise AssertionError(f"the predecessor ended with {loop.error!r}, not refused")
            if loop.last_offset >= base:
                raise AssertionError(f"offset {loop.last_offset} was acknowledged, its successor began at {base}")
            await broker.close()
            broker, driver = successor, taken
    opening, answer = spread_of(opened), spread_of(flushed)
    yield Sample(
        adapter=site.adapter,
        bench="takeover",
        case="1 KB",
        round=number,
        metrics={
            "open_min_ms": opening.low,
            "open_ms": opening.middle,
            "open_max_ms": opening.high,
            "first_flush_min_ms": answer.low,
            "first_flush_ms": answer.middle,
            "first_flush_max_ms": answer.high,
        },
        series={"open_ms": opened, "first_flush_ms": flushed},
    )
