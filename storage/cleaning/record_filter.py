"""The filter of a round's records: it maps their keys, then judges every record.  Pure.

``PythonRecordFilter`` is slow, and obviously right: the model of ``CompiledRecordFilter`` (``compiled_filter.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from bmq.core.aio.pace import no_pause
from bmq.core.records.batch import Batch
from bmq.core.records.reader import RECORDS_BYTES_MAX
from bmq.storage.cleaning.batch_writer import CleanedRecord, KeptRecords, cut_records, write_batch
from bmq.storage.cleaning.key_offsets import KeyOffsets
from bmq.storage.cleaning.plain_runs import RunFilter
from bmq.storage.cleaning.retention import NO_HORIZON
from bmq.storage.cleaning.superseded import SupersededRecords

PACE_RECORDS = 100
"""Records between two pauses in Python: a millisecond or two of work."""


class Kept(NamedTuple):
    """The records of a batch that stay: their number, the tombstones among them, and the bytes of the batch with them.

    ``data`` is the batch's own bytes if all records stay as they are, and empty if none stays.
    """

    records: int
    tombstones: int
    data: bytes | bytearray | memoryview


NOTHING = Kept(0, 0, b"")


class RecordFilter(Protocol):
    """The filter of a round.  The round walks its batches several times, always all of them in order::

        for each pass:
            dirty batches   ``map_batch``      the last offset of each key of the pass
            all batches     ``mark_batch``     only if ``needs_marks``
        all batches         ``keep``

    A batch's ``number`` is how many records the walk passed before it.  Each call with a batch raises FormatError, with
    the batch's offset, if the records cannot be decompressed, are damaged, or do not agree with the header.
    """

    @property
    def needs_marks(self) -> bool:
        """True if the walk of ``mark_batch`` is needed: the map has not all keys at once."""

    @property
    def runs(self) -> RunFilter | None:
        """The filter of runs of plain batches; None if each batch is passed alone."""

    def map_batch(self, batch: Batch, first_dirty: int) -> None:
        """Map the keys of the batch's records at or past ``first_dirty``.

        Raises MemoryError if the buffer has not room for the smallest part of the keys.
        """

    def mark_batch(self, batch: Batch, number: int) -> None:
        """Mark the batch's records that have a later record of their key in this pass's map."""

    def next_pass(self) -> bool:
        """Begin the next pass.  Return False if each key has had its pass."""

    def keep(self, batch: Batch, number: int, *, keeps_tombstones: bool, horizon: int) -> Kept:
        """Return what stays of a batch: records without a key, and the last record of every key.

        A tombstone stays only with ``keeps_tombstones``.  A batch with tombstones gets the delete horizon ``horizon``,
        unless it is NO_HORIZON.
        """


class PythonRecordFilter:
    """The filter in Python: see ``RecordFilter``.  It calls ``pace`` after each PACE_RECORDS records."""

    def __init__(
        self,
        buffer_bytes: int,
        *,
        records_bytes_max: int = RECORDS_BYTES_MAX,
        pace: Callable[[], None] = no_pause,
    ) -> None:
        self._superseded = SupersededRecords(KeyOffsets.within(buffer_bytes))
        self._records_bytes_max = records_bytes_max
        self._pace = pace

    @property
    def needs_marks(self) -> bool:
        return self._superseded.needs_marks

    @property
    def runs(self) -> RunFilter | None:
        return None

    def map_batch(self, batch: Batch, first_dirty: int) -> None:
        for record in self._cut(batch):
            if record.key is not None and record.offset >= first_dirty:
                self._superseded.map_record(record.key, record.offset)

    def mark_batch(self, batch: Batch, number: int) -> None:
        for at, record in enumerate(self._cut(batch)):
            if record.key is not None:
                self._superseded.mark_record(record.key, record.offset, number + at)

    def next_pass(self) -> bool:
        return self._superseded.next_pass()

    def keep(self, batch: Batch, number: int, *, keeps_tombstones: bool, horizon: int) -> Kept:
        kept = KeptRecords(batch)
        for at, record in enumerate(self._cut(batch)):
            if self._stays(record, number + at, keeps_tombstones=keeps_tombstones):
                kept.add(record)
        return _written(batch, kept, horizon if kept.tombstones else NO_HORIZON)

    def _stays(self, record: CleanedRecord, number: int, *, keeps_tombstones: bool) -> bool:
        if record.key is None:
            return True
        if self._superseded.is_superseded(record.key, record.offset, number):
            return False
        return record.has_value or keeps_tombstones

    def _cut(self, batch: Batch) -> Iterator[CleanedRecord]:
        for number, record in enumerate(cut_records(batch, bytes_max=self._records_bytes_max), 1):
            yield record
            if number % PACE_RECORDS == 0:
                self._pace()


def keep_all(batch: Batch, horizon: int, *, records_bytes_max: int = RECORDS_BYTES_MAX) -> Kept:
    """Return all records of a batch, which gets a delete horizon unless it is NO_HORIZON: for control batches.

    Raises FormatError as ``RecordFilter.keep`` does.
    """
    kept = KeptRecords(batch)
    for record in cut_records(batch, bytes_max=records_bytes_max):
        kept.add(record)
    return _written(batch, kept, horizon)._replace(tombstones=0)


def _written(batch: Batch, kept: KeptRecords, horizon: int) -> Kept:
    if not kept.count:
        return NOTHING
    if kept.count == batch.count and horizon == NO_HORIZON:
        return Kept(kept.count, kept.tombstones, batch.data[: batch.size])
    return Kept(kept.count, kept.tombstones, write_batch(batch, kept, horizon))
