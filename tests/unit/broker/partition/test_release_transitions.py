"""The end of an ownership: a move, another owner, a record that cannot be read."""

from __future__ import annotations

import pytest

from bmq.broker import events as ev
from bmq.broker.partition.states import PartitionState
from bmq.core.errors import ErrorCode, RequestError
from tests.unit.broker.partition.machines import append, batch, flush, kinds, offer, only, opened, partition


def test_a_move_flushes_closes_and_releases() -> None:
    machine = opened()
    assert machine.handle(ev.MoveRequested(), 0)[-1] == ev.StateChanged("MOVE")
    with pytest.raises(RequestError):
        offer(machine, batch(), 1)
    effects = flush(machine)
    close = only(effects, ev.CloseSegment)
    assert isinstance(close, ev.CloseSegment)
    closed = close.entry.closed(machine.high_watermark, 1)
    store = only(machine.handle(ev.SegmentClosed(closed), 0), ev.StoreRecord)
    assert isinstance(store, ev.StoreRecord)
    assert (store.record.owner, store.record.segments) == ("", (closed,))
    machine.handle(ev.RecordStored(store.record, 3), 0)
    assert machine.state is PartitionState.CLOSED


def test_a_move_waits_for_the_checkpoint_that_is_on_its_way() -> None:
    machine = opened()
    flush(machine)
    only(machine.handle(ev.LogStartRaised(1), 0), ev.WriteCheckpoint)
    close = only(machine.handle(ev.MoveRequested(), 0), ev.CloseSegment)
    assert isinstance(close, ev.CloseSegment)
    assert machine.handle(ev.SegmentClosed(close.entry.closed(machine.high_watermark, 1)), 0) == []
    assert kinds(machine.handle(ev.CheckpointWritten(1, 1), 0)) == ["StoreRecord"]


def test_a_move_before_anything_was_accepted_ends_the_ownership() -> None:
    machine = partition()
    assert kinds(machine.handle(ev.MoveRequested(), 0)) == ["Abort", "StateChanged"]


def test_another_epoch_fences_and_an_equal_one_does_not() -> None:
    """A lower one is that of a record that was deleted, or written again from a backup."""
    for other in (2, 0):
        machine = opened()
        assert machine.handle(ev.EpochChanged(1), 0) == []
        machine.handle(ev.EpochChanged(other), 0)
        assert machine.state is PartitionState.FENCED


def test_an_unreadable_record_stops_everything_and_is_offline() -> None:
    """The unreadable record's writer may own the partition: as after a raised epoch, nothing is acknowledged any
    more."""
    machine = opened()
    append(machine)
    effects = machine.handle(ev.RecordUnreadable("key /k: not a record"), 0)
    assert kinds(effects) == ["Reject", "Reject", "Abort", "ReportOffline", "StateChanged"]
    codes = [effect.code for effect in effects if isinstance(effect, ev.Reject)]
    assert codes == [ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert (machine.state, machine.offline_reason) == (PartitionState.OFFLINE, "key /k: not a record")
    with pytest.raises(RequestError) as refused:
        append(machine)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
