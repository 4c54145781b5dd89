"""Alarms (core/aio/timers.py): on time, in order, and one timer for all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from bmq.core.aio.timers import Alarms
from tests.harness.loop import run


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)


class Bell:
    """Alarms by the loop's time, and when each rang."""

    def __init__(self) -> None:
        self.alarms = Alarms(now_ms)
        self.rung: list[tuple[int, str]] = []

    def set(self, time_ms: int, name: str, then: Callable[[], None] | None = None) -> None:
        def ring() -> None:
            self.rung.append((now_ms(), name))
            if then is not None:
                then()

        self.alarms.at(time_ms, ring)


def on_loop(main: Callable[[Bell], Coroutine[Any, Any, None]]) -> Bell:
    async def start() -> Bell:
        bell = Bell()
        await main(bell)
        return bell

    return run(start())


def test_alarms_ring_once_in_order_of_time() -> None:
    """Set alarms in any order: they ring by time, equal times in the order of setting."""

    async def main(bell: Bell) -> None:
        for time_ms, name in ((300, "c"), (100, "a"), (300, "d"), (200, "b"), (300, "e"), (50, "first")):
            bell.set(time_ms, name)
        await asyncio.sleep(10)

    rung = on_loop(main).rung
    assert [name for _, name in rung] == ["first", "a", "b", "c", "d", "e"]
    for (at, _), due in zip(rung, (50, 100, 200, 300, 300, 300), strict=True):
        assert due <= at <= due + 1


def test_a_time_that_has_passed_rings_at_once_but_not_within_the_call() -> None:
    async def main(bell: Bell) -> None:
        await asyncio.sleep(1)
        bell.set(10, "late")
        bell.set(1000, "now")
        assert bell.rung == []
        await turns()
        assert bell.rung == [(1000, "late"), (1000, "now")]

    on_loop(main)


def test_an_alarm_may_set_others() -> None:
    """Set an alarm from within one, for now, and earlier than all that wait."""

    async def main(bell: Bell) -> None:
        def more() -> None:
            bell.set(100, "again")
            bell.set(200, "later")

        bell.set(500, "last")
        bell.set(100, "first", then=more)
        await asyncio.sleep(1)

    assert [name for _, name in on_loop(main).rung] == ["first", "again", "later", "last"]


def test_closing_rings_nothing_more() -> None:
    """Close from within an alarm: neither what waits rings, nor what is set later."""

    async def main(bell: Bell) -> None:
        bell.set(100, "first", then=bell.alarms.close)
        bell.set(100, "same time")
        bell.set(200, "later")
        await asyncio.sleep(1)
        bell.set(1500, "after")
        await asyncio.sleep(1)
        bell.alarms.close()  # once more does no harm

    assert [name for _, name in on_loop(main).rung] == ["first"]


def test_all_alarms_share_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 8: a thousand deadlines are one timer of the loop, moved only when an earlier one is set."""

    async def main(bell: Bell) -> None:
        loop = asyncio.get_running_loop()
        calls: list[float] = []
        call_later = loop.call_later

        def counted(delay: float, callback: Any, *args: Any) -> asyncio.TimerHandle:
            calls.append(delay)
            return call_later(delay, callback, *args)

        monkeypatch.setattr(loop, "call_later", counted)
        for n in range(1000):
            bell.set(1000 + n, str(n))
        assert len(calls) == 1
        bell.set(10, "earlier")
        assert len(calls) == 2

    on_loop(main)


async def test_a_clock_that_lags_behind_the_loop_rings_late_not_early() -> None:
    """The deadline is the clock's: a timer that comes too soon is set again."""
    rung: list[int] = []

    def slow_ms() -> int:
        return now_ms() // 2

    alarms = Alarms(slow_ms)
    alarms.at(100, lambda: rung.append(slow_ms()))
    await asyncio.sleep(10)
    assert len(rung) == 1
    assert 100 <= rung[0] <= 101


def test_a_bug_in_one_alarm_does_not_silence_the_others() -> None:
    rung: list[str] = []

    async def main() -> None:
        alarms = Alarms(now_ms)
        alarms.at(100, lambda: [][0])
        alarms.at(100, lambda: rung.append("same time"))
        alarms.at(200, lambda: rung.append("later"))
        await asyncio.sleep(1)

    with pytest.raises(IndexError):
        run(main())
    assert rung == ["same time", "later"]
