"""Connections by a time of each, the earliest first."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

C = TypeVar("C", bound=Hashable)
_COMPACT_MIN = 64


class EarliestFirst(Generic[C]):
    """A set of connections with their times, in any order of additions.

    A heap.  The entry of a removed connection stays in it until it is the first, or until half of the entries are
    of removed connections.  So each call costs the logarithm of the size, on average.
    """

    def __init__(self) -> None:
        self._entries: dict[C, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, C]] = []
        self._additions = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, connection: C, at: float) -> None:
        """Add a connection, or change its time.  Connections of one time keep the order of their additions."""
        self._additions += 1
        self._entries[connection] = (at, self._additions)
        heapq.heappush(self._heap, (at, self._additions, connection))
        self._compact()

    def remove(self, connection: C) -> None:
        """Remove a connection.  Idempotent."""
        if self._entries.pop(connection, None) is not None:
            self._compact()

    def time_of(self, connection: C) -> float | None:
        """Return the time of a connection; None for a connection that is not in the set."""
        entry = self._entries.get(connection)
        return None if entry is None else entry[0]

    def first(self) -> tuple[C, float] | None:
        """Return the connection with the earliest time, and its time; None if the set is empty."""
        while self._heap:
            at, number, connection = self._heap[0]
            if self._entries.get(connection) == (at, number):
                return connection, at
            heapq.heappop(self._heap)
        return None

    def pop(self) -> tuple[C, float]:
        """Remove and return the connection with the earliest time, and its time.  Raises KeyError if there is none."""
        first = self.first()
        if first is None:
            raise KeyError("the set is empty")
        heapq.heappop(self._heap)
        del self._entries[first[0]]
        return first

    def _compact(self) -> None:
        """Remove the entries of removed connections if they are more than the others."""
        if len(self._heap) > _COMPACT_MIN + 2 * len(self._entries):
            self._heap = [(at, number, connection) for connection, (at, number) in self._entries.items()]
            heapq.heapify(self._heap)
