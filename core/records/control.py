"""Control batches: the records that end transactions, as Kafka's ``EndTransactionMarker`` has them.

::

    key    version i16, type i16                0 ABORT, 1 COMMIT; later versions append fields
    value  version i16, coordinator epoch i32   later versions append fields
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import NamedTuple

from bmq.core.errors import FormatError
from bmq.core.records.batch import Batch, Record
from bmq.core.records.reader import StoredRecord, read_records

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")


class Marker(Enum):
    """A control batch's type: COMMIT and ABORT end a transaction, OTHER does not."""

    ABORT = "abort"
    COMMIT = "commit"
    OTHER = "other"


_TYPES = {0: Marker.ABORT, 1: Marker.COMMIT}
_NUMBERS = {marker: number for number, marker in _TYPES.items()}


class EndMarker(NamedTuple):
    """The end of a transaction: COMMIT or ABORT, and the epoch of the coordinator that wrote it."""

    marker: Marker
    coordinator_epoch: int


class TransactionMarker(NamedTuple):
    """The end of one producer's transaction, as its coordinator sends it to partitions."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int  # the shard's ownership number, int32
    marker: Marker  # COMMIT or ABORT
    version: int  # the transaction's version, 0 to 2 (transaction.version at its beginning; KIP-1228)


def marker_of(batch: Batch) -> Marker:
    """Return a control batch's type.  Raises FormatError if its record cannot be read."""
    return _type_of(next(read_records(batch), None))


def end_marker_of(batch: Batch) -> EndMarker | None:
    """Return the end of a transaction that a control batch holds.

    Returns None for another type, and for a batch without records, which Kafka's compaction leaves.  Raises FormatError
    if its record cannot be read.
    """
    if not batch.count:
        return None
    record = next(read_records(batch), None)
    marker = _type_of(record)
    if marker is Marker.OTHER:
        return None
    assert record is not None
    if record.value is None or len(record.value) < _VALUE.size:
        raise FormatError("the end of a transaction without its coordinator's epoch")
    return EndMarker(marker, _VALUE.unpack_from(record.value)[1])


def end_record(end: EndMarker) -> Record:
    """Return the control record of a transaction's end, in version 0 of both formats."""
    return Record(key=_KEY.pack(0, _NUMBERS[end.marker]), value=_VALUE.pack(0, end.coordinator_epoch))


def _type_of(record: StoredRecord | None) -> Marker:
    if record is None or record.key is None or len(record.key) < _KEY.size:
        raise FormatError("a control batch without a control record")
    return _TYPES.get(_KEY.unpack_from(record.key)[1], Marker.OTHER)
