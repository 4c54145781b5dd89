"""The byte budget: who waits for whom, and that nothing is lost on the way."""

from __future__ import annotations

import asyncio

from bmq.proxy.budget import FetchBudget, Lane, Reservation
from tests.simulation.loop import run


def lane(limit: int = 100) -> Lane:
    return Lane(limit, lambda: None)


def test_an_empty_lane_lets_anyone_in() -> None:
    full = lane()
    large = full.try_take(1000)
    assert large is not None
    assert full.try_take(1) is None
    large.release()
    large.release()
    assert full.used == 0
    assert full.try_take(100) is not None
    assert full.try_take(1) is None


def test_those_who_wait_are_served_in_order_and_nobody_overtakes() -> None:
    async def main() -> None:
        one = lane()
        held = [one.try_take(50), one.try_take(50)]
        served: list[int] = []

        async def take(size: int) -> Reservation:
            reservation = await one.take(size)
            served.append(size)
            return reservation

        tasks = [asyncio.create_task(take(size)) for size in (80, 10, 11)]
        await asyncio.sleep(0)
        assert one.waiting == 3
        assert one.try_take(0) is None
        assert held[0] is not None
        held[0].release()
        await asyncio.sleep(0)
        assert served == []  # 10 would fit: it waits behind 80
        assert held[1] is not None
        held[1].release()
        await asyncio.sleep(0)
        assert (served, one.used) == ([80, 10], 90)
        (await tasks[0]).resize(20)
        await asyncio.sleep(0)
        assert (served, one.used, one.waiting) == ([80, 10, 11], 41, 0)

    run(main())


def test_a_cancelled_wait_takes_nothing_wherever_it_is_met() -> None:
    async def main() -> None:
        one = lane()
        held = one.try_take(100)
        assert held is not None
        waiting, granted, last = (asyncio.create_task(one.take(60)) for _ in range(3))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(0)
        assert one.waiting == 2
        held.release()  # grants, and in the same moment the client goes
        granted.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert granted.cancelled()
        assert (await last).size == 60
        assert (one.used, one.waiting) == (60, 0)

    run(main())


def test_a_cancelled_head_lets_the_next_one_in() -> None:
    async def main() -> None:
        one = lane()
        assert one.try_take(50) is not None
        head, small = asyncio.create_task(one.take(80)), asyncio.create_task(one.take(30))
        await asyncio.sleep(0)
        head.cancel()
        assert (await small).size == 30
        assert one.used == 80

    run(main())


def test_every_grant_is_told_to_the_blocks() -> None:
    async def main() -> None:
        told: list[int] = []
        budget = FetchBudget(1000, 0.5, told.append)
        held = budget.storage.try_take(100)
        assert held is not None
        head, small = asyncio.create_task(budget.storage.take(80)), asyncio.create_task(budget.storage.take(20))
        await asyncio.sleep(0)
        head.cancel()
        await small
        assert told[-1] == 1000 - 120

    run(main())


def test_a_wait_cancelled_before_its_turn_is_skipped() -> None:
    async def main() -> None:
        one = lane()
        held = one.try_take(100)
        assert held is not None
        head, small = asyncio.create_task(one.take(80)), asyncio.create_task(one.take(30))
        await asyncio.sleep(0)
        head.cancel()
        held.release()
        assert (await small).size == 30
        assert (one.used, one.waiting) == (30, 0)

    run(main())


def test_a_part_of_a_reservation_is_released_apart() -> None:
    one = lane()
    whole = one.try_take(100)
    assert whole is not None
    part = whole.split(30)
    whole.release()
    assert one.used == 30
    part.release()
    assert one.used == 0


def test_blocks_may_have_what_the_others_leave() -> None:
    told: list[int] = []
    budget = FetchBudget(1000, 0.5, told.append)
    assert (budget.tail_limit, budget.memory.limit, budget.storage.limit) == (500, 250, 125)
    assert told == [1000]
    budget.tail_is(500)
    budget.tail_is(500)
    memory, storage = budget.memory.try_take(250), budget.storage.try_take(125)
    assert told == [1000, 500, 250, 125]
    assert memory is not None
    assert storage is not None
    memory.release()
    storage.resize(100)
    assert told[4:] == [375, 400]
