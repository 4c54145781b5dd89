"""A bound on the unacknowledged bytes of all partitions (rule 8): past it producers wait, and nothing is dropped."""

from __future__ import annotations

import asyncio


class Budget:
    """A count of bytes taken and given back; a user that wants more waits until the count is under ``limit``."""

    __slots__ = ("_waiting", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def has_room(self) -> bool:
        """True while the count is under ``limit``."""
        return self.used < self.limit

    @property
    def share(self) -> int:
        """Bytes that one user may hold before it waits: a sixteenth of what is free.

        Users that hold theirs and give nothing back leave fifteen sixteenths to those that come later.
        """
        return max(0, self.limit - self.used) // 16

    def take(self, size: int) -> None:
        """Count ``size`` bytes.

        Never refused: one batch may pass the bound, so that a large one is not shut out for ever.
        """
        self.used += size

    def give_back(self, size: int) -> None:
        """Uncount ``size`` bytes, and wake those that wait in ``room`` if there is room."""
        self.used -= size
        if self._waiting and self.has_room:
            waiting, self._waiting = self._waiting, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    async def room(self) -> None:
        """Wait until the count is under ``limit``."""
        while not self.has_room:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            try:
                await future
            finally:
                # Cancelled: a caller that waits again and again must not leave a future each time.
                if future in self._waiting:
                    self._waiting.remove(future)
