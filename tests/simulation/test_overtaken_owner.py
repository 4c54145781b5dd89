"""An owner that does not know yet that it was replaced: it must not fence the files of its successor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bmq.broker.partition.states import PartitionState
from bmq.core.errors import RequestError
from tests.harness.waiting import until
from tests.simulation.stories import owner, story, write, writer_of
from tests.simulation.test_older_store import stops
from tests.simulation.world import KEY, Process, World, make

pytestmark = pytest.mark.leaves_tasks


def listed_late(process: Process) -> asyncio.Event:
    """Have the process's listings wait for the event that is returned: it stands still before them."""
    may_list, fs = asyncio.Event(), process.fs
    now = fs.list

    async def late(*arguments: Any, **options: Any) -> AsyncIterator[Any]:
        await may_list.wait()
        async for status in now(*arguments, **options):
            yield status

    fs.list = late  # type: ignore[method-assign]
    return may_list


def state_of(process: Process) -> PartitionState | None:
    driver = process.broker.get(KEY)
    return None if driver is None else driver.machine.state


def test_a_replaced_owner_of_a_log_without_segments_fences_no_file_of_its_successor() -> None:
    """The look at the folder before its first write finds the successor's segment, which is being written."""

    async def body(world: World) -> None:
        first = await owner(world)
        second = await owner(world)
        reasons = stops(second)
        await write(second, range(3))
        with pytest.raises(RequestError):
            await writer_of(first).append(make(1, 3, pid=1, size=10))
        assert writer_of(first).machine.state is PartitionState.FENCED
        await write(second, range(3, 6))
        assert (reasons, second.is_alive) == ([], True)

    story(body)


def test_a_takeover_that_was_overtaken_fences_no_file_of_its_successor() -> None:
    """The process stood still between the claim and the look at the folder."""

    async def body(world: World) -> None:
        before = await owner(world)
        await write(before, range(3))
        before.crash()
        first = world.process()
        may_list = listed_late(first)
        await until(lambda: state_of(first) is PartitionState.RECOVER)
        driver = first.broker.get(KEY)
        assert driver is not None
        second = await owner(world)
        reasons = stops(second)
        await write(second, range(3, 6))
        may_list.set()
        await until(lambda: driver.machine.state is PartitionState.FENCED)
        await write(second, range(6, 9))
        assert (reasons, second.is_alive) == ([], True)

    story(body)
