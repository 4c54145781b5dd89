"""The transitions of the segments in WRITE and MOVE: spares, names, flushes, failures, checkpoints, time."""

from __future__ import annotations

from bmq.broker import events as ev
from bmq.broker.events import Effect
from bmq.broker.partition.found_copies import Count
from bmq.broker.partition.owned_log import OwnedLog
from bmq.broker.partition.segment_roll import Spare
from bmq.broker.partition.segment_steps import advance, create_spare, drain
from bmq.broker.partition.states import PartitionState
from bmq.core.errors import ErrorCode
from bmq.storage.aborted import StableMove


def on_spare_ready(machine: OwnedLog, event: ev.SpareReady, now_ms: int) -> list[Effect]:
    """Note the spare; register it if it is needed now."""
    machine.spare_created(event)
    return advance(machine)


def on_spare_failed(machine: OwnedLog, event: ev.SpareFailed, now_ms: int) -> list[Effect]:
    """Drop the spare if its pipeline broke; if one is needed, create another, later if storage refused this one."""
    following = machine.next_segment
    machine.want_empty(wanted=False)  # the cleaner asks again
    if following.spare is Spare.NONE:
        return []  # it failed while it was being dropped
    if following.spare is Spare.READY:
        return [*following.drop(), *advance(machine)]
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
        return [*effects, *advance(machine)]
    return [*effects, ev.RunAgain(delay_ms, create_spare(machine))]


def _stop_holding(machine: OwnedLog) -> list[Effect]:
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
        machine.take_back(unsent)
        effects.append(ev.Reject(unsent, ErrorCode.NOT_ENOUGH_REPLICAS, machine.too_few))
        unsent = ()
    if sent or unsent:
        code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        effects.append(ev.LeaveUnacknowledged((*sent, *unsent), code, machine.too_few))
    return effects


def on_copies_wanted(machine: OwnedLog, event: ev.CopiesWanted, now_ms: int) -> list[Effect]:
    """Try for enough datanodes, and count a repeated batch's copies; neither if under way or done just now."""
    following, effects = machine.next_segment, list[Effect]()
    wanted = machine.found_copies.take_wanted(now_ms)
    if wanted is not None:
        effects.append(ev.CountCopies(wanted, machine.found_copies.end))
    if machine.batches.unsent or following.is_chosen or not machine.shortage.may_try(now_ms):
        return effects
    if following.spare is Spare.CREATING:
        return effects
    return [*effects, *following.drop(), create_spare(machine, machine.config.min_insync)]


def on_copies_found(machine: OwnedLog, event: ev.CopiesCounted, now_ms: int) -> list[Effect]:
    """Keep the count. Too few copies are counted again if the batch is repeated after the longest pause."""
    again_ms = now_ms + machine.broker.retry_ms.most
    machine.found_copies.counted(Count(event.base, event.end, event.copies, again_ms, event.reason))
    return []


def on_stored(machine: OwnedLog, event: ev.RecordStored, now_ms: int) -> list[Effect]:
    """Give a registered segment its final name; store a swap that was requested meanwhile."""
    before = machine.record.swap
    machine.stored(event)
    effects: list[Effect] = [ev.SwapStored()] if machine.record.swap != before else []
    if machine.next_segment.is_registering:
        effects.append(machine.next_segment.name())
    empty = machine.unclosed.take_empty(machine.record.segments)
    if empty:
        effects.append(ev.DeleteEmpty(empty))
    if machine.state is PartitionState.WRITE and machine.swap != machine.record.swap:
        return [*effects, *machine.store_swap()]
    return [*effects, *advance(machine)]


def on_swap_wanted(machine: OwnedLog, event: ev.SwapWanted, now_ms: int) -> list[Effect]:
    """Store the record with the swap, at once or behind the write that is under way."""
    machine.want_swap(event.swap)
    if machine.storing is not None or machine.swap == machine.record.swap:
        return []
    return machine.store_swap()


def on_old_names(machine: OwnedLog, event: ev.OldNamesUnneeded, now_ms: int) -> list[Effect]:
    """Store the record without old names, unless a write is under way: the janitor asks again."""
    if machine.storing is not None or not machine.has_old_names:
        return []
    return machine.drop_old_names()


def on_empty_wanted(machine: OwnedLog, event: ev.EmptyWanted, now_ms: int) -> list[Effect]:
    """Open a segment at the end of a quiet log, to be closed empty: the segment before can then be cleaned."""
    following = machine.next_segment
    is_quiet = machine.current is None and machine.batches.is_idle and not following.is_chosen
    if not is_quiet or not machine.unclosed.has_cleanable_newest:
        return []
    machine.want_empty()
    return advance(machine)


def on_write_refused(machine: OwnedLog, event: ev.RecordRefused, now_ms: int) -> list[Effect]:
    """Stop if the record has another owner or epoch; else write again over the change, by its revision."""
    assert machine.storing is not None
    if event.record.epoch != machine.epoch or event.record.owner != machine.incarnation:
        return machine.fence()
    return machine.store(machine.storing, event.revision)  # an administrator wrote the key without changing the owner


def on_named(machine: OwnedLog, event: ev.SegmentNamed, now_ms: int) -> list[Effect]:
    """Open the segment for batches; close it at once if it was wanted empty and no batch waits."""
    entry = machine.next_segment.naming(event.name)
    if entry is None:
        return []  # its pipeline failed meanwhile
    machine.open_segment(entry, now_ms)
    if machine.batches.unsent:
        machine.want_empty(wanted=False)
        return [ev.WAKE]
    return drain(machine) if machine.wants_empty else advance(machine)


