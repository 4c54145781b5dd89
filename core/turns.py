"""Work on many elements in turns of the event loop, so that other work runs in between.

::

    turns = Turns()
    for each in elements:
        if turns.is_over(cost_of(each)):
            await next_turn()
        ...

Counted in elements and not by a clock: a simulation then runs the same turns each time.
"""

from __future__ import annotations

import asyncio

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
    """Let everything run that is ready."""
    await asyncio.sleep(0)
