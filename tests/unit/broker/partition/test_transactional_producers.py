"""Producers with transactions (broker/partition/producer_state.py): Kafka's results for batches and markers."""

from __future__ import annotations

import pytest

from bmq.broker.partition.producer_state import ProducerTable
from bmq.core.errors import FormatError, RequestError
from bmq.core.records.batch import CONTROL, TRANSACTIONAL, Batch, Record, build_batch
from bmq.core.records.control import Marker
from bmq.storage.checkpoint import ProducerBatch, ProducerState
from tests.unit.broker.partition.transactional import PID, data, marker

NOW_MS = 5_000_000
NO_SEQUENCE = -1


class Log:
    """A table, and the offsets that a partition would give. Each batch is flushed at once."""

    def __init__(self) -> None:
        self.table = ProducerTable()
        self.next_offset = 0

    def write(self, batch: Batch) -> str:
        """Return the error's name, "duplicate", or "" for an accepted batch."""
        batch.base_offset = self.next_offset
        if self.table.find_duplicate(batch) is not None:
            return "duplicate"
        try:
            self.table.check(batch)
        except RequestError as error:
            return error.code.name
        state = self.table.append(batch, NOW_MS)
        assert state is not None
        self.table.flushed(state)
        self.table.transactions.pass_batch(batch)
        self.next_offset = batch.next_offset
        return ""

    @property
    def state(self) -> ProducerState:
        state = self.table.latest(PID)
        assert state is not None
        return state


def log(*batches: Batch) -> Log:
    written = Log()
    for batch in batches:
        assert written.write(batch) == ""
    return written


# ------------------------------------------------------------------------------------------------- without sequences


def test_batches_of_a_coordinator_are_never_repetitions() -> None:
    """Accept a second batch of the same producer and size: the offsets of another transaction."""
    written = log(data(NO_SEQUENCE), data(NO_SEQUENCE), data(NO_SEQUENCE, count=2), data(NO_SEQUENCE, epoch=1))
    assert written.next_offset == 5
    assert written.state.batches == ()


def test_batches_without_sequence_are_refused_by_their_epoch() -> None:
    assert log(data(NO_SEQUENCE, epoch=3)).write(data(NO_SEQUENCE, epoch=2)) == "INVALID_PRODUCER_EPOCH"


def test_markers_are_not_kept_and_do_not_change_the_expected_sequence() -> None:
    written = log(data(0), data(1), marker(), marker())
    assert [kept.base_sequence for kept in written.state.batches] == [0, 1]
    assert written.write(data(3)) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    assert written.write(data(1)) == "duplicate"
    assert written.write(data(2)) == ""


def test_a_marker_of_a_higher_epoch_begins_the_sequences_again() -> None:
    written = log(data(0), data(1), marker(epoch=1))
    assert written.state.batches == ()
    assert written.write(data(2, epoch=1)) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    assert written.write(data(2)) == "INVALID_PRODUCER_EPOCH"
    assert written.write(data(0, epoch=1)) == ""


# ------------------------------------------------------------------------------------------------------ transactions


def test_a_transaction_begins_with_its_first_batch_and_ends_with_a_marker() -> None:
    written = log(data(0, is_transactional=False), data(1, count=3), data(4))
    assert (written.state.txn_start, written.table.transactions.first_open) == (1, 1)
    assert written.write(marker(coordinator_epoch=6)) == ""
    assert (written.state.txn_start, written.table.transactions.first_open) == (-1, -1)
    assert written.state.coordinator_epoch == 6
    assert written.write(data(5)) == ""
    assert (written.state.txn_start, written.state.coordinator_epoch) == (6, 6)


def test_a_plain_batch_inside_a_transaction_is_refused() -> None:
    written = log(data(0))
    assert written.write(data(1, is_transactional=False)) == "INVALID_TXN_STATE"
    assert written.write(marker()) == ""
    assert written.write(data(1, is_transactional=False)) == ""


def test_a_higher_epoch_stays_in_the_open_transaction() -> None:
    """Kafka clears the kept batches, not the transaction: only a marker ends it."""
    written = log(data(0), data(0, epoch=1))
    assert written.state.txn_start == 0


def test_the_marker_of_a_stale_coordinator_is_refused() -> None:
    written = log(data(0), marker(coordinator_epoch=4), data(1))
    assert written.write(marker(coordinator_epoch=3)) == "TRANSACTION_COORDINATOR_FENCED"
    assert written.state.txn_start == 2
    assert written.write(marker(coordinator_epoch=4)) == ""


def test_the_marker_of_an_old_producer_epoch_is_refused() -> None:
    assert log(data(0, epoch=2)).write(marker(epoch=1)) == "INVALID_PRODUCER_EPOCH"


def test_a_marker_without_a_transaction_changes_nothing_but_epochs() -> None:
    written = log(marker(epoch=3, coordinator_epoch=5))
    assert written.table.snapshot() == (ProducerState(PID, 3, 5, NOW_MS, -1, ()),)
    assert written.table.transactions.take_aborted() == []


def test_a_control_batch_that_ends_no_transaction_is_refused() -> None:
    """A takeover could not read such a batch."""
    for record in (Record(key=b"\0\0\0\7", value=b"\0" * 6), Record(key=b"\0\0\0\1"), Record()):
        batch = Batch(memoryview(build_batch([record], producer_id=PID, attributes=CONTROL | TRANSACTIONAL)))
        assert Log().write(batch) == "INVALID_RECORD"


# ------------------------------------------------------------------------------------------------------------ replay


def test_a_replay_that_meets_an_unreadable_marker_does_not_pass_it_over() -> None:
    batch = Batch(memoryview(build_batch([Record()], producer_id=PID, attributes=CONTROL | TRANSACTIONAL)))
    with pytest.raises(FormatError, match="control record"):
        ProducerTable().replay(batch, NOW_MS)


def test_a_marker_of_equal_epoch_ends_what_is_open_in_a_replay() -> None:
    table = ProducerTable([ProducerState(PID, 2, 1, 0, 10, (ProducerBatch(0, 10, 0, 0),))])
    table.replay(marker(Marker.ABORT, epoch=2, base=11, coordinator_epoch=8), NOW_MS)
    assert table.snapshot() == (ProducerState(PID, 2, 8, NOW_MS, -1, (ProducerBatch(0, 10, 0, 0),)),)
    assert table.transactions.first_open == -1


def test_a_control_batch_whose_records_were_compacted_ends_nothing() -> None:
    table = ProducerTable([ProducerState(PID, 2, 1, 0, 10, ())])
    empty = build_batch([], producer_id=PID, producer_epoch=2, base_offset=11, attributes=CONTROL | TRANSACTIONAL)
    table.replay(Batch(memoryview(empty)), NOW_MS)
    assert table.snapshot() == (ProducerState(PID, 2, 1, NOW_MS, 10, ()),)
    assert table.transactions.first_open == 10


# ------------------------------------------------------------------------------------------------------------ expiry


def test_an_open_transaction_never_expires() -> None:
    written = log(data(0), data(0, pid=PID + 1), marker(pid=PID + 1))
    assert written.table.expire(1 << 60) == 1
    assert written.state.txn_start == 0
    assert written.write(marker()) == ""
    assert written.table.expire(1 << 60) == 1
