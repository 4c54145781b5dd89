"""The cost of a process does not rise with its age: minutes of steady load, or of none, on the virtual clock.

After a warm-up a meter (``tests.harness.ageing``) takes samples at equal intervals.  No series of it may rise: timers,
tasks, objects, elements of containers, files, keys of the store; turns of the loop, callbacks, and calls to storage and
store in an interval.  ``BMQ_SOAK=1`` plays hours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from tests.harness.loop import run
from tests.harness.seeds import amount
from tests.simulation.kafka_clients import create_topic
from tests.simulation.steady_clients import WEEK_MS, SteadyMember, SteadyProducer, Visitors, create
from tests.simulation.steady_world import SteadyWorld, shorten

WARM_S = 180.0
"""Virtual seconds until the process holds as much as it ever will: three times as long as settings keep anything."""
IDLE_PARTITIONS = 1_000


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch)


async def _measure(
    load: Callable[[SteadyWorld], Coroutine[None, None, Callable[[], int]]], intervals: int, interval_s: float
) -> None:
    """Check that no series rises in the intervals, and that the load goes on in each.

    ``load`` begins the load, and returns a function that returns how much of it is done.
    """
    world = SteadyWorld()
    with world.ageing() as meter:
        await world.ready()
        done = await load(world)
        await asyncio.sleep(WARM_S)
        meter.begin()
        for _ in range(intervals):
            before = done()
            await asyncio.sleep(interval_s)
            assert done() > before, "the load has ended"
            world.forget_closed()
            meter.take()
        rising = meter.rising()
        await world.end()
    assert not rising, "\n".join(f"{name}: {values}" for name, values in rising.items())


async def _one_of_each(world: SteadyWorld) -> Callable[[], int]:
    """Begin a producer, a transactional producer and a group, each at work once a second.

    Size alone rolls their segments: a roll by age would end superfluous timers of the partition.
    """
    await create(world, world.client(), "orders", 1, segment_ms=WEEK_MS)
    producer = SteadyProducer(world, "orders", 0)
    transactional = SteadyProducer(world, "orders", 0, transactional_id="id")
    member = SteadyMember(world, "group", "orders", 1)
    world.begin(producer.run(), transactional.run(), member.run())
    return lambda: min(producer.written, transactional.written, member.read)


async def _nobody(world: SteadyWorld) -> Callable[[], int]:
    """Create partitions that nobody uses."""
    await create_topic(world, "idle", IDLE_PARTITIONS)
    return lambda: int(asyncio.get_running_loop().time())


async def _visitors(world: SteadyWorld) -> Callable[[], int]:
    """Begin a load of topics, groups, transactional ids and connections that come and go."""
    visitors = Visitors(world)
    world.begin(visitors.run())
    return lambda: visitors.rounds


def test_steady_load() -> None:
    run(_measure(_one_of_each, amount(9, 120), 30.0))


def test_idle_partitions() -> None:
    run(_measure(_nobody, amount(6, 60), 60.0))


def test_clients_that_come_and_go() -> None:
    run(_measure(_visitors, amount(18, 120), 60.0))
