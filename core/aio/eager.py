"""Eager tasks: coroutines that run up to their first await inside the call that starts them.

A request's place (in its partition, in its session) is decided before its first await.  A task would only begin in a
later turn of the loop, so requests that came in order could begin out of order.

asyncio has eager tasks from 3.12 on, and lets a loop's own ``create_task`` make them from 3.13.3 on; uvloop's does not.
So this module runs the first step itself, the same way on all versions.  It runs the step inside the task that will
continue, and in its context, so ``asyncio.timeout`` and ``TaskGroup`` work there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import copy_context
from traceback import clear_frames
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")
_BLOCKING = "_asyncio_future_blocking"
"""An attribute of futures: ``await`` sets it, and the task that receives the future clears it, as proof that it was
awaited."""


def start(coroutine: Coroutine[Any, Any, T]) -> T | asyncio.Task[T]:
    """Run the coroutine up to its first wait.  Return its result if it did not wait, else the task that continues it.

    Raises what the coroutine raises before its first wait.  To be called inside a running loop, in a callback or a
    task.
    """
    loop = asyncio.get_running_loop()
    context = copy_context()
    begun = _Begun(coroutine)
    task: asyncio.Task[T] = loop.create_task(begun, context=context)
    outer = asyncio.current_task(loop)
    if outer is not None:
        asyncio._leave_task(loop, outer)
    asyncio._enter_task(loop, task)
    try:
        waits_for = context.run(coroutine.send, None)
        if getattr(waits_for, _BLOCKING, False):
            # Until the task has it: another coroutine may wait for the same future meanwhile.
            setattr(waits_for, _BLOCKING, False)
        begun.waits_for = waits_for
    except StopIteration as stop:
        begun.is_over = True
        return stop.value  # type: ignore[no-any-return]
    except BaseException:
        begun.is_over = True
        raise
    finally:
        asyncio._leave_task(loop, task)
        if outer is not None:
            asyncio._enter_task(loop, outer)
    return task


class _Begun(Coroutine[Any, Any, T]):
    """A coroutine whose first step was run: gives its task what that step waits for, then continues as itself."""

    __slots__ = ("_coroutine", "_is_new", "is_over", "waits_for")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._is_new = True
        self.is_over = False
        self.waits_for: Any = None

    def send(self, value: Any) -> Any:
        if self.is_over:
            raise StopIteration
        if self._is_new:
            return self._take()
        try:
            return self._coroutine.send(value)
        except asyncio.CancelledError as error:
            _clear_frames(error)
            raise

    def throw(
        self,
        error: type[BaseException] | BaseException,
        value: BaseException | object = None,
        traceback: TracebackType | None = None,
    ) -> Any:
        if self.is_over:
            raise StopIteration
        if self._is_new:
            # Cancelled before the task received what it waits for: cancel that, as Task.cancel would have.
            waits_for = self._take()
            cancel: Callable[[], bool] | None = getattr(waits_for, "cancel", None)
            if cancel is not None and cancel():
                return waits_for
            del waits_for
        try:
            return self._coroutine.throw(error) if value is None else self._coroutine.throw(error, value, traceback)  # type: ignore[arg-type]
        except asyncio.CancelledError as ending:
            _clear_frames(ending)
            raise
        finally:
            # The exception's traceback refers to this frame.  If the frame referred to the exception, only the cyclic
            # collector would free both, and with them all that the coroutine's frames hold: a request's bytes.
            del error, value, traceback

    def _take(self) -> Any:
        """Return what the first step waits for, and drop the reference: the task refers to it from here on."""
        self._is_new = False
        waits_for, self.waits_for = self.waits_for, None
        if hasattr(waits_for, _BLOCKING):
            setattr(waits_for, _BLOCKING, True)
        return waits_for

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, T]:
        raise TypeError("a started coroutine belongs to its task")


def _clear_frames(error: asyncio.CancelledError) -> None:
    """Clear the variables of the frames that ``error`` has left; its traceback stays readable.

    The task keeps the exception, and a frame may refer to the task, as TaskGroup does.  Only the cyclic collector would
    free this cycle and the objects of the frames: a large request, cancelled because its connection closed, is a
    hundred thousand objects.  Only for cancellations: another exception may have been raised to several tasks.  If one
    of them handles it, clearing its frame would end the task.
    """
    clear_frames(error.__traceback__)
