"""Epochs of producers without an open transaction: which are kept, and which are forgotten."""

from __future__ import annotations

import pytest

from bmq.coordinator.group_shard.pending import KEPT_S, PRODUCERS_KEPT, PendingOffsets
from bmq.coordinator.records import Offset, OffsetRecord
from bmq.coordinator.shard.freshness import FRESH_S
from bmq.coordinator.shard.log_records import BatchProducer
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.records.control import EndMarker, Marker
from tests.unit.coordinator.txn_requests import marker_of

VALUE = Offset(1, -1, "", 0)


def end(pending: PendingOffsets, producer: int, now_s: float, *, epoch: int = 3, coordinator: int = 7) -> None:
    list(pending.end(BatchProducer(producer, epoch), EndMarker(Marker.COMMIT, coordinator), now_s))


def add(pending: PendingOffsets, producer: int, epoch: int = 3) -> None:
    pending.add(OffsetRecord("g", "t", producer, VALUE), VALUE, BatchProducer(producer, epoch))


@pytest.mark.slow
def test_rule_12_a_coordinators_epoch_is_kept_while_an_outdated_answer_may_come() -> None:
    assert KEPT_S > FRESH_S, "so long may a coordinator respond that has lost its shard"
    pending = PendingOffsets()
    count = PRODUCERS_KEPT + 500
    for producer in range(count):
        end(pending, producer, now_s=100 + producer * KEPT_S / count)
    assert {pending.coordinator_epoch(each) for each in range(count)} == {7}, "all of them have ended just now"
    end(pending, count, now_s=100 + 2 * KEPT_S)
    known = [each for each in range(count + 1) if pending.coordinator_epoch(each) == 7]
    assert known == list(range(501, count + 1)), "those that ended last"


def test_a_replay_keeps_a_bounded_number_of_producers() -> None:
    pending = PendingOffsets()
    for producer in range(PRODUCERS_KEPT + 500):
        list(pending.end(BatchProducer(producer, 0), EndMarker(Marker.ABORT, 1)))
    assert [pending.coordinator_epoch(each) for each in (499, 500)] == [-1, 1]


def test_the_epochs_of_an_open_transaction_are_never_forgotten() -> None:
    pending = PendingOffsets()
    end(pending, 0, now_s=0)
    add(pending, 0)
    for producer in range(1, PRODUCERS_KEPT + 500):
        end(pending, producer, now_s=producer * KEPT_S)
    assert pending.is_open(0, 3)
    assert pending.coordinator_epoch(0) == 7
    with pytest.raises(RequestError) as refused:
        pending.check(0, 2)
    assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert pending.verdict(marker_of(0, epoch=3, coordinator=6)) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert pending.verdict(marker_of(0, epoch=3, coordinator=7)) is None
    end(pending, 0, now_s=0)
    assert pending.coordinator_epoch(0) == 7, "it ended last"


def test_a_forgotten_producer_is_unknown_and_its_marker_is_the_logs_to_judge() -> None:
    pending = PendingOffsets()
    for producer in range(PRODUCERS_KEPT + 1):
        end(pending, producer, now_s=producer * KEPT_S)
    pending.check(0, 0)
    assert pending.verdict(marker_of(0, epoch=0, coordinator=1)) is None
    assert not pending.is_open(0, 3), "its next commit is verified with its coordinator"
