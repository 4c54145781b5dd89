"""Tasks end with their owner, and their failures are seen."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bmq.core.aio.tasks import OwnedTasks, cancel_and_wait, report_bug


def reported() -> list[dict[str, Any]]:
    """Return the list in which the running loop's exception handler puts what it is given from here on."""
    found: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: found.append(context))
    return found


async def raising(error: BaseException) -> None:
    await asyncio.sleep(1)
    raise error


async def test_close_ends_all_tasks_and_waits_for_their_cleanup() -> None:
    tasks, ended = OwnedTasks(), []

    async def work(number: int) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(number)  # a clean-up takes its time
            ended.append(number)

    for number in (3, 1, 2):
        tasks.start(work(number), f"work {number}")
    await asyncio.sleep(0)
    assert (len(tasks), repr(tasks)) == (3, "<OwnedTasks 3>")
    await tasks.close()
    assert ended == [1, 2, 3]
    assert len(tasks) == 0
    await tasks.close()


async def test_a_task_has_its_name_and_gives_its_result() -> None:
    tasks = OwnedTasks()

    async def work() -> int:
        return 7

    task = tasks.start(work(), "index of a segment")
    assert task.get_name() == "index of a segment"
    assert await task == 7


async def test_finish_waits_and_cancels_nothing() -> None:
    tasks = OwnedTasks()
    began = asyncio.get_running_loop().time()
    done = [tasks.start(asyncio.sleep(seconds, seconds), "sleep") for seconds in (1, 5)]
    await tasks.finish()
    assert asyncio.get_running_loop().time() - began == pytest.approx(5)
    assert [task.result() for task in done] == [1, 5]


async def test_a_failure_goes_to_the_loops_handler_and_to_the_owner() -> None:
    found, owner = reported(), list[BaseException]()
    tasks, error = OwnedTasks(owner.append), ValueError("a bug")
    task = tasks.start(raising(error), "index of a segment")
    await tasks.finish()
    assert found == [{"message": "task index of a segment failed", "exception": error, "task": task}]
    assert owner == [error]


async def test_a_failure_does_not_end_the_other_tasks() -> None:
    found, tasks = reported(), OwnedTasks()
    other = tasks.start(asyncio.sleep(5, "done"), "sleep")
    tasks.start(raising(ValueError()), "a bug")
    await tasks.finish()
    assert other.result() == "done"
    assert len(found) == 1


async def test_a_cancelled_task_is_no_failure() -> None:
    found, owner = reported(), list[BaseException]()
    tasks = OwnedTasks(owner.append)
    tasks.start(asyncio.sleep(5), "sleep").cancel()
    tasks.start(asyncio.sleep(5), "sleep")
    tasks.cancel()
    await tasks.finish()
    assert not found + owner


@pytest.mark.parametrize("end", ["cancel", "close"])
async def test_a_task_may_end_its_own_owner(end: str) -> None:
    tasks, other = OwnedTasks(), asyncio.Event()

    async def work() -> str:
        if end == "cancel":
            tasks.cancel()
            await tasks.finish()
        else:
            await tasks.close()
        return "went on"

    sleeping = tasks.start(other.wait(), "sleep")
    assert await tasks.start(work(), "end") == "went on"
    assert sleeping.cancelled()


async def test_a_caller_that_is_cancelled_while_it_waits_has_cancelled_the_tasks() -> None:
    tasks, ended = OwnedTasks(), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()
            await asyncio.sleep(1)

    tasks.start(work(), "work")
    await asyncio.sleep(0)
    closing = asyncio.create_task(tasks.close())
    await ended.wait()
    closing.cancel()
    await asyncio.wait([closing])
    assert closing.cancelled()
    await tasks.close()
    assert len(tasks) == 0


async def test_the_outcomes_of_cancelled_tasks_are_dropped() -> None:
    found = reported()
    done, failed = asyncio.create_task(asyncio.sleep(0, 1)), asyncio.create_task(raising(ValueError()))
    await asyncio.sleep(2)
    running = asyncio.create_task(asyncio.sleep(3600))
    await cancel_and_wait(done, failed, None, running)
    assert (done.result(), running.cancelled()) == (1, True)
    await cancel_and_wait()
    del failed
    assert not found, "its exception counts as retrieved"


async def test_only_an_exception_is_a_bug() -> None:
    found = reported()
    done, failed = asyncio.create_task(asyncio.sleep(0)), asyncio.create_task(raising(ValueError("a bug")))
    cancelled = asyncio.create_task(asyncio.sleep(1))
    cancelled.cancel()
    await asyncio.wait([done, failed, cancelled])
    assert [report_bug(task, "it failed") for task in (done, failed, cancelled)] == [False, True, False]
    assert [context["message"] for context in found] == ["it failed"]
