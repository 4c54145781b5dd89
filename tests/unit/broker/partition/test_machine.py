"""The partition's table: every (state, event) pair, and the machine without any I/O around it."""

from __future__ import annotations

import itertools
import uuid
from dataclasses import replace
from typing import Any, get_args

import pytest

from bmq.broker import events as ev
from bmq.broker.config import BrokerConfig, LogConfig
from bmq.broker.events import Effect, Event, Pending
from bmq.broker.files.chunk_sizes import chunk_for
from bmq.broker.partition.batches import Duplicate
from bmq.broker.partition.effects import PERFORM
from bmq.broker.partition.machine import PartitionMachine
from bmq.broker.partition.segment_roll import block_for
from bmq.broker.partition.states import TERMINAL, PartitionState
from bmq.broker.partition.transitions import EVENTS, TABLE
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey, SegmentName
from bmq.core.records.batch import Batch, Record, build_batch
from bmq.core.transitions import Cell
from bmq.meta.ownership import PartitionRecord, SegmentEntry
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.recovery import FencedSegment, Found, Recovered

KEY = PartitionKey(uuid.UUID(int=1), 0)
SPARE = SegmentEntry(name=SegmentName(-1, 1, -1), spare="/s1", holder="me", file_id=1)
OTHER = PartitionRecord(epoch=9, owner="other")

# What may happen in which state, written down a second time, from the design: the table must agree.
LIVING = [state for state in PartitionState if state not in TERMINAL]
EXPECTED: dict[type[Event], set[PartitionState]] = {
    ev.Start: {PartitionState.START},
    ev.RecordRead: {PartitionState.START},
    ev.RecordStored: {PartitionState.START, PartitionState.WRITE, PartitionState.MOVE},
    ev.RecordUnknown: {PartitionState.START, PartitionState.WRITE, PartitionState.MOVE},
    ev.RecordRefused: {PartitionState.START, PartitionState.WRITE, PartitionState.MOVE},
    ev.RecordUnreadable: set(LIVING),
    ev.SegmentsFenced: {PartitionState.FENCE},
    ev.FenceFailed: {PartitionState.FENCE},
    ev.LogRecovered: {PartitionState.RECOVER},
    ev.RecoveryFailed: {PartitionState.RECOVER},
    ev.LogUnreadable: {PartitionState.RECOVER},
    ev.RecoveryRefused: {PartitionState.RECOVER},
    ev.CheckpointWritten: {PartitionState.RECOVER, PartitionState.WRITE, PartitionState.MOVE},
    ev.SpareReady: {PartitionState.WRITE, PartitionState.MOVE},
    ev.SpareFailed: {PartitionState.WRITE, PartitionState.MOVE},
    ev.SegmentNamed: {PartitionState.WRITE, PartitionState.MOVE},
    ev.NamingFailed: {PartitionState.WRITE, PartitionState.MOVE},
    ev.Flushed: {PartitionState.WRITE, PartitionState.MOVE},
    ev.SegmentFailed: {PartitionState.WRITE, PartitionState.MOVE},
    ev.SegmentClosed: {PartitionState.WRITE, PartitionState.MOVE},
    ev.EpochChanged: {
        PartitionState.START,
        PartitionState.FENCE,
        PartitionState.RECOVER,
        PartitionState.WRITE,
        PartitionState.MOVE,
    },
    ev.MoveRequested: {PartitionState.START, PartitionState.FENCE, PartitionState.RECOVER, PartitionState.WRITE},
    ev.LogStartRaised: {PartitionState.WRITE},
    ev.PlaceWanted: {PartitionState.WRITE},
    ev.CopiesWanted: {PartitionState.WRITE},
    ev.CopiesCounted: {PartitionState.WRITE, PartitionState.MOVE},
    ev.StorageSlow: {PartitionState.WRITE},
    ev.Tick: {PartitionState.WRITE, PartitionState.MOVE},
}
EXTERNAL = {
    ev.EpochChanged,
    ev.MoveRequested,
    ev.LogStartRaised,
    ev.PlaceWanted,
    ev.CopiesWanted,
    ev.StorageSlow,
    ev.Tick,
}
"""Events that come from outside at any time: they are never a bug."""


def partition(**config: Any) -> PartitionMachine:
    return PartitionMachine(KEY, "me", LogConfig(), replace(BrokerConfig(), **config))


