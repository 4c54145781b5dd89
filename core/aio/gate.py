"""A bound on work in progress, by its size: what does not fit waits in the order in which it came.

``endpoint.fetch.memory_budget.MemoryPool`` bounds the bytes of responses, and differs. It grants less than is asked,
and small requests pass large requests. A reservation is split and resized while the response is made and sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Gate:
    """A gate for work of ``limit`` units at a time: bytes, partitions.

    A single piece of work is admitted whatever its size.
    """

    __slots__ = ("_waiting", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()  # at most one for each connection

    def __repr__(self) -> str:
        return f"<Gate {self.used}/{self.limit}, {self.waiting} waiting>"

    @property
    def waiting(self) -> int:
        """Number of pieces of work that wait, cancelled ones included."""
        return len(self._waiting)

    @asynccontextmanager
    async def admitted(self, size: int) -> AsyncIterator[Callable[[], None]]:
        """Wait for admission of work of ``size`` units, and hold them for the body of the ``async with``.

        Gives a function that gives the units back early; calling it twice does no harm.
        """
        await self._enter(size)
        is_inside = True

        def leave() -> None:
            nonlocal is_inside
            if is_inside:
                is_inside = False
                self._leave(size)

        try:
            yield leave
        finally:
            leave()

    async def _enter(self, size: int) -> None:
        if not self._waiting and self.has_room(size):
            self.used += size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._let_in()
            else:  # admitted in the same turn of the loop
                self._leave(size)
            raise

    def has_room(self, size: int) -> bool:
        """Return whether work of ``size`` units fits now, if nothing were waiting."""
        return not self.used or self.used + size <= self.limit

    def _leave(self, size: int) -> None:
        self.used -= size
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and (self._waiting[0][1].done() or self.has_room(self._waiting[0][0])):
            size, turn = self._waiting.popleft()
            if not turn.done():  # else cancelled
                self.used += size
                turn.set_result(None)
