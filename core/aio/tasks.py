"""Tasks that have an owner: it ends with all of them, and none fails unseen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from bmq.core.aio.subscribers import no_op

T = TypeVar("T")


async def gathered(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of coroutines that run at the same time, in their order, as ``asyncio.gather``.

    A single coroutine runs in the calling task: the usual case costs no task and no further turn of the loop.
    """
    if len(works) == 1:
        return [await works[0]]
    return await asyncio.gather(*works)


class OwnedTasks:
    """The tasks that one object has started, as callbacks must: they cannot await.

    An exception of a task is a bug, since a task handles the errors that it expects: it goes to the loop's exception
    handler, and to ``on_failed``.
    """

    __slots__ = ("_on_failed", "_tasks")

    def __init__(self, on_failed: Callable[[BaseException], None] = no_op) -> None:
        self._on_failed = on_failed
        self._tasks: dict[asyncio.Task[Any], None] = {}  # in the order of their start: a simulation repeats it

    def __repr__(self) -> str:
        return f"<OwnedTasks {len(self._tasks)}>"

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run ``work`` as a task with this name, which a report of its failure has."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def cancel(self) -> None:
        """Cancel the tasks, except the calling task."""
        for task in self._others():
            task.cancel()

    async def finish(self) -> None:
        """Wait until the tasks that run now have ended, except the calling task.

        If this wait is cancelled, by a time-out too, so are the tasks.
        """
        await asyncio.gather(*self._others(), return_exceptions=True)

    async def close(self) -> None:
        """Cancel the tasks, except the calling task, and wait until they have ended."""
        await cancel_and_wait(*self._tasks)

    def _others(self) -> list[asyncio.Task[Any]]:
        current = asyncio.current_task()
        return [task for task in self._tasks if task is not current]

    def _ended(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        if report_bug(task, f"task {task.get_name()} failed"):
            error = task.exception()
            assert error is not None
            self._on_failed(error)


def report_bug(task: asyncio.Task[Any], message: str) -> bool:
    """Pass the exception of a task that has ended to the loop's exception handler.  Return whether there was one."""
    if task.cancelled() or (error := task.exception()) is None:
        return False
    task.get_loop().call_exception_handler({"message": message, "exception": error, "task": task})
    return True


async def cancel_and_wait(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancel the tasks, and return when they have ended; whether they returned, raised or were cancelled is ignored.

    None stands for a task that never began.  The calling task is left out: it may end its own owner.
    """
    current = asyncio.current_task()
    others = [task for task in tasks if task is not None and task is not current]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
