"""The parts of an admin request: what they leave behind."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable, Sequence

import pytest

from bmq.core.aio.eager import start
from bmq.core.errors import ErrorCode, RequestError
from bmq.proxy.handlers._parallel import each
from bmq.proxy.partition_queries import ask_all
from tests.harness.loop import run
from tests.harness.loop_stops import without_collector


class Item:
    """A part of a request, weakly referable."""


def test_refused_parts_are_freed_without_the_collector() -> None:
    """A hundred thousand that were left to it stop the loop when it comes."""

    async def refuse(item: Item) -> None:
        try:
            raise ValueError("no such name")
        except ValueError as error:
            raise RequestError(ErrorCode.INVALID_REQUEST, "refused") from error

    async def ask() -> tuple[list[weakref.ref[Item]], list[ErrorCode]]:
        items = [Item() for _ in range(40)]
        results = await each(items, refuse, 10_000)
        codes = [result.code for result in results if isinstance(result, RequestError)]
        return [weakref.ref(item) for item in items], codes

    with without_collector():
        left, codes = asyncio.run(ask())
        assert codes == [ErrorCode.INVALID_REQUEST] * 40
        assert [ref for ref in left if ref() is not None] == []
        gc.collect()


async def never(item: Item) -> None:
    await asyncio.Event().wait()


async def until_late(items: Sequence[Item]) -> None:
    results = await each(items, never, 1_000)
    assert {result.code for result in results if isinstance(result, RequestError)} == {ErrorCode.REQUEST_TIMED_OUT}


async def until_cancelled(work: Awaitable[object]) -> None:
    """Run ``work`` as a request whose connection closes after a second."""

    async def request() -> object:
        return await work

    task = start(request())
    assert isinstance(task, asyncio.Task)
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(
    "act",
    [
        until_late,
        lambda items: until_cancelled(each(items, never, 10_000)),
        lambda items: until_cancelled(ask_all(items, never)),
    ],
    ids=["late", "cancelled", "cancelled while owners are asked"],
)
def test_parts_that_are_given_up_are_freed_without_the_collector(
    act: Callable[[Sequence[Item]], Awaitable[None]],
) -> None:
    """A client may send a large request, close its connection, and do so again."""

    async def ask() -> list[weakref.ref[Item]]:
        items = [Item() for _ in range(40)]
        await act(items)
        return [weakref.ref(item) for item in items]

    with without_collector():
        assert [ref for ref in run(ask()) if ref() is not None] == []