def batch(*, pid: int = -1, sequence: int = -1, size: int = 10) -> Batch:
    epoch = 0 if pid >= 0 else -1
    data = build_batch(
        [Record(value=b"x" * size)], producer_id=pid, producer_epoch=epoch, base_sequence=sequence, base_timestamp=1
    )
    return Batch(memoryview(data))


def offer(machine: PartitionMachine, produced: Batch, wall_ms: int) -> Pending | Duplicate:
    machine.check(produced, wall_ms)
    return machine.accept(produced, wall_ms)


def append(machine: PartitionMachine, **options: int) -> Pending:
    accepted = offer(machine, batch(**options), 1)
    assert isinstance(accepted, Pending)
    return accepted


def only(effects: list[Effect], kind: type[Effect]) -> Effect:
    found = [effect for effect in effects if isinstance(effect, kind)]
    assert len(found) == 1, effects
    return found[0]


def state_of(machine: PartitionMachine) -> PartitionState:
    """Return the state, which mypy, unlike the attribute's, does not narrow by an earlier comparison."""
    return machine.state


def kinds(effects: list[Effect]) -> list[str]:
    return [type(effect).__name__ for effect in effects]


def claimed(record: PartitionRecord | None = None, **config: Any) -> tuple[PartitionMachine, list[Effect]]:
    """Return a machine whose claim was stored, and the effects that it asks for next."""
    machine = partition(**config)
    machine.handle(ev.Start(), 0)
    effects = machine.handle(ev.RecordRead(record or PartitionRecord(), 0), 0)
    store = only(effects, ev.StoreRecord)
    assert isinstance(store, ev.StoreRecord)
    return machine, machine.handle(ev.RecordStored(store.record, 1), 0)


def writing(**config: Any) -> PartitionMachine:
    machine, _ = claimed(**config)
    assert machine.state is PartitionState.WRITE
    return machine


def opened(**config: Any) -> PartitionMachine:
    """Return a machine in WRITE with an open segment and one batch in flight."""
    machine = writing(**config)
    append(machine)
    machine.after_append(0)
    store = only(machine.handle(ev.SpareReady(SPARE), 0), ev.StoreRecord)
    assert isinstance(store, ev.StoreRecord)
    machine.handle(ev.RecordStored(store.record, 2), 0)
    machine.handle(ev.SegmentNamed(store.record.segments[-1].name), 0)
    machine.take(1 << 20, 0)
    return machine


def flush(machine: PartitionMachine) -> list[Effect]:
    assert machine.current is not None
    return machine.handle(ev.Flushed(machine.current.entry.name, machine.current.position), 0)


# ------------------------------------------------------------------------------------------------------ the table


def test_every_pair_of_state_and_event_has_a_cell() -> None:
    """No pair is missing, none is there twice, every event class of the union is in the table."""
    assert set(TABLE) == set(itertools.product(PartitionState, get_args(Event)))
    assert set(EVENTS) == set(get_args(Event))


def test_every_effect_is_performed() -> None:
    assert set(PERFORM) == set(get_args(Effect))


@pytest.mark.parametrize(("state", "event"), list(itertools.product(PartitionState, get_args(Event))))
def test_a_cell_is_what_the_design_says(state: PartitionState, event: type[Event]) -> None:
    """Handled where the design says so, ignored in terminal states, else a bug, unless it comes from outside."""
    cell = TABLE[state, event]
    if state in TERMINAL:
        assert cell is Cell.LATE
    elif state in EXPECTED[event]:
        assert callable(cell)
    elif event in EXTERNAL:
        assert cell is Cell.LATE
    else:
        assert cell is Cell.NEVER


def sample(event: Any) -> Event:
    """Return any instance of an event's class; its fields matter only to handlers."""
    fields: dict[Any, tuple[Any, ...]] = {
        ev.RecordRead: (OTHER, 1),
        ev.RecordStored: (OTHER, 1),
        ev.RecordUnknown: (OTHER,),
        ev.RecordRefused: (OTHER, 1),
        ev.RecordUnreadable: ("x",),
        ev.SegmentsFenced: ((),),
        ev.FenceFailed: ("x",),
        ev.LogRecovered: (Recovered(end_offset=0, segments=[], bytes_read=0, labels=[]), None, (), 0),
        ev.RecoveryFailed: ("x",),
        ev.LogUnreadable: ("x",),
        ev.RecoveryRefused: ("x",),
        ev.CheckpointWritten: (0, 0),
        ev.SpareReady: (SPARE,),
        ev.CopiesCounted: (0, 1, 1),
        ev.SpareFailed: ("x",),
        ev.SegmentNamed: (SPARE.name,),
        ev.NamingFailed: (SPARE.name, "x"),
        ev.Flushed: (SPARE.name, 1),
        ev.SegmentFailed: (SPARE.name, "x"),
        ev.SegmentClosed: (SPARE,),
        ev.EpochChanged: (9,),
        ev.LogStartRaised: (1,),
        ev.Tick: (1,),
    }
    instance: Event = event(*fields.get(event, ()))
    return instance


