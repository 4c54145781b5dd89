"""A scan of a segment's batch headers, which finds the facts that an index would hold.  Pure."""

from __future__ import annotations

from array import array
from dataclasses import replace

from bmq.core.records.batch import Batch
from bmq.spark.planning.slices import IndexedSegment, Segment
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.index import ENTRY, POSITION, SegmentIndex
from bmq.storage.transactions import Transactions


class Scan:
    """An accumulator of the facts that an index would hold, batch by batch."""

    def __init__(self, facts: IndexedSegment) -> None:
        self._facts = facts
        self._index = SegmentIndex(entries=array("q", facts.entries))
        self._index.max_timestamp = -1 if facts.max_timestamp is None else facts.max_timestamp
        self._position, self._offset = facts.known_position, facts.known_offset
        self._transactions = Transactions(facts.open_txns)

    def pass_batch(self, batch: Batch, position: int) -> None:
        """Add the batch at ``position``, the next of the segment."""
        self._index.add(batch.base_offset, position, batch.max_timestamp)
        self._position, self._offset = position + batch.size, batch.next_offset
        self._transactions.pass_batch(batch)

    def result(self, *, is_open_ended: bool = False, is_damaged: bool = False) -> IndexedSegment:
        """Return the facts found.

        ``is_open_ended``: the log ends with the last whole batch.  ``is_damaged``: other bytes follow the last whole
        batch.  The file's end then counts as the end of the segment's batches, so that the read that follows finds the
        damage and reports it.
        """
        segment, position = self._facts.segment, self._position
        if is_open_ended:
            segment = replace(segment, end=self._offset)
        elif is_damaged:
            position = max(position, segment.length)
        return replace(
            self._facts,
            segment=segment,
            entries=self._index.entries,
            position=position,
            max_timestamp=self._index.max_timestamp,
            first_open_txn=self._transactions.first_open,
            open_txns=self._transactions.opened,
            aborted=(*self._facts.aborted, *self._transactions.take_aborted()),
            known_position=position,
            known_offset=segment.end if is_damaged else self._offset,
        )


def facts_of(segment: Segment, checkpoint: Checkpoint) -> IndexedSegment:
    """Return the facts that ``checkpoint``, an index or a checkpoint of ``segment``, holds."""
    is_whole = checkpoint.end_offset == segment.end
    return IndexedSegment(
        segment=segment,
        entries=checkpoint.index,
        position=checkpoint.position if is_whole else None,
        max_timestamp=checkpoint.max_timestamp,
        first_open_txn=checkpoint.first_open_txn,
        open_txns=tuple((p.producer_id, p.txn_start) for p in checkpoint.producers if p.txn_start >= 0),
        aborted=checkpoint.aborted,
        known_position=checkpoint.position,
        known_offset=checkpoint.end_offset,
    )


def shortened(facts: IndexedSegment, length: int) -> IndexedSegment:
    """Return the facts that ``length`` bytes of the segment hold: a scan continues from the last entry there."""
    index = SegmentIndex(entries=facts.entries)
    count = index.count_up_to(length, POSITION)
    offset, position = index.entry_before(count, facts.segment.name.base)
    return replace(
        facts,
        entries=facts.entries[: count * ENTRY],
        position=None,
        max_timestamp=facts.entries[count * ENTRY - 1] if count else None,
        known_position=position,
        known_offset=offset,
    )


def place_for_timestamp(facts: IndexedSegment, timestamp: int, start: int) -> tuple[int, int]:
    """Return (offset, position) of the batch at which the search for ``timestamp`` in [start, ...) begins."""
    index, base = SegmentIndex(entries=facts.entries), facts.segment.name.base
    return max(index.place_of_timestamp(timestamp, base), index.place_of(start, base))
