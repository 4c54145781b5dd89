"""The transitions of a takeover: START, FENCE and RECOVER, until the partition accepts batches."""

from __future__ import annotations

from dataclasses import replace

from bmq.broker import events as ev
from bmq.broker.events import Effect
from bmq.broker.partition.owned_log import OwnedLog
from bmq.meta.ownership import PartitionRecord


def on_start(machine: OwnedLog, event: ev.Start, now_ms: int) -> list[Effect]:
    """Read the record of the present owner."""
    return [ev.ReadRecord()]


def on_record_read(machine: OwnedLog, event: ev.RecordRead, now_ms: int) -> list[Effect]:
    """Raise the epoch; keep the predecessor's segments and journals in the record."""
    return _claim(machine, event.record, event.revision)


def _claim(machine: OwnedLog, record: PartitionRecord, revision: int) -> list[Effect]:
    machine.predecessor.read(record)
    journals = (*(j for j in record.journals if j != machine.incarnation), machine.incarnation)
    claimed = replace(
        record, epoch=record.epoch + 1, owner=machine.incarnation, journals=journals, is_settled=False
    )  # not settled: checkpoints of what is written from here on are in this broker's journal
    return machine.store(claimed, revision)


def on_claimed(machine: OwnedLog, event: ev.RecordStored, now_ms: int) -> list[Effect]:
    """Fence the segments that the record lists; write at once if there are none.

    Without segments the takeover reads nothing from storage, so thousands of partitions without records move in a
    moment. The folder is looked at before the first segment is created (``OwnedLog.unchecked_after``).
    """
    machine.claimed(event)
    if not event.record.segments:
        machine.open()
        return []
    machine.fence_predecessor()
    return [ev.FenceSegments(event.record.segments)]


def on_write_unknown(machine: OwnedLog, event: ev.RecordUnknown, now_ms: int) -> list[Effect]:
    """Send the same write again: only a commit with the same compare settles it (rule 3)."""
    assert event.record == machine.storing
    return [ev.RunAgain(machine.delay(), ev.StoreRecord(event.record, machine.revision))]


def on_claim_refused(machine: OwnedLog, event: ev.RecordRefused, now_ms: int) -> list[Effect]:
    """Claim again over a late registration of the predecessor; stop if another broker has raised the epoch."""
    assert machine.storing is not None
    if event.record.epoch >= machine.storing.epoch:
        return machine.fence()
    return _claim(machine, event.record, event.revision)  # the predecessor registered a segment in between


def on_fenced(machine: OwnedLog, event: ev.SegmentsFenced, now_ms: int) -> list[Effect]:
    """Recover the log: no predecessor can write any more, so read behind the last checkpoint."""
    machine.recover()
    record, predecessor = machine.record, machine.predecessor
    return [
        ev.RecoverLog(
            event.segments,
            record.segments,
            predecessor.journals,
            predecessor.is_settled,
            predecessor.passes_damaged,
            machine.epoch,
            record.last_registered,
        )
    ]


def on_fence_failed(machine: OwnedLog, event: ev.FenceFailed, now_ms: int) -> list[Effect]:
    """Try the fence again later."""
    return [ev.RunAgain(machine.delay(), ev.FenceSegments(machine.record.segments))]


def on_read_failed(machine: OwnedLog, event: ev.RecoveryFailed, now_ms: int) -> list[Effect]:
    """Begin again with the fence, since a file may have been moved meanwhile."""
    machine.fence_predecessor()
    return [ev.RunAgain(machine.delay(), ev.FenceSegments(machine.record.segments))]


def on_log_unreadable(machine: OwnedLog, event: ev.LogUnreadable, now_ms: int) -> list[Effect]:
    """Try again for ``unreadable_ms``, from the fence on, then once without damaged journals; then go OFFLINE."""
    was_last = machine.predecessor.unreadable(now_ms)
    if was_last:
        return [machine.go_offline(event.reason)]
    machine.fence_predecessor()
    return [ev.RunAgain(machine.delay(), ev.FenceSegments(machine.record.segments))]


def on_log_damaged(machine: OwnedLog, event: ev.RecoveryRefused, now_ms: int) -> list[Effect]:
    """Go OFFLINE, for an operator: acknowledged data is missing or damaged."""
    return [machine.go_offline(event.reason)]


def on_recovered(machine: OwnedLog, event: ev.LogRecovered, now_ms: int) -> list[Effect]:
    """Adopt the log's end, its start and its producers; write a checkpoint of them to this broker's journal."""
    machine.adopt(event)
    checkpoint = machine.full_checkpoint()
    if checkpoint is None:  # nothing was ever flushed
        machine.open()
        return []
    machine.checkpointer.begin()
    return [ev.WriteIndexes(event.recovered, machine.log_start), ev.WriteCheckpoint(checkpoint)]


def on_index_written(machine: OwnedLog, event: ev.IndexWritten, now_ms: int) -> list[Effect]:
    """Note that neither the record nor this owner's memory need stand in for a recovered segment's index."""
    machine.indexed(event.name)
    return []


def on_log_covered(machine: OwnedLog, event: ev.CheckpointWritten, now_ms: int) -> list[Effect]:
    """Accept batches: the takeover's checkpoint is durable (rule 4)."""
    machine.checkpointer.written()
    machine.open()
    return []
