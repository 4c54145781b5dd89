"""A periodic task for open files: it runs while there are any, once an interval, and ends with its owner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bmq.storage.hdfs.open_file_task import OpenFileTask
from tests.harness.waiting import now

INTERVAL_S = 10.0


class Steps:
    """The times at which the task ran its step; ``fails`` makes the steps raise."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.fails = False

    async def step(self) -> None:
        self.times.append(now())
        if self.fails:
            raise ZeroDivisionError


@asynccontextmanager
async def task_of(steps: Steps) -> AsyncIterator[OpenFileTask[str]]:
    task = OpenFileTask[str]("count the steps", INTERVAL_S, steps.step)
    try:
        yield task
    finally:
        await task.close()


async def test_a_step_is_done_each_interval_from_the_first_file_to_the_last() -> None:
    steps = Steps()
    async with task_of(steps) as task:
        await asyncio.sleep(25)
        assert steps.times == []
        task.add("a")
        task.add("b")
        await asyncio.sleep(21)
        assert steps.times == [35, 45]
        task.remove("a")
        task.remove("a")
        await asyncio.sleep(10)
        assert steps.times == [35, 45, 55]
        task.remove("b")
        await asyncio.sleep(1000)
        assert steps.times == [35, 45, 55]
        task.add("c")
        await asyncio.sleep(11)
        assert len(steps.times) == 4


async def test_a_step_that_raises_is_logged_and_the_next_one_is_done(caplog: pytest.LogCaptureFixture) -> None:
    steps = Steps()
    steps.fails = True
    async with task_of(steps) as task:
        task.add("a")
        await asyncio.sleep(2 * INTERVAL_S + 1)
        assert len(steps.times) == 2
    assert [record.message for record in caplog.records] == ["bug: cannot count the steps, trying again in 10 s"] * 2


async def test_after_its_close_no_step_is_done_and_a_second_close_does_nothing() -> None:
    steps = Steps()
    task = OpenFileTask[str]("count the steps", INTERVAL_S, steps.step)
    await task.close()
    task.add("a")
    await task.close()
    await task.close()
    await asyncio.sleep(100)
    assert steps.times == []
