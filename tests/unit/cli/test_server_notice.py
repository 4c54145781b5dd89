"""A root or a store that does not answer is named in the log while the start waits for it."""

from __future__ import annotations

import asyncio

import pytest

from bmq.cli.server import notice_if_slow
from tests.unit.log_text import lines


async def later(seconds: float) -> None:
    """Return behind all timers of the loop that are due by then."""
    loop = asyncio.get_running_loop()
    is_over = loop.create_future()
    loop.call_later(seconds, is_over.set_result, None)
    await is_over


def test_one_line_while_it_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    async def opening() -> None:
        with notice_if_slow("hdfs://nn:8020/bmq", 0.0):
            await later(0.01)

    asyncio.run(opening())
    assert lines(caplog) == ["no answer within 0 s, still trying path=hdfs://nn:8020/bmq"]


def test_none_when_it_answered(caplog: pytest.LogCaptureFixture) -> None:
    async def opening() -> None:
        with notice_if_slow("hdfs://nn:8020/bmq", 0.01):
            pass
        await later(0.02)

    asyncio.run(opening())
    assert caplog.messages == []
