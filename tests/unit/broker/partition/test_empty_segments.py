"""The empty segment behind a quiet log: the record names it as its newest, and the segment before it can be cleaned."""

from __future__ import annotations

import pytest

from bmq.broker import events as ev
from bmq.broker.events import Effect
from bmq.broker.partition.machine import PartitionMachine
from bmq.broker.partition.states import PartitionState
from bmq.core.model import SegmentName
from bmq.meta.ownership import SegmentEntry
from tests.unit.broker.partition.machines import (
    SPARE,
    append,
    batch,
    flush,
    kinds,
    offer,
    only,
    opened,
    state_of,
    writing,
)

FIRST, EMPTY = SegmentName(0, 1, 0), SegmentName(1, 1, 1)


def quiet(**config: int) -> PartitionMachine:
    """Return a machine whose only segment is closed, with a record of one batch."""
    machine = opened(**config)
    flush(machine)
    machine.handle(ev.CheckpointWritten(1, 0), 0)
    (close,) = [one for one in machine.handle(ev.PlaceWanted(), 0) if isinstance(one, ev.CloseSegment)]
    assert close.checkpoint is not None
    machine.handle(ev.SegmentClosed(close.entry.closed(close.checkpoint.position, 1)), 0)
    assert machine.is_all_closed
    return machine


def registered(machine: PartitionMachine) -> ev.StoreRecord:
    """Ask for the empty segment; return the write of its registration."""
    assert kinds(machine.handle(ev.EmptyWanted(), 0)) == ["CreateSpare"]
    store = only(machine.handle(ev.SpareReady(SPARE), 0), ev.StoreRecord)
    assert isinstance(store, ev.StoreRecord)
    return store


def named(machine: PartitionMachine, store: ev.StoreRecord) -> list[Effect]:
    """Store the registration and name the file; return the effects."""
    assert kinds(machine.handle(ev.RecordStored(store.record, 3), 0)) == ["NameSegment"]
    return machine.handle(ev.SegmentNamed(store.record.segments[-1].name), 0)


def rolled() -> tuple[PartitionMachine, SegmentEntry]:
    """Return a quiet machine with a closed empty segment, which its stored record names alone; and its entry."""
    machine = quiet()
    close = only(named(machine, registered(machine)), ev.CloseSegment)
    assert isinstance(close, ev.CloseSegment)
    entry = close.entry.closed(0, 1)
    machine.handle(ev.SegmentClosed(entry), 0)
    store = only(machine.handle(ev.OldNamesUnneeded(), 0), ev.StoreRecord)
    assert isinstance(store, ev.StoreRecord)
    machine.handle(ev.RecordStored(store.record, 4), 0)
    return machine, entry


def test_a_quiet_log_gets_an_empty_segment_at_its_end() -> None:
    """register (base = watermark, the newest closed segment beside it) -> name -> close with an index."""
    machine = quiet()
    store = registered(machine)
    assert [(each.name, each.is_closed) for each in store.record.segments] == [(FIRST, True), (EMPTY, False)]
    close = only(named(machine, store), ev.CloseSegment)
    assert isinstance(close, ev.CloseSegment)
    checkpoint = close.checkpoint
    assert checkpoint is not None
    assert (checkpoint.segment, checkpoint.position, checkpoint.end_offset) == (EMPTY, 0, 1)
    assert checkpoint.is_closed
    assert not close.index_may_wait, "a successor needs the index to begin behind the segment before"
    assert not machine.has_old_names, "until the index is on storage the record names the segment before"


def test_the_record_then_names_the_empty_segment_alone() -> None:
    machine, entry = rolled()
    assert machine.record.segments == (entry,)
    assert machine.record.last == EMPTY.registration
    released = only(machine.handle(ev.MoveRequested(), 0), ev.StoreRecord)
    assert isinstance(released, ev.StoreRecord)
    assert released.record.is_settled, "its index says all that a successor needs"
    assert released.record.segments == (entry,)


def test_an_empty_segment_is_followed_by_no_other() -> None:
    machine, _ = rolled()
    assert machine.handle(ev.EmptyWanted(), 0) == []


def test_the_next_batch_goes_into_a_segment_at_the_same_base_and_the_empty_file_goes() -> None:
    machine, entry = rolled()
    append(machine)
    assert kinds(machine.after_append(0)) == ["CreateSpare"]
    store = only(machine.handle(ev.SpareReady(SPARE), 0), ev.StoreRecord)
    assert isinstance(store, ev.StoreRecord)
    opened_name = SegmentName(1, 1, 2)
    assert [each.name for each in store.record.segments] == [EMPTY, opened_name]
    assert "DeleteEmpty" not in kinds(named(machine, store)), "the record names it"
    machine.take(1 << 20, 0)
    flush(machine)
    (close,) = [one for one in machine.handle(ev.PlaceWanted(), 0) if isinstance(one, ev.CloseSegment)]
    machine.handle(ev.CheckpointWritten(1, 0), 0)
    machine.handle(ev.SegmentClosed(close.entry.closed(100, 2)), 0)
    store = only(machine.handle(ev.OldNamesUnneeded(), 0), ev.StoreRecord)
    assert isinstance(store, ev.StoreRecord)
    assert [each.name for each in store.record.segments] == [opened_name]
    delete = only(machine.handle(ev.RecordStored(store.record, 6), 0), ev.DeleteEmpty)
    assert isinstance(delete, ev.DeleteEmpty)
    assert delete.names == (entry.name,)