@pytest.mark.parametrize(("state", "event"), list(itertools.product(PartitionState, get_args(Event))))
def test_late_does_nothing_and_never_is_a_bug(state: PartitionState, event: type[Event]) -> None:
    """LATE: no effect, no change.  NEVER: an assertion.  The rest is in the stories below."""
    machine = partition()
    machine.state = state
    cell = TABLE[state, event]
    if cell is Cell.LATE:
        before = repr(machine)
        assert machine.handle(sample(event), 0) == []
        assert repr(machine) == before
    elif cell is Cell.NEVER:
        with pytest.raises(AssertionError):
            machine.handle(sample(event), 0)


# ------------------------------------------------------------------------------------------- START, FENCE, RECOVER


def test_a_new_partition_goes_from_claim_to_write() -> None:
    machine, effects = claimed()
    assert machine.state is PartitionState.WRITE
    assert machine.epoch == 1
    assert kinds(effects) == ["StateChanged"]


def test_an_inherited_partition_fences_reads_and_checkpoints_before_it_writes() -> None:
    entry = replace(SPARE, name=SegmentName(0, 1, 0))
    machine, effects = claimed(PartitionRecord(epoch=1, owner="old", segments=(entry,), journals=("old",)))
    assert state_of(machine) is PartitionState.FENCE
    assert only(effects, ev.FenceSegments) == ev.FenceSegments((entry,))
    fenced = FencedSegment(name=entry.name, found=Found.FINAL, length=5)
    effects = machine.handle(ev.SegmentsFenced((fenced,)), 0)
    recover = only(effects, ev.RecoverLog)
    assert recover == ev.RecoverLog((fenced,), (entry,), ("old",))
    base = Checkpoint(key=KEY, segment=entry.name, position=5, end_offset=3, log_start=1)
    recovered = Recovered(end_offset=3, segments=[], bytes_read=0, labels=[])
    effects = machine.handle(ev.LogRecovered(recovered, base, (), 1), 0)
    assert kinds(effects) == ["WriteIndexes", "WriteCheckpoint"]
    assert state_of(machine) is PartitionState.RECOVER
    with pytest.raises(RequestError) as refused:
        offer(machine, batch(), 1)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    machine.handle(ev.CheckpointWritten(3, 1), 0)
    assert (machine.state, machine.log_start, machine.high_watermark, machine.next_offset) == (
        PartitionState.WRITE,
        1,
        3,
        3,
    )


def test_a_claim_keeps_what_the_takeover_needs() -> None:
    """Keep all open segments and the journals of earlier owners in the record, but not the mark that no journal need be
    read."""
    entries = tuple(replace(SPARE, name=SegmentName(0, 3, n)) for n in range(2))
    found = PartitionRecord(epoch=3, owner="old", segments=entries, journals=("older", "old"), is_settled=True)
    machine = partition()
    machine.handle(ev.Start(), 0)
    store = only(machine.handle(ev.RecordRead(found, 5), 0), ev.StoreRecord)
    claim = replace(found, epoch=4, owner="me", journals=("older", "old", "me"), is_settled=False)
    assert store == ev.StoreRecord(claim, 5)


def test_a_claim_that_meets_a_registration_of_the_old_owner_is_claimed_again() -> None:
    machine = partition()
    machine.handle(ev.Start(), 0)
    machine.handle(ev.RecordRead(PartitionRecord(epoch=3, owner="old"), 5), 0)
    newer = PartitionRecord(epoch=3, owner="old", segments=(SPARE,))
    store = only(machine.handle(ev.RecordRefused(newer, 6), 0), ev.StoreRecord)
    assert isinstance(store, ev.StoreRecord)
    assert (store.record.epoch, store.record.segments, store.revision) == (4, (SPARE,), 6)


def test_a_claim_that_meets_a_higher_epoch_gives_up() -> None:
    machine = partition()
    machine.handle(ev.Start(), 0)
    machine.handle(ev.RecordRead(PartitionRecord(epoch=3), 5), 0)
    machine.handle(ev.RecordRefused(PartitionRecord(epoch=4, owner="other"), 6), 0)
    assert machine.state is PartitionState.FENCED


