"""The event loop's delay and idle share."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import pytest

from bmq.core.metrics.loop_meter import LoopMeter, ThreadLoad


async def test_a_loop_that_nothing_holds_up_is_not_late_and_a_busy_thread_is_not_idle() -> None:
    loop = asyncio.get_running_loop()
    meter = LoopMeter(load=lambda: loop.time() * 0.75)
    meter.start()
    await asyncio.sleep(600)
    meter.stop()
    ticks = sum(meter.delay_ms.buckets)
    assert ticks == pytest.approx(6_000, abs=2)
    assert meter.delay_ms.buckets[0] == ticks
    assert meter.idle == pytest.approx(0.25, abs=0.001)
    await asyncio.sleep(1)
    assert sum(meter.delay_ms.buckets) == ticks, "stopped"


async def test_a_stop_of_the_loop_is_seen() -> None:
    class Late(LoopMeter):
        """A meter whose timer comes 300 ms late."""

        def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
            self._due -= 0.3
            super()._tick(loop)

    meter = Late(load=lambda: 0.0)
    meter.start()
    await asyncio.sleep(0.15)
    meter.stop()
    assert sum(meter.delay_ms.buckets[:7]) == 0, "none up to 100 ms"
    assert sum(meter.delay_ms.buckets) == 1
    assert meter.delay_ms.total_ms == pytest.approx(300)


def test_a_thread_that_waits_for_a_processor_is_not_idle(tmp_path: Path) -> None:
    """The thread has run for 2 s and waited 3 s for a processor: both count as load."""
    stat = tmp_path / "schedstat"
    stat.write_text("1000000000 500000000 7\n")
    load = ThreadLoad(str(stat))
    before = load()
    stat.write_text("3000000000 3500000000 9\n")
    assert load() - before == pytest.approx(5.0)
    load.close()
    load.close()


def test_where_the_kernel_does_not_tell_the_time_that_was_run_counts(tmp_path: Path) -> None:
    load = ThreadLoad(str(tmp_path / "missing"))
    before = time.thread_time()
    assert before <= load() <= time.thread_time()
    load.close()


@pytest.mark.skipif(sys.platform != "linux", reason="schedstat is Linux's")
def test_the_kernel_tells_of_this_thread() -> None:
    load = ThreadLoad()
    assert repr(load) == "<ThreadLoad by schedstat>"
    began, run = load(), time.thread_time()
    while time.thread_time() - run < 0.05:
        pass
    assert load() - began >= 0.04, "the kernel counts at its ticks, some milliseconds late"
    load.close()
