"""A bound on bytes: a holder of bytes continues, a caller that wants more waits, and one that gives up leaves
nothing."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.core.aio.byte_budget import ByteBudget


def test_one_batch_may_pass_the_bound() -> None:
    budget = ByteBudget(10)
    budget.take(9)
    assert budget.has_room
    budget.take(100)
    assert (budget.used, budget.has_room) == (109, False)
    budget.give_back(99)
    assert not budget.has_room, "the bound itself is no room"
    budget.give_back(1)
    assert budget.has_room
    assert repr(budget) == "<ByteBudget 9/10, 0 waiting>"


@pytest.mark.slow
@given(st.integers(0, 1 << 20), st.lists(st.integers(0, 1 << 16), max_size=50))
def test_users_that_keep_to_their_share_leave_room_for_others(limit: int, users: list[int]) -> None:
    budget = ByteBudget(limit)
    for wanted in users:
        share = budget.share
        assert 0 <= share <= (limit - budget.used) / 16
        budget.take(min(wanted, share))
    assert budget.used <= limit
    budget.take(2 * limit)
    assert budget.share == 0


async def test_those_that_wait_go_on_in_their_order_and_take_turns() -> None:
    budget, order = ByteBudget(10), list[int]()

    async def user(number: int) -> None:
        await budget.room()
        order.append(number)
        budget.take(10)
        await asyncio.sleep(1)
        budget.give_back(10)

    began = asyncio.get_running_loop().time()
    await asyncio.gather(*map(user, range(5)))
    assert order == list(range(5))
    assert asyncio.get_running_loop().time() - began == pytest.approx(5), "one after another"
    assert budget.used == 0


async def test_room_is_not_waited_for_if_there_is_some() -> None:
    budget = ByteBudget(1)
    coroutine = budget.room()
    with pytest.raises(StopIteration):
        coroutine.send(None)


async def test_a_caller_that_gives_up_leaves_nothing_and_keeps_nobody_waiting() -> None:
    budget = ByteBudget(10)
    budget.take(10)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(budget.room(), 1.0)
    assert "0 waiting" in repr(budget)
    gives_up, waits = asyncio.ensure_future(budget.room()), asyncio.ensure_future(budget.room())
    await asyncio.sleep(0)
    gives_up.cancel()
    budget.give_back(1)
    await waits
    assert gives_up.cancelled()
    assert "0 waiting" in repr(budget)


async def test_a_caller_that_is_cancelled_when_it_was_woken_takes_nothing_from_the_others() -> None:
    budget = ByteBudget(10)
    budget.take(10)
    first, second = asyncio.ensure_future(budget.room()), asyncio.ensure_future(budget.room())
    await asyncio.sleep(0)
    budget.give_back(1)
    first.cancel()
    await second
    assert first.cancelled()
