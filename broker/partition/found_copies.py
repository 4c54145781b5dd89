"""Copies of batches that a takeover found, or that were flushed for fewer copies than are needed now: pure.

Kafka refuses a produce with ``acks=all`` while the in-sync replicas are fewer than ``min.insync.replicas``, before it
checks for duplicates (``Partition.appendRecordsToLeader``). Each of its in-sync replicas holds the whole log. Here a
segment that a takeover adopts has as many copies as datanodes of its pipeline were left. So a repeated batch with
``acks=all`` is acknowledged only if the file that holds it was seen to have enough copies.
"""

from __future__ import annotations

from dataclasses import dataclass

from bmq.broker.pending import Pending
from bmq.core.errors import ErrorCode, RequestError
from bmq.storage.checkpoint import ProducerBatch

COUNTS_MAX = 16
"""Counts kept. A producer repeats its last five batches at most; a count that was dropped is made again."""


@dataclass(frozen=True, slots=True)
class Count:
    """One count: the file of the offsets [base, end) had ``copies`` copies.

    It may be counted again from ``again_ms`` on.
    """

    base: int
    end: int
    copies: int
    again_ms: int
    reason: str


class FoundCopies:
    """The copies of one partition's log below ``end``, as far as they were counted. Times are monotonic ms."""

    __slots__ = ("_counts", "_is_counting", "_wanted", "end")

    def __init__(self) -> None:
        self.end = 0
        """The offset from which on every batch was flushed to as many copies as are needed."""
        self._counts: list[Count] = []
        self._wanted: int | None = None
        self._is_counting = False

    def __repr__(self) -> str:
        return f"<FoundCopies end={self.end} {self._counts}>"

    def doubt(self, end: int) -> None:
        """Require a count for each batch below ``end`` before a repetition of it is acknowledged."""
        self.end = max(self.end, end)

    def has(self, offset: int, copies: int) -> bool:
        """Return whether the batch at ``offset`` is known to have so many copies.  If not, a count of it is wanted."""
        if offset >= self.end:
            return True
        known = self._find(offset)
        if known is not None and known.copies >= copies:
            return True
        self._wanted = offset
        return False

    def check(self, kept: ProducerBatch, pending: Pending | None, log_start: int, copies: int) -> None:
        """Check that a repeated batch has ``copies`` copies, or will have when it is flushed.

        ``pending`` is the original until it is flushed. Raises RequestError NOT_ENOUGH_REPLICAS if it has fewer; a
        count of the copies is then wanted.
        """
        if pending is not None:
            if pending.copies >= copies:
                return
            why = f"it was accepted for {pending.copies}, and is not flushed yet"
        elif kept.base_offset + kept.last_delta < log_start or self.has(kept.base_offset, copies):
            return
        else:
            why = self.why(kept.base_offset)
        raise RequestError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"the batch is at offset {kept.base_offset}; min.insync.replicas asks for {copies} copies: {why}",
        )

    def why(self, offset: int) -> str:
        """Return the result of the last count of the file that holds ``offset``, in words."""
        known = self._find(offset)
        if known is None:
            return "its copies are being counted"
        return known.reason or f"it has {known.copies}"

    def take_wanted(self, now_ms: int) -> int | None:
        """Return the offset whose file is to be counted now; None if there is none.  At most one count is under way."""
        wanted, self._wanted = self._wanted, None
        if wanted is None or self._is_counting:
            return None
        known = self._find(wanted)
        if known is not None and now_ms < known.again_ms:
            return None
        self._is_counting = True
        return wanted

    def counted(self, count: Count) -> None:
        """Keep the result of a count in place of older ones of the same offsets."""
        self._is_counting = False
        others = [kept for kept in self._counts if kept.end <= count.base or count.end <= kept.base]
        self._counts = [*others[-(COUNTS_MAX - 1) :], count]

    def _find(self, offset: int) -> Count | None:
        for count in self._counts:
            if count.base <= offset < count.end:
                return count
        return None
