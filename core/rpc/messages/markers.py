"""The ends of transactions, from coordinators and proxies.

WriteMarkers is for partitions of a broker, EndGroupTransactions for groups' shards of a coordinator.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple, TypeVar

from bmq.core.errors import ErrorCode, FormatError
from bmq.core.model import PartitionKey
from bmq.core.records.control import Marker, TransactionMarker
from bmq.core.rpc.api_keys import InternalKey
from bmq.core.rpc.message import InternalRequest, InternalResponse
from bmq.core.rpc.message_fields import Int8, Int16, Int32, Int64, Int64s, Numbers, Partitions, Row, Rows, Text

MARKERS_MAX = 1_000
"""Partitions or shards in one request: at 50 us a marker, a twentieth of a second."""
T = TypeVar("T")


class MarkerRow(NamedTuple):
    """One marker, and how many of the request's partitions or shards are its own."""

    producer_id: Int64
    producer_epoch: Int16
    coordinator_epoch: Int32
    is_commit: Int8
    version: Int8
    partitions: Int32


MarkerRows = Annotated[Sequence[MarkerRow], Rows(Row.of(MarkerRow))]


@dataclass(frozen=True, slots=True)
class WriteMarkersResponse(InternalResponse):
    """A Kafka error code for each partition of the request, in the same order; NONE once the marker is flushed."""

    message: Text = ""
    codes: Int64s = ()


@dataclass(frozen=True, slots=True)
class WriteMarkersRequest(InternalRequest[WriteMarkersResponse]):
    """Markers for partitions of one broker: the first marker's partitions, then the second's and so on.

    At most ``MARKERS_MAX`` partitions. ``wait_ms``: milliseconds until REQUEST_TIMED_OUT for a marker without a flush.
    """

    KEY = InternalKey.WRITE_MARKERS

    wait_ms: Int32
    markers: MarkerRows = ()
    partitions: Partitions = ()

    @staticmethod
    def of(ends: Sequence[tuple[TransactionMarker, PartitionKey]], wait_ms: int) -> WriteMarkersRequest:
        """Return the request for these markers; neighbours with the same marker share a row."""
        rows = _rows_of(marker for marker, _ in ends)
        return WriteMarkersRequest(wait_ms, rows, tuple((key.topic_id, key.partition) for _, key in ends))

    def ends(self) -> list[tuple[TransactionMarker, PartitionKey]]:
        """Return each partition with its marker.  Raises FormatError if the counts do not fit, or are too large."""
        return _spread("WriteMarkers", self.markers, [PartitionKey(*each) for each in self.partitions])


@dataclass(frozen=True, slots=True)
class EndGroupTransactionsResponse(InternalResponse):
    """A Kafka error code for each shard of the request, in the same order; NONE once the marker is durable."""

    message: Text = ""
    codes: Int64s = ()


@dataclass(frozen=True, slots=True)
class EndGroupTransactionsRequest(InternalRequest[EndGroupTransactionsResponse]):
    """Markers for groups' shards of a coordinator, in the form of WriteMarkers.

    At most ``MARKERS_MAX`` shards. ``ownerships``: pairs (code of a shard, expected ownership number), as in
    ForwardRequest.
    """

    KEY = InternalKey.END_GROUP_TRANSACTIONS

    markers: MarkerRows = ()
    ownerships: Numbers = ()

    @staticmethod
    def of(ends: Sequence[tuple[TransactionMarker, tuple[int, int]]]) -> EndGroupTransactionsRequest:
        """Return the request for these markers; neighbours with the same marker share a row."""
        return EndGroupTransactionsRequest(
            _rows_of(marker for marker, _ in ends), tuple(ownership for _, ownership in ends)
        )

    def ends(self) -> list[tuple[TransactionMarker, tuple[int, int]]]:
        """Return each ownership with its marker.  Raises FormatError if the counts do not fit, or are too large."""
        return _spread("EndGroupTransactions", self.markers, self.ownerships)


def code_of(number: int) -> ErrorCode:
    """Return the code of a response; UNKNOWN_SERVER_ERROR for a code of a later version."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def _rows_of(markers: Iterable[TransactionMarker]) -> list[MarkerRow]:
    rows: list[MarkerRow] = []
    last: TransactionMarker | None = None
    for marker in markers:
        if marker == last:
            rows[-1] = rows[-1]._replace(partitions=rows[-1].partitions + 1)
            continue
        is_commit = int(marker.marker is Marker.COMMIT)
        last = marker
        rows.append(
            MarkerRow(marker.producer_id, marker.producer_epoch, marker.coordinator_epoch, is_commit, marker.version, 1)
        )
    return rows


def _spread(request: str, rows: Sequence[MarkerRow], places: Sequence[T]) -> list[tuple[TransactionMarker, T]]:
    """Return each place with its marker.  Raises FormatError if the counts do not fit, or are too large."""
    if len(places) > MARKERS_MAX:
        raise FormatError(f"{len(places)} partitions in one {request}, more than {MARKERS_MAX}")
    counts = [row.partitions for row in rows]
    if min(counts, default=0) < 0 or sum(counts) != len(places):
        raise FormatError(f"{request}: {sum(counts)} partitions of markers, {len(places)} in all")

    left = iter(places)
    found = []
    for row in rows:
        kind = Marker.COMMIT if row.is_commit else Marker.ABORT
        marker = TransactionMarker(row.producer_id, row.producer_epoch, row.coordinator_epoch, kind, row.version)
        found += [(marker, next(left)) for _ in range(row.partitions)]
    return found
