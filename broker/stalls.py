"""A gray broker: alive, with something to write, and storage acknowledges nothing.  Pure, time as an argument.

One partition's trouble is no stall: its segment fails over, and others' flushes go on.  Nor is idleness: without
anything to write, or any takeover under way, nothing is expected of storage.  A stalled broker that is emptied has
work still: to write something (``broker.storage_watch``).
"""

from __future__ import annotations


class Stalls:
    """Told now and then (``look``); late by as long as that takes."""

    __slots__ = ("_limit_ms", "_progress", "_since_ms", "is_stalled")

    def __init__(self, limit_ms: int) -> None:
        self._limit_ms = limit_ms
        self._progress = 0
        self._since_ms: int | None = None
        self.is_stalled = False

    def __repr__(self) -> str:
        return f"<Stalls since={self._since_ms} is_stalled={self.is_stalled}>"

    def look(self, now_ms: int, *, has_work: bool, progress: int) -> None:
        """``has_work``: something waits for storage now.  ``progress`` counts what storage has done for us, ever."""
        if not has_work or progress != self._progress:
            self._progress = progress
            self._since_ms = now_ms if has_work else None
            self.is_stalled = False
            return
        if self._since_ms is None:
            self._since_ms = now_ms
        self.is_stalled = now_ms - self._since_ms >= self._limit_ms