def test_an_unknown_store_is_asked_again_with_the_same_compare() -> None:
    machine = partition()
    machine.handle(ev.Start(), 0)
    store = only(machine.handle(ev.RecordRead(PartitionRecord(), 0), 0), ev.StoreRecord)
    assert isinstance(store, ev.StoreRecord)
    delays = []
    for _ in range(8):
        again = only(machine.handle(ev.RecordUnknown(store.record), 0), ev.RunAgain)
        assert isinstance(again, ev.RunAgain)
        assert again.effect == store
        delays.append(again.delay_ms)
    assert delays[:3] == [100, 200, 400]
    assert max(delays) == BrokerConfig().retry_ms.most


def test_a_failed_recovery_begins_with_the_fence_again() -> None:
    entry = replace(SPARE, name=SegmentName(0, 1, 0))
    machine, _ = claimed(PartitionRecord(epoch=1, owner="old", segments=(entry,)))
    machine.handle(ev.SegmentsFenced(()), 0)
    again = only(machine.handle(ev.RecoveryFailed("away"), 0), ev.RunAgain)
    assert isinstance(again, ev.RunAgain)
    assert isinstance(again.effect, ev.FenceSegments)
    assert machine.state is PartitionState.FENCE


def test_an_unreadable_log_is_tried_again_for_a_while_then_offline() -> None:
    """Ever more slowly, and from the fence on; counted from the first time; at last without damaged journals."""
    entry = replace(SPARE, name=SegmentName(0, 1, 0))
    machine, _ = claimed(PartitionRecord(epoch=1, owner="old", segments=(entry,)))
    delays = []
    for now_ms in (5_000, 6_000, 30_000, 64_999, 65_000):
        recover = only(machine.handle(ev.SegmentsFenced(()), now_ms), ev.RecoverLog)
        assert isinstance(recover, ev.RecoverLog)
        assert not recover.passes_damaged
        again = only(machine.handle(ev.LogUnreadable("x is short"), now_ms), ev.RunAgain)
        assert isinstance(again, ev.RunAgain)
        assert isinstance(again.effect, ev.FenceSegments)
        assert state_of(machine) is PartitionState.FENCE
        delays.append(again.delay_ms)
    assert delays == [100, 200, 400, 800, 1600]
    recover = only(machine.handle(ev.SegmentsFenced(()), 65_000), ev.RecoverLog)
    assert isinstance(recover, ev.RecoverLog)
    assert recover.passes_damaged
    assert kinds(machine.handle(ev.LogUnreadable("x is short"), 65_000)) == ["ReportOffline", "StateChanged"]
    assert (state_of(machine), machine.offline_reason) == (PartitionState.OFFLINE, "x is short")


def test_refused_recovery_is_offline_and_reported() -> None:
    entry = replace(SPARE, name=SegmentName(0, 1, 0))
    machine, _ = claimed(PartitionRecord(epoch=1, owner="old", segments=(entry,)))
    machine.handle(ev.SegmentsFenced(()), 0)
    effects = machine.handle(ev.RecoveryRefused("file x is short"), 0)
    assert kinds(effects) == ["ReportOffline", "StateChanged"]
    with pytest.raises(RequestError, match="file x is short"):
        offer(machine, batch(), 1)


# ------------------------------------------------------------------------------------------------------ WRITE


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


def test_offsets_and_the_leader_epoch_are_assigned_in_order() -> None:
    machine = writing()
    assert [append(machine).batch.base_offset for _ in range(3)] == [0, 1, 2]
    assert machine.batches.unsent[0].batch.leader_epoch == 1
    assert machine.batches.unsent[0].batch.has_valid_crc


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


def test_a_flush_of_another_segment_means_nothing() -> None:
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


def with_spare() -> PartitionMachine:
    """Return an idle machine with an open segment that is nearly full and the next one's file ready."""
    machine = opened()
    assert machine.current is not None
    machine.config = replace(machine.config, segment_bytes=machine.current.position)
    flush(machine)
    assert kinds(machine.handle(ev.CheckpointWritten(1, 0), 0)) == []
    effects = machine.advance(0)
    assert kinds(effects) == ["CreateSpare"]
    assert machine.handle(ev.SpareReady(replace(SPARE, spare="/s2")), 0) == []
    return machine


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


