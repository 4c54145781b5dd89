"""`asyncio.TaskGroup` that leaves nothing to the cyclic garbage collector.

CPython 3.11 to 3.13 keep the exception that ends a group in a local variable of `TaskGroup.__aexit__`, and its
traceback has that frame: a cycle (python/cpython#128588 names the same of futures).  It holds every frame that the
exception passed, with what their variables refer to.  For a request that is cancelled, or whose time is over, that is
the whole request, decoded: hundreds of thousands of objects, and their collection stops the event loop.
"""

from __future__ import annotations

import asyncio
from traceback import clear_frames
from types import TracebackType


class TaskGroup(asyncio.TaskGroup):
    """A group for work whose size a client chooses; for tasks of the process's own, asyncio's is as good."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await super().__aexit__(kind, error, traceback)
        except (asyncio.CancelledError, BaseExceptionGroup) as ending:
            clear_frames(ending.__traceback__)  # of those that have ended: the ones that run stay as they are
            raise
        finally:
            del error, traceback  # the same cycle, if the body raised
