"""Work that scrapes ask for: one run at a time, not too often, and nothing after the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.metrics.refresh import Refresh
from tests.harness.log_text import lines


class Work:
    def __init__(self) -> None:
        self.begun = 0
        self.may_end = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self) -> None:
        self.begun += 1
        await self.may_end.wait()
        if self.error is not None:
            raise self.error


@asynccontextmanager
async def refreshed(interval_s: float = 10.0) -> AsyncIterator[tuple[Work, Refresh]]:
    work = Work()
    refresh = Refresh(work, interval_s, "lag")
    yield work, refresh
    await refresh.close()


async def test_one_run_at_a_time_and_none_too_early() -> None:
    async with refreshed() as (work, refresh):
        refresh.request()
        await asyncio.sleep(20)
        refresh.request()
        assert work.begun == 1, "the first is not at its end"
        work.may_end.set()
        await refresh.wait()
        refresh.request()
        await refresh.wait()
        assert (work.begun, refresh.runs) == (2, 2)
        await asyncio.sleep(9)
        refresh.request()
        assert work.begun == 2, "10 s from the beginning of the last"
        await asyncio.sleep(1)
        refresh.request()
        await refresh.wait()
        assert work.begun == 3


async def test_nothing_runs_that_nobody_asks_for() -> None:
    async with refreshed() as (work, _refresh):
        await asyncio.sleep(1000)
        assert work.begun == 0


async def test_an_interval_of_zero_turns_it_off() -> None:
    async with refreshed(0.0) as (work, refresh):
        refresh.request()
        await refresh.wait()
        await asyncio.sleep(1000)
        assert work.begun == 0


async def test_a_failure_is_logged_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with refreshed() as (work, refresh):
            work.may_end.set()
            work.error = RequestError(ErrorCode.KAFKA_STORAGE_ERROR, "no datanode")
            for _ in range(3):
                refresh.request()
                await refresh.wait()
                await asyncio.sleep(10)
            assert (work.begun, refresh.runs) == (3, 0)
            work.error = None
            refresh.request()
            await refresh.wait()
            assert refresh.runs == 1
    assert lines(caplog) == [
        'lag cannot be refreshed; the next request tries again error="KAFKA_STORAGE_ERROR: no datanode"'
    ]


async def test_a_fault_of_ours_is_logged_with_its_place_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with refreshed() as (work, refresh):
        work.may_end.set()
        work.error = KeyError("gone")
        refresh.request()
        await refresh.wait()
        work.error = None
        await asyncio.sleep(10)
        refresh.request()
        await refresh.wait()
        assert refresh.runs == 1
    (record,) = caplog.records
    assert record.exc_info is not None


async def test_close_ends_the_run_and_begins_no_more() -> None:
    async with refreshed() as (work, refresh):
        refresh.request()
        await asyncio.sleep(1)
        await refresh.close()
        await asyncio.sleep(100)
        refresh.request()
        await asyncio.sleep(1)
        assert (work.begun, refresh.runs) == (1, 0)
