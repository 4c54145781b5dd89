"""Two controllers and a real etcd with any number of partitions: time, processor time, memory and bytes in the store.

The cluster is that of ``make scale`` (tests/scale): controllers are processes, brokers are stubs that respond to the
leader and do nothing with their partitions.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from bench.results import Sample
from bench.scaling_planning import Size
from tests.scale.world import CLUSTER, ScaleWorld, Step, scale_world

ADAPTER = "controllers"
BENCH = "control"


def measure(size: Size, number: int, folder: Path | None) -> Iterator[Sample]:
    """Yield a sample of one size: a metric's name begins with the step that it is of."""
    with tempfile.TemporaryDirectory(prefix="bmq-bench-scaling-", dir=folder) as home:
        metrics = asyncio.run(_figures(size, Path(home)))
    yield Sample(adapter=ADAPTER, bench=BENCH, case=size.name, round=number, metrics=metrics)


async def _figures(size: Size, folder: Path) -> dict[str, float]:
    async with scale_world(folder, size.topics, size.partitions_each, joined=size.brokers) as world:
        found: dict[str, float] = {}
        async for name, step in _steps(world, size):
            found |= step_metrics(name, step)
            if name == "first":
                keys, stored_bytes = world.etcd.stored(f"/{CLUSTER}/")
                found |= {"keys": float(keys), "store_bytes": float(stored_bytes)}
        return found


async def _steps(world: ScaleWorld, size: Size) -> AsyncIterator[tuple[str, Step]]:
    total, brokers = size.partitions, world.brokers
    yield "first", await world.until_assigned(total, lambda counts: len(counts) == size.brokers, from_start=True)
    dead = await brokers.kill()
    yield "lost", await world.until_assigned(total, lambda counts: dead not in counts)
    gone = await brokers.leave()
    yield "left", await world.until_assigned(total, lambda counts: gone not in counts)


def step_metrics(name: str, step: Step) -> dict[str, float]:
    """Return a step's figures: processor time and memory of the busiest controller, which is the leader."""
    return {
        f"{name}_seconds": step.took_s,
        f"{name}_cpu_s": max(step.cpu_s),
        f"{name}_stop_ms": max(step.stop_ms),
        f"{name}_rss_mb": float(max(step.rss_mb)),
    }
