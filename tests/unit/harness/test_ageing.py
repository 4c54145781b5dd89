"""The meter of ageing: which series rise, and what it counts (tests/harness/ageing.py)."""

from __future__ import annotations

import asyncio

import pytest

from bmq.core.aio.timers import Deadlines, TimerHeap
from tests.harness.ageing import Ageing, rises


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([5, 5, 5, 5, 5, 5], False),
        ([0, 9, 0, 9, 0, 9], False),
        ([9, 8, 7, 6, 5, 4], False),
        ([1, 2, 2, 2, 3, 4], False),  # as calls under way
        ([1, 2, 3, 4, 5, 6], True),
        ([0, 0, 0, 0, 30, 40], True),
        ([1000, 1001, 1002, 1005, 1008, 1010], False),  # below one part in a hundred
        ([1000, 1010, 1020, 1030, 1040, 1050], True),
    ],
)
def test_a_series_rises_if_its_end_is_above_its_beginning(values: list[int], expected: bool) -> None:
    assert rises(values) is expected


def nothing() -> None:
    pass


async def rising_while(grow: object) -> set[str]:
    """Return the names of the series that rise while ``grow`` is called once a second."""
    assert callable(grow)
    with Ageing({}, {}) as meter:
        grow(0)
        meter.begin()
        for _ in range(6):
            for second in range(1, 6):
                grow(second)
                await asyncio.sleep(1)
            meter.take()
    return set(meter.rising())


@pytest.mark.slow
async def test_a_heap_that_nothing_empties_rises() -> None:
    heaps: list[TimerHeap] = []

    def grow(second: int) -> None:
        if not heaps:
            heaps.append(TimerHeap(lambda: 0))
        heaps[0].at(1 << 40, nothing)

    assert await rising_while(grow) == {"elements: core.aio.timers.TimerHeap._heap"}
    heaps[0].close()


@pytest.mark.slow
async def test_objects_that_stay_rise() -> None:
    kept: list[Deadlines] = []
    assert await rising_while(lambda second: kept.append(Deadlines())) == {"objects: core.aio.timers.Deadlines"}


@pytest.mark.slow
async def test_timers_and_tasks_that_stay_rise() -> None:
    loop = asyncio.get_running_loop()
    tasks: list[asyncio.Task[None]] = []

    def grow(second: int) -> None:
        loop.call_later(1e6, nothing)
        tasks.append(loop.create_task(asyncio.sleep(1e6)))

    assert await rising_while(grow) == {"timers of the loop", "tasks"}
    for task in tasks:
        task.cancel()


@pytest.mark.slow
async def test_a_second_that_costs_ever_more_rises() -> None:
    ran = 0

    def grow(second: int) -> None:
        nonlocal ran
        ran += 1
        for _ in range(ran):
            asyncio.get_running_loop().call_soon(nothing)

    assert await rising_while(grow) == {"cost: callbacks"}


@pytest.mark.slow
async def test_what_was_there_before_is_not_counted() -> None:
    heap = TimerHeap(lambda: 0)
    assert await rising_while(lambda second: heap.at(1 << 40, nothing)) == set()
    heap.close()
