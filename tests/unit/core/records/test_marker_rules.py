"""The table of a marker's fate (marker_rules), row by row, and its symmetry in the last epoch."""

from __future__ import annotations

from itertools import product

import pytest

from bmq.core.errors import ErrorCode
from bmq.core.records.control import Marker, TransactionMarker
from bmq.core.records.marker_rules import LAST_EPOCH, KnownProducer, changes_nothing, verdict_on

WRITTEN, DONE = None, ErrorCode.NONE
OLD_EPOCH, FENCED = ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED


def verdict(version: int, epoch: int, *, is_open: bool, known: int = 7, coordinator: int = 5) -> ErrorCode | None:
    marker = TransactionMarker(1, epoch, coordinator, Marker.COMMIT, version)
    return verdict_on(marker, KnownProducer(known, 5, is_open))


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("coordinator", [4, 5, 6])
def test_a_marker_of_a_lower_epoch_is_refused_only_if_something_is_open(version: int, coordinator: int) -> None:
    assert verdict(version, 6, is_open=True, coordinator=coordinator) is OLD_EPOCH
    assert verdict(version, 6, is_open=False, coordinator=coordinator) is DONE


@pytest.mark.parametrize(("version", "is_open"), list(product((0, 1, 2), (True, False))))
def test_a_marker_of_a_higher_epoch_is_written(version: int, *, is_open: bool) -> None:
    assert verdict(version, 8, is_open=is_open) is WRITTEN
    assert verdict(version, 8, is_open=is_open, coordinator=6) is WRITTEN


@pytest.mark.parametrize(("version", "is_open"), list(product((0, 1, 2), (True, False))))
def test_a_marker_of_an_equal_epoch_is_written_before_version_2(version: int, *, is_open: bool) -> None:
    for coordinator in (5, 6):
        found = verdict(version, 7, is_open=is_open, coordinator=coordinator)
        assert found is (WRITTEN if version < 2 else DONE)
    at_last = verdict(version, LAST_EPOCH, is_open=is_open, known=LAST_EPOCH)
    assert at_last is (WRITTEN if version < 2 or is_open else DONE)


@pytest.mark.parametrize(("version", "is_open"), list(product((0, 1, 2), (True, False))))
def test_an_earlier_coordinator_is_fenced_at_an_equal_and_at_a_higher_epoch(version: int, *, is_open: bool) -> None:
    for epoch in (7, 8, LAST_EPOCH):
        assert verdict(version, epoch, is_open=is_open, coordinator=4) is FENCED


@pytest.mark.parametrize("version", [0, 1, 2])
def test_producers_that_are_unknown_or_missing(version: int) -> None:
    for pid, epoch in ((-1, 0), (0, -1), (-5, 3)):
        marker = TransactionMarker(pid, epoch, 5, Marker.ABORT, version)
        assert verdict_on(marker, None) is ErrorCode.INVALID_REQUEST
    assert verdict_on(TransactionMarker(1, 0, 0, Marker.ABORT, version), None) is WRITTEN


def test_a_marker_changes_nothing_only_at_equal_epochs_with_nothing_open() -> None:
    marker = TransactionMarker(1, 7, 5, Marker.ABORT, 0)
    assert changes_nothing(marker, KnownProducer(7, 5, is_open=False))
    for known in (None, KnownProducer(7, 5, is_open=True), KnownProducer(6, 5, False), KnownProducer(7, 4, False)):
        assert not changes_nothing(marker, known)
