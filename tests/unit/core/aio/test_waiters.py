"""A queue of waiters: all that wait are woken, none is woken for nothing, and one that gives up leaves nothing."""

from __future__ import annotations

import asyncio

import pytest

from bmq.core.aio.waiters import Waiters


async def test_all_that_wait_go_on_in_their_order() -> None:
    waiters, order = Waiters(), list[int]()

    async def wait(number: int) -> None:
        assert await waiters.wait()
        order.append(number)

    tasks = [asyncio.create_task(wait(number)) for number in range(5)]
    await asyncio.sleep(1)
    assert (len(waiters), order, repr(waiters)) == (5, [], "<Waiters 5>")
    waiters.wake_all()
    await asyncio.gather(*tasks)
    assert (len(waiters), order, waiters.wakes) == (0, list(range(5)), 1)


async def test_one_that_comes_later_waits_for_the_next_time() -> None:
    waiters = Waiters()
    waiters.wake_all()
    task = asyncio.create_task(waiters.wait())
    await asyncio.sleep(1)
    assert not task.done()
    waiters.wake_all()
    assert await task


async def test_a_change_while_the_caller_was_busy_is_not_missed() -> None:
    waiters = Waiters()
    seen = waiters.wakes
    waiters.wake_all()
    assert await waiters.wait(0.0, since=seen)
    assert not await waiters.wait(1.0, since=waiters.wakes)


@pytest.mark.parametrize("timeout_s", [0.0, 3.0])
async def test_a_wait_ends_in_time_and_leaves_nothing(timeout_s: float) -> None:
    waiters, began = Waiters(), asyncio.get_running_loop().time()
    assert not await waiters.wait(timeout_s)
    assert asyncio.get_running_loop().time() - began == pytest.approx(timeout_s)
    assert len(waiters) == 0


async def test_a_cancelled_wait_leaves_nothing_and_the_others_are_woken() -> None:
    waiters = Waiters()
    first, second, third = (asyncio.create_task(waiters.wait()) for _ in range(3))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    assert len(waiters) == 2
    waiters.wake_all()
    second.cancel()  # in the turn in which it was woken
    assert await third
    assert first.cancelled()
    assert second.cancelled()


async def test_who_waits_again_when_woken_waits_for_the_next_time() -> None:
    waiters, woken = Waiters(), list[int]()

    async def wait() -> None:
        for number in range(3):
            await waiters.wait()
            woken.append(number)

    task = asyncio.create_task(wait())
    for number in range(3):
        await asyncio.sleep(1)
        assert len(woken) == number
        waiters.wake_all()
    await task
