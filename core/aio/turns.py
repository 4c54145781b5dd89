"""Work on many elements in turns of the event loop, so that other work runs in between.

::

    turns = Turns()
    for each in elements:
        if turns.is_over(cost_of(each)):
            await next_turn()
        ...
        parts = await turns.map(work, each.parts)

Elements inside elements share one ``Turns``: a request with 150 topics of 999 partitions has 150,000 elements, though
none of its lists fills a turn.

Counted in elements and not by a clock: a simulation then runs the same turns each time.  A request may name 100,000
partitions.  A hundred large requests at once slow each other, not the loop: in a turn of the loop, a single request in
``next_turn`` goes on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from typing import TypeVar
from weakref import WeakKeyDictionary

from bmq.core.aio.steps import Steps, batched

T = TypeVar("T")
R = TypeVar("R")

ELEMENTS_A_TURN = 1_000
"""Elements in one turn: at 10 us an element, which is much for Python, a turn takes 10 ms."""


class Turns:
    """A count of the elements that one piece of work handles between two turns of the loop."""

    __slots__ = ("_left", "_size")

    def __init__(self, size: int = ELEMENTS_A_TURN) -> None:
        self._size = self._left = size

    def is_over(self, elements: int = 1) -> bool:
        """Count ``elements`` that are handled next.  Return whether other work should run before them."""
        self._left -= elements
        if self._left >= 0:
            return False
        self._left = self._size - elements
        return True

    async def map(self, work: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Return ``work`` of every item.  Waits for another turn before the items that do not fit into this turn."""
        results: list[R] = []
        rest = iter(items)
        while part := list(islice(rest, max(self._left, 0) or self._size)):
            if self.is_over(len(part)):
                await next_turn()
            results += map(work, part)
        return results


async def next_turn() -> None:
    """Let all ready callbacks run, and wait for a turn in which no other caller of this function goes on."""
    loop = asyncio.get_running_loop()
    line = _lines.get(loop)
    if line is None:
        line = _lines[loop] = _Line()
    await line.join(loop)


async def room_in_turn(elements: int) -> None:
    """Wait until this turn of the loop has room for so many elements of all callers of this function.

    For pieces of work that cannot be cut, from many tasks at once: ``Turns`` counts the elements of a single task.
    A piece of more than ``ELEMENTS_A_TURN`` elements is alone in its turn.  First come, first served: small pieces do
    not pass a large piece that waits.
    """
    loop = asyncio.get_running_loop()
    room = _rooms.get(loop)
    if room is None:
        room = _rooms[loop] = _Room()
    if room.must_wait(elements):
        await room.join(loop, elements)
    room.take(loop, elements)


async def map_in_turns(work: Callable[[T], R], items: Iterable[T], per_turn: int = ELEMENTS_A_TURN) -> list[R]:
    """Return ``work`` of every item, ``per_turn`` of them in one turn at most.

    Up to ``per_turn`` items in all need no other turn.  For one list: the lists of a loop share the ``Turns`` of the
    loop (``Turns.map``).
    """
    return await Turns(per_turn).map(work, items)


async def gather_in_turns(
    work: Callable[[T], Awaitable[R]], items: Iterable[T], at_once: int = ELEMENTS_A_TURN
) -> list[R]:
    """Return the results of ``work`` of every item; begin and await ``at_once`` items together.

    Raises the first exception as ``asyncio.gather`` does; items behind it are then not begun.
    """
    results: list[R] = []
    for part in batched(items, at_once):
        results += await asyncio.gather(*map(work, part))
    return results


async def run_in_turns(steps: Steps[T]) -> T:
    """Run ``steps`` to their end, with ``next_turn`` at each of their pauses.  Return their result.

    For requests: only one of them goes on in a turn.  ``core.aio.steps.run_in_steps`` is for the process's own work.
    """
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        await next_turn()


