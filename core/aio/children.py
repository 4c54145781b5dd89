"""Tasks of one caller that are cancelled in the same call as the caller.

A cancelled task of asyncio gets its cancellation in a later turn of the loop, and a ``TaskGroup`` cancels its tasks in
this later turn.  Until then a task of the group may send its call.  After a standstill the call is made for a client
that has gone (``core.aio.standstill``).  Here a caller waits for a future that passes its cancellation on at once, as
the future of ``asyncio.gather`` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from bmq.core.aio.subscribers import no_op
from bmq.core.aio.tasks import cancel_and_wait
from bmq.core.aio.turns import next_turn

R = TypeVar("R")


async def wait_for_task(task: asyncio.Task[Any], timeout_s: float) -> bool:
    """Wait for a task of the caller for ``timeout_s`` at most, and return whether it has ended.

    A cancellation of the caller reaches the task in the same call.
    """
    wait = _Wait((task,))

    def wake(_: object = None) -> None:
        if not wait.done():
            wait.set_result(None)

    task.add_done_callback(wake)
    timer = asyncio.get_running_loop().call_later(timeout_s, wake)
    try:
        await wait
    finally:
        timer.cancel()
        task.remove_done_callback(wake)
    return task.done()


class _Wait(asyncio.Future[None]):
    """The wait of a caller for its tasks.  A cancellation reaches them in the same call."""

    def __init__(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self._tasks = tasks

    def cancel(self, msg: Any | None = None) -> bool:
        for task in tuple(self._tasks):  # also if the wait is over, and the caller has yet to go on
            task.cancel()
        return super().cancel(msg)


class Children:
    """The tasks of one caller, which waits by the methods of this object alone, and calls ``cancel`` in the end."""

    __slots__ = ("_below", "_error", "_tasks", "_waiter")

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._below = 0  # the number that the caller waits for
        self._error: BaseException | None = None
        self._waiter: _Wait | None = None

    def __repr__(self) -> str:
        return f"<Children {len(self._tasks)}>"

    def add(self, task: asyncio.Task[R], take: Callable[[R], object] = no_op) -> None:
        """Take a task over.  ``take`` is called with its result."""
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._done(done, take))

    async def fall_below(self, number: int) -> None:
        """Wait until fewer than ``number`` tasks are left.  Raises the first exception of a task."""
        while len(self._tasks) >= number and self._error is None:
            self._below = number
            await self._wait()
        if self._error is not None:
            raise self._error

    async def next_turn(self) -> None:
        """Wait for another turn of the loop.  Raises the first exception of a task."""
        if not self._tasks:
            await next_turn()
            return
        turn = asyncio.get_running_loop().create_task(next_turn())
        self.add(turn, self._wake)
        while not turn.done() and self._error is None:
            self._below = 0
            await self._wait()
        if self._error is not None:
            raise self._error

    async def cancel(self) -> None:
        """Cancel the tasks that are left, and wait for their end."""
        await cancel_and_wait(*self._tasks)
        self._error = self._waiter = None  # a traceback refers to frames that refer to this object

    def _done(self, task: asyncio.Task[R], take: Callable[[R], object]) -> None:
        del self._tasks[task]
        if task.cancelled():
            self._error = self._error or asyncio.CancelledError()
        elif error := task.exception():
            self._error = self._error or error
        else:
            take(task.result())
        if self._error is not None or len(self._tasks) < self._below:
            self._wake()

    async def _wait(self) -> None:
        self._waiter = _Wait(self._tasks)
        await self._waiter

    def _wake(self, _: None = None) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
