"""A value that is kept for a time: one computation for all who look, and none of what failed."""

from __future__ import annotations

import asyncio

import pytest

from bmq.core.aio.memoized import Memoized

KEPT_S = 15.0
TAKES_S = 2.0


class Source:
    """Counts up, slowly; `fails` is raised instead."""

    def __init__(self) -> None:
        self.asked = 0
        self.fails: Exception | None = None

    async def __call__(self) -> int:
        self.asked += 1
        await asyncio.sleep(TAKES_S)
        if self.fails is not None:
            raise self.fails
        return self.asked


async def test_all_who_look_at_once_have_one_value() -> None:
    source = Source()
    value = Memoized(source, KEPT_S)
    assert repr(value) == "<Memoized nothing yet, kept for 15 s>"
    assert await asyncio.gather(*(value.get() for _ in range(5))) == [1] * 5
    await asyncio.sleep(KEPT_S - TAKES_S - 1)
    assert await value.get() == 1
    await asyncio.sleep(1)
    assert await value.get() == 2, "it is as old as its beginning"


async def test_a_failed_computation_shows_no_older_value() -> None:
    source = Source()
    value = Memoized(source, KEPT_S)
    assert await value.get() == 1
    await asyncio.sleep(KEPT_S)
    source.fails = OSError("away")
    for _ in range(2):
        with pytest.raises(OSError, match="away"):
            await value.get()
    source.fails = None
    assert await value.get() == 4


async def test_a_caller_that_has_gone_leaves_the_computation_to_the_next() -> None:
    source = Source()
    value = Memoized(source, KEPT_S)
    assert await value.get() == 1
    await asyncio.sleep(KEPT_S)
    first, second = (asyncio.ensure_future(value.get()) for _ in range(2))
    await asyncio.sleep(TAKES_S / 2)
    first.cancel()
    assert await second == 3
    assert first.cancelled()
