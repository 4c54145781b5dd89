"""One bound over the bytes that serve fetches (rule 8): tails, cached blocks, and answers on their way.

``limit`` is shared out so that catch-up readers and tail readers cannot starve each other::

    tails               up to ``tail_fraction``; the oldest batches go (``endpoint.fetch.tail_cache``)
    answers, memory     up to half of the rest
    answers, storage    up to a quarter of the rest: both lanes let fetches wait, first come, first served
    cached blocks       whatever the three above leave, at least a quarter of the rest; they shrink at once

So answers never evict the tail, however many readers lag (AutoMQ #201), and a lagging reader's blocks stay long enough
to be used.  A reservation may grow: one answer can always proceed, whatever the size of its first batch.

Nobody can fill a lane for long.  A large fetch gets a quarter of what is free, so that each of those that come after it
finds something, however much each asks for; and the last eighth of a lane is kept for small answers, which pass the
large ones that wait.  A client's response counts until it has been sent: who does not read it while others wait is
closed (``core.net.listener``).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

SMALL_BYTES = 1 << 20
"""A response up to this is small; in a small lane, up to a thirty-second of it."""


class _Ticket:
    """One request that waits; ``number`` is its place among all that came."""

    __slots__ = ("future", "number", "size")

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.size = size
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Reservation:
    """Bytes taken from a lane.  ``release`` gives them back; once is enough, twice does no harm."""

    __slots__ = ("_lane", "size")

    def __init__(self, lane: MemoryPool, size: int) -> None:
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


class MemoryPool:
    """Counts the bytes of responses; who finds no room waits for its turn.

    Unlike a ``core.aio.gate.Gate`` it may grant less than was asked, and lets small responses pass large ones.
    """

    __slots__ = ("_came", "_large_ones", "_on_change", "_small", "_small_ones", "limit", "used")

    def __init__(self, limit: int, on_change: Callable[[], None]) -> None:
        self.limit = limit
        self.used = 0
        self._small = min(SMALL_BYTES, limit // 32)
        self._on_change = on_change
        self._came = 0
        # At most one ticket for each connection, in the order in which they came.
        self._small_ones: OrderedDict[int, _Ticket] = OrderedDict()
        self._large_ones: OrderedDict[int, _Ticket] = OrderedDict()

    @property
    def waiting(self) -> int:
        return len(self._small_ones) + len(self._large_ones)

    def try_take(self, size: int) -> Reservation | None:
        """Reserve up to ``size`` bytes now: as much as ``_share`` gives.  None if there is no room.

        Also None if others wait, unless ``size`` is small.
        """
        if size > self._small and self.waiting:
            return None
        granted = self._share(size)
        if not granted:
            return None
        self.change(granted)
        return Reservation(self, granted)

    async def take(self, size: int) -> Reservation:
        """Reserve up to ``size`` bytes, in turn: the small and the large have a line each in the same queue."""
        reservation = self.try_take(size)
        if reservation is not None:
            return reservation
        self._came += 1
        ticket = _Ticket(self._came, size)
        line = self._small_ones if size <= self._small else self._large_ones
        line[ticket.number] = ticket
        try:
            await ticket.future
        except asyncio.CancelledError:
            if line.pop(ticket.number, None) is not None:
                self.change(0)  # a smaller one may stand behind it
            elif not ticket.future.cancelled():
                self.change(-ticket.size)  # granted in the same moment
            raise
        return Reservation(self, ticket.size)

    def change(self, by: int) -> None:
        """Reservations only."""
        self.used += by
        if by <= 0 and (self._small_ones or self._large_ones):
            self._grant()
        self._on_change()

    def _share(self, size: int) -> int:
        """Return how many of ``size`` bytes may be taken now, 0 if it must wait.

        What is small is given whole, from the reserve too.  What is large gets a quarter of what is free before the
        reserve, though never less than a small one; in an empty lane, up to half of the lane.
        """
        if not self.used:
            return min(size, max(self.limit // 2, self._small))
        if size <= self._small:
            return size if self.used + size <= self.limit else 0
        free = self.limit * 7 // 8 - self.used
        return min(size, max(free // 4, self._small)) if free >= self._small else 0

    def _grant(self) -> None:
        """Serve those who wait in their order; the small ones pass the large ones.  Costs what it grants."""
        is_full = False  # for the large
        while True:
            small = next(iter(self._small_ones.values()), None)
            large = None if is_full else next(iter(self._large_ones.values()), None)
            if large is not None and (small is None or large.number < small.number):
                is_full = not self._serve(large, self._large_ones)
            elif small is None or not self._serve(small, self._small_ones):
                return

    def _serve(self, ticket: _Ticket, line: OrderedDict[int, _Ticket]) -> bool:
        """Grant the first of ``line`` what there is.  False if there is no room for it."""
        if ticket.future.done():  # cancelled, and about to notice
            del line[ticket.number]
            return True
        granted = self._share(ticket.size)
        if not granted:
            return False
        del line[ticket.number]
        self.used += granted
        ticket.size = granted
        ticket.future.set_result(None)
        return True


class FetchBudget:
    """Shares ``limit`` out.  ``limit_blocks`` is told how many bytes of blocks may be cached, at each change."""

    def __init__(self, limit: int, tail_fraction: float, limit_blocks: Callable[[int], None]) -> None:
        self.limit = limit
        self.tail_limit = int(limit * tail_fraction)
        rest = limit - self.tail_limit
        self.memory = MemoryPool(rest // 2, self._changed)
        self.storage = MemoryPool(rest // 4, self._changed)
        self._tail_bytes = 0
        self._limit_blocks = limit_blocks
        self._changed()

    def __repr__(self) -> str:
        return (
            f"<FetchBudget {self.limit} tail={self._tail_bytes} memory={self.memory.used} storage={self.storage.used}>"
        )

    @property
    def has_waiting(self) -> bool:
        """Whether a fetch waits for room that responses hold."""
        return self.waiting > 0

    @property
    def waiting(self) -> int:
        """Fetches that wait for room that responses hold."""
        return self.memory.waiting + self.storage.waiting

    @property
    def response_bytes(self) -> int:
        """Bytes of responses that are being made or sent."""
        return self.memory.used + self.storage.used

    def tail_is(self, size: int) -> None:
        """What the tail cache keeps now."""
        if size != self._tail_bytes:
            self._tail_bytes = size
            self._changed()

    def _changed(self) -> None:
        self._limit_blocks(self.limit - self._tail_bytes - self.memory.used - self.storage.used)
