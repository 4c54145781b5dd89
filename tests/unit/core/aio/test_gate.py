"""A gate for work by its size: in order, within its limit, and never shut for good by work that gave up."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from bmq.core.aio.gate import Gate


async def test_work_enters_in_its_order_within_the_limit() -> None:
    gate, inside, order = Gate(10), list[int](), list[int]()

    async def work(number: int, size: int) -> None:
        async with gate.admitted(size):
            order.append(number)
            inside.append(size)
            assert sum(inside) <= gate.used, "those that are let in count before they go on"
            assert gate.used <= gate.limit or inside == [size]
            await asyncio.sleep(1)
            inside.remove(size)

    sizes = [4, 4, 4, 1, 25, 1, 9]
    await asyncio.gather(*(work(number, size) for number, size in enumerate(sizes)))
    assert order == list(range(len(sizes))), "small work does not pass large work"
    assert (gate.used, gate.waiting) == (0, 0)


async def test_what_fits_enters_without_a_turn_of_the_loop() -> None:
    gate = Gate(10)
    async with gate.admitted(100):  # larger than the gate: alone
        assert not gate.has_room(1)
        assert repr(gate) == "<Gate 100/10, 0 waiting>"
    entering = gate.admitted(1).__aenter__()
    with pytest.raises(StopIteration):
        entering.send(None)


async def test_units_may_be_given_back_early_and_only_once() -> None:
    gate = Gate(10)
    async with gate.admitted(10) as leave:
        waiting = asyncio.ensure_future(gate._enter(10))
        await asyncio.sleep(0)
        assert not waiting.done()
        leave()
        await waiting
        leave()
        assert gate.used == 10
    assert gate.used == 10, "of the one that came after"


async def test_a_failure_inside_gives_the_units_back() -> None:
    gate = Gate(1)
    with pytest.raises(ValueError, match="inside"):
        async with gate.admitted(1):
            raise ValueError("inside")
    assert gate.used == 0


@pytest.mark.parametrize("seed", range(20))
async def test_work_that_is_cancelled_at_any_time_leaves_the_gate_open(seed: int) -> None:
    dice, gate = Random(seed), Gate(5)

    async def work(size: int, seconds: float) -> None:
        async with gate.admitted(size):
            await asyncio.sleep(seconds)

    tasks = [asyncio.ensure_future(work(dice.randint(1, 7), dice.choice([0, 1, 2]))) for _ in range(30)]
    for _ in range(20):
        await asyncio.sleep(dice.choice([0, 0, 0.5, 1]))
        dice.choice(tasks).cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (gate.used, gate.waiting) == (0, 0)
    await asyncio.wait_for(work(5, 0), 1)


async def test_a_place_that_was_given_to_cancelled_work_goes_to_the_next() -> None:
    gate = Gate(1)
    async with gate.admitted(1):
        first, second = asyncio.ensure_future(gate._enter(1)), asyncio.ensure_future(gate._enter(1))
        await asyncio.sleep(0)
    first.cancel()  # admitted in this turn of the loop, and has not noticed
    await asyncio.wait_for(second, 1)
    assert (first.cancelled(), gate.used) == (True, 1)
