"""Waiting for a change: callers check a condition again after every change."""

from __future__ import annotations

import asyncio


class Waiters:
    """The callers that wait for the next ``wake_all``, as of Java's ``Object.notifyAll``; without a lock.

    A caller checks its condition, waits, and checks again, since another one may have been faster.  If it awaits
    something between the check and the wait, it reads ``wakes`` first and gives it to ``wait``, which then misses
    nothing.
    """

    __slots__ = ("_waiting", "wakes")

    def __init__(self) -> None:
        self.wakes = 0
        """Number of calls of ``wake_all`` so far."""
        self._waiting: dict[asyncio.Future[None], None] = {}

    def __repr__(self) -> str:
        return f"<Waiters {len(self._waiting)}>"

    def __len__(self) -> int:
        """Return the number of callers that wait."""
        return len(self._waiting)

    def wake_all(self) -> None:
        """Let all that wait go on, in the order in which they came."""
        self.wakes += 1
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            for future in waiting:
                if not future.done():  # else cancelled
                    future.set_result(None)

    async def wait(self, timeout_s: float | None = None, *, since: int | None = None) -> bool:
        """Wait for the next ``wake_all``, ``timeout_s`` seconds at most (None: without end).

        Returns whether there was one.  ``since``: a number of ``wakes``; returns at once if there was one after it.
        """
        if since is not None and since != self.wakes:
            return True
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = None
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return False
        finally:
            self._waiting.pop(future, None)  # a caller that gives up again and again leaves nothing
        return True
