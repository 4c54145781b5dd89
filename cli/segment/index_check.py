"""A check of an ``.idx`` against the batches of its ``.log``: pure, called in order of position."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter

from bmq.cli.segment.findings import Finding
from bmq.cli.segment.targets import TargetSegment
from bmq.core.errors import FormatError
from bmq.core.model import SegmentName
from bmq.storage.checkpoint import AbortedTransaction, Checkpoint
from bmq.storage.damage_reader import DamagedPart, FoundBatch
from bmq.storage.index import ENTRY
from bmq.storage.transactions import Transactions

_READERS = "Readers that seek by offset or time begin in the wrong place."
_REBUILD = "The index does not describe this file. The log itself is not touched by this: readers can scan it instead."
_MISLED = "OffsetForLeaderEpoch returns wrong offsets: a consumer that checks for lost data is misled."

_SHOWN_MAX = 10
_START = itemgetter(1)  # of an (epoch, first offset)


class IndexCheck:
    """A check of the entries, one batch of the log after the other."""

    def __init__(
        self,
        segment: TargetSegment,
        index: Checkpoint,
        length: int,
        add: Callable[[Finding], None],
        opened: Mapping[int, int] | None = None,
    ) -> None:
        """Begin the check.

        ``opened``: by producer id, first offsets of the transactions open at the segment's base; None if unknown.
        """
        self._segment = segment
        self._index = index
        self._length = length
        self._add = add
        self._next = 0  # the entry to be checked next
        self._is_whole = True  # every batch so far was seen
        self._max_timestamp = -1
        self._max_timestamp_offset = -1
        self._epochs: list[tuple[int, int]] = []
        self._opened = opened
        if segment.name.cleaning:  # transactions with data in this segment: an index also has transactions without
            self._transactions = Transactions()
        else:
            self._transactions = Transactions(_open_at_start(index) if opened is None else opened.items())
        self._is_decidable = True  # every marker so far could be read
        self._end: tuple[int, int] | None = (0, segment.name.base) if index.position == 0 else None
        self._check_head()

    def on_batch(self, found: FoundBatch) -> None:
        """Check the entries up to the next batch of the log, and add it to the sums."""
        batch = found.batch
        if found.position >= self._index.position:
            return  # merged into the segment later, or leftovers: not what this index describes
        self._meet(found)
        if batch.max_timestamp > self._max_timestamp:
            self._max_timestamp, self._max_timestamp_offset = batch.max_timestamp, batch.base_offset
        if self._segment.name.cleaning:
            self._check_epoch(found)
        elif not self._epochs or self._epochs[-1][0] != batch.leader_epoch:
            self._epochs.append((batch.leader_epoch, batch.base_offset))
        try:
            if batch.count or not self._segment.name.cleaning:  # an emptied batch has no data of its transaction
                self._transactions.pass_batch(batch)
        except FormatError:
            self._is_decidable = False  # `--records` reports the batch
        if found.end >= self._index.position:
            self._end = (found.end, batch.next_offset)

    def on_damage(self, damage: DamagedPart) -> None:
        """Skip the entries of damaged bytes: they cannot be checked, nor can the sums over the whole segment."""
        self._is_whole = False
        entries, end = self._index.index, damage.position + damage.size
        while self._next < len(entries) and entries[self._next + 1] < end:
            self._next += ENTRY
        if damage.position < self._index.position <= end:
            self._end = (self._index.position, self._index.end_offset)

    def finish(self, segment_end: int | None) -> None:
        """End the check.  ``segment_end`` is the position where the next segment's base is reached, None if it is
        not."""
        index = self._index
        if self._end is None:
            if segment_end is not None:
                self._fault(
                    f"describes {index.position} bytes, but the segment ends at {segment_end}: the next begins there",
                    "It counts leftovers of a failed write: readers would see records that were never accepted.",
                    segment_end,
                    None,
                )
            return  # else the log ends or is damaged before it: the segment's check has reported it
        if self._end != (index.position, index.end_offset):
            self._fault(
                f"says that offset {index.end_offset} is at position {index.position}; in the log a batch ends at"
                f" {self._end[0]} with offset {self._end[1]}",
                _REBUILD,
                index.position,
                index.end_offset,
            )
        if self._next < len(index.index):
            offset, position = index.index[self._next], index.index[self._next + 1]
            self._fault(f"an entry for offset {offset} points at position {position}, where no batch begins",
                        _READERS, position, offset)  # fmt: skip
        if self._is_whole:
            self._check_sums()

    def _check_sums(self) -> None:
        """Check the fields that depend on all batches of the segment."""
        index = self._index
        said = (index.max_timestamp, index.max_timestamp_offset)
        if said != (self._max_timestamp, self._max_timestamp_offset):
            self._fault(
                f"largest timestamp {said[0]} at offset {said[1]}; in the log it is {self._max_timestamp} at"
                f" {self._max_timestamp_offset}",
                "A look-up of the largest timestamp, and retention by time, go wrong.",
                None,
                said[1],
            )
        if not self._segment.name.cleaning and tuple(self._epochs) != index.epochs:
            self._fault(
                f"leader epochs {list(index.epochs)}; in the log they are {self._epochs}",
                _MISLED,
                None,
                None,
            )
        if self._is_decidable and self._segment.name.cleaning:
            self._check_transactions_left()
        elif self._is_decidable:
            self._check_transactions()

    def _check_epoch(self, found: FoundBatch) -> None:
        """Check that a cleaned segment's index gives the batch its epoch.

        The index also has epochs of which no batch is left, and a batch without records may stand for several epochs.
        """
        batch = found.batch
        at = bisect_right(self._index.epochs, batch.base_offset, key=_START) - 1
        if batch.count and at >= 0 and self._index.epochs[at][0] != batch.leader_epoch:
            self._fault(
                f"leader epoch {self._index.epochs[at][0]} at offset {batch.base_offset}; in the log it is"
                f" {batch.leader_epoch}",
                _MISLED,
                found.position,
                batch.base_offset,
            )

    def _check_transactions(self) -> None:
        """Check the aborted and the open transactions.

        Without the segments before it, transactions that began there are known from the index alone. Then an entry's
        last stable offset may lie below the segment, where a transaction began that was committed in it.
        """
        index, base = self._index, self._segment.name.base if self._opened is None else 0
        found = self._transactions.take_aborted()
        pairs = itertools.zip_longest(index.aborted, found)
        if not all(said and seen and _agree(said, seen, base) for said, seen in pairs):
            self._fault(
                f"aborted transactions {_shown(index.aborted)}; in the log they are {_shown(found)}",
                "Readers of committed records see records that were taken back, or miss records that were committed.",
                None,
                None,
            )
        opened = {producer.producer_id: producer.txn_start for producer in index.producers if producer.txn_start >= 0}
        if opened != dict(self._transactions.opened) or index.first_open_txn != self._transactions.first_open:
            self._fault(
                f"open transactions {opened}, the oldest from offset {index.first_open_txn} on; in the log they are"
                f" {dict(self._transactions.opened)}",
                "A takeover that reads on from here shows undecided records, or holds committed records back.",
                None,
                None,
            )

    def _check_transactions_left(self) -> None:
        """Check that a cleaned segment's index has every transaction with data in the segment.

        It has more: a round takes aborted data, and lists its transactions once more for readers of the old files.
        """
        index, found = self._index, self._transactions.take_aborted()
        said = {one.last_offset: one for one in index.aborted}
        ends = [one.last_offset for one in index.aborted]
        is_inside = all(index.segment.base <= end < index.end_offset for end in ends) and ends == sorted(said)
        if not is_inside or not all(_covers(said.get(seen.last_offset), seen) for seen in found):
            self._fault(
                f"aborted transactions {_shown(index.aborted)}; in the log data is left of {_shown(found)}",
                "Readers of committed records see records that were taken back, or miss records that were committed.",
                None,
                None,
            )
        opened = {producer.producer_id: producer.txn_start for producer in index.producers if producer.txn_start >= 0}
        left = dict(self._transactions.opened)
        is_known = all(producer_id in opened and opened[producer_id] <= first for producer_id, first in left.items())
        if not is_known or index.first_open_txn != min(opened.values(), default=-1):
            self._fault(
                f"open transactions {opened}, the oldest from offset {index.first_open_txn} on; in the log data is left"
                f" of {left}",
                "A takeover that reads on from here shows undecided records, or holds committed records back.",
                None,
                None,
            )

    def _check_head(self) -> None:
        index = self._index
        if index.segment != self._segment.name:
            self._fault(f"belongs to segment {index.segment}", _REBUILD, None, None)
        if not (index.is_closed and index.is_full):
            self._fault("holds a checkpoint of an open segment", _REBUILD, None, None)
        if self._segment.name.cleaning and not _is_history(index.epochs, self._segment.name):
            self._fault(
                f"leader epochs {list(index.epochs)} are not those of the segment's sources", _MISLED, None, None
            )
        positions = index.index[1::ENTRY]
        offsets = index.index[0::ENTRY]
        for name, values in (("positions", positions), ("offsets", offsets)):
            if any(a >= b for a, b in itertools.pairwise(values)):
                self._fault(f"its {name} do not ascend", _READERS, None, None)

    def _meet(self, found: FoundBatch) -> None:
        """Check the entries up to this batch's position: each must be of this batch."""
        entries = self._index.index
        while self._next < len(entries) and entries[self._next + 1] <= found.position:
            offset, position, timestamp = entries[self._next : self._next + ENTRY]
            self._next += ENTRY
            if position != found.position:
                what = f"an entry for offset {offset} points at position {position}, where no batch begins"
            elif offset != found.batch.base_offset:
                what = f"an entry says offset {offset} where the log has {found.batch.base_offset}"
            elif self._is_whole and timestamp != self._max_timestamp:
                what = f"an entry says that timestamps reach {timestamp} before it; in the log {self._max_timestamp}"
            else:
                continue
            self._fault(what, _READERS, position, offset)

    def _fault(self, what: str, meaning: str, position: int | None, offset: int | None) -> None:
        self._add(Finding(file=self._segment.idx, what=what, meaning=meaning, position=position, offset=offset))


