"""`TimerHeap` (core/aio/timers.py): on time, in order, and one timer for all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from bmq.core.aio.timers import TimerHeap
from tests.harness.loop import run


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


def on_loop(main: Callable[[Calls], Coroutine[Any, Any, None]]) -> Calls:
    async def start() -> Calls:
        calls = Calls()
        await main(calls)
        return calls

    return run(start())


def test_deadlines_expire_once_in_order_of_time() -> None:
    """Set deadlines in any order: they expire by time, equal times in the order of setting."""

    async def main(calls: Calls) -> None:
        for time_ms, name in ((300, "c"), (100, "a"), (300, "d"), (200, "b"), (300, "e"), (50, "first")):
            calls.set(time_ms, name)
        await asyncio.sleep(10)

    made = on_loop(main).made
    assert [name for _, name in made] == ["first", "a", "b", "c", "d", "e"]
    for (at, _), due in zip(made, (50, 100, 200, 300, 300, 300), strict=True):
        assert due <= at <= due + 1


def test_a_time_that_has_passed_expires_at_once_but_not_within_the_call() -> None:
    async def main(calls: Calls) -> None:
        await asyncio.sleep(1)
        calls.set(10, "late")
        calls.set(1000, "now")
        assert calls.made == []
        await turns()
        assert calls.made == [(1000, "late"), (1000, "now")]

    on_loop(main)


def test_a_call_may_set_others() -> None:
    """Set a deadline from within a call, for now, and earlier than all that wait."""

    async def main(calls: Calls) -> None:
        def more() -> None:
            calls.set(100, "again")
            calls.set(200, "later")

        calls.set(500, "last")
        calls.set(100, "first", then=more)
        await asyncio.sleep(1)

    assert [name for _, name in on_loop(main).made] == ["first", "again", "later", "last"]


def test_closing_ends_all_calls() -> None:
    """Close from within a call: neither what waits is called, nor what is set later."""

    async def main(calls: Calls) -> None:
        calls.set(100, "first", then=calls.timers.close)
        calls.set(100, "same time")
        calls.set(200, "later")
        await asyncio.sleep(1)
        calls.set(1500, "after")
        await asyncio.sleep(1)
        calls.timers.close()  # once more does no harm

    assert [name for _, name in on_loop(main).made] == ["first"]


def test_all_deadlines_share_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 8: a thousand deadlines are one timer of the loop, moved only when an earlier one is set."""

    async def main(calls: Calls) -> None:
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

    on_loop(main)


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
