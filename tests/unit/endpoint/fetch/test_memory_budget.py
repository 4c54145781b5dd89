"""The byte budget: which request waits for which, and that nothing is lost on the way."""

from __future__ import annotations

import asyncio
import sys

import pytest

from bmq.endpoint.fetch.memory_budget import FetchBudget, MemoryPool, Reservation
from bmq.storage.block_cache import BlockCache
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.unit.endpoint.fetch.batches import KEY, batch

LIMIT = 3200
SMALL = 100
"""What a lane of this limit calls small."""


class EmptyBlocks(BlockCache):
    """A cache of which nothing is read; the limits that it was given."""

    def __init__(self) -> None:
        super().__init__(MemoryFileSystem(MemoryStorage(), "a"))
        self.limits: list[int] = []

    def limit_cache(self, cache_bytes: int) -> None:
        self.limits.append(cache_bytes)
        super().limit_cache(cache_bytes)


def lane(limit: int = LIMIT) -> MemoryPool:
    return MemoryPool(limit, lambda: None)


def full(size: int = LIMIT) -> tuple[MemoryPool, Reservation]:
    """Return a pool and a reservation that holds ``size`` bytes of it; a reservation may grow past every limit."""
    made = lane()
    held = made.try_take(size)
    assert held is not None
    held.resize(size)
    return made, held


@pytest.mark.parametrize(
    ("used", "asked", "granted"),
    [
        (0, 1, 1),
        (0, LIMIT // 2, LIMIT // 2),
        (0, 100 * LIMIT, LIMIT // 2),  # not all of it: others come
        (SMALL, 100 * LIMIT, (LIMIT * 7 // 8 - SMALL) // 4),  # a quarter of what is free before the reserve
        (SMALL, 2 * SMALL, 2 * SMALL),
        (2600, 2 * SMALL, SMALL),  # a quarter would be less than what is small
        (2700, 2 * SMALL, SMALL),
        (2701, 2 * SMALL, 0),  # the reserve is for small ones
        (2701, SMALL, SMALL),
        (LIMIT - SMALL, SMALL, SMALL),
        (LIMIT - SMALL + 1, SMALL, 0),
        (LIMIT, 1, 0),
        (2 * LIMIT, 1, 0),
    ],
)
def test_a_grant_depends_on_the_bytes_in_use(used: int, asked: int, granted: int) -> None:
    made = full(used)[0] if used else lane()
    reservation = made.try_take(asked)
    assert (reservation.size if reservation is not None else 0) == granted
    assert made.used == used + granted
    if reservation is not None:
        reservation.release()
        reservation.release()
    assert made.used == used


def test_reservations_that_are_never_released_leave_room_for_new_ones() -> None:
    """However many ask for everything and keep it, the next one gets something, and small ones longest."""
    made = lane(64 << 20)
    grants = []
    while (taken := made.try_take(1 << 40)) is not None:
        grants.append(taken.size)
    assert len(grants) > 10
    assert grants == sorted(grants, reverse=True)
    small = 0
    while made.try_take(1 << 20) is not None:
        small += 1
    assert small >= 8


async def test_waits_are_granted_in_order_and_small_ones_pass() -> None:
    made, held = full()
    served: list[tuple[str, int]] = []

    async def take(name: str, size: int) -> Reservation:
        reservation = await made.take(size)
        served.append((name, reservation.size))
        return reservation

    tasks = [
        asyncio.create_task(take(name, size))
        for name, size in (("a", 1000), ("b", 300), ("small", 50), ("c", 200), ("tiny", 20))
    ]
    await asyncio.sleep(0)
    assert made.waiting == 5
    assert made.try_take(1000) is None
    held.resize(LIMIT - 60)
    await asyncio.sleep(0)
    assert served == [("small", 50)]  # tiny would not fit any more
    assert made.try_take(10) is not None
    held.resize(2000)
    await asyncio.sleep(0)
    assert served == [("small", 50), ("a", 185), ("b", 138), ("c", 104), ("tiny", 20)]
    assert (made.used, made.waiting) == (2010 + 50 + 185 + 138 + 104 + 20, 0)
    assert all(task.done() for task in tasks)


async def test_a_cancelled_wait_takes_no_memory() -> None:
    made, held = full()
    waiting, granted, last = (asyncio.create_task(made.take(60)) for _ in range(3))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.sleep(0)
    assert made.waiting == 2
    held.release()  # grants, and in the same moment the client goes
    granted.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert granted.cancelled()
    assert (await last).size == 60
    assert (made.used, made.waiting) == (60, 0)


async def test_a_cancelled_head_lets_the_next_one_in() -> None:
    made, held = full(2701)
    head, second = asyncio.create_task(made.take(800)), asyncio.create_task(made.take(300))
    await asyncio.sleep(0)
    head.cancel()
    held.resize(2600)
    assert (await second).size == 100
    assert made.used == 2700


async def test_every_grant_shrinks_the_block_cache() -> None:
    blocks = EmptyBlocks()
    budget = FetchBudget(8 * LIMIT, 0.5, blocks)
    assert budget.storage.limit == LIMIT
    held = budget.storage.try_take(100)
    assert held is not None
    held.resize(2750)
    waiting = asyncio.create_task(budget.storage.take(300))
    await asyncio.sleep(0)
    held.resize(2700)
    await waiting
    assert blocks.limits[-1] == 8 * LIMIT - 2800


async def test_a_wait_cancelled_before_its_turn_is_skipped() -> None:
    made, held = full()
    head, second = asyncio.create_task(made.take(800)), asyncio.create_task(made.take(300))
    await asyncio.sleep(0)
    head.cancel()
    held.release()
    assert (await second).size == 300
    assert (made.used, made.waiting) == (300, 0)


def test_a_part_of_a_reservation_is_released_apart() -> None:
    one = lane()
    whole = one.try_take(100)
    assert whole is not None
    part = whole.split(30)
    whole.release()
    assert one.used == 30
    part.release()
    assert one.used == 0


def test_the_block_cache_may_have_the_memory_that_is_left() -> None:
    blocks = EmptyBlocks()
    budget = FetchBudget(100_000, 0.5, blocks)
    assert (budget.tails_own, budget.memory.limit, budget.storage.limit) == (50_000, 25_000, 12_500)
    assert blocks.limits == [100_000]
    budget.tails.add(KEY, [batch(0, 40_000)])
    budget.tails_changed()
    budget.tails_changed()
    left = 100_000 - budget.tails.used
    memory, storage = budget.memory.try_take(125), budget.storage.try_take(62)
    assert blocks.limits == [100_000, left, left - 125, left - 187]
    assert memory is not None
    assert storage is not None
    memory.release()
    storage.resize(100)
    assert blocks.limits[4:] == [left - 62, left - 100]


async def test_a_release_costs_what_it_grants_however_many_wait() -> None:
    made, held = full()
    waiting = [asyncio.create_task(made.take(300)) for _ in range(1_000)]
    await asyncio.sleep(0)
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    held.resize(LIMIT - 10)  # room for none of them
    sys.setprofile(None)
    assert made.waiting == len(waiting)
    assert calls < 50
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert (made.used, made.waiting) == (LIMIT - 10, 0)
