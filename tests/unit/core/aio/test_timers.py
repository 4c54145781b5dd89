"""Many time-outs, few timers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bmq.core.aio.timers import EXPIRED_A_TURN, GRAIN_S, LONGEST_S, Deadlines
from tests.harness.loop_stops import TurnCounter


class Item:
    def __init__(self) -> None:
        self.times: list[float] = []
        self.expired: Callable[[], None] = lambda: None

    def expire(self) -> None:
        self.times.append(asyncio.get_running_loop().time())
        self.expired()


async def test_each_expires_once_at_its_time_or_a_grain_later() -> None:
    deadlines = Deadlines()
    wanted = {Item(): after for after in (-1.0, 0.0, 0.01, 0.1, 0.11, 5.0, 30.0)}
    for item, after in wanted.items():
        deadlines.add(item, after)
    assert len(deadlines) == len(wanted)
    await asyncio.sleep(60)
    for item, after in wanted.items():
        (at,) = item.times
        assert max(after, 0.0) <= at <= max(after, 0.0) + GRAIN_S + 1e-9
    assert not deadlines._buckets


async def test_those_of_one_moment_expire_in_turns_and_may_be_removed_until_then() -> None:
    deadlines, count = Deadlines(), 2 * EXPIRED_A_TURN + 10
    items = [Item() for _ in range(count)]
    numbers = [deadlines.add(item, 1.0) for item in items]
    turns = TurnCounter()

    class Last:
        def expire(self) -> None:
            deadlines.remove(items[-1], numbers[-1])

    deadlines.add(Last(), 0.5)
    for item in items:
        item.expired = turns.count
    await asyncio.sleep(2)
    assert turns.take() == [EXPIRED_A_TURN, EXPIRED_A_TURN, 9]
    assert [len(item.times) for item in items] == [1] * (count - 1) + [0]
    assert not deadlines._buckets


async def test_a_bug_of_one_does_not_keep_the_others_waiting() -> None:
    deadlines, item, told = Deadlines(), Item(), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))

    class Broken:
        def expire(self) -> None:
            raise ZeroDivisionError

    deadlines.add(Broken(), 1.0)
    deadlines.add(item, 1.0)
    await asyncio.sleep(2)
    assert len(item.times) == len(told) == 1
    assert not deadlines._buckets


async def test_what_is_removed_does_not_expire() -> None:
    deadlines = Deadlines()
    kept, removed = Item(), Item()
    deadlines.add(kept, 1.0)
    number = deadlines.add(removed, 1.0)
    deadlines.remove(removed, number)
    await asyncio.sleep(2)
    deadlines.remove(kept, number)  # too late: no harm
    assert (len(kept.times), removed.times) == (1, [])


async def test_timers_do_not_grow_with_requests() -> None:
    """However many requests with whatever time-outs come and go."""

    deadlines = Deadlines()
    for number in range(20_000):
        item = Item()
        deadlines.remove(item, deadlines.add(item, number * 1000.0 if number % 2 else 30.0))
    assert len(deadlines._buckets) <= 2 * 10
    for number in range(20_000):
        deadlines.add(Item(), number / 10)
    assert len(deadlines._buckets) <= LONGEST_S / GRAIN_S + 2


async def test_an_item_may_remove_others_while_it_expires() -> None:
    deadlines = Deadlines()
    expired: list[str] = []

    class First:
        def expire(self) -> None:
            expired.append("first")
            deadlines.remove(second, number)

    class Second:
        def expire(self) -> None:
            expired.append("second")

    second = Second()
    deadlines.add(First(), 1.0)
    number = deadlines.add(second, 1.0)
    await asyncio.sleep(2)
    assert expired == ["first"]