def test_batches_that_come_meanwhile_go_into_the_segment() -> None:
    for is_registered in (False, True):
        machine = quiet()
        assert kinds(machine.handle(ev.EmptyWanted(), 0)) == ["CreateSpare"]
        if not is_registered:
            append(machine)
            assert machine.after_append(0) == []
        store = only(machine.handle(ev.SpareReady(SPARE), 0), ev.StoreRecord)
        assert isinstance(store, ev.StoreRecord)
        if is_registered:
            append(machine)
            assert machine.after_append(0) == []
        assert kinds(named(machine, store)) == ["Wake"]
        assert machine.current is not None
        assert machine.current.entry.name == EMPTY
        machine.take(1 << 20, 0)
        assert "Acknowledge" in kinds(flush(machine))
        assert not machine.is_draining, "the request is over"


def test_a_batch_that_needs_more_copies_gets_a_file_of_its_own() -> None:
    machine = quiet()
    assert kinds(machine.handle(ev.EmptyWanted(), 0)) == ["CreateSpare"]
    machine.accept(batch(), 1, 2)
    assert kinds(machine.handle(ev.SpareReady(SPARE), 0)) == ["DropSpare", "CreateSpare"]


def test_a_file_that_storage_refuses_is_not_tried_again_by_itself() -> None:
    machine = quiet()
    assert kinds(machine.handle(ev.EmptyWanted(), 0)) == ["CreateSpare"]
    assert machine.handle(ev.SpareFailed("full"), 0) == []
    assert kinds(machine.handle(ev.EmptyWanted(), 0)) == ["CreateSpare"]


def test_a_file_that_breaks_before_it_is_closed_is_left() -> None:
    """Close the file without an index, as any file without a batch: the record goes on with the segment before."""
    machine = quiet()
    store = registered(machine)
    assert kinds(machine.handle(ev.RecordStored(store.record, 3), 0)) == ["NameSegment"]
    seal = only(machine.handle(ev.SegmentFailed(EMPTY, "a datanode died"), 0), ev.SealSegment)
    assert isinstance(seal, ev.SealSegment)
    assert seal.checkpoint is None
    machine.handle(ev.SegmentClosed(seal.entry.closed(0, 1)), 0)
    assert [each.name for each in machine.next_record().segments] == [FIRST]
    assert kinds(machine.handle(ev.EmptyWanted(), 0)) == ["CreateSpare"]


@pytest.mark.parametrize("step", ["creating", "registering", "naming"])
def test_a_move_ends_the_request(step: str) -> None:
    """A hand-over closes the file without an index, or drops it, and does not wait for more than that."""
    machine = quiet()
    assert kinds(machine.handle(ev.EmptyWanted(), 0)) == ["CreateSpare"]
    if step == "creating":
        assert kinds(machine.handle(ev.MoveRequested(), 0)) == ["StateChanged"]
        assert kinds(machine.handle(ev.SpareReady(SPARE), 0)) == ["DropSpare", "StoreRecord"]
        return
    store = only(machine.handle(ev.SpareReady(SPARE), 0), ev.StoreRecord)
    assert isinstance(store, ev.StoreRecord)
    if step == "registering":
        assert kinds(machine.handle(ev.MoveRequested(), 0)) == ["StateChanged"]
    assert kinds(machine.handle(ev.RecordStored(store.record, 3), 0)) == ["NameSegment"]
    if step == "naming":
        assert kinds(machine.handle(ev.MoveRequested(), 0)) == ["StateChanged"]
    close = only(machine.handle(ev.SegmentNamed(EMPTY), 0), ev.CloseSegment)
    assert isinstance(close, ev.CloseSegment)
    assert close.checkpoint is None
    released = only(machine.handle(ev.SegmentClosed(close.entry.closed(0, 1)), 0), ev.StoreRecord)
    assert isinstance(released, ev.StoreRecord)
    assert [each.name for each in released.record.segments] == [FIRST]
    assert released.record.owner == ""


def test_a_log_that_is_not_quiet_gets_no_empty_segment() -> None:
    machine = writing()
    assert machine.handle(ev.EmptyWanted(), 0) == [], "without a segment"
    machine = opened()
    assert machine.handle(ev.EmptyWanted(), 0) == [], "a batch is in flight"
    flush(machine)
    assert machine.handle(ev.EmptyWanted(), 0) == [], "a segment is open"
    machine.handle(ev.CheckpointWritten(1, 0), 0)
    assert "CloseSegment" in kinds(machine.handle(ev.PlaceWanted(), 0))
    assert machine.handle(ev.EmptyWanted(), 0) == [], "it is being closed"
    machine = quiet()
    offer(machine, batch(), 1)
    assert kinds(machine.after_append(0)) == ["CreateSpare"]
    assert machine.handle(ev.EmptyWanted(), 0) == [], "a batch waits for its file"
    assert state_of(machine) is PartitionState.WRITE


def test_the_record_is_written_with_a_swap_before_the_registration() -> None:
    machine = quiet()
    assert kinds(machine.handle(ev.EmptyWanted(), 0)) == ["CreateSpare"]
    old = machine.store_swap()
    assert machine.handle(ev.SpareReady(SPARE), 0) == [], "a write is under way"
    assert isinstance(old[0], ev.StoreRecord)
    store = only(machine.handle(ev.RecordStored(old[0].record, 3), 0), ev.StoreRecord)
    assert isinstance(store, ev.StoreRecord)
    assert store.record.segments[-1].name == EMPTY
