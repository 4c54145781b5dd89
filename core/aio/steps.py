"""Long computations in steps: a generator of bounded pieces of work, and the loop runs other work between them.

Three ways to run one, for three kinds of work:

================  ============================================  ===================================================
``finish_steps``  no pause                                      work of few steps, or without a loop
``run_in_steps``  a step in each turn of the loop               the process's own work: a view, a journal, an index
``run_in_turns``  (``core.aio.turns``) a step in a turn of the  requests: a hundred large ones at once make each
                  loop that no other request's work has         other slow, but not the loop and the own work
================  ============================================  ===================================================
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Work with a pause at each ``yield``; T is its result."""


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield ``items`` in lists of ``size``; the last one may be shorter (Python 3.12's ``itertools.batched``)."""
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part


def finish_steps(steps: Generator[object, None, T]) -> T:
    """Run a generator to its end without pauses: for work of few steps.  Return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


async def run_in_steps(steps: Generator[object, None, T]) -> T:
    """Run a generator to its end with a turn of the loop at each ``yield``.  Return its result.

    For the process's own work: unlike ``core.aio.turns.run_in_turns`` it does not queue behind clients' requests.
    """
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        await asyncio.sleep(0)
