"""``asyncio.TaskGroup`` without work for the cyclic garbage collector.

CPython 3.11 to 3.13 keep the exception that ends a group in a local variable of ``TaskGroup.__aexit__``.  Its traceback
refers to the frame of this method: a cycle (python/cpython#128588 reports the same of futures).  The cycle holds every
frame that the exception passed, with what their variables refer to.  For a request that is cancelled, or times out,
that is the whole request, decoded: hundreds of thousands of objects, and their collection stops the event loop.
"""

from __future__ import annotations

import asyncio
from traceback import clear_frames
from types import TracebackType


class TaskGroup(asyncio.TaskGroup):
    """A task group for work whose size a client chooses; for the process's own tasks, asyncio's is as good."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await super().__aexit__(kind, error, traceback)
        except (asyncio.CancelledError, BaseExceptionGroup) as ending:
            # This clears the frames that have ended; those that still run stay as they are.
            clear_frames(ending.__traceback__)
            raise
        finally:
            del error, traceback  # they make the same cycle, if the body raised
