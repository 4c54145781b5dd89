"""Aborted transactions and control batches, as Kafka's consumer reads them."""

from __future__ import annotations

import struct

import pytest

from bmq.core.errors import FormatError
from bmq.core.records.batch import CONTROL, TRANSACTIONAL, Batch, Record, build_batch
from bmq.spark.decoding.isolation import Aborted, Marker, marker_of


def control(*keys: bytes | None) -> Batch:
    records = [Record(key=key, value=b"") for key in keys]
    return Batch(memoryview(build_batch(records, attributes=CONTROL | TRANSACTIONAL, producer_id=7)))


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


def test_a_transaction_is_hidden_from_its_first_offset_to_its_marker() -> None:
    aborted = Aborted([(7, 10)])
    assert not aborted.hides(7, 9), "a transaction of the same producer that was committed"
    assert aborted.hides(7, 10)
    assert not aborted.hides(8, 11), "another producer"
    assert aborted.hides(7, 12)
    aborted.end(7, 13)
    assert not aborted.hides(7, 14)


def test_a_producer_may_abort_again() -> None:
    aborted = Aborted([(7, 20), (7, 10)])
    assert aborted.hides(7, 12)
    aborted.end(7, 13)
    assert not aborted.hides(7, 19)
    assert aborted.hides(7, 25)


def test_a_marker_ends_a_transaction_whose_batches_were_not_read() -> None:
    """Begin to read between the last batch of a transaction and its marker."""
    aborted = Aborted([(7, 10)])
    aborted.end(7, 30)
    assert not aborted.hides(7, 31)
