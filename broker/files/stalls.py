"""Detection of a gray broker: it is alive and has something to write, and storage acknowledges nothing.

Pure, with time as an argument.

| not a stall                       | because                                                     |
| --------------------------------- | ----------------------------------------------------------- |
| one partition's writes fail       | its segment fails over, and other partitions' flushes go on |
| nothing to write, and no takeover | nothing is expected of storage                              |
| a read fails                      | its file may be the cause; a trial write starts             |

A stalled broker whose partitions were moved away keeps one piece of work: a trial write (``broker.storage_watch``). A
failed or late read starts a trial write too. The broker is stalled only if storage does not acknowledge the trial
write.
"""

from __future__ import annotations


class StallDetector:
    """The state of a stall, updated by ``update`` from time to time; it shows at the first call after ``limit_ms``."""

    __slots__ = ("_limit_ms", "_progress", "_since_ms", "is_stalled")

    def __init__(self, limit_ms: int) -> None:
        self._limit_ms = limit_ms
        self._progress = 0
        self._since_ms: int | None = None
        self.is_stalled = False

    def __repr__(self) -> str:
        return f"<StallDetector since={self._since_ms} is_stalled={self.is_stalled}>"

    def update(self, now_ms: int, *, has_work: bool, progress: int) -> None:
        """Update ``is_stalled``.

        ``has_work``: something waits for storage now. ``progress`` counts everything that storage has ever done for
        this broker.
        """
        if not has_work or progress != self._progress:
            self._progress = progress
            self._since_ms = now_ms if has_work else None
            self.is_stalled = False
            return
        if self._since_ms is None:
            self._since_ms = now_ms
        self.is_stalled = now_ms - self._since_ms >= self._limit_ms


class ReadDoubts:
    """Reads that fail or are late while storage does nothing else for this broker. Bounds the trials they cause."""

    __slots__ = ("_failed", "_late_ms", "_oldest", "_progress", "_rest_ms", "_rests_until_ms", "_since_ms")

    def __init__(self, late_ms: int, rest_ms: int) -> None:
        """Set the limits: a read is late once it was seen waiting for ``late_ms``; trials are ``rest_ms`` apart."""
        self._late_ms = late_ms
        self._rest_ms = rest_ms
        self._rests_until_ms = 0
        self._progress = 0
        self._failed = 0
        self._oldest = 0
        self._since_ms = 0  # when ``_oldest`` or progress last changed

    def __repr__(self) -> str:
        return f"<ReadDoubts oldest={self._oldest} since={self._since_ms} rests until={self._rests_until_ms}>"

    def check(self, now_ms: int, *, oldest: int, failed: int, progress: int) -> bool:
        """Return whether storage is to be tried now.

        ``oldest``: the number of the read that has waited longest, 0 if none waits. ``failed`` counts reads without a
        response from storage. ``progress`` counts everything that storage has done for this broker, ever: any progress
        ends the doubt.
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
