"""A gray broker: alive, with something to write, and storage acknowledges nothing.  Pure, time as an argument.

One partition's trouble is no stall: its segment fails over, and others' flushes go on.  Nor is idleness: without
anything to write, or any takeover under way, nothing is expected of storage.  A stalled broker that is emptied has
work still: to write something (``broker.files.storage_watch``).  Nor is a read that fails, whose file may be to blame:
it is a reason to write something, too, and only if that is not acknowledged is the broker stalled.
"""

from __future__ import annotations


class StallDetector:
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


class ReadDoubts:
    """Reads that fail or are late while storage does nothing else for this broker.  Bounded in what it asks for."""

    __slots__ = ("_failed", "_late_ms", "_oldest", "_progress", "_rest_ms", "_rests_until_ms", "_since_ms")

    def __init__(self, late_ms: int, rest_ms: int) -> None:
        """A read is late when it has been seen waiting for ``late_ms``; ``rest_ms`` pass between two trials."""
        self._late_ms = late_ms
        self._rest_ms = rest_ms
        self._rests_until_ms = 0
        self._progress = 0
        self._failed = 0
        self._oldest = 0
        self._since_ms = 0  # when ``_oldest`` was seen first, or progress last

    def __repr__(self) -> str:
        return f"<ReadDoubts oldest={self._oldest} since={self._since_ms} rests until={self._rests_until_ms}>"

    def look(self, now_ms: int, *, oldest: int, failed: int, progress: int) -> bool:
        """Return whether storage is to be tried now.

        ``oldest``: the number of the read that has waited for longest, 0 if none waits.  ``failed`` counts reads that
        storage did not answer, ``progress`` all that it has done for us, ever: whatever it does ends the doubt.
        """
        if progress != self._progress or oldest != self._oldest:
            self._oldest, self._since_ms = oldest, now_ms
        if progress != self._progress:
            self._progress, self._failed = progress, failed
        is_late = bool(oldest) and now_ms - self._since_ms >= self._late_ms
        if not (is_late or failed != self._failed) or now_ms < self._rests_until_ms:
            return False
        self._failed = failed
        self._rests_until_ms = now_ms + self._rest_ms
        return True