def test_a_fenced_owner_says_which_batches_may_be_in_the_log() -> None:
    """Only what was never sent to a file was certainly not accepted, and may be sent again without a producer id."""
    machine = opened()
    append(machine)
    effects = machine.handle(ev.EpochChanged(2), 0)
    rejects = [effect for effect in effects if isinstance(effect, ev.Reject)]
    told = [(reject.code, [pending.batch.base_offset for pending in reject.batches]) for reject in rejects]
    assert told == [
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, [0]),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, [1]),
    ]


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


def test_roll_by_size_waits_for_the_last_flush_and_prepares_ahead() -> None:
    machine = opened(block_bytes=1 << 20)
    machine.config = replace(machine.config, segment_bytes=200)
    for _ in range(3):
        append(machine)
    _, effects = machine.take(1 << 20, 0)
    assert machine.current is not None
    assert kinds(effects) == ["CreateSpare"]
    effects = flush(machine)
    assert kinds(effects) == ["Acknowledge", "CloseSegment"]
    store = only(machine.handle(ev.SpareReady(SPARE), 0), ev.StoreRecord)
    assert isinstance(store, ev.StoreRecord)
    assert store.record.segments[-1].name.base == machine.high_watermark


def test_a_batch_larger_than_a_block_gets_a_larger_block() -> None:
    machine = writing(block_bytes=1 << 20)
    machine.config = replace(machine.config, rules=replace(machine.config.rules, max_message_bytes=1 << 30))
    append(machine, size=3 << 20)
    create = only(machine.after_append(0), ev.CreateSpare)
    assert isinstance(create, ev.CreateSpare)
    assert create.block_bytes == 4 << 20


def test_duplicates_wait_for_their_original() -> None:
    machine = opened()
    original = append(machine, pid=5, sequence=0)
    repeated = offer(machine, batch(pid=5, sequence=0), 1)
    assert isinstance(repeated, Duplicate)
    assert (repeated.base_offset, repeated.pending) == (1, original)
    flush(machine)
    machine.take(1 << 20, 0)
    flush(machine)
    flushed = offer(machine, batch(pid=5, sequence=0), 1)
    assert isinstance(flushed, Duplicate)
    assert flushed.pending is None


def test_checkpoints_by_bytes_and_by_time_one_at_a_time() -> None:
    machine = opened(checkpoint_bytes=1 << 20, checkpoint_ms=500)
    flush(machine)
    assert machine.deadline_ms() == 500
    checkpoint = only(machine.handle(ev.Tick(1), 500), ev.WriteCheckpoint)
    assert isinstance(checkpoint, ev.WriteCheckpoint)
    assert checkpoint.checkpoint.is_full
    assert checkpoint.checkpoint.end_offset == 1
    append(machine)
    machine.take(1 << 20, 600)
    flush(machine)
    assert machine.handle(ev.Tick(1), 5000) == [], "one is on its way"
    machine.handle(ev.CheckpointWritten(1, 0), 5000)
    delta = only(machine.handle(ev.Tick(1), 5000), ev.WriteCheckpoint)
    assert isinstance(delta, ev.WriteCheckpoint)
    assert not delta.checkpoint.is_full


def test_a_delta_checkpoint_holds_the_producers_that_changed_and_no_others() -> None:
    """A takeover that reads behind it knows what was written before it from nothing else."""
    machine = opened(checkpoint_ms=500)
    append(machine, pid=7, sequence=0)
    append(machine, pid=8, sequence=0)
    machine.take(1 << 20, 0)
    flush(machine)
    machine.handle(ev.Tick(1), 500)
    append(machine, pid=8, sequence=1)
    append(machine, pid=9, sequence=0)
    machine.take(1 << 20, 600)
    append(machine, pid=9, sequence=1)
    assert machine.current is not None
    flushed = machine.batches.inflight[-1].end_position
    machine.handle(ev.Flushed(machine.current.entry.name, flushed), 600)
    machine.handle(ev.CheckpointWritten(3, 0), 700)
    effect = only(machine.handle(ev.Tick(1), 5000), ev.WriteCheckpoint)
    assert isinstance(effect, ev.WriteCheckpoint)
    assert not effect.checkpoint.is_full
    said = {
        state.producer_id: [batch.base_sequence for batch in state.batches] for state in effect.checkpoint.producers
    }
    assert said == {8: [0, 1], 9: [0]}


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


def test_a_move_before_anything_was_accepted_just_ends() -> None:
    machine = partition()
    assert kinds(machine.handle(ev.MoveRequested(), 0)) == ["Abort", "StateChanged"]


