"""A soft bound on bytes that are held (rule 8): past it their producers wait, and nothing is dropped.

Three relatives decide otherwise, and are types of their own:

=============================================  ======================================================================
``core.aio.gate.Gate``                         a piece of work waits, in order, until all of its size fits
``endpoint.fetch.memory_budget.MemoryPool``    a response may be granted less than it asks for; small ones pass large
``core.net.request_budget.RequestBudget``      sockets are not read; never waits for what could not come without them
=============================================  ======================================================================
"""

from __future__ import annotations

from bmq.core.aio.waiters import Waiters


class ByteBudget:
    """A count of bytes taken and given back; a user that wants more waits in ``room`` until it is under ``limit``."""

    __slots__ = ("_waiters", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiters = Waiters()

    def __repr__(self) -> str:
        return f"<ByteBudget {self.used}/{self.limit}, {len(self._waiters)} waiting>"

    @property
    def has_room(self) -> bool:
        """True while the count is under ``limit``."""
        return self.used < self.limit

    @property
    def share(self) -> int:
        """Bytes that a user may hold before it waits: a sixteenth of the free bytes.

        Users that hold their bytes and give nothing back leave fifteen sixteenths to later users.
        """
        return max(0, self.limit - self.used) // 16

    def take(self, size: int) -> None:
        """Count ``size`` bytes.

        Never refused: a batch may pass the bound, so that a large batch is not shut out for ever.
        """
        self.used += size

    def give_back(self, size: int) -> None:
        """Uncount ``size`` bytes, and wake all that wait in ``room``, in their order, if there is room."""
        self.used -= size
        if self.used < self.limit:
            self._waiters.wake_all()

    async def room(self) -> None:
        """Wait until the count is under ``limit``.  Another caller may have taken the room before this one goes on."""
        while not self.has_room:
            await self._waiters.wait()
