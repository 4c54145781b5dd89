"""The transitions of a takeover: START, FENCE and RECOVER, until the partition accepts batches."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import TYPE_CHECKING

from bmq.broker import events as ev
from bmq.broker.events import Effect
from bmq.broker.partition.producer_state import ProducerTable
from bmq.broker.partition.states import PartitionState
from bmq.meta.ownership import PartitionRecord

if TYPE_CHECKING:
    from bmq.broker.partition.machine import PartitionMachine


def on_start(machine: PartitionMachine, event: ev.Start, now_ms: int) -> list[Effect]:
    """Read the record of the present owner."""
    return [ev.ReadRecord()]


def on_record_read(machine: PartitionMachine, event: ev.RecordRead, now_ms: int) -> list[Effect]:
    """Raise the epoch; keep the predecessor's segments and journals in the record."""
    return _claim(machine, event.record, event.revision)


def _claim(machine: PartitionMachine, record: PartitionRecord, revision: int) -> list[Effect]:
    machine.predecessors, machine.was_settled = record.journals, record.is_settled
    journals = (*(j for j in record.journals if j != machine.incarnation), machine.incarnation)
    claimed = replace(
        record, epoch=record.epoch + 1, owner=machine.incarnation, journals=journals, is_settled=False
    )  # not settled: checkpoints of what is written from here on are in this broker's journal
    return machine.store(claimed, revision)


def on_claimed(machine: PartitionMachine, event: ev.RecordStored, now_ms: int) -> list[Effect]:
    """Fence the segments that the record lists; write at once if there are none.

    Without segments nothing of storage is read, so that thousands of partitions that were never written move in a
    moment: the folder is looked at before the first segment is created (`PartitionMachine.create_spare`).
    """
    machine.stored(event)
    machine.failures = 0
    machine.epoch = event.record.epoch
    if not event.record.segments:
        machine.state = PartitionState.WRITE
        return []
    machine.state = PartitionState.FENCE
    return [ev.FenceSegments(event.record.segments)]


def on_write_unknown(machine: PartitionMachine, event: ev.RecordUnknown, now_ms: int) -> list[Effect]:
    """Send the same write again: only a commit with the same compare settles it (rule 3)."""
    assert event.record == machine.storing
    return [ev.RunAgain(machine.delay(), ev.StoreRecord(event.record, machine.revision))]


def on_claim_refused(machine: PartitionMachine, event: ev.RecordRefused, now_ms: int) -> list[Effect]:
    """Claim again over a late registration of the predecessor; stop if another broker has raised the epoch."""
    assert machine.storing is not None
    if event.record.epoch >= machine.storing.epoch:
        return machine.fence()
    return _claim(machine, event.record, event.revision)  # the predecessor registered a segment in between


def on_fenced(machine: PartitionMachine, event: ev.SegmentsFenced, now_ms: int) -> list[Effect]:
    """Recover the log: no predecessor can write any more, so read behind the last checkpoint."""
    machine.state = PartitionState.RECOVER
    record = machine.record
    return [
        ev.RecoverLog(
            event.segments,
            record.segments,
            machine.predecessors,
            machine.was_settled,
            machine.passes_damaged,
            machine.epoch,
            record.last_registered,
        )
    ]


def on_fence_failed(machine: PartitionMachine, event: ev.FenceFailed, now_ms: int) -> list[Effect]:
    """Try the fence again later."""
    return [ev.RunAgain(machine.delay(), ev.FenceSegments(machine.record.segments))]


def on_read_failed(machine: PartitionMachine, event: ev.RecoveryFailed, now_ms: int) -> list[Effect]:
    """Begin again with the fence, since a file may have been moved meanwhile."""
    machine.state = PartitionState.FENCE
    return [ev.RunAgain(machine.delay(), ev.FenceSegments(machine.record.segments))]


def on_log_unreadable(machine: PartitionMachine, event: ev.LogUnreadable, now_ms: int) -> list[Effect]:
    """Try again for ``unreadable_ms``, from the fence on, then once without damaged journals; then go OFFLINE."""
    if machine.unreadable_since_ms is None:
        machine.unreadable_since_ms = now_ms
    was_last = machine.passes_damaged
    machine.passes_damaged = now_ms - machine.unreadable_since_ms >= machine.broker.unreadable_ms
    if not was_last:
        machine.state = PartitionState.FENCE
        return [ev.RunAgain(machine.delay(), ev.FenceSegments(machine.record.segments))]
    machine.state = PartitionState.OFFLINE
    machine.offline_reason = event.reason
    return [ev.ReportOffline(event.reason)]


def on_log_damaged(machine: PartitionMachine, event: ev.RecoveryRefused, now_ms: int) -> list[Effect]:
    """Go OFFLINE, for an operator: acknowledged data is missing or damaged."""
    machine.state = PartitionState.OFFLINE
    machine.offline_reason = event.reason
    return [ev.ReportOffline(event.reason)]


def on_recovered(machine: PartitionMachine, event: ev.LogRecovered, now_ms: int) -> list[Effect]:
    """Adopt the log's end, its start and its producers; write a checkpoint of them to this broker's journal."""
    recovered = event.recovered
    machine.is_folder_known = True
    machine.high_watermark = machine.next_offset = recovered.end_offset
    machine.log_start = min(event.log_start, recovered.end_offset)
    machine.found_copies.doubt(recovered.end_offset)
    machine.producers = ProducerTable(event.producers)
    machine.failures = 0
    base = event.checkpoint
    if recovered.segments:
        last = recovered.segments[-1]
        machine.unclosed.found(machine.record.segments, last.name, last.length, recovered.end_offset)
        machine.next_segment.last_bytes = last.length
        machine.checkpointer.close(
            last.name,
            last.length,
            recovered.end_offset,
            machine.log_start,
            last.index,
            last.epochs,
            machine.producers,
        )
    elif base is not None:
        machine.unclosed.found(machine.record.segments, base.segment, base.position, base.end_offset)
        machine.next_segment.last_bytes = base.position
        machine.checkpointer.last = replace(base, is_full=True, is_closed=True, index=array("q"), producers=())
    else:
        machine.state = PartitionState.WRITE
        return []
    checkpoint = machine.full_checkpoint()
    assert checkpoint is not None
    machine.checkpointer.begin()
    return [ev.WriteIndexes(recovered, machine.log_start, event.producers), ev.WriteCheckpoint(checkpoint)]


def on_log_covered(machine: PartitionMachine, event: ev.CheckpointWritten, now_ms: int) -> list[Effect]:
    """Accept batches: the takeover's checkpoint is durable (rule 4)."""
    machine.checkpointer.written()
    machine.state = PartitionState.WRITE
    return []
