"""The event loop's delay and idle share."""

from __future__ import annotations

import asyncio

import pytest

from bmq.core.loop_meter import LoopMeter
from tests.simulation.loop import run


def test_a_loop_that_nothing_holds_up_is_not_late_and_a_busy_thread_is_not_idle() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        meter = LoopMeter(thread_time=lambda: loop.time() * 0.75)
        meter.start()
        await asyncio.sleep(600)
        meter.stop()
        ticks = sum(meter.delay_ms.buckets)
        assert ticks == pytest.approx(6_000, abs=2)
        assert meter.delay_ms.buckets[0] == ticks
        assert meter.idle == pytest.approx(0.25, abs=0.001)
        await asyncio.sleep(1)
        assert sum(meter.delay_ms.buckets) == ticks, "stopped"

    run(scenario())


def test_a_stop_of_the_loop_is_seen() -> None:
    class Late(LoopMeter):
        """Whose timer comes 300 ms late."""

        def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
            self._due -= 0.3
            super()._tick(loop)

    async def scenario() -> None:
        meter = Late(thread_time=lambda: 0.0)
        meter.start()
        await asyncio.sleep(0.15)
        meter.stop()
        assert sum(meter.delay_ms.buckets[:7]) == 0, "none up to 100 ms"
        assert sum(meter.delay_ms.buckets) == 1
        assert meter.delay_ms.total_ms == pytest.approx(300)

    run(scenario())