def test_another_epoch_fences_an_equal_one_does_not() -> None:
    """A lower one is that of a record that was deleted, or written again from a backup."""
    for other in (2, 0):
        machine = opened()
        assert machine.handle(ev.EpochChanged(1), 0) == []
        machine.handle(ev.EpochChanged(other), 0)
        assert machine.state is PartitionState.FENCED


def test_the_log_start_only_rises_and_is_checkpointed() -> None:
    machine = opened()
    flush(machine)
    checkpoint = only(machine.handle(ev.LogStartRaised(1), 0), ev.WriteCheckpoint)
    assert isinstance(checkpoint, ev.WriteCheckpoint)
    assert checkpoint.checkpoint.log_start == 1
    assert machine.handle(ev.LogStartRaised(0), 0) == []
    assert machine.log_start == 1


def test_the_next_segments_chunk_follows_the_usual_flush() -> None:
    """At most a quarter of it, a power of two, 512 bytes when nothing is known."""
    assert [chunk_for(size) for size in (0, 1024, 4096, 65_536, 1 << 20, 1 << 30)] == [
        512,
        512,
        1024,
        16_384,
        65_536,
        65_536,
    ]
    machine = opened()
    machine.config = replace(machine.config, rules=replace(machine.config.rules, max_message_bytes=1 << 30))
    flush(machine)
    append(machine, size=1 << 20)
    machine.take(1 << 20, 0)
    flush(machine)
    assert machine.current is not None
    machine.handle(ev.SegmentFailed(machine.current.entry.name, "x"), 0)
    append(machine)
    create = only(machine.after_append(0), ev.CreateSpare)
    assert isinstance(create, ev.CreateSpare)
    assert create.chunk_bytes == 65_536


@pytest.mark.parametrize(("size", "chunk"), [(10, 512), (5 << 10, 1024), (64 << 10, 4096), (1 << 20, 4096)])
def test_the_first_segments_chunk_follows_its_first_batch_with_care(size: int, chunk: int) -> None:
    """At most a quarter of the batch, and of 16 KB: the flushes to come may be smaller."""
    machine = writing()
    machine.config = replace(machine.config, rules=replace(machine.config.rules, max_message_bytes=1 << 30))
    append(machine, size=size)
    create = only(machine.after_append(0), ev.CreateSpare)
    assert isinstance(create, ev.CreateSpare)
    assert create.chunk_bytes == chunk


def test_slow_storage_rolls_gently_and_not_too_often() -> None:
    """The segment drains and is closed; the next roll for this reason waits its time."""
    machine = opened(slow_roll_interval_ms=1000)
    assert machine.handle(ev.StorageSlow(), 0) == []
    assert "CloseSegment" in kinds(flush(machine))
    machine = opened(slow_roll_interval_ms=1000)
    machine.handle(ev.StorageSlow(), 0)
    flush(machine)
    assert not machine.may_leave_slow(999)


def test_the_next_segments_block_follows_what_the_last_one_took() -> None:
    """Quiet partitions reserve little room on storage; none reserves more than its topic's segments can take."""
    mb = 1 << 20
    assert [block_for(last * mb, 16 * mb, 128 * mb, 1 << 30) // mb for last in (0, 8, 9, 128)] == [16, 16, 128, 128]
    assert [block_for(last * mb, 16 * mb, 128 * mb, 3 * mb + 1) // mb for last in (0, 9)] == [4, 4]
    assert block_for(0, 16 * mb, 4 * mb, 14) == mb

    machine = opened(first_block_bytes=1 << 20)
    assert machine.current is not None
    assert machine.current.block_bytes == 1 << 20
    machine.config = replace(machine.config, rules=replace(machine.config.rules, max_message_bytes=1 << 30))
    append(machine, size=950_000)
    _, effects = machine.take(1 << 20, 0)
    ahead = only(effects, ev.CreateSpare)
    assert isinstance(ahead, ev.CreateSpare)
    assert ahead.block_bytes == 128 << 20
    append(machine, size=200_000)
    assert machine.take(1 << 20, 0)[0] == [], "no longer than the block that its file was created with"
    assert "CloseSegment" in kinds(flush(machine))


def test_who_waits_for_a_place_gets_that_of_an_open_segment() -> None:
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
def test_a_spare_that_nobody_wants_any_more_is_dropped(is_ready: bool) -> None:
    """Make a spare ahead of need and stop the writes: unless it is dropped, it keeps its pipeline open for ever."""
    machine = opened(block_bytes=1 << 20, idle_close_ms=1000)
    assert machine.current is not None
    machine.config = replace(machine.config, segment_bytes=2 * machine.current.position)
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
