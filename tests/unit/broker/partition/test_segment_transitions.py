"""The segments of an open partition: spares, names, flushes, failures, time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bmq.broker import events as ev
from bmq.broker.partition.states import PartitionState
from bmq.core.errors import ErrorCode
from bmq.core.model import SegmentName
from bmq.meta.ownership import PartitionRecord
from tests.unit.broker.partition.machines import SPARE, append, flush, kinds, only, opened, with_spare, writing


def test_the_first_batch_opens_a_segment_and_is_acknowledged_by_its_flush() -> None:
    """create -> register (base = watermark) -> name -> write -> flush -> ack."""
    machine = writing()
    pending = append(machine)
    assert kinds(machine.after_append(0)) == ["CreateSpare"]
    assert machine.after_append(0) == []
    store = only(machine.handle(ev.SpareReady(SPARE), 0), ev.StoreRecord)
    assert isinstance(store, ev.StoreRecord)
    assert store.record.segments[-1].name == SegmentName(0, 1, 0)
    assert kinds(machine.handle(ev.RecordStored(store.record, 2), 0)) == ["NameSegment"]
    assert kinds(machine.handle(ev.SegmentNamed(SegmentName(0, 1, 0)), 0)) == ["Wake"]
    taken, _ = machine.take(1 << 20, 0)
    assert taken == [pending]
    acknowledge = only(flush(machine), ev.Acknowledge)
    assert isinstance(acknowledge, ev.Acknowledge)
    assert acknowledge.batches == [pending]
    assert machine.high_watermark == machine.next_offset == 1


def test_a_flush_acknowledges_and_shows_what_it_covers_and_no_more() -> None:
    machine = opened()
    assert machine.current is not None
    first = machine.current.position
    append(machine)
    machine.take(1 << 20, 0)
    acknowledged = only(machine.handle(ev.Flushed(machine.current.entry.name, first), 0), ev.Acknowledge)
    assert isinstance(acknowledged, ev.Acknowledge)
    assert [pending.batch.base_offset for pending in acknowledged.batches] == [0]
    assert (machine.high_watermark, machine.next_offset, machine.current.flushed) == (1, 2, first)
    acknowledged = only(flush(machine), ev.Acknowledge)
    assert isinstance(acknowledged, ev.Acknowledge)
    assert [pending.batch.base_offset for pending in acknowledged.batches] == [1]
    assert machine.high_watermark == 2


def test_a_flush_of_another_segment_is_ignored() -> None:
    machine = opened()
    assert machine.handle(ev.Flushed(SegmentName(0, 1, 77), 1 << 30), 0) == []
    assert machine.high_watermark == 0


def test_pipeline_failure_puts_what_was_in_flight_back_in_order() -> None:
    machine = opened()
    append(machine)
    append(machine)
    assert machine.current is not None
    failed = machine.current.entry.name
    machine.take(1 << 20, 0)
    append(machine)
    effects = machine.handle(ev.SegmentFailed(failed, "x"), 0)
    assert kinds(effects) == ["SealSegment", "CreateSpare"]
    assert [pending.batch.base_offset for pending in machine.batches.unsent] == [0, 1, 2, 3]
    store = only(machine.handle(ev.SpareReady(replace(SPARE, spare="/s2")), 0), ev.StoreRecord)
    assert isinstance(store, ev.StoreRecord)
    assert [entry.name for entry in store.record.segments] == [failed, SegmentName(0, 1, 1)]
    assert machine.handle(ev.Flushed(failed, 1 << 30), 0) == []


def test_an_idle_partition_whose_pipeline_fails_seals_its_segment_and_opens_none() -> None:
    machine = opened()
    flush(machine)
    assert machine.current is not None
    failed = machine.current.entry
    effects = machine.handle(ev.SegmentFailed(failed.name, "broken"), 0)
    assert kinds(effects) == ["SealSegment"]
    seal = only(effects, ev.SealSegment)
    assert isinstance(seal, ev.SealSegment)
    assert seal.checkpoint is not None
    assert seal.checkpoint.end_offset == 1
    assert machine.handle(ev.SegmentClosed(failed.closed(seal.checkpoint.position, 1)), 0) == []
    assert machine.current is None


def test_an_unused_spare_whose_pipeline_failed_is_dropped_and_made_again() -> None:
    machine = with_spare()
    assert machine.spare == replace(SPARE, spare="/s2")
    effects = machine.handle(ev.SpareFailed("broken"), 0)
    assert kinds(effects) == ["DropSpare", "CreateSpare"]
    assert only(effects, ev.DropSpare) == ev.DropSpare(replace(SPARE, spare="/s2"))
    assert machine.spare is None
    assert machine.handle(ev.SpareReady(replace(SPARE, spare="/s3")), 0) == []
    assert machine.spare == replace(SPARE, spare="/s3")


def test_an_unused_spare_goes_with_the_broken_segment_of_an_idle_partition() -> None:
    machine = with_spare()
    assert machine.current is not None
    assert kinds(machine.handle(ev.SegmentFailed(machine.current.entry.name, "broken"), 0)) == [
        "SealSegment",
        "DropSpare",
    ]
    assert machine.handle(ev.SpareFailed("broken"), 0) == [], "it is being dropped"


def test_the_record_lists_a_failed_segment_until_it_is_closed() -> None:
    machine = opened()
    flush(machine)
    assert machine.current is not None
    failed = machine.current.entry
    append(machine)
    machine.take(1 << 20, 0)
    machine.handle(ev.SegmentFailed(failed.name, "broken"), 0)
    store = only(machine.handle(ev.SpareReady(SPARE), 0), ev.StoreRecord)
    assert isinstance(store, ev.StoreRecord)
    assert [entry.name for entry in store.record.segments] == [failed.name, SegmentName(1, 1, 1)]
    assert store.record.segments[0] == failed


def test_a_refused_registration_fences_and_rejects_everything() -> None:
    machine = writing()
    append(machine)
    machine.after_append(0)
    machine.handle(ev.SpareReady(SPARE), 0)
    effects = machine.handle(ev.RecordRefused(PartitionRecord(epoch=2, owner="other"), 9), 0)
    reject = only(effects, ev.Reject)
    assert isinstance(reject, ev.Reject)
    assert reject.code is ErrorCode.NOT_LEADER_OR_FOLLOWER  # it never was in a file
    assert len(reject.batches) == 1
    assert kinds(effects) == ["Reject", "Abort", "StateChanged"]


def test_a_record_that_was_touched_without_a_change_of_owner_is_written_over() -> None:
    """An administrator's write moves the revision: the registration compares with the new one, and the owner is not
    fenced."""
    machine = writing()
    append(machine)
    machine.after_append(0)
    store = only(machine.handle(ev.SpareReady(SPARE), 0), ev.StoreRecord)
    assert isinstance(store, ev.StoreRecord)
    touched = PartitionRecord(epoch=1, owner="me", journals=("me",))
    assert machine.handle(ev.RecordRefused(touched, 9), 0) == [ev.StoreRecord(store.record, 9)]
    assert machine.state is PartitionState.WRITE


def test_a_segment_whose_pipeline_failed_before_it_had_its_name_is_not_written() -> None:
    machine = writing()
    append(machine)
    machine.after_append(0)
    store = only(machine.handle(ev.SpareReady(SPARE), 0), ev.StoreRecord)
    assert isinstance(store, ev.StoreRecord)
    name = store.record.segments[-1].name
    machine.handle(ev.RecordStored(store.record, 2), 0)
    assert kinds(machine.handle(ev.SegmentFailed(name, "broken"), 0)) == ["SealSegment", "CreateSpare"]
    assert machine.handle(ev.SegmentNamed(name), 0) == []
    assert machine.current is None


def test_an_old_or_idle_segment_is_closed() -> None:
    machine = opened(idle_close_ms=1000)
    flush(machine)
    assert "CloseSegment" in kinds(machine.handle(ev.Tick(1), 1000))
    assert machine.current is None
    assert machine.deadline_ms() is None


def test_a_hung_flush_is_suspected_once_in_a_while() -> None:
    machine = opened(slow_flush_ms=100, slow_roll_interval_ms=1000)
    assert machine.handle(ev.Tick(1), 50) == []
    assert kinds(machine.handle(ev.Tick(1), 100)) == ["CheckSlowPipeline"]
    assert machine.handle(ev.Tick(1), 200) == []
    assert kinds(machine.handle(ev.Tick(1), 1100)) == ["CheckSlowPipeline"]


def test_the_log_start_only_rises_and_is_checkpointed() -> None:
    machine = opened()
    flush(machine)
    checkpoint = only(machine.handle(ev.LogStartRaised(1), 0), ev.WriteCheckpoint)
    assert isinstance(checkpoint, ev.WriteCheckpoint)
    assert checkpoint.checkpoint.log_start == 1
    assert machine.handle(ev.LogStartRaised(0), 0) == []
    assert machine.log_start == 1


def test_a_segment_on_slow_storage_is_drained_and_closed_once_in_an_interval() -> None:
    """The segment drains and is closed; the next roll for this reason waits its time."""
    machine = opened(slow_roll_interval_ms=1000)
    assert machine.handle(ev.StorageSlow(), 0) == []
    assert "CloseSegment" in kinds(flush(machine))
    machine = opened(slow_roll_interval_ms=1000)
    machine.handle(ev.StorageSlow(), 0)
    flush(machine)
    assert not machine.may_leave_slow(999)


def test_an_open_segment_gives_its_place_up_once_it_is_flushed() -> None:
    """Ask an open segment for its place: it takes no more batches, is closed once it is flushed, and later batches go
    into the next segment."""
    machine = opened()
    assert machine.handle(ev.PlaceWanted(), 0) == []
    assert machine.is_draining
    append(machine)
    assert kinds(machine.after_append(0)) == ["CreateSpare"]
    assert machine.take(1 << 20, 0) == ([], [])
    assert kinds(flush(machine)) == ["Acknowledge", "CloseSegment"]
    assert machine.handle(ev.PlaceWanted(), 0) == [], "nothing is open"
    store = only(machine.handle(ev.SpareReady(SPARE), 0), ev.StoreRecord)
    assert isinstance(store, ev.StoreRecord)
    assert store.record.segments[-1].name.base == 1


@pytest.mark.parametrize("is_ready", [True, False])
def test_a_spare_is_dropped_if_the_writes_stop(is_ready: bool) -> None:
    """Make a spare ahead of need and stop the writes: unless it is dropped, it keeps its pipeline open for ever."""
    machine = opened(block_bytes=1 << 20, idle_close_ms=1000)
    assert machine.current is not None
    machine.reconfigure(replace(machine.config, segment_bytes=2 * machine.current.position))
    append(machine)
    _, effects = machine.take(1 << 20, 0)
    assert kinds(effects) == ["CreateSpare"]
    if is_ready:
        assert machine.handle(ev.SpareReady(SPARE), 0) == []
    flush(machine)
    closing = [kind for kind in kinds(machine.handle(ev.Tick(0), 1000)) if kind != "WriteCheckpoint"]
    if is_ready:
        assert closing == ["CloseSegment", "DropSpare"]
    else:
        assert closing == ["CloseSegment"]
        assert kinds(machine.handle(ev.SpareReady(SPARE), 1000)) == ["DropSpare"]
    append(machine)
    assert kinds(machine.after_append(1000)) == ["CreateSpare"]


def test_a_fenced_segment_is_left_only_when_it_is_known_by_whom() -> None:
    """Several flushes fail at once: the store is asked once.  Then the file is found to be gone: a new one opens."""
    machine = opened()
    assert machine.current is not None
    entry = machine.current.entry
    fenced = ev.SegmentFailed(entry.name, "fenced", is_fenced=True)
    assert machine.handle(fenced, 0) == [ev.CheckFence(entry, "fenced")]
    assert machine.handle(fenced, 0) == []
    assert machine.current is not None
    assert kinds(machine.handle(ev.SegmentFailed(entry.name, "fenced"), 0)) == ["SealSegment", "CreateSpare"]
    assert machine.handle(fenced, 0) == [], "it was left"


def test_a_segment_that_is_fenced_while_it_gets_its_name_is_not_left_either() -> None:
    """No other file is begun; the file gets its name, and its first flush fails again unless this process ends."""
    machine = writing()
    append(machine)
    machine.after_append(0)
    store = only(machine.handle(ev.SpareReady(SPARE), 0), ev.StoreRecord)
    assert isinstance(store, ev.StoreRecord)
    naming = only(machine.handle(ev.RecordStored(store.record, 2), 0), ev.NameSegment)
    assert isinstance(naming, ev.NameSegment)
    name = naming.entry.name
    assert machine.handle(ev.SegmentFailed(name, "fenced", is_fenced=True), 0) == [
        ev.CheckFence(naming.entry, "fenced")
    ]
    assert kinds(machine.handle(ev.SegmentNamed(name), 0)) == ["Wake"]
    assert machine.current is not None
    assert machine.current.entry == naming.entry
