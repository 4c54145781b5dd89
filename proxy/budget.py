"""One bound over the bytes that serve fetches (rule 8): tails, cached blocks, and answers on their way.

``limit`` is shared out so that catch-up readers and tail readers cannot starve each other::

    tails               up to ``tail_fraction``; the oldest batches go (``proxy.cache``)
    answers, memory     up to half of the rest
    answers, storage    up to a quarter of the rest: both lanes let fetches wait, first come, first served
    cached blocks       whatever the three above leave, at least a quarter of the rest; they shrink at once

So answers never evict the tail, however many readers lag (AutoMQ #201), and a lagging reader's blocks stay long enough
to be used.  A lane that is empty lets anyone in: one answer can always proceed, whatever its size.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class _Ticket:
    __slots__ = ("future", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Reservation:
    """Bytes taken from a lane.  ``release`` gives them back; once is enough, twice does no harm."""

    __slots__ = ("_lane", "size")

    def __init__(self, lane: Lane, size: int) -> None:
        self._lane = lane
        self.size = size

    def resize(self, size: int) -> None:
        """What it turned out to be.  More is never refused: one batch may be larger than all limits (KIP-74)."""
        change, self.size = size - self.size, size
        if change:
            self._lane.change(change)

    def split(self, size: int) -> Reservation:
        """A part of it, released apart."""
        self.size -= size
        return Reservation(self._lane, size)

    def release(self) -> None:
        self.resize(0)


class Lane:
    """Counts the bytes of answers; who finds no room waits for its turn."""

    __slots__ = ("_on_change", "_waiting", "limit", "used")

    def __init__(self, limit: int, on_change: Callable[[], None]) -> None:
        self.limit = limit
        self.used = 0
        self._on_change = on_change
        self._waiting: deque[_Ticket] = deque()  # at most one for each connection

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def try_take(self, size: int) -> Reservation | None:
        """Room for ``size`` now, or None: others wait already, or it does not fit."""
        if self._waiting or not self._fits(size):
            return None
        self.change(size)
        return Reservation(self, size)

    async def take(self, size: int) -> Reservation:
        """Room for ``size``, in turn."""
        reservation = self.try_take(size)
        if reservation is not None:
            return reservation
        ticket = _Ticket(size)
        self._waiting.append(ticket)
        try:
            await ticket.future
        except asyncio.CancelledError:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
                self.change(0)  # a smaller one may stand behind it
            elif not ticket.future.cancelled():
                self.change(-size)  # granted in the same moment
            raise
        return Reservation(self, size)

    def change(self, by: int) -> None:
        """Reservations only."""
        self.used += by
        if by <= 0:
            self._grant()
        self._on_change()

    def _fits(self, size: int) -> bool:
        return not self.used or self.used + size <= self.limit

    def _grant(self) -> None:
        while self._waiting and (self._waiting[0].future.done() or self._fits(self._waiting[0].size)):
            ticket = self._waiting.popleft()
            if not ticket.future.done():  # else cancelled, and about to notice
                self.used += ticket.size
                ticket.future.set_result(None)


class FetchBudget:
    """Shares ``limit`` out.  ``limit_blocks`` is told how many bytes of blocks may be cached, at each change."""

    def __init__(self, limit: int, tail_fraction: float, limit_blocks: Callable[[int], None]) -> None:
        self.limit = limit
        self.tail_limit = int(limit * tail_fraction)
        rest = limit - self.tail_limit
        self.memory = Lane(rest // 2, self._changed)
        self.storage = Lane(rest // 4, self._changed)
        self._tail_bytes = 0
        self._limit_blocks = limit_blocks
        self._changed()

    def __repr__(self) -> str:
        return (
            f"<FetchBudget {self.limit} tail={self._tail_bytes} memory={self.memory.used} storage={self.storage.used}>"
        )

    def tail_is(self, size: int) -> None:
        """What the tail cache keeps now."""
        if size != self._tail_bytes:
            self._tail_bytes = size
            self._changed()

    def _changed(self) -> None:
        self._limit_blocks(self.limit - self._tail_bytes - self.memory.used - self.storage.used)
