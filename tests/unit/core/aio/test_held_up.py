"""The seconds for which the loop stood still, as its late timers show them."""

from __future__ import annotations

import asyncio
from typing import Any

from bmq.core.aio.held_up import HeldUp

TICK_S = 0.1


def stop_loop(seconds: float) -> None:
    """Move the loop's clock on, as if a callback had taken so long."""
    loop: Any = asyncio.get_running_loop()
    loop.clock.now += seconds


async def test_a_loop_that_runs_is_not_held_up() -> None:
    held_up = HeldUp(TICK_S)
    await asyncio.sleep(100 * TICK_S)
    assert held_up.seconds == 0.0
    held_up.close()


async def test_stops_longer_than_a_tick_add_up() -> None:
    held_up = HeldUp(TICK_S)
    stop_loop(5.0)
    assert 4.8 <= held_up.seconds <= 5.0, "counted before the late timer runs"
    await asyncio.sleep(3 * TICK_S)
    first = held_up.seconds
    assert 4.8 <= first <= 5.0
    stop_loop(2.0)
    await asyncio.sleep(3 * TICK_S)
    assert 1.8 <= held_up.seconds - first <= 2.0
    held_up.close()


async def test_a_delay_shorter_than_a_tick_does_not_count() -> None:
    held_up = HeldUp(TICK_S)
    for _ in range(10):
        stop_loop(0.5 * TICK_S)
        await asyncio.sleep(TICK_S)
    assert held_up.seconds == 0.0
    held_up.close()


async def test_a_closed_counter_has_no_timer() -> None:
    held_up = HeldUp(TICK_S)
    await asyncio.sleep(2 * TICK_S)
    held_up.close()
    assert held_up._timer.cancelled()
