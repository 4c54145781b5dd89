"""One bound over the bytes that serve fetches (rule 8): tails, cached blocks, and responses under way.

``limit`` is divided so that catch-up readers and tail readers cannot starve each other::

    tails               ``tail_fraction`` is theirs; they borrow beyond it, see below
    responses, memory   up to half of the rest
    responses, storage  up to a quarter of the rest; in both pools fetches wait for room, in the order of arrival
    cached blocks       what the three above leave, at least a quarter of the rest; they shrink at once

Tails borrow what responses and blocks do not use, so that a consumer a little behind reads from memory.  They give it
back in the event that needs it: to responses when these are reserved, to blocks when a block is read again that was
evicted shortly before (``storage.block_claim``).  The blocks' quarter is never lent, nor is half as much again
(``headroom``), from which the next response is reserved.  So an event evicts about as many bytes as it takes itself,
and no reader waits for an eviction.  Once blocks claim less, tails grow with what is flushed.

So responses never evict what is the tails' own, however many readers lag (AutoMQ #201), and a lagging reader's blocks
stay long enough to be used.  A reservation may grow: one response can always proceed, whatever the size of its first
batch.

No client can fill a pool for long.  A large fetch gets a quarter of the free bytes, however much it requests, so later
fetches find some.  The last eighth of a pool is kept for small responses: they pass large responses that wait.  A
response counts until it has been sent; the connection of a client that does not read it while others wait is closed
(``core.net.listener``).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from bmq.endpoint.fetch.tail_cache import TailCache
from bmq.storage.block_cache import BlockCache

SMALL_BYTES = 1 << 20
"""Bytes up to which a response is small; in a small pool, up to a thirty-second of it."""


EVICTED_AT_ONCE = 1_000
"""Batches evicted by an event to restore the headroom: half a microsecond each."""


class _Ticket:
    """One request that waits; ``number`` is its place in the order of arrival."""

    __slots__ = ("future", "number", "size")

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.size = size
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Reservation:
    """Bytes taken from a pool.  ``release`` gives them back; a second call has no effect."""

    __slots__ = ("_pool", "size")

    def __init__(self, pool: MemoryPool, size: int) -> None:
        self._pool = pool
        self.size = size

    def resize(self, size: int) -> None:
        """Change the reservation to ``size`` bytes.

        More is never refused: one batch may be larger than all limits (KIP-74).
        """
        change, self.size = size - self.size, size
        if change:
            self._pool.change(change)

    def split(self, size: int) -> Reservation:
        """Move ``size`` bytes into a reservation of their own, and return it."""
        self.size -= size
        return Reservation(self._pool, size)

    def release(self) -> None:
        """Give all bytes back to the pool."""
        self.resize(0)


class MemoryPool:
    """Room for ``limit`` bytes of responses; a response without room waits for its turn.

    Unlike a ``core.aio.gate.Gate`` it may grant less than was asked for, and lets small responses pass large ones.
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
        """Number of responses that wait for room."""
        return len(self._small_ones) + len(self._large_ones)

    def try_take(self, size: int) -> Reservation | None:
        """Reserve up to ``size`` bytes now: as much as ``_share`` grants.

        Returns None if there is no room, or if others wait and ``size`` is not small.
        """
        if size > self._small and self.waiting:
            return None
        granted = self._share(size)
        if not granted:
            return None
        self.change(granted)
        return Reservation(self, granted)

    async def take(self, size: int) -> Reservation:
        """Reserve up to ``size`` bytes; waits for room.

        Requests are served in the order of arrival, but small ones do not wait for large ones.
        """
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
                self.change(0)  # a smaller one behind it may fit
            elif not ticket.future.cancelled():
                self.change(-ticket.size)  # granted in the same moment
            raise
        return Reservation(self, ticket.size)

    def change(self, by: int) -> None:
        """Count ``by`` bytes more (or less, if negative).  Called by reservations only."""
        self.used += by
        if by <= 0 and (self._small_ones or self._large_ones):
            self._grant()
        self._on_change()

    def _share(self, size: int) -> int:
        """Return how many of ``size`` bytes may be taken now; 0 if the request must wait.

        A small request is granted whole, also from the reserve (the last eighth).  A large request gets a quarter of
        the free bytes before the reserve, though never less than a small request; in an empty pool, up to half of the
        pool.
        """
        if not self.used:
            return min(size, max(self.limit // 2, self._small))
        if size <= self._small:
            return size if self.used + size <= self.limit else 0
        free = self.limit * 7 // 8 - self.used
        return min(size, max(free // 4, self._small)) if free >= self._small else 0

    def _grant(self) -> None:
        """Serve the requests that wait, in their order; small requests pass large requests.

        The cost grows with the number of requests granted, not with the number that wait.
        """
        is_full = False  # for the large
        while True:
            small = next(iter(self._small_ones.values()), None)
            large = None if is_full else next(iter(self._large_ones.values()), None)
            if large is not None and (small is None or large.number < small.number):
                is_full = not self._serve(large, self._large_ones)
            elif small is None or not self._serve(small, self._small_ones):
                return

    def _serve(self, ticket: _Ticket, line: OrderedDict[int, _Ticket]) -> bool:
        """Grant the first of ``line`` what there is.  Return False if there is no room for it."""
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
    """The division of ``limit`` bytes.  ``blocks`` are limited, at each change, to the bytes that are left for them."""

    def __init__(self, limit: int, tail_fraction: float, blocks: BlockCache) -> None:
        self.limit = limit
        self.tails_own = int(limit * tail_fraction)
        rest = limit - self.tails_own
        self.memory = MemoryPool(rest // 2, self._changed)
        self.storage = MemoryPool(rest // 4, self._changed)
        self.blocks_own = rest - self.memory.limit - self.storage.limit
        self.headroom = rest // 8
        """Bytes that tails leave free when they borrow; a response is mostly smaller
        (``endpoint.fetch.operation.READ_COPIES``)."""
        self.tails = TailCache(max(self.tails_own, limit - self.blocks_own - self.headroom))
        self._tail_bytes = 0
        self._blocks = blocks
        blocks.on_claim = self._changed
        self._changed()

    def __repr__(self) -> str:
        return (
            f"<FetchBudget {self.limit} tails={self._tail_bytes} memory={self.memory.used} storage={self.storage.used}>"
        )

    @property
    def has_waiting(self) -> bool:
        """True while a fetch waits for room that responses hold."""
        return self.waiting > 0

    @property
    def waiting(self) -> int:
        """Number of fetches that wait for room that responses hold."""
        return self.memory.waiting + self.storage.waiting

    @property
    def response_bytes(self) -> int:
        """Bytes of responses that are being built or sent."""
        return self.memory.used + self.storage.used

    def tails_changed(self) -> None:
        """Note that batches were added to ``tails``, or removed."""
        if self.tails.used != self._tail_bytes:
            self._changed()

    def _changed(self) -> None:
        """Let tails and blocks have what the responses leave."""
        tails, own = self.tails, self.tails_own
        room = self.limit - self.memory.used - self.storage.used
        if tails.used > own:
            most = room - max(self._blocks.claimed_bytes, self.blocks_own)
            if tails.used > most - self.headroom:
                tails.shrink(max(own, most - self.headroom), EVICTED_AT_ONCE)
                tails.shrink(max(own, most))
        self._tail_bytes = tails.used
        self._blocks.limit_cache(room - tails.used)
