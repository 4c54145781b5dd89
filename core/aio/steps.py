"""Long computations in steps: a generator of bounded pieces of work, and the loop gets its turn between them.

Three ways to run one, for three kinds of work:

=================  ===========================================  ====================================================
``finish_steps``   no pause                                     what has few steps, or no loop beside it
``run_in_steps``   a step in each turn of the loop              the process's own work: a view, a journal, an index
``run_in_turns``   in ``core.aio.turns``: a step when no other      requests: a hundred large ones at once make each
                   request's work has the turn                  other slow, not the loop, and not the own work
=================  ===========================================  ====================================================
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
    """Yield ``items`` in lists of ``size``, the last one of what is left (Python 3.12's ``itertools.batched``)."""
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part


def finish_steps(steps: Generator[object, None, T]) -> T:
    """Run a generator to its end without pauses: for work that has few steps.  Returns its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


async def run_in_steps(steps: Generator[object, None, T]) -> T:
    """Run a generator to its end with a turn of the loop at each ``yield``.  Returns its result.

    For the process's own work: it does not wait in line behind clients' requests, as ``core.aio.turns.run_in_turns``
    does.
    """
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        await asyncio.sleep(0)