def on_naming_failed(machine: OwnedLog, event: ev.NamingFailed, now_ms: int) -> list[Effect]:
    """Try the rename again: the name is registered."""
    entry = machine.next_segment.naming(event.name)
    return [] if entry is None else [ev.RunAgain(machine.delay(), ev.NameSegment(entry))]


def on_flushed(machine: OwnedLog, event: ev.Flushed, now_ms: int) -> list[Effect]:
    """Acknowledge the batches that the flush covers, checkpoint by bytes, close a drained segment."""
    segment = machine.current
    if segment is None or segment.entry.name != event.name:
        return []  # a late ack: this segment was given up, its tail is written again elsewhere (rule 6)
    end, stable, aborted = machine.high_watermark, machine.last_stable_offset, len(segment.aborted)
    done = machine.flushed(segment, event.position, now_ms)
    if not done:
        return []
    move = None
    if machine.last_stable_offset != machine.high_watermark or stable != end or len(segment.aborted) != aborted:
        move = StableMove(stable, machine.last_stable_offset, segment.aborted.behind(aborted))
    effects: list[Effect] = [ev.Acknowledge(done, move)]
    if segment.uncovered_bytes >= machine.broker.checkpoint_bytes:
        effects += machine.checkpoint()
    if machine.is_ending:
        effects += advance(machine)
    elif machine.batches.unsent:
        effects.append(ev.WAKE)
    return effects


def on_file_broken(machine: OwnedLog, event: ev.SegmentFailed, now_ms: int) -> list[Effect]:
    """Go on in a new file from the first byte not acknowledged, and take the old file over behind it (rule 6)."""
    entry = machine.next_segment.naming(event.name)
    if entry is not None:
        if event.is_fenced:  # once it has its name, its first write fails the same way
            return [ev.CheckFence(entry, event.reason)]
        machine.want_empty(wanted=False)
        machine.next_segment.named()
        machine.unclosed.leave(entry)
        return [ev.SealSegment(entry, None), *_go_on_elsewhere(machine)]
    segment = machine.current
    if segment is None or segment.entry.name != event.name:
        return []
    if event.is_fenced:  # no file is begun before it is known by whom: with two owners both would acknowledge
        return [] if segment.fence_checked() else [ev.CheckFence(segment.entry, event.reason)]
    seal = machine.give_up_segment()
    return [seal, *(advance(machine) if segment.flushed else _go_on_elsewhere(machine))]


def _go_on_elsewhere(machine: OwnedLog) -> list[Effect]:
    """Open the next segment after a segment without a flush: at once the first time in a row, later otherwise.

    Files may be created although writes to them fail (a full disk, a quota). Without the delay each partition would
    then create files, and commit records, as fast as it can.
    """
    is_first = machine.is_first_failure
    delay_ms = machine.delay()
    roll = machine.next_segment
    if is_first or roll.spare is not Spare.NONE or roll.is_chosen or not machine.batches.unsent:
        return advance(machine)
    return [ev.RunAgain(delay_ms, create_spare(machine))]


def on_closed(machine: OwnedLog, event: ev.SegmentClosed, now_ms: int) -> list[Effect]:
    """Note that a segment is closed: the next record need not list it, unless its index waits."""
    machine.unclosed.closed(event.entry)
    if event.index_waits:
        machine.unclosed.lacks_index(event.entry)
    else:
        machine.unindexed.indexed(event.entry.name)
    return advance(machine)


def on_covered(machine: OwnedLog, event: ev.CheckpointWritten, now_ms: int) -> list[Effect]:
    """Note that a checkpoint is durable; write the next checkpoint if it became due meanwhile."""
    if machine.checkpointer.written():
        return machine.checkpoint()
    return advance(machine) if machine.state is PartitionState.MOVE else []


def on_log_start(machine: OwnedLog, event: ev.LogStartRaised, now_ms: int) -> list[Effect]:
    """Raise the log start and checkpoint it at once."""
    if event.offset <= machine.log_start:
        return []
    machine.raise_log_start(event.offset)
    return machine.checkpoint()


def on_tick(machine: OwnedLog, event: ev.Tick, now_ms: int) -> list[Effect]:
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
        is_slow = machine.pipeline_watch.late(age, now_ms)
        if is_slow is not None:
            effects.append(ev.CheckSlowPipeline(segment.entry.name, age, is_slow))
    if machine.is_draining:
        return effects
    is_old = segment.has_aged(machine.config.segment_ms, now_ms)
    if is_old or (machine.batches.is_idle and now_ms - segment.last_write_ms >= machine.broker.idle_close_ms):
        effects += drain(machine)
    return effects


def on_place_wanted(machine: OwnedLog, event: ev.PlaceWanted, now_ms: int) -> list[Effect]:
    """Close the segment once its batches are flushed; batches that wait go to the next one."""
    return [] if machine.current is None else drain(machine)


def on_storage_slow(machine: OwnedLog, event: ev.StorageSlow, now_ms: int) -> list[Effect]:
    """Roll the segment. No fail-over: the flushes in flight will be acknowledged."""
    if not machine.may_leave_slow(now_ms):
        return []
    machine.pipeline_watch.rolled(now_ms)
    return drain(machine)
