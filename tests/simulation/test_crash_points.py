"""Every call an owner makes to storage or to the store, in turn: it dies, or hangs, right before it or right after it.

One fixed story (open, write over several segments, lose a datanode, move the log start, hand over) has some hundred
calls.  For each of them a successor takes over; the judge looks at the log.  A hanging owner comes back as a zombie.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import pytest

from bmq.core.errors import RequestError
from bmq.meta.kv import KeyValue
from bmq.storage.filesystem import FileSystem
from tests.harness.loop import run
from tests.harness.waiting import until
from tests.simulation.world import KEY, Process, Sent, World, make

CALLS = {"create", "fence", "read", "status", "visible_length", "rename", "replace", "delete", "get", "commit"}
BLOCKS = 8


class Point:
    """The ``at``-th call of a process."""

    def __init__(self, at: int, how: str) -> None:
        self.at = at
        self.how = how
        self.count = 0
        self.process: Process | None = None
        self.is_reached = False

    def reached(self, when: str) -> None:
        assert self.process is not None
        if when == "before":
            self.count += 1
        if self.count != self.at or self.is_reached or not self.how.endswith(when):
            return
        self.is_reached = True
        if self.how.startswith("dies"):
            self.process.crash()
        else:
            self.process.pause()


class Watched:
    """A file system or a store, and a point to be met among its ``calls``; an appender's flush counts too."""

    def __init__(self, inner: Any, point: Point, calls: Collection[str] = CALLS) -> None:
        self._inner = inner
        self._point = point
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        if name == "flush":
            return lambda **kwargs: self._flush(attribute, kwargs)
        if name not in self._calls and not (name == "close" and hasattr(self._inner, "lease")):
            return attribute

        async def call(*args: Any, **kwargs: Any) -> Any:
            self._point.reached("before")
            response = await attribute(*args, **kwargs)
            self._point.reached("after")
            process = self._point.process
            if process is not None and not process.is_alive:
                await asyncio.Event().wait()
            return Watched(response, self._point, self._calls) if name == "create" else response

        return call

    def _flush(self, flush: Any, kwargs: dict[str, Any]) -> Any:
        self._point.reached("before")
        return flush(**kwargs)


async def story(at: int, how: str) -> tuple[int, bool]:
    """Play a history with a fault at call ``at``; return the number of calls, and whether that call was reached."""
    world = World(at)
    point = Point(at, how)

    def wrap(fs: FileSystem, kv: KeyValue) -> tuple[Any, Any]:
        return Watched(fs, point), Watched(kv, point)

    first = Process(world, "first", wrap)
    point.process = first
    first.start()
    work = asyncio.create_task(_life(world, first))
    await asyncio.wait([work], timeout=20)
    work.cancel()
    heir = world.process("heir")
    await until(lambda: heir.is_serving)
    await _write(world, heir, 100, 4)
    first.resume()
    await _write(world, heir, 104, 2)
    point.at = -1  # the judge may have it take the log over at the end
    await world.verdict()
    return point.count, point.is_reached


async def _life(world: World, process: Process) -> None:
    await until(lambda: process.is_serving)
    driver = process.driver
    assert driver is not None
    await _write(world, process, 0, 8)
    await asyncio.sleep(1)
    current = driver.machine.current
    if current is not None:
        world.storage.kill_datanode(driver.files[current.entry.spare].nodes[0])
    await _write(world, process, 8, 4)
    world.judge.start_asked = 5
    await driver.delete_before(5)
    if process.is_alive:
        world.judge.start_confirmed = 5
    await process.broker.move(KEY)


async def _write(world: World, process: Process, first: int, count: int) -> None:
    """Append with two batches in flight; the judge gets the acknowledgements of a living process."""
    driver = process.driver
    assert driver is not None
    for number in range(first, first + count, 2):
        try:
            futures = [driver.append(make(1, n, pid=-1, size=700)) for n in (number, number + 1)]
            offsets = await asyncio.gather(*futures)
        except RequestError:
            return
        for n, offset in zip((number, number + 1), offsets, strict=True):
            world.judge.acknowledge(Sent(1, n), offset)


def test_the_story_without_a_fault_has_many_calls() -> None:
    """The loop over calls below would be empty otherwise."""
    count, is_reached = run(story(0, "dies before"))
    assert count > 60
    assert not is_reached


@pytest.mark.parametrize("how", ["dies before", "dies after", "hangs before", "hangs after"])
@pytest.mark.parametrize("block", range(BLOCKS))
def test_an_owner_ends_at_every_call(how: str, block: int) -> None:
    """No call is a bad moment to die or to hang."""
    last, _ = run(story(0, how))
    for at in range(1 + block, last + 1, BLOCKS):
        try:
            run(story(at, how), at)
        except BaseException as error:
            error.add_note(f"the owner {how} its call {at}")
            raise
