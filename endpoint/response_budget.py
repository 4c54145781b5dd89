"""Bytes of responses under way, over all connections: from before they are built until the kernel has taken them.

A request of a few bytes may have a response of megabytes, which stays in memory while its client does not read.  So
such a response reserves room before it is built, by an estimate that is corrected once it is encoded, and releases it
when it was sent.  Without room it waits; small ones pass large ones (``endpoint.fetch.memory_budget.MemoryPool``).  The
connection of a client that does not read while others wait is closed (``core.net.listener``).

A response of less than COUNTED_LEAST bytes neither waits nor counts: max.connections bounds these.  Records of fetches
count in ``endpoint.fetch.memory_budget.FetchBudget`` instead.
"""

from __future__ import annotations

from bmq.core.aio.subscribers import no_op
from bmq.core.net.request import Response
from bmq.endpoint.fetch.memory_budget import MemoryPool, Reservation

COUNTED_LEAST = 64 << 10
"""Bytes of the smallest response that counts."""


class ResponseBudget:
    """One process's budget of ``limit`` bytes.  A single response is always admitted, whatever its size."""

    def __init__(self, limit: int) -> None:
        self._pool = MemoryPool(limit, no_op)

    def __repr__(self) -> str:
        return f"<ResponseBudget {self._pool.used}/{self._pool.limit}, {self._pool.waiting} waiting>"

    @property
    def used(self) -> int:
        """Bytes that are reserved."""
        return self._pool.used

    @property
    def waiting(self) -> int:
        """Number of responses that wait for room."""
        return self._pool.waiting

    async def take(self, size: int) -> Reservation:
        """Reserve ``size`` bytes; waits for room as in ``MemoryPool.take``.  The caller must release them."""
        reservation = await self._pool.take(size)
        reservation.resize(size)
        return reservation

    def count(self, response: Response, taken: Reservation | None = None) -> Response:
        """Reserve the bytes of ``response`` until it is sent or dropped, and return it.

        ``taken`` is the reservation for its estimate, if there was one; it is resized, or released if the response is
        too small to count.
        """
        if response.size < COUNTED_LEAST or response.release is not None:
            if taken is not None:
                taken.release()
            return response
        reservation = taken if taken is not None else Reservation(self._pool, 0)
        reservation.resize(response.size)
        response.release = reservation.release
        return response