def _open_at_start(index: Checkpoint) -> Iterator[tuple[int, int]]:
    """Give producer id and first offset of the transactions that, by the index, were open where the segment begins."""
    base = index.segment.base
    for aborted in index.aborted:
        if aborted.first_offset < base:
            yield aborted.producer_id, aborted.first_offset
    for producer in index.producers:
        if 0 <= producer.txn_start < base:
            yield producer.producer_id, producer.txn_start


def _is_history(epochs: Sequence[tuple[int, int]], name: SegmentName) -> bool:
    """Return whether the epochs begin at the segment's base, rise with their offsets, and end by the name's epoch."""
    rise = all(a[0] < b[0] and a[1] < b[1] for a, b in itertools.pairwise(epochs))
    return rise and bool(epochs) and epochs[0][1] == name.base and epochs[-1][0] <= name.epoch


def _agree(said: AbortedTransaction, seen: AbortedTransaction, base: int) -> bool:
    if said.last_stable_offset < base:
        seen = replace(seen, last_stable_offset=said.last_stable_offset)
    return said == seen


def _covers(said: AbortedTransaction | None, seen: AbortedTransaction) -> bool:
    return said is not None and said.producer_id == seen.producer_id and said.first_offset <= seen.first_offset


def _shown(aborted: Sequence[AbortedTransaction]) -> str:
    shown = [
        f"{one.producer_id}: {one.first_offset} to {one.last_offset}, stable to {one.last_stable_offset}"
        for one in aborted[:_SHOWN_MAX]
    ]
    more = len(aborted) - len(shown)
    return f"[{'; '.join(shown)}{f'; {more} more' if more > 0 else ''}]"
