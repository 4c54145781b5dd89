"""The transitions of the segments in WRITE and MOVE: spares, names, flushes, failures, checkpoints, time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bmq.broker import events as ev
from bmq.broker.events import Effect
from bmq.broker.partition.checkpointer import OpenSegment
from bmq.broker.partition.found_copies import Count
from bmq.broker.partition.segment_roll import Spare
from bmq.broker.partition.states import PartitionState
from bmq.core.errors import ErrorCode

if TYPE_CHECKING:
    from bmq.broker.partition.machine import PartitionMachine


def on_spare_ready(machine: PartitionMachine, event: ev.SpareReady, now_ms: int) -> list[Effect]:
    """Note the spare; register it if it is needed now."""
    machine.next_segment.ready(event.entry, event.copies, event.block_bytes)
    machine.is_folder_known = True
    if event.copies >= machine.config.min_insync:
        machine.shortage.end()
    return machine.advance()


def on_spare_failed(machine: PartitionMachine, event: ev.SpareFailed, now_ms: int) -> list[Effect]:
    """Drop the spare if its pipeline broke; if one is needed, create another, later if storage refused this one."""
    following = machine.next_segment
    if following.spare is Spare.NONE:
        return []  # it failed while it was being dropped
    if following.spare is Spare.READY:
        return [*following.drop(), *machine.advance()]
    following.failed()
    delay_ms = machine.delay()
    effects: list[Effect] = []
    if event.is_short:
        machine.shortage.notice(now_ms, delay_ms)
        if machine.shortage.is_refusing:
            effects = _stop_holding(machine)
    if machine.current is not None and not machine.is_draining:
        return effects  # it was only prepared ahead of need
    if not machine.batches.unsent:
        return [*effects, *machine.advance()]
    return [*effects, ev.RunAgain(delay_ms, machine.create_spare())]


def _stop_holding(machine: PartitionMachine) -> list[Effect]:
    """Refuse the batches that have waited for copies, with Kafka's codes.

    | the batch                | response                         | then                                      |
    | ------------------------ | -------------------------------- | ----------------------------------------- |
    | left no trace in the log | NOT_ENOUGH_REPLICAS              | it is taken back                          |
    | is in the log            | NOT_ENOUGH_REPLICAS_AFTER_APPEND | it is written once there are enough nodes |

    A batch that was never sent to a file is in the log all the same if one behind it was acknowledged (acks=1).
    """
    sent, unsent = machine.batches.split_unsent()
    effects: list[Effect] = []
    if unsent and all(pending.copies > 1 for pending in unsent):
        machine.batches.drop_last(len(unsent))
        machine.next_offset = unsent[0].batch.base_offset
        kept = (*machine.batches.inflight, *sent)
        machine.producers.take_back(pending.producer for pending in kept if pending.producer is not None)
        effects.append(ev.Reject(unsent, ErrorCode.NOT_ENOUGH_REPLICAS, machine.too_few))
        unsent = ()
    if sent or unsent:
        code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        effects.append(ev.LeaveUnacknowledged((*sent, *unsent), code, machine.too_few))
    return effects


def on_copies_wanted(machine: PartitionMachine, event: ev.CopiesWanted, now_ms: int) -> list[Effect]:
    """Try for enough datanodes, and count a repeated batch's copies; neither if under way or done just now."""
    following, effects = machine.next_segment, list[Effect]()
    wanted = machine.found_copies.take_wanted(now_ms)
    if wanted is not None:
        effects.append(ev.CountCopies(wanted, machine.found_copies.end))
    if machine.batches.unsent or following.is_chosen or not machine.shortage.may_try(now_ms):
        return effects
    if following.spare is Spare.CREATING:
        return effects
    return [*effects, *following.drop(), machine.create_spare(machine.config.min_insync)]


def on_copies_found(machine: PartitionMachine, event: ev.CopiesCounted, now_ms: int) -> list[Effect]:
    """Keep the count. Too few copies are counted again if the batch is repeated after the longest pause."""
    again_ms = now_ms + machine.broker.retry_ms.most
    machine.found_copies.counted(Count(event.base, event.end, event.copies, again_ms, event.reason))
    return []


