"""Transactions in the repair of a log: the transactions that it touches, and their ends.  Pure.

An unknown end is never taken for an end.  Offsets that are lost may hold a transaction's marker:

| what shows the transaction's end                     | the repair                                                  |
| ---------------------------------------------------- | ----------------------------------------------------------- |
| a checkpoint behind the loss lists it as aborted     | writes the ABORT marker again, at its offset                |
| a checkpoint behind the loss has it neither open nor | writes a COMMIT marker, at the last offset that was lost    |
| aborted, and covers all of the loss                  |                                                             |
| a later marker of its producer                       | keeps this marker: it ends all records before it            |
| nothing                                              | leaves it open, or ends it by an ABORT marker on request    |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from bmq.broker.partition.older_producers import OlderProducers
from bmq.broker.partition.producer_state import ProducerTable
from bmq.core.records.batch import CONTROL, NO_PRODUCER_ID, TRANSACTIONAL, Batch, build_batch
from bmq.core.records.control import EndMarker, Marker, end_marker_of, end_record
from bmq.storage.checkpoint import AbortedTransaction, Checkpoint, ProducerState
from bmq.storage.transactions import NOTHING_OPEN


@dataclass(slots=True)
class TouchedTransaction:
    """A transaction that was open, or began, where offsets are lost.

    ``lost``: the lost ranges [first, end); empty if the loss lies before the segments of the repair.
    ``dropped``: the batches among them that are its own by their headers.  ``ended_at``: offset of the marker that ends
    it in the repaired log, -1 if it stays open.  ``is_written``: the repair writes this marker.
    """

    producer_id: int
    epoch: int
    first_offset: int
    lost: list[tuple[int, int]] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    ended_at: int = NOTHING_OPEN
    marker: Marker | None = None
    is_written: bool = False

    @property
    def is_open(self) -> bool:
        return self.ended_at == NOTHING_OPEN

    def to_json(self) -> dict[str, Any]:
        """Return the transaction as a JSON object."""
        return {
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
            "first_offset": self.first_offset,
            "lost": [{"first": first, "last": end - 1} for first, end in self.lost],
            "dropped": self.dropped,
            "is_open": self.is_open,
            "marker": None if self.marker is None else self.marker.value,
            "marker_offset": None if self.is_open else self.ended_at,
            "is_marker_written": self.is_written,
        }


class MissingEnd(NamedTuple):
    """A lost marker, proven by a checkpoint."""

    producer_id: int
    producer_epoch: int
    end: EndMarker


class SegmentEnd(NamedTuple):
    """The transactions and producers at the end of a segment, for its index."""

    first_open: int
    aborted: tuple[AbortedTransaction, ...]
    producers: tuple[ProducerState, ...]


NO_TRANSACTIONS = SegmentEnd(NOTHING_OPEN, (), ())


class TransactionScan:
    """A scan of the log's batches and losses, in the order of their offsets, over one segment after the other.

    A checkpoint is true whatever is lost before its end.  So at the end of a segment's checkpoint its producers replace
    those of the scan.  ``missing_ends``: by offset, the markers that the checkpoints prove and the log lacks: plan
    again with them as ``written``.
    """

    def __init__(
        self,
        before: OlderProducers,
        wall_ms: int,
        *,
        written: Mapping[int, MissingEnd] | None = None,
        carried: Iterable[TouchedTransaction] = (),
    ) -> None:
        """``before``: the producers where the scan begins.  ``carried``: transactions touched before that offset."""
        self._table = before.table
        self._wall_ms = wall_ms
        self._written = dict(written or {})
        self._known: Checkpoint | None = None
        self._aborted: list[AbortedTransaction] = []
        self.missing_ends: dict[int, MissingEnd] = {}
        opened = dict(self._table.transactions.opened)
        self._touched: dict[tuple[int, int], TouchedTransaction] = {}
        self._unended: dict[int, list[TouchedTransaction]] = {}
        for each in carried:
            if opened.get(each.producer_id) == each.first_offset:
                self._add(replace(each, lost=list(each.lost)))
        if not before.is_complete:
            for producer_id, first in opened.items():
                self._touch(producer_id, first)

    @property
    def touched(self) -> list[TouchedTransaction]:
        """The transactions that the lost offsets so far have touched."""
        return list(self._touched.values())

    @property
    def _hanging(self) -> list[TouchedTransaction]:
        """The touched transactions that no marker ends so far."""
        opened = self._table.transactions.opened
        touched = (self._touched.get(each) for each in opened)
        return [each for each in touched if each is not None]

    def begin(self, known: Checkpoint | None) -> None:
        """Begin the next segment; ``known`` is its index or its last checkpoint."""
        if known is not None and known.knows_producers:
            self._known = known

    def keep(self, batch: Batch) -> None:
        """Pass a batch that is kept.  A batch without records is a gap of an earlier repair: its offsets are lost."""
        self._reach(batch.base_offset)
        if not batch.count and batch.producer_id == NO_PRODUCER_ID:
            self._pass_loss(batch.base_offset, batch.next_offset)
            return
        self._replay(batch, is_written=False)

    def lose(self, first: int, end: int, leader_epoch: int, dropped: Batch | None = None) -> list[bytearray]:
        """Pass lost offsets [first, end); return the markers to be written in their place, by offset.

        ``dropped``: the header of the batch that was there.
        """
        self._reach(first)
        markers = []
        for offset in sorted(offset for offset in self._written if first <= offset < end):
            self._pass_loss(first, offset)
            self._reach(offset)
            self._touch_open(offset, offset + 1)
            markers.append(self._write(offset, leader_epoch, self._written[offset]))
            first = offset + 1
        self._pass_loss(first, end)
        if dropped is not None and dropped.attributes & (TRANSACTIONAL | CONTROL):
            self._name_dropped(dropped)
        return markers

    def abort_hanging(self, offset: int, leader_epoch: int) -> list[bytearray]:
        """End each hanging transaction from ``offset`` on; return the ABORT markers."""
        self._reach(offset)
        markers = []
        for number, each in enumerate(self._hanging):
            state = self._table.latest(each.producer_id)
            assert state is not None
            markers.append(self._write(offset + number, leader_epoch, _end_of(state, Marker.ABORT)))
        return markers

    def end(self, offset: int) -> SegmentEnd:
        """End the segment at ``offset``, and return its transactions and producers."""
        self._reach(offset)
        aborted = (*self._aborted, *self._table.transactions.take_aborted())
        self._aborted = []
        return SegmentEnd(self._table.transactions.first_open, aborted, self._table.snapshot())

    # -------------------------------------------------------------------------------------------------------- steps

    def _pass_loss(self, first: int, end: int) -> None:
        if first >= end:
            return
        known = self._known
        if known is not None and first < known.end_offset < end:
            self._touch_open(first, known.end_offset)
            first = known.end_offset
        self._reach(first)
        self._touch_open(first, end)

    def _touch_open(self, first: int, end: int) -> None:
        for producer_id, start in self._table.transactions.opened:
            touched = self._touch(producer_id, start)
            if touched.lost and touched.lost[-1][1] == first:
                touched.lost[-1] = (touched.lost[-1][0], end)
            else:
                touched.lost.append((first, end))

    def _touch(self, producer_id: int, start: int) -> TouchedTransaction:
        found = self._touched.get((producer_id, start))
        if found is None:
            state = self._table.latest(producer_id)
            found = self._add(TouchedTransaction(producer_id, -1 if state is None else state.epoch, start))
        return found

    def _add(self, touched: TouchedTransaction) -> TouchedTransaction:
        self._touched[touched.producer_id, touched.first_offset] = touched
        self._unended.setdefault(touched.producer_id, []).append(touched)
        return touched

    def _name_dropped(self, batch: Batch) -> None:
        what = "a marker" if batch.attributes & CONTROL else "a batch"
        offsets = f"offsets {batch.base_offset} to {batch.last_offset}"
        text = f"{what} at {offsets if batch.last_offset_delta else f'offset {batch.base_offset}'}"
        start = dict(self._table.transactions.opened).get(batch.producer_id)
        if start is not None:
            self._touch(batch.producer_id, start).dropped.append(text)
        elif not batch.attributes & CONTROL:
            begun = TouchedTransaction(batch.producer_id, batch.producer_epoch, batch.base_offset, dropped=[text])
            begun.lost.append((batch.base_offset, batch.next_offset))
            self._add(begun)

    def _replay(self, batch: Batch, *, is_written: bool) -> None:
        if batch.attributes & CONTROL and (end := end_marker_of(batch)) is not None:
            for each in self._unended.pop(batch.producer_id, ()):  # also what began among lost batches
                each.ended_at, each.marker, each.is_written = batch.base_offset, end.marker, is_written
        self._table.replay(batch, self._wall_ms)

    def _write(self, offset: int, leader_epoch: int, end: MissingEnd) -> bytearray:
        data = build_batch(
            [end_record(end.end)],
            base_offset=offset,
            base_timestamp=self._wall_ms,
            producer_id=end.producer_id,
            producer_epoch=end.producer_epoch,
            attributes=TRANSACTIONAL | CONTROL,
            leader_epoch=leader_epoch,
        )
        self._replay(Batch(memoryview(data)), is_written=True)
        return data

    # --------------------------------------------------------------------------------------------------- checkpoints

    def _reach(self, offset: int) -> None:
        """Take over the checkpoint's producers if the scan has come to its end."""
        known = self._known
        if known is None or offset < known.end_offset:
            return
        self._known = None
        states = {state.producer_id: state for state in known.producers}
        for producer_id, start in self._table.transactions.opened:
            state = states.get(producer_id)
            is_same = state is not None and 0 <= state.txn_start <= start
            if is_same or self._has_missing_end(producer_id, start, known):
                continue
            before = self._table.latest(producer_id)
            assert before is not None
            states[producer_id] = replace(state or before, txn_start=start)
        self._aborted += self._table.transactions.take_aborted()
        self._table = ProducerTable(states.values())

    def _has_missing_end(self, producer_id: int, start: int, known: Checkpoint) -> bool:
        """Return whether the checkpoint proves how an open transaction has ended; then add its marker."""
        touched, state = self._touched.get((producer_id, start)), self._table.latest(producer_id)
        if touched is None or state is None:
            return False
        for aborted in known.aborted:
            if aborted.producer_id == producer_id and aborted.first_offset <= start <= aborted.last_offset:
                if not _is_in(aborted.last_offset, touched.lost):
                    return False
                self.missing_ends[aborted.last_offset] = _end_of(state, Marker.ABORT)
                return True
        if not touched.lost or touched.lost[0][0] < known.segment.base:
            return False  # the marker may lie in an earlier segment, whose aborted transactions this one does not list
        taken = {aborted.last_offset for aborted in known.aborted} | self.missing_ends.keys() | self._written.keys()
        free = (at for first, end in reversed(touched.lost) for at in range(end - 1, first - 1, -1) if at not in taken)
        offset = next(free, None)
        if offset is None:
            return False
        self.missing_ends[offset] = _end_of(state, Marker.COMMIT)
        return True


def _end_of(state: ProducerState, marker: Marker) -> MissingEnd:
    return MissingEnd(state.producer_id, max(state.epoch, 0), EndMarker(marker, max(state.coordinator_epoch, 0)))


def _is_in(offset: int, ranges: Sequence[tuple[int, int]]) -> bool:
    return any(first <= offset < end for first, end in ranges)
