"""Work on many elements in turns of the event loop, so that other work runs in between.

::

    turns = Turns()
    for each in elements:
        if turns.is_over(cost_of(each)):
            await next_turn()
        ...

Counted in elements and not by a clock: a simulation then runs the same turns each time.  A request may name 100,000
partitions; a hundred such requests at once make each other slow, not the loop: in one turn of the loop only one of
those that wait for ``next_turn`` goes on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar
from weakref import WeakKeyDictionary

from bmq.core.steps import Steps, batched

T = TypeVar("T")
R = TypeVar("R")

ELEMENTS_A_TURN = 1_000
"""At 10 us an element, which is much for Python, a turn takes 10 ms."""


class Turns:
    """Counts the elements that one piece of work handles between two turns of the loop."""

    __slots__ = ("_left", "_size")

    def __init__(self, size: int = ELEMENTS_A_TURN) -> None:
        self._size = self._left = size

    def is_over(self, elements: int = 1) -> bool:
        """Count ``elements`` that are handled next; True if others should run before."""
        self._left -= elements
        if self._left >= 0:
            return False
        self._left = self._size - elements
        return True


async def next_turn() -> None:
    """Let everything run that is ready, and wait in line for a turn in which nobody else's long work goes on."""
    loop = asyncio.get_running_loop()
    line = _lines.get(loop)
    if line is None:
        line = _lines[loop] = _Line(loop)
    await line.join()


async def map_in_turns(work: Callable[[T], R], items: Iterable[T], per_turn: int = ELEMENTS_A_TURN) -> list[R]:
    """Return ``work`` of every item, ``per_turn`` of them in one turn at most; so few in all need no other turn."""
    results: list[R] = []
    for part in batched(items, per_turn):
        if results:
            await next_turn()
        results += map(work, part)
    return results


async def run_in_turns(steps: Steps[T]) -> T:
    """Run ``steps`` to their end, with ``next_turn`` at each of their pauses.  Returns their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        await next_turn()


class _Line:
    """Those who wait for a turn of one loop; first come, first served."""

    __slots__ = ("_loop", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[asyncio.Future[None]] = deque()  # one for each piece of work under way

    def join(self) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(future)
        if len(self._waiting) == 1:
            self._loop.call_soon(self._let_one)
        return future

    def _let_one(self) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():  # else cancelled
                future.set_result(None)
                break
        if self._waiting:
            self._loop.call_soon(self._let_one)


_lines: WeakKeyDictionary[asyncio.AbstractEventLoop, _Line] = WeakKeyDictionary()
