"""Windows of traffic: what ends up in which, and that their size is bounded."""

from __future__ import annotations

import asyncio

from bmq.core.metrics.traffic import Counts, TrafficMeter


def facts(counts: Counts | None) -> tuple[int, int, int] | None:
    return None if counts is None else (counts.records_in, counts.bytes_in, counts.bytes_out)


def test_a_window_has_what_was_counted_in_it() -> None:
    meter = TrafficMeter()
    assert (meter.last.seconds, facts(meter.last.total)) == (0.0, (0, 0, 0)), "nothing is known yet"
    meter.wrote("t", 0, 3, 100)
    meter.wrote("t", 0, 1, 10)
    meter.read("t", 1, 7)
    meter.read("u", 0, 5)
    assert meter.last.topic("t") is None, "the window has not ended"
    meter.roll(9.5)
    window = meter.last
    assert (window.seconds, facts(window.total)) == (9.5, (4, 110, 12))
    assert facts(window.topic("t")) == (4, 110, 7)
    assert facts(window.partition("t", 0)) == (4, 110, 0)
    assert facts(window.partition("t", 1)) == (0, 0, 7)
    assert window.partition("t", 2) is None
    assert window.topic("v") is None
    meter.roll(10.0)
    assert (facts(meter.last.total), meter.last.topic("t")) == ((0, 0, 0), None)


def test_partitions_past_the_bound_count_in_the_total_only() -> None:
    meter = TrafficMeter(partitions_max=2)
    for number in range(5):
        meter.wrote("t", number, 1, 10)
        meter.read("t", number, 1)
    meter.roll(1.0)
    assert facts(meter.last.total) == (5, 50, 5)
    assert facts(meter.last.topic("t")) == (2, 20, 2)
    meter.wrote("u", 0, 1, 1)
    meter.roll(1.0)
    assert facts(meter.last.topic("u")) == (1, 1, 0), "the next window has room again"


async def test_a_timer_ends_windows() -> None:
    meter = TrafficMeter()
    meter.start(10.0)
    meter.wrote("t", 0, 1, 1)
    await asyncio.sleep(10.5)
    assert (meter.last.seconds, facts(meter.last.total)) == (10.0, (1, 1, 0))
    await asyncio.sleep(10)
    assert (meter.last.seconds, facts(meter.last.total)) == (10.0, (0, 0, 0))
    meter.stop()
    meter.wrote("t", 0, 1, 1)
    await asyncio.sleep(30)
    assert facts(meter.last.total) == (0, 0, 0), "a meter that was stopped ends none"
