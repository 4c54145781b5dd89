"""The transactions in a log's batches, found by headers and markers: open and aborted transactions.  Pure.

The owner of a partition, its recovery, ``bmq segment verify`` and the Spark reader pass the batches of a log in order.
So their results are the same.  The rules are those of Kafka's ``ProducerStateManager`` and ``ProducerAppendInfo``:

* A transactional batch begins a transaction, unless its producer has an open one.
* A marker (COMMIT or ABORT) ends its producer's transaction. Without an open transaction it ends nothing.
* An aborted transaction's last stable offset is the first offset of the oldest transaction that is still open behind
  the marker. If none is open, it is the offset behind the marker.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from operator import itemgetter

from bmq.core.records.batch import CONTROL, NO_PRODUCER_ID, TRANSACTIONAL, Batch
from bmq.core.records.control import Marker, marker_of
from bmq.storage.checkpoint import AbortedTransaction, ProducerState

NOTHING_OPEN = -1


class Transactions:
    """The transactions of the batches so far.  Each step costs the same, however many transactions are open."""

    __slots__ = ("_aborted", "_open", "first_open")

    def __init__(self, opened: Iterable[tuple[int, int]] = ()) -> None:
        """Take (producer id, first offset) of each open transaction, in any order."""
        self._open = OrderedDict(sorted(opened, key=itemgetter(1)))  # oldest first: batches come in order of offsets
        self._aborted: list[AbortedTransaction] = []
        self.first_open = self._first()
        """The first offset of the oldest open transaction; -1 for none."""

    @classmethod
    def of(cls, states: Iterable[ProducerState]) -> Transactions:
        """Return the transactions that the states of a log's producers name."""
        return cls((state.producer_id, state.txn_start) for state in states if state.txn_start >= 0)

    @property
    def opened(self) -> tuple[tuple[int, int], ...]:
        """Producer id and first offset of each open transaction, oldest first."""
        return tuple(self._open.items())

    def pass_batch(self, batch: Batch) -> None:
        """Add the next batch of the log.  Raises FormatError if it is a control batch whose record cannot be read."""
        if not batch.attributes & (TRANSACTIONAL | CONTROL) or batch.producer_id == NO_PRODUCER_ID:
            return
        if not batch.is_control:
            self._open.setdefault(batch.producer_id, batch.base_offset)
            if self.first_open == NOTHING_OPEN:
                self.first_open = batch.base_offset
            return
        first = self._open.get(batch.producer_id)
        if first is None or not batch.count or (marker := marker_of(batch)) is Marker.OTHER:
            return
        del self._open[batch.producer_id]
        self.first_open = self._first()
        if marker is Marker.ABORT:
            stable = batch.base_offset + 1 if not self._open else self.first_open
            self._aborted.append(AbortedTransaction(batch.producer_id, first, batch.base_offset, stable))

    def _first(self) -> int:
        return next(iter(self._open.values()), NOTHING_OPEN)

    def take_aborted(self) -> list[AbortedTransaction]:
        """Return the transactions aborted since the last call, in the order of their markers."""
        taken, self._aborted = self._aborted, []
        return taken
