"""Aborted transactions, kept as numbers, and the list that a reader of a range must have.  Pure.

A reader at read_committed gets the records of aborted transactions, too, and leaves them out by a list.  The list must
be exact: an entry whose marker lies before the range would hide later, committed records of the same producer.  So
the list of the offsets [start, end) has the transactions whose marker is at or behind ``start`` and whose first offset
is below ``end``.  Source: Kafka's ``TransactionIndex.collectAbortedTxns``.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from bmq.core.errors import FormatError
from bmq.storage.checkpoint import AbortedTransaction, Checkpoint, big_endian, from_big_endian

ENTRY = 4
"""Numbers of an entry: producer id, first offset, last offset (its marker's), last stable offset behind the marker."""
_FIRST, _LAST, _STABLE = 1, 2, 3
ENTRY_BYTES = ENTRY * 8
_COMPACT = 64  # entries dropped at the front, before the array is shortened


class AbortedTransactions:
    """The aborted transactions of a run of the log, in the order of their markers: 32 bytes each."""

    __slots__ = ("_dropped", "_numbers")

    def __init__(self, aborted: Iterable[AbortedTransaction] = ()) -> None:
        self._numbers = array("q")
        self._dropped = 0  # entries at the front that count no longer
        self.extend(aborted)

    def __len__(self) -> int:
        return len(self._numbers) // ENTRY - self._dropped

    def __iter__(self) -> Iterator[AbortedTransaction]:
        return iter(self.behind(0))

    def __repr__(self) -> str:
        return f"<AbortedTransactions {len(self)}>"

    @property
    def last_marker(self) -> int:
        """The offset of the last marker; -1 without any."""
        return self._numbers[-ENTRY + _LAST] if len(self) else -1

    def extend(self, aborted: Iterable[AbortedTransaction]) -> None:
        """Add transactions whose markers are behind all others."""
        for each in aborted:
            self._numbers.extend((each.producer_id, each.first_offset, each.last_offset, each.last_stable_offset))

    def merge(self, aborted: Sequence[AbortedTransaction]) -> None:
        """Add transactions of which some are here already, both in the order of their markers."""
        if not aborted:
            return
        at = self._count_before(aborted[0].last_offset)
        known = {each.last_offset: each for each in self._entries(at)}
        known.update((each.last_offset, each) for each in aborted)
        del self._numbers[at * ENTRY :]
        self.extend(known[last] for last in sorted(known))

    def behind(self, count: int) -> tuple[AbortedTransaction, ...]:
        """Return the transactions without the first ``count``."""
        return tuple(self._entries(self._dropped + count))

    def overlapping(self, start: int, end: int) -> tuple[list[AbortedTransaction], bool]:
        """Return the entries for a reader of [start, end), and whether a later marker can end no such transaction.

        Costs by the entries from ``start`` on, up to the first marker that leaves nothing open below ``end``.
        """
        numbers, found = self._numbers, list[AbortedTransaction]()
        for at in range(self._count_before(start) * ENTRY, len(numbers), ENTRY):
            if numbers[at + _FIRST] < end:
                found.append(AbortedTransaction(*numbers[at : at + ENTRY]))
            if numbers[at + _STABLE] >= end:
                return found, True
        return found, False

    def drop_before(self, offset: int) -> None:
        """Drop the transactions whose marker lies below ``offset``."""
        self._dropped = self._count_before(offset)
        if self._dropped >= _COMPACT and 2 * self._dropped * ENTRY >= len(self._numbers):
            del self._numbers[: self._dropped * ENTRY]
            self._dropped = 0

    def encode(self, start: int) -> bytes:
        """Return the transactions whose marker is at or behind ``start``, as ``decode_aborted`` reads them."""
        return big_endian(self._numbers[self._count_before(start) * ENTRY :])

    def _entries(self, at: int) -> Iterator[AbortedTransaction]:
        numbers = self._numbers
        for each in range(at * ENTRY, len(numbers), ENTRY):
            yield AbortedTransaction(*numbers[each : each + ENTRY])

    def _count_before(self, offset: int) -> int:
        """Return how many entries of the array, the dropped ones included, have their marker below ``offset``."""
        numbers, count = self._numbers, len(self._numbers) // ENTRY
        return bisect_left(range(count), offset, self._dropped, key=lambda at: numbers[at * ENTRY + _LAST])


def encode_aborted(aborted: Iterable[AbortedTransaction]) -> bytes:
    """Return the transactions as ``decode_aborted`` reads them: four big-endian 64-bit numbers each."""
    return AbortedTransactions(aborted).encode(0)


def decode_aborted(data: memoryview) -> list[AbortedTransaction]:
    """Return the transactions in ``data``.  Raises FormatError if the bytes are not whole entries."""
    if len(data) % ENTRY_BYTES:
        raise FormatError(f"{len(data)} bytes are not whole aborted transactions")
    numbers = from_big_endian(data)
    return [AbortedTransaction(*numbers[at : at + ENTRY]) for at in range(0, len(numbers), ENTRY)]


class RecentAborted(NamedTuple):
    """The aborted transactions that no index on storage may have yet: all whose marker is at or behind ``since``.

    ``lists`` are those of the segments from there on, in their order.
    """

    since: int
    lists: Sequence[AbortedTransactions] = ()

    def overlapping(self, start: int, end: int) -> list[AbortedTransaction]:
        """Return the entries for a reader of [start, end)."""
        found: list[AbortedTransaction] = []
        for each in self.lists:
            some, is_complete = each.overlapping(start, end)
            found += some
            if is_complete:
                break
        return found

    def encode(self, start: int) -> bytes:
        """Return the transactions whose marker is at or behind ``start``, as ``decode_aborted`` reads them."""
        return b"".join(each.encode(start) for each in self.lists)


class SegmentTransactions(NamedTuple):
    """The transactions in a closed segment, from its index.

    ``end`` is the segment's end offset, ``first_open`` the first offset of the oldest transaction open there, -1 for
    none.
    """

    end: int
    first_open: int
    aborted: AbortedTransactions

    @classmethod
    def of(cls, index: Checkpoint) -> SegmentTransactions:
        """Return the transactions that an index holds."""
        return cls(index.end_offset, index.first_open_txn, AbortedTransactions(index.aborted))

    def are_decided(self, end: int) -> bool:
        """Return whether every transaction that began below ``end`` has ended in this segment or before it."""
        return self.first_open < 0 or self.first_open >= end


class StableMove(NamedTuple):
    """The move of a last stable offset by a flush, from ``before`` to ``after``; ``aborted`` are its ABORT markers.

    None stands for a flush that decides exactly its own batches.
    """

    before: int
    after: int
    aborted: Sequence[AbortedTransaction] = ()
