"""The aborted transactions of segments that have no index on storage yet: pure.

A reader at read_committed finds the aborted transactions of a closed segment in its index. Until the index is there,
the owner keeps them:

| segment                            | kept until                                                    |
| ---------------------------------- | ------------------------------------------------------------- |
| open, being closed or taken over   | its index is on storage                                       |
| found by the takeover, without an  | the work on its index has ended; past ``FOUND_MAX``           |
| index                              | transactions, a segment of this owner has its index           |
| found by the takeover, with one    | a segment of this owner has its index                         |

A transaction costs 32 bytes, as in the index.
"""

from __future__ import annotations

from collections.abc import Iterable

from bmq.core.model import SegmentName
from bmq.storage.aborted import AbortedTransactions, RecentAborted
from bmq.storage.checkpoint import AbortedTransaction

FOUND_MAX = 65_536
"""Most transactions in all lists while a segment of a takeover waits for its index. Storage may refuse the index for
hours; past the bound readers wait for the index.
"""


class UnindexedAborted:
    """The lists of a partition's segments, from the oldest segment without an index on."""

    __slots__ = ("_found", "_indexed", "_lists", "_recent")

    def __init__(self) -> None:
        self._lists: dict[SegmentName, AbortedTransactions] = {}
        self._indexed: set[SegmentName] = set()  # behind one without an index
        self._found: set[SegmentName] = set()  # by the takeover, without an index
        self._recent: RecentAborted | None = None

    def __repr__(self) -> str:
        return f"<UnindexedAborted {len(self._lists)} segments>"

    def recent(self, end_offset: int) -> RecentAborted:
        """Return the lists; ``end_offset``, the high watermark, is where they begin if there is no segment."""
        if self._recent is None:
            if not self._lists:
                return RecentAborted(end_offset)
            self._recent = RecentAborted(next(iter(self._lists)).base, tuple(self._lists.values()))
        return self._recent

    def opened(self, name: SegmentName, aborted: AbortedTransactions) -> None:
        """Add the segment that is written from now on, with its growing list."""
        self._lists[name] = aborted
        self._recent = None

    def found(self, name: SegmentName, aborted: Iterable[AbortedTransaction], *, lacks_index: bool = False) -> None:
        """Add a segment that the takeover has found."""
        self.opened(name, AbortedTransactions(aborted))
        (self._found if lacks_index else self._indexed).add(name)

    def indexed(self, name: SegmentName) -> None:
        """Drop the segment, whose index is on storage or was given up, and later segments that have an index already.

        Behind a segment without an index all segments stay: the lists have no gaps.
        """
        if name not in self._lists:
            return  # it never took a batch
        self._indexed.add(name)
        if sum(map(len, self._lists.values())) > FOUND_MAX:
            self._indexed |= self._found & self._lists.keys()
        while self._lists and (first := next(iter(self._lists))) in self._indexed:
            del self._lists[first]
            self._indexed.discard(first)
            self._found.discard(first)
        self._recent = None
