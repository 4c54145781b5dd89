"""Work in turns of the loop (core/turns.py), and the loop that measures stops (tests/unit/loop_stops.py)."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from bmq.core.turns import Turns, map_in_turns, next_turn
from tests.simulation.loop import run
from tests.unit.loop_stops import STOP_MAX_S, forget_stops, run_measured


def test_everything_is_done_in_order() -> None:
    async def main() -> None:
        assert await map_in_turns(str, range(1_234), 100) == [str(each) for each in range(1_234)]
        assert await map_in_turns(str, [], 100) == []

    run(main())


def test_little_work_waits_for_nobody() -> None:
    work: Any = map_in_turns(str, range(100), 100)
    with pytest.raises(StopIteration) as stop:
        work.send(None)
    assert len(stop.value.value) == 100


def test_a_turn_is_over_before_what_does_not_fit() -> None:
    turns = Turns(10)
    assert [turns.is_over(each) for each in (4, 6, 1, 9, 1)] == [False, False, True, False, True]
    assert [turns.is_over(each) for each in (30, 1)] == [True, True], "one that is too large has a turn for itself"


def test_one_goes_on_in_a_turn_whoever_it_belongs_to() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        turn = 0
        begun: list[tuple[int, str]] = []

        def count() -> None:
            nonlocal turn
            turn += 1
            if len(begun) < 50:
                loop.call_soon(count)

        async def work(name: str) -> None:
            for _ in range(5):
                await next_turn()
                begun.append((turn, name))

        loop.call_soon(count)
        await asyncio.gather(*(work(name) for name in "abcdefghij"))
        assert len({turn for turn, _ in begun}) == 50, "two went on in one turn"
        assert [name for _, name in begun[:10]] == list("abcdefghij"), "each in its turn"

    run(main())


def test_who_is_cancelled_stops_nobody() -> None:
    async def main() -> None:
        tasks = [asyncio.create_task(next_turn()) for _ in range(10)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [each is None for each in found] == [False, True] * 5
        await next_turn()

    run(main())


def test_a_stop_is_the_threads_own_processor_time() -> None:
    def compute(seconds: float) -> None:
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass

    async def main(seconds: float) -> None:
        forget_stops()
        time.sleep(0.2)  # noqa: ASYNC251  (a thread that waits computes nothing)
        await asyncio.sleep(0)
        compute(seconds)

    assert run_measured(main(0.0))[1] < STOP_MAX_S
    assert run_measured(main(2 * STOP_MAX_S))[1] >= 2 * STOP_MAX_S
