"""Many time-outs (`Deadlines`) and deadlines (`TimerHeap`), few timers of the loop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from bmq.core.aio.timers import CALLS_A_TURN, EXPIRED_A_TURN, GRAIN_S, LONGEST_S, Deadlines, NextDeadline, TimerHeap
from tests.harness.loop import run
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
    deadlines, item, errors = Deadlines(), Item(), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["exception"]))

    class Broken:
        def expire(self) -> None:
            raise ZeroDivisionError

    deadlines.add(Broken(), 1.0)
    deadlines.add(item, 1.0)
    await asyncio.sleep(2)
    assert len(item.times) == len(errors) == 1
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


@pytest.mark.slow
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


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)


class Calls:
    """A `TimerHeap` by the loop's time, and when it made each call."""

    def __init__(self) -> None:
        self.timers = TimerHeap(now_ms)
        self.made: list[tuple[int, str]] = []

    def set(self, time_ms: int, name: str, then: Callable[[], None] | None = None) -> None:
        def call() -> None:
            self.made.append((now_ms(), name))
            if then is not None:
                then()

        self.timers.at(time_ms, call)


async def test_deadlines_expire_once_in_order_of_time() -> None:
    """Set deadlines in any order: they expire by time, equal times in the order of setting."""

    calls = Calls()
    for time_ms, name in ((300, "c"), (100, "a"), (300, "d"), (200, "b"), (300, "e"), (50, "first")):
        calls.set(time_ms, name)
    await asyncio.sleep(10)

    made = calls.made
    assert [name for _, name in made] == ["first", "a", "b", "c", "d", "e"]
    for (at, _), due in zip(made, (50, 100, 200, 300, 300, 300), strict=True):
        assert due <= at <= due + 1


async def test_a_time_that_has_passed_expires_at_once_but_not_within_the_call() -> None:
    calls = Calls()
    await asyncio.sleep(1)
    calls.set(10, "late")
    calls.set(1000, "now")
    assert calls.made == []
    await turns()
    assert calls.made == [(1000, "late"), (1000, "now")]


async def test_a_call_may_set_others() -> None:
    """Set a deadline from within a call, for now, and earlier than all that wait."""

    calls = Calls()

    def more() -> None:
        calls.set(100, "again")
        calls.set(200, "later")

    calls.set(500, "last")
    calls.set(100, "first", then=more)
    await asyncio.sleep(1)

    assert [name for _, name in calls.made] == ["first", "again", "later", "last"]


async def test_closing_ends_all_calls() -> None:
    """Close from within a call: neither what waits is called, nor what is set later."""

    calls = Calls()
    calls.set(100, "first", then=calls.timers.close)
    calls.set(100, "same time")
    calls.set(200, "later")
    await asyncio.sleep(1)
    calls.set(1500, "after")
    await asyncio.sleep(1)
    calls.timers.close()  # once more does no harm

    assert [name for _, name in calls.made] == ["first"]


async def test_all_deadlines_share_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 8: a thousand deadlines are one timer of the loop, moved only when an earlier one is set."""

    calls = Calls()
    loop = asyncio.get_running_loop()
    delays: list[float] = []
    call_later = loop.call_later

    def counted(delay: float, callback: Any, *args: Any) -> asyncio.TimerHandle:
        delays.append(delay)
        return call_later(delay, callback, *args)

    monkeypatch.setattr(loop, "call_later", counted)
    for n in range(1000):
        calls.set(1000 + n, str(n))
    assert len(delays) == 1
    calls.set(10, "earlier")
    assert len(delays) == 2


async def test_a_clock_that_lags_behind_the_loop_expires_late_not_early() -> None:
    """The deadline is the clock's: a timer that comes too soon is set again."""
    made: list[int] = []

    def slow_ms() -> int:
        return now_ms() // 2

    timers = TimerHeap(slow_ms)
    timers.at(100, lambda: made.append(slow_ms()))
    await asyncio.sleep(10)
    assert len(made) == 1
    assert 100 <= made[0] <= 101


async def test_very_many_deadlines_at_the_same_time_come_in_turns_and_in_order() -> None:
    timers, made, counter = TimerHeap(now_ms), list[int](), TurnCounter()

    def call(number: int) -> None:
        counter.count()
        made.append(number)

    for number in range(3 * CALLS_A_TURN + 1):
        timers.at(100, partial(call, number))
    await asyncio.sleep(0.1)
    await asyncio.sleep(0.01)
    assert made == list(range(3 * CALLS_A_TURN + 1))
    assert counter.take() == [CALLS_A_TURN] * 3 + [1]


def test_a_bug_in_one_call_does_not_stop_the_others() -> None:
    made: list[str] = []

    async def main() -> None:
        timers = TimerHeap(now_ms)
        timers.at(100, lambda: [][0])
        timers.at(100, lambda: made.append("same time"))
        timers.at(200, lambda: made.append("later"))
        await asyncio.sleep(1)

    with pytest.raises(IndexError):
        run(main())
    assert made == ["same time", "later"]


class Writer:
    """A user whose deadline recedes to a second after its last write, and that sets a nearer one at each write."""

    NEAR_MS, FAR_MS = 300, 1000

    def __init__(self, timers: TimerHeap) -> None:
        self.next = NextDeadline(timers, self._look)
        self.last_write_ms = now_ms()
        self.looks = 0
        self.found: list[int] = []

    def write(self) -> None:
        self.last_write_ms = now_ms()
        self.next.by(self.last_write_ms + self.NEAR_MS)

    def _look(self) -> None:
        self.looks += 1
        deadline = self.last_write_ms + self.FAR_MS
        if now_ms() >= deadline:
            self.found.append(now_ms())
        else:
            self.next.by(deadline)


async def test_a_deadline_that_nears_and_recedes_for_ever_takes_few_entries() -> None:
    """Nothing grows with the writes: neither the entries that wait nor the looks at each of them."""

    timers = TimerHeap(now_ms)
    writer = Writer(timers)
    looks = []
    for _ in range(20):
        before = writer.looks
        for _ in range(100):
            writer.write()
            await asyncio.sleep(0.1)
            assert len(timers) <= 2
        looks.append(writer.looks - before)
    assert max(looks) <= 100 * 100 // Writer.NEAR_MS + 100 * 100 // Writer.FAR_MS + 2
    assert writer.found == []
    await asyncio.sleep(10)
    assert writer.found == [pytest.approx(writer.last_write_ms + Writer.FAR_MS, abs=1)]
    assert len(timers) == 0


async def test_each_deadline_is_met_whichever_was_set_before_it() -> None:
    """Set times at random: somebody looks at each of them, at that time."""

    rng = random.Random(1)
    timers = TimerHeap(now_ms)
    wanted: set[int] = set()
    looked: list[int] = []

    def look() -> None:
        looked.append(now_ms())
        wanted.difference_update([each for each in wanted if each <= now_ms()])
        if wanted:
            following.by(min(wanted))

    following = NextDeadline(timers, look)
    for _ in range(300):
        wanted.add(now_ms() + rng.choice((1, 10, 100, 1000, 10_000)))
        following.by(min(wanted))
        await asyncio.sleep(rng.choice((0.0, 0.005, 0.05, 0.5)))
        assert min(wanted, default=now_ms()) >= now_ms() - 1
    await asyncio.sleep(20)
    assert not wanted
    assert len(looked) <= 2 * 300
