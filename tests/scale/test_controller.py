"""A million partitions in a real etcd, two controllers that are processes, brokers that come, go and die.

Large topics and small ones.  The leader assigns everything and leads on; nobody is declared dead who lives, and no
process is held up for long, whatever the size.
"""

import asyncio
import time
from pathlib import Path

import pytest

from tests.scale.world import WITHIN_S, scale_world

pytestmark = [pytest.mark.etcd, pytest.mark.soak]

BROKERS = 5
STOP_MAX_MS = 50.0
"""The longest stretch of CPU time of a controller's loop in which nothing else has a turn."""


@pytest.mark.parametrize(("topics", "partitions"), [(1_000, 1_000), (100_000, 1)])
def test_everything_is_assigned_and_nobody_is_held_up(tmp_path: Path, topics: int, partitions: int) -> None:
    asyncio.run(_live(tmp_path, topics, partitions))


async def _live(folder: Path, topics: int, partitions: int) -> None:
    total = topics * partitions
    print(f"\n{topics:,} topics of {partitions:,}")
    async with scale_world(folder, topics, partitions) as world:
        began = time.monotonic()
        async with asyncio.timeout(WITHIN_S):
            while not (term := await world.term()):  # noqa: ASYNC110 - another process's state
                await asyncio.sleep(0.1)
        brokers = world.brokers
        await brokers.join(BROKERS)
        step = await world.until_assigned(total, lambda counts: len(counts) == BROKERS)
        print(f"from nothing: {step}")
        dead = await brokers.kill()
        step = await world.until_assigned(total, lambda counts: dead not in counts)
        print(f"after a death: {step}")
        gone = await brokers.leave()
        step = await world.until_assigned(total, lambda counts: gone not in counts)
        print(f"after one that left: {step}")
        await brokers.join(2)
        newest = list(brokers.living)[-1]
        step = await world.until_assigned(total, lambda counts: counts[newest] >= 500)
        print(f"a new one has a share: {step}")
        assert await world.term() == term, "the leader leads on"
        for each in world.controllers:
            assert each.declared <= {dead, gone}, "whoever lives is let live"
            assert max(each.stops(began), default=0.0) <= STOP_MAX_MS
