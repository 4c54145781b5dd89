"""Room that cached blocks need, as reads of blocks that were evicted shortly before show it.  Pure.

A reader that passes over blocks once needs no more room for them than its reads take, however fast it is.  Room is
missing if a block is read from storage again.  Either two readers follow each other further apart than the cache
reaches, or there are more readers than room for their blocks read ahead.  So the keys of evicted blocks are kept for a
while, in the ghost list of ARC (Megiddo and Modha 2003).  A read of a block in the list claims its bytes.  A claim that
no such read supports any longer is halved every ``HALVED_S``.
"""

from __future__ import annotations

from collections.abc import Hashable

from bmq.core.aio.lru import LruCache

HALVED_S = 30.0
"""Seconds without a block that is read again, after which the claim is halved."""


class BlockClaim:
    """The claim of one process's blocks: bytes in all, at most ``limit``.  ``limit`` bounds the evicted blocks too."""

    __slots__ = ("_bytes", "_evicted", "_limit", "_since_s")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self._since_s = 0.0
        self._evicted: LruCache[Hashable, None] = LruCache(limit)

    def __repr__(self) -> str:
        return f"<BlockClaim {self._bytes} bytes, {len(self._evicted)} evicted>"

    @property
    def is_any(self) -> bool:
        """True if there is a claim, which may be too old to count."""
        return self._bytes > 0

    def evicted(self, key: Hashable, size: int) -> None:
        """Note that a block of ``size`` bytes was evicted."""
        self._evicted.put(key, None, size)

    def is_read(self, key: Hashable, size: int, room: int, now_s: float) -> bool:
        """Note a read of a block from storage; return whether the claim is larger now: ``room`` was too little for it.

        ``room``: bytes that the blocks may take at present.
        """
        if key not in self._evicted:
            return False
        self._evicted.pop(key)
        self._bytes = min(self._limit, max(self.at(now_s), room) + size)
        self._since_s = now_s
        return True

    def at(self, now_s: float) -> int:
        """Return the bytes that the blocks claim now."""
        if self._bytes and now_s - self._since_s >= HALVED_S:
            halvings = int((now_s - self._since_s) // HALVED_S)
            self._bytes >>= halvings
            self._since_s += halvings * HALVED_S
        return self._bytes
