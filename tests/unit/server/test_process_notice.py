"""Log lines of a start that waits for root or store, and of the partitions that a process hands over at its end."""

from __future__ import annotations

import asyncio

import pytest

from bmq.server.process import Leaving, notice_if_slow
from tests.harness.log_text import lines


async def later(seconds: float) -> None:
    """Return behind all timers of the loop that are due by then."""
    loop = asyncio.get_running_loop()
    is_over = loop.create_future()
    loop.call_later(seconds, is_over.set_result, None)
    await is_over


async def test_one_line_while_it_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    with notice_if_slow("hdfs://nn:8020/bmq", 0.0):
        await later(0.01)
    assert lines(caplog) == ["no answer within 0 s, still trying path=hdfs://nn:8020/bmq"]


async def test_none_when_it_answered(caplog: pytest.LogCaptureFixture) -> None:
    with notice_if_slow("hdfs://nn:8020/bmq", 0.01):
        pass
    await later(0.02)
    assert caplog.messages == []


class Broker:
    moved_total = 5


def test_what_was_handed_over_is_logged_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """Count the drain's partitions alone, not those that moved before."""
    caplog.set_level("INFO")
    broker = Broker()
    leaving = Leaving(broker)
    leaving.begin()
    broker.moved_total += 12
    leaving.log()
    assert lines(caplog) == ["drained: 12 partitions handed over or closed"]


def test_a_process_without_partitions_logs_none(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    for leaving in (Leaving(None), Leaving(Broker())):
        leaving.log()
    nothing = Leaving(None)
    nothing.begin()
    nothing.log()
    assert caplog.messages == []