def on_registered(machine: PartitionMachine, event: ev.RecordStored, now_ms: int) -> list[Effect]:
    """Give the segment its final name: the record lists it."""
    machine.stored(event)
    empty = machine.unclosed.take_empty(machine.record.segments)
    return [machine.next_segment.name(), *([ev.DeleteEmpty(empty)] if empty else [])]


def on_write_refused(machine: PartitionMachine, event: ev.RecordRefused, now_ms: int) -> list[Effect]:
    """Stop if the record has another owner or epoch; else write again over the change, by its revision."""
    assert machine.storing is not None
    if event.record.epoch != machine.epoch or event.record.owner != machine.incarnation:
        return machine.fence()
    return machine.store(machine.storing, event.revision)  # an administrator wrote the key without changing the owner


def on_named(machine: PartitionMachine, event: ev.SegmentNamed, now_ms: int) -> list[Effect]:
    """Open the segment for batches."""
    entry = machine.next_segment.naming(event.name)
    if entry is None:
        return []  # its pipeline failed meanwhile
    roll, interval_bytes = machine.next_segment, machine.config.index_interval_bytes
    machine.current = OpenSegment(entry, roll.block_bytes, interval_bytes, now_ms, roll.copies)
    roll.named()
    return [ev.WAKE] if machine.batches.unsent else machine.advance()


def on_naming_failed(machine: PartitionMachine, event: ev.NamingFailed, now_ms: int) -> list[Effect]:
    """Try the rename again: the name is registered."""
    entry = machine.next_segment.naming(event.name)
    return [] if entry is None else [ev.RunAgain(machine.delay(), ev.NameSegment(entry))]


def on_flushed(machine: PartitionMachine, event: ev.Flushed, now_ms: int) -> list[Effect]:
    """Acknowledge the batches that the flush covers, checkpoint by bytes, close a drained segment."""
    segment = machine.current
    if segment is None or segment.entry.name != event.name:
        return []  # a late ack: this segment was given up, its tail is written again elsewhere (rule 6)
    done = machine.batches.flushed(event.position)
    if not done:
        return []
    for pending in done:
        batch = pending.batch
        segment.index.add(batch.base_offset, pending.start_position, batch.max_timestamp)
        if not segment.epochs:
            segment.epochs.append((machine.epoch, batch.base_offset))
        if pending.producer is not None:
            machine.producers.flushed(pending.producer)
    last = done[-1]
    segment.uncovered_bytes += last.end_position - segment.flushed
    segment.flushed = last.end_position
    if segment.dirty_since_ms < 0:
        segment.dirty_since_ms = now_ms
    machine.high_watermark = last.batch.next_offset
    if segment.copies < machine.config.min_insync:
        machine.found_copies.doubt(machine.high_watermark)
    machine.failures = 0
    effects: list[Effect] = [ev.Acknowledge(done)]
    if segment.uncovered_bytes >= machine.broker.checkpoint_bytes:
        effects += machine.checkpoint()
    if machine.is_draining or machine.state is PartitionState.MOVE:
        effects += machine.advance()
    elif machine.batches.unsent:
        effects.append(ev.WAKE)
    return effects


def on_file_broken(machine: PartitionMachine, event: ev.SegmentFailed, now_ms: int) -> list[Effect]:
    """Go on in a new file from the first byte not acknowledged, and take the old file over behind it (rule 6)."""
    entry = machine.next_segment.naming(event.name)
    if entry is not None:
        if event.is_fenced:  # once it has its name, its first write fails the same way
            return [ev.CheckFence(entry, event.reason)]
        machine.next_segment.named()
        machine.unclosed.leave(entry)
        return [ev.SealSegment(entry, None), *_go_on_elsewhere(machine)]
    segment = machine.current
    if segment is None or segment.entry.name != event.name:
        return []
    if event.is_fenced:  # no file is begun before it is known by whom: with two owners both would acknowledge
        if segment.is_fence_checked:
            return []
        segment.is_fence_checked = True
        return [ev.CheckFence(segment.entry, event.reason)]
    machine.current = None
    machine.is_draining = False
    machine.batches.put_back()
    seal = ev.SealSegment(segment.entry, machine.leave(segment))
    return [seal, *(machine.advance() if segment.flushed else _go_on_elsewhere(machine))]