class StepQueue:
    """Pieces of work in the order in which they came; in one turn of the loop ``size`` elements of all of them.

    For events that must keep their order and come from callbacks.  Pieces that fit into this turn are done inside
    ``run``, so small pieces cost neither a task nor a delay.
    """

    __slots__ = ("_done", "_is_due", "_is_running", "_size", "_task", "_waiting")

    def __init__(self, size: int = ELEMENTS_A_TURN) -> None:
        self._size = size
        self._done = 0  # elements, in this turn
        self._is_due = False
        self._is_running = False
        self._waiting: deque[tuple[int, Steps[None]]] = deque()
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<StepQueue {len(self._waiting)} waiting>"

    @property
    def is_idle(self) -> bool:
        """True if nothing waits and nothing runs: then work that needs no order may bypass the queue."""
        return not self._waiting and not self._is_running

    def run(self, elements: int, steps: Steps[None]) -> None:
        """Do ``steps``, now or after what waits.  ``elements`` is the most that its steps handle between two pauses."""
        if self._waiting or self._is_running or self._is_full(elements):
            self._waiting.append((elements, steps))
        elif self._advance(elements, steps):
            return
        else:
            self._waiting.appendleft((elements, steps))  # before the work that these steps have queued themselves
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._drain())

    async def finish(self) -> None:
        """Wait until all work is done."""
        while self._task is not None:
            await asyncio.wait((self._task,))

    def _is_full(self, elements: int) -> bool:
        return self._done > 0 and self._done + elements > self._size

    def _turn_ended(self) -> None:
        self._is_due = False
        self._done = 0

    def _advance(self, elements: int, steps: Steps[None]) -> bool:
        """Run one step.  Return whether it was the last."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._turn_ended)
        self._done += elements
        self._is_running = True
        try:
            next(steps)
        except StopIteration:
            return True
        finally:
            self._is_running = False
        return False

    async def _drain(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(0)  # not ``next_turn``: responses do not queue behind other requests' work
                while self._waiting and not self._is_full(self._waiting[0][0]):
                    elements, steps = self._waiting[0]
                    try:
                        is_over = self._advance(elements, steps)
                    except Exception as error:  # noqa: BLE001 - the queue goes on; the loop's handler gets the error
                        is_over = True
                        asyncio.get_running_loop().call_exception_handler(
                            {"message": "work in steps failed", "exception": error}
                        )
                    if not is_over:
                        break
                    self._waiting.popleft()
        finally:
            self._task = None


class _Line:
    """The callers that wait for a turn of one loop, first come, first served.  Holds no reference to an idle loop."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()  # one for each piece of work in progress

    def join(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append(future)
        if len(self._waiting) == 1:
            loop.call_soon(self._let_one, loop)
        return future

    def _let_one(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():  # else cancelled
                future.set_result(None)
                break
        if self._waiting:
            loop.call_soon(self._let_one, loop)


class _Room:
    """The elements of ``room_in_turn`` in a turn of one loop, and its waiting callers."""

    __slots__ = ("_granted", "_is_due", "_taken", "_waiting")

    def __init__(self) -> None:
        self._taken = 0  # in this turn
        self._granted = 0  # to callers that go on in the next turn
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._is_due = False

    def must_wait(self, elements: int) -> bool:
        used = self._taken + self._granted
        return bool(self._waiting) or (used > 0 and used + elements > ELEMENTS_A_TURN)

    def take(self, loop: asyncio.AbstractEventLoop, elements: int) -> None:
        if not self._taken:
            loop.call_soon(self._turn_ended)
        self._taken += max(elements, 1)

    async def join(self, loop: asyncio.AbstractEventLoop, elements: int) -> None:
        """Wait for room behind the callers that wait already."""
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append((elements, future))
        self._arm(loop)
        try:
            await future
        finally:
            if not future.cancelled():
                self._granted -= max(elements, 1)

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._let_in, loop)

    def _let_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Grant the next turn to the first callers; the callers that were woken for this turn have run."""
        self._is_due = False
        while self._waiting:
            elements, future = self._waiting[0]
            if not future.done():  # else cancelled
                if self._granted and self._granted + elements > ELEMENTS_A_TURN:
                    break
                self._granted += max(elements, 1)
                future.set_result(None)
            self._waiting.popleft()
        if self._waiting:
            self._arm(loop)

    def _turn_ended(self) -> None:
        self._taken = 0


_lines: WeakKeyDictionary[asyncio.AbstractEventLoop, _Line] = WeakKeyDictionary()
_rooms: WeakKeyDictionary[asyncio.AbstractEventLoop, _Room] = WeakKeyDictionary()
