"""Control records (core/records/control.py): the ends of transactions, as Kafka's ``EndTransactionMarker`` has them."""

from __future__ import annotations

import struct

import pytest

from bmq.core.errors import FormatError
from bmq.core.records.batch import CONTROL, TRANSACTIONAL, Batch, Record, build_batch
from bmq.core.records.control import EndMarker, Marker, end_marker_of, end_record, marker_of


def of(*records: Record) -> Batch:
    return Batch(memoryview(build_batch(records, attributes=CONTROL | TRANSACTIONAL, producer_id=7)))


def control(*keys: bytes | None) -> Batch:
    return of(*(Record(key=key, value=b"") for key in keys))


@pytest.mark.parametrize(
    ("kind", "marker"), [(0, Marker.ABORT), (1, Marker.COMMIT), (2, Marker.OTHER), (-1, Marker.OTHER)]
)
def test_a_control_record_has_a_type(kind: int, marker: Marker) -> None:
    assert marker_of(control(struct.pack(">hh", 0, kind))) is marker
    assert marker_of(control(struct.pack(">hh", 9, kind) + b"of a later version")) is marker


@pytest.mark.parametrize("keys", [(), (None,), (b"",), (b"\0\0\0",)])
def test_a_control_batch_without_a_type_is_malformed(keys: tuple[bytes | None, ...]) -> None:
    with pytest.raises(FormatError, match="without a control record"):
        marker_of(control(*keys))


@pytest.mark.parametrize("marker", [Marker.ABORT, Marker.COMMIT])
def test_the_end_of_a_transaction_names_its_coordinators_epoch(marker: Marker) -> None:
    assert end_marker_of(of(end_record(EndMarker(marker, 77)))) == EndMarker(marker, 77)


def test_a_later_version_of_the_end_may_have_more_fields() -> None:
    later = Record(key=struct.pack(">hh", 1, 1) + b"more", value=struct.pack(">hi", 1, 5) + b"more")
    assert end_marker_of(of(later)) == EndMarker(Marker.COMMIT, 5)


def test_another_control_record_and_an_empty_batch_end_nothing() -> None:
    assert end_marker_of(control(struct.pack(">hh", 0, 2))) is None
    assert end_marker_of(of()) is None


@pytest.mark.parametrize("value", [None, b"", b"\0\0\0\0\0"])
def test_an_end_without_its_coordinators_epoch_is_malformed(value: bytes | None) -> None:
    with pytest.raises(FormatError, match="without its coordinator's epoch"):
        end_marker_of(of(Record(key=struct.pack(">hh", 0, 1), value=value)))
