"""Coroutines that begin at once (core/aio/eager.py), on asyncio's loop, uvloop's and the simulated one."""

from __future__ import annotations

import asyncio
import weakref
from contextvars import ContextVar
from typing import Any

import pytest

from bmq.core.aio.eager import start
from tests.harness.loop_stops import without_collector

pytestmark = [pytest.mark.slow, pytest.mark.loops("asyncio", "uvloop", "virtual")]

VALUE: ContextVar[int] = ContextVar("VALUE", default=0)


async def test_without_waiting_there_is_a_result() -> None:
    async def work() -> int:
        return 7

    async def fails() -> int:
        raise ValueError("x")

    assert start(work()) == 7
    with pytest.raises(ValueError, match="x"):
        start(fails())
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == 1


async def test_begins_at_once_and_goes_on_as_one_task() -> None:
    loop, steps = asyncio.get_running_loop(), []
    gate = loop.create_future()

    async def work() -> str:
        steps.append(asyncio.current_task())
        token = VALUE.set(5)
        async with asyncio.timeout(60):
            steps.append(await gate)
        steps.append(asyncio.current_task())
        VALUE.reset(token)  # the same context before and after
        return "done"

    task = start(work())
    assert isinstance(task, asyncio.Task)
    assert steps == [task]
    assert VALUE.get() == 0
    assert asyncio.current_task() is not task
    gate.set_result("go")
    assert await task == "done"
    assert steps == [task, "go", task]


async def test_what_is_done_before_the_task_looks() -> None:
    gate = asyncio.get_running_loop().create_future()

    async def work() -> Any:
        return await gate

    task = start(work())
    gate.set_exception(KeyError("late"))
    assert isinstance(task, asyncio.Task)
    with pytest.raises(KeyError, match="late"):
        await task


@pytest.mark.parametrize("turns", [0, 1, 3])
async def test_cancelled_at_any_time(turns: int) -> None:
    """Cancel a task, also before its own first step: what it waits for is cancelled, its clean-up may wait."""

    gate = asyncio.get_running_loop().create_future()
    ends = []

    async def work() -> None:
        try:
            await gate
        finally:
            await asyncio.sleep(0)
            ends.append("cleaned up")

    task = start(work())
    assert isinstance(task, asyncio.Task)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ends == ["cleaned up"]
    assert gate.cancelled()


async def test_time_out_within() -> None:
    async def work() -> str:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            return "late"
        return "never"

    task = start(work())
    assert isinstance(task, asyncio.Task)
    assert await task == "late"


class Part:
    """A part of a request, weakly referable."""


@pytest.mark.parametrize("turns", [0, 1])
async def test_a_cancelled_task_holds_nothing_of_its_coroutine(turns: int) -> None:
    """A closed connection's task is not asked for its exception, whose traceback has the coroutine's frames. With what
    they refer to, the task itself among that, only the cyclic collector would free them."""

    async def main() -> weakref.ref[Part]:
        async def work(part: Part) -> Part:
            own = asyncio.current_task()  # as asyncio's TaskGroup refers to it
            await asyncio.Event().wait()
            raise AssertionError(f"{own} is cancelled")

        part = Part()
        task = start(work(part))
        assert isinstance(task, asyncio.Task)
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        return weakref.ref(part)

    with without_collector():
        assert (await main())() is None


@pytest.mark.parametrize("end", ["a result", "an error", "cancelled"])
async def test_several_wait_for_one_future(end: str) -> None:
    """Wait with several tasks, all started in one turn, one of which is done with its error before the others."""

    shared: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    ends: list[tuple[int, str]] = []

    async def work(number: int) -> None:
        try:
            ends.append((number, f"{await shared}"))
        except (asyncio.CancelledError, ValueError) as error:
            for _ in range(number):
                await asyncio.sleep(0)
            ends.append((number, type(error).__name__))
            if number == 0:
                raise

    tasks = [task for task in map(start, map(work, range(3))) if task is not None]
    assert len(tasks) == 3
    await asyncio.sleep(0)
    if end == "a result":
        shared.set_result(7)
    elif end == "an error":
        shared.set_exception(ValueError("x"))
    else:
        shared.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    name = {"a result": "7", "an error": "ValueError", "cancelled": "CancelledError"}[end]
    assert ends == [(number, name) for number in range(3)]
    assert [type(outcome).__name__ for outcome in outcomes] == [
        "NoneType" if end == "a result" else name,
        "NoneType",
        "NoneType",
    ]
