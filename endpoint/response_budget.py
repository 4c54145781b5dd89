"""Bytes of responses under way, over all connections: from before they are built until the kernel has taken them.

A request of a few bytes may be answered with megabytes, and a client that does not read keeps them.  So such a response
takes room before it is built, by an estimate that is corrected once it is encoded, and gives it back when it was sent.
Without room it waits; the smaller ones pass the larger ones (``endpoint.fetch.memory_budget.MemoryPool``).  Who does
not read while others wait is closed (``core.net.listener``).

A response of up to COUNTED_LEAST bytes neither waits nor counts: max.connections bounds these.  Records of fetches
count in ``endpoint.fetch.memory_budget.FetchBudget`` instead.
"""

from __future__ import annotations

from bmq.core.net.request import Response
from bmq.endpoint.fetch.memory_budget import MemoryPool, Reservation

COUNTED_LEAST = 64 << 10


class ResponseBudget:
    """One process's, of ``limit`` bytes.  One response is always built, whatever its size."""

    def __init__(self, limit: int) -> None:
        self._lane = MemoryPool(limit, _nothing)

    def __repr__(self) -> str:
        return f"<ResponseBudget {self._lane.used}/{self._lane.limit}, {self._lane.waiting} waiting>"

    @property
    def used(self) -> int:
        return self._lane.used

    @property
    def waiting(self) -> int:
        """Return the number of responses that wait for room."""
        return self._lane.waiting

    async def take(self, size: int) -> Reservation:
        """Reserve ``size`` bytes, in turn."""
        reservation = await self._lane.take(size)
        reservation.resize(size)
        return reservation

    def count(self, answer: Response, taken: Reservation | None = None) -> Response:
        """Have ``answer`` hold its bytes, out of ``taken`` where that was reserved, until it is sent or dropped."""
        if answer.size < COUNTED_LEAST or answer.release is not None:
            if taken is not None:
                taken.release()
            return answer
        reservation = taken if taken is not None else Reservation(self._lane, 0)
        reservation.resize(answer.size)
        answer.release = reservation.release
        return answer


def _nothing() -> None:
    """Nobody shares these bytes."""
