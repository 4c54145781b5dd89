"""A group of tasks frees what it worked on, however it ends."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Sequence

import pytest

from bmq.core.aio.task_group import TaskGroup
from tests.harness.loop import run
from tests.harness.loop_stops import without_collector

pytestmark = pytest.mark.slow


class Part:
    """A part of a request, weakly referable."""


Act = Callable[[Sequence[Part]], Awaitable[object]]


async def wait_for_ever(part: Part) -> None:
    await asyncio.Event().wait()


async def fail(part: Part) -> None:
    raise ValueError(part)


async def in_group(parts: Sequence[Part], work: Callable[[Part], Awaitable[None]]) -> None:
    async def one(part: Part) -> None:
        await work(part)

    async with TaskGroup() as group:
        for part in parts:
            group.create_task(one(part))


async def cancelled(parts: Sequence[Part]) -> None:
    task = asyncio.create_task(in_group(parts, wait_for_ever))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def late(parts: Sequence[Part]) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await in_group(parts, wait_for_ever)


async def failed(parts: Sequence[Part]) -> None:
    count = 0
    try:
        await in_group(parts, fail)
    except* ValueError as errors:
        count = len(errors.exceptions)
    assert count == len(parts)


async def body_cancelled(parts: Sequence[Part]) -> None:
    async def main() -> None:
        async with TaskGroup() as group:
            for part in parts:
                group.create_task(wait_for_ever(part))
            await asyncio.Event().wait()

    task = asyncio.create_task(main())
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def body_failed(parts: Sequence[Part]) -> None:
    async def main() -> None:
        async with TaskGroup() as group:
            for part in parts:
                group.create_task(wait_for_ever(part))
            raise ValueError("the body")

    with pytest.raises(ExceptionGroup):
        await main()


async def done(parts: Sequence[Part]) -> None:
    await in_group(parts, lambda part: asyncio.sleep(1))


@pytest.mark.parametrize("act", [cancelled, late, failed, body_cancelled, body_failed, done])
def test_what_was_worked_on_is_freed_without_the_collector(act: Act) -> None:
    async def main() -> list[weakref.ref[Part]]:
        parts = [Part() for _ in range(20)]
        await act(parts)
        return [weakref.ref(part) for part in parts]

    with without_collector():
        assert [ref for ref in run(main()) if ref() is not None] == []
