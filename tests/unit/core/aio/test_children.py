"""Tasks of one caller: they end with it in the same call, fail it, and are freed however it ends."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Sequence

import pytest

from bmq.core.aio.children import Children
from bmq.core.aio.eager import start
from tests.harness.loop import run
from tests.harness.loop_stops import without_collector


class Part:
    """A part of a request, weakly referable."""


Act = Callable[[Sequence[Part]], Awaitable[object]]


async def wait_for_ever(part: Part) -> None:
    await asyncio.Event().wait()


async def fail(part: Part) -> None:
    await asyncio.sleep(0)
    raise ValueError("a part")


async def as_children(parts: Sequence[Part], work: Callable[[Part], Awaitable[None]]) -> None:
    async def one(part: Part) -> None:
        await work(part)

    children = Children()
    try:
        for part in parts:
            task = start(one(part))
            assert isinstance(task, asyncio.Task)
            children.add(task)
        await children.fall_below(1)
    finally:
        await children.cancel()


@pytest.mark.parametrize("is_in_a_turn", [False, True])
async def test_a_cancellation_reaches_the_tasks_in_the_same_call(is_in_a_turn: bool) -> None:
    """So a task that is about to run does not run: its caller's client has gone."""
    sent: list[int] = []
    news: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def send() -> None:
        await news
        sent.append(1)

    async def serve() -> None:
        children = Children()
        try:
            children.add(asyncio.create_task(send()))
            if is_in_a_turn:
                await children.next_turn()
            await children.fall_below(1)
        finally:
            await children.cancel()

    serving = asyncio.create_task(serve())
    await asyncio.sleep(0)
    if not is_in_a_turn:
        await asyncio.sleep(0.1)
    news.set_result(None)
    serving.cancel()
    await asyncio.wait((serving,))
    assert serving.cancelled()
    assert not sent


async def test_a_result_is_taken_and_the_first_failure_is_raised() -> None:
    async def two() -> int:
        await asyncio.sleep(1)
        return 2

    children, found = Children(), list[int]()
    children.add(asyncio.create_task(two()), found.append)
    await children.next_turn()
    assert not found
    await children.fall_below(1)
    assert found == [2]
    children.add(asyncio.create_task(fail(Part())))
    with pytest.raises(ValueError, match="a part"):
        await children.fall_below(1)
    await children.cancel()


async def cancelled(parts: Sequence[Part]) -> None:
    task = start(as_children(parts, wait_for_ever))
    assert isinstance(task, asyncio.Task)
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def late(parts: Sequence[Part]) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await as_children(parts, wait_for_ever)


async def done(parts: Sequence[Part]) -> None:
    await as_children(parts, lambda part: asyncio.sleep(1))


@pytest.mark.slow
@pytest.mark.parametrize("act", [cancelled, late, done])
def test_what_was_worked_on_is_freed_without_the_collector(act: Act) -> None:
    async def main() -> list[weakref.ref[Part]]:
        parts = [Part() for _ in range(20)]
        await act(parts)
        return [weakref.ref(part) for part in parts]

    with without_collector():
        assert [ref for ref in run(main()) if ref() is not None] == []