def _go_on_elsewhere(machine: PartitionMachine) -> list[Effect]:
    """Open the segment after one that took nothing: at once if that was the first in a row, later otherwise.

    Files may be created although writes to them fail (a full disk, a quota). Without the delay each partition would
    then create files, and commit records, as fast as it can.
    """
    is_first = machine.failures == 0
    delay_ms = machine.delay()
    roll = machine.next_segment
    if is_first or roll.spare is not Spare.NONE or roll.is_chosen or not machine.batches.unsent:
        return machine.advance()
    return [ev.RunAgain(delay_ms, machine.create_spare())]


def on_closed(machine: PartitionMachine, event: ev.SegmentClosed, now_ms: int) -> list[Effect]:
    """Note that a segment is closed and indexed: the next record need not list it."""
    machine.unclosed.closed(event.entry)
    return machine.advance()


def on_covered(machine: PartitionMachine, event: ev.CheckpointWritten, now_ms: int) -> list[Effect]:
    """Note that a checkpoint is durable; write the one that became due meanwhile."""
    if machine.checkpointer.written():
        return machine.checkpoint()
    return machine.advance() if machine.state is PartitionState.MOVE else []


def on_log_start(machine: PartitionMachine, event: ev.LogStartRaised, now_ms: int) -> list[Effect]:
    """Raise the log start and checkpoint it at once."""
    if event.offset <= machine.log_start:
        return []
    assert event.offset <= machine.high_watermark
    machine.log_start = event.offset
    return machine.checkpoint()


def on_tick(machine: PartitionMachine, event: ev.Tick, now_ms: int) -> list[Effect]:
    """Checkpoint by time, check a pipeline whose flush hangs, close an old or idle segment."""
    segment = machine.current
    if segment is None:
        return []
    effects: list[Effect] = []
    is_dirty = segment.dirty_since_ms >= 0 and not machine.checkpointer.is_under_way
    if is_dirty and now_ms - segment.dirty_since_ms >= machine.broker.checkpoint_ms:
        machine.producers.expire(event.wall_ms - machine.broker.producer_expiration_ms)
        effects += machine.checkpoint()
    if machine.batches.inflight:
        age = now_ms - machine.batches.inflight[0].sent_ms
        is_due = now_ms - machine.last_slow_ms >= machine.broker.slow_roll_interval_ms
        is_slow = age >= machine.broker.slow_flush_ms and is_due
        if is_slow:
            machine.last_slow_ms = now_ms
        if is_slow or (age >= machine.broker.silent_flush_ms and now_ms >= machine.probe_due_ms):
            machine.probe_due_ms = now_ms + machine.broker.slow_flush_ms
            effects.append(ev.CheckSlowPipeline(segment.entry.name, age, is_slow))
    if machine.is_draining:
        return effects
    is_old = now_ms - segment.opened_ms >= machine.config.segment_ms
    if is_old and segment.position == 0:
        segment.opened_ms = now_ms  # empty: nothing to roll
        is_old = False
    if is_old or (machine.batches.is_idle and now_ms - segment.last_write_ms >= machine.broker.idle_close_ms):
        machine.is_draining = True
        effects += machine.advance()
    return effects


def on_place_wanted(machine: PartitionMachine, event: ev.PlaceWanted, now_ms: int) -> list[Effect]:
    """Close the segment once its batches are flushed; batches that wait go to the next one."""
    if machine.current is None:
        return []
    machine.is_draining = True
    return machine.advance()


def on_storage_slow(machine: PartitionMachine, event: ev.StorageSlow, now_ms: int) -> list[Effect]:
    """Roll the segment. No fail-over: the flushes in flight will be acknowledged."""
    if not machine.may_leave_slow(now_ms):
        return []
    machine.last_slow_ms = now_ms
    machine.is_draining = True
    return machine.advance()
