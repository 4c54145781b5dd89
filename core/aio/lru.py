"""A cache of the values used last, within a bound on the sum of their weights: bytes, or one for each value.

Three relatives are not this type, since what they evict is not simply the value unused for longest:
``endpoint.fetch.tail_cache`` evicts by age, and counts bytes that values share; ``endpoint.fetch.sessions`` evicts by
KIP-227's ranks; ``storage.hdfs.datanode`` evicts idle connections only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """Values by key.  While ``used``, the sum of their weights, is over ``limit``, the least recently used is evicted.

    ``get`` and ``put`` use a value; ``peek``, ``in`` and iteration do not.
    """

    __slots__ = ("_entries", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<LruCache {len(self)} values, {self.used}/{self.limit}>"

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        """Yield the keys, the least recently used first."""
        return iter(self._entries)

    def items(self) -> Iterator[tuple[K, V]]:
        """Yield the keys with their values, the least recently used first."""
        return ((key, value) for key, (value, _) in self._entries.items())

    def newest(self) -> Iterator[V]:
        """Yield the values, the one used last first."""
        return (value for value, _ in reversed(self._entries.values()))

    def get(self, key: K) -> V | None:
        """Return the value, and count it as used now; None if it is not kept."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def peek(self, key: K) -> V | None:
        """Return the value without using it; None if it is not kept."""
        entry = self._entries.get(key)
        return None if entry is None else entry[0]

    def put(self, key: K, value: V, weight: int = 1) -> list[tuple[K, V]]:
        """Keep ``value``, in place of an earlier one of its key.

        Returns what had to go: the values evicted to make room; or ``value`` alone, if it weighs more than ``limit``.
        """
        self.pop(key)
        if weight > self.limit:
            return [(key, value)]
        self._entries[key] = value, weight
        self.used += weight
        return self._shrink() if self.used > self.limit else []

    def pop(self, key: K) -> V | None:
        """Remove and return the value; None if it is not kept."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self.used -= entry[1]
        return entry[0]

    def clear(self) -> None:
        """Remove all values."""
        self._entries.clear()
        self.used = 0

    def resize(self, limit: int) -> list[tuple[K, V]]:
        """Change ``limit``, and return the values that were evicted because of it."""
        self.limit = limit
        return self._shrink()

    def _shrink(self) -> list[tuple[K, V]]:
        evicted = []
        while self.used > self.limit:
            key, (value, weight) = self._entries.popitem(last=False)
            self.used -= weight
            evicted.append((key, value))
        return evicted
