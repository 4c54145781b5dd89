"""The transitions that end an ownership: a hand-over, another owner, a record that cannot be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bmq.broker import events as ev
from bmq.broker.events import Effect
from bmq.broker.partition.segment_transitions import on_registered
from bmq.broker.partition.states import PartitionState

if TYPE_CHECKING:
    from bmq.broker.partition.machine import PartitionMachine


def on_move(machine: PartitionMachine, event: ev.MoveRequested, now_ms: int) -> list[Effect]:
    """Stop accepting batches; flush, close and release."""
    machine.state = PartitionState.MOVE
    has_unsent = machine.current is not None and bool(machine.batches.unsent)
    machine.is_draining = machine.current is not None and not has_unsent
    return [ev.WAKE, *machine.advance()] if has_unsent else machine.advance()


def on_released(machine: PartitionMachine, event: ev.RecordStored, now_ms: int) -> list[Effect]:
    """Note that the partition is released, or that a last segment was registered during the move."""
    if machine.next_segment.is_registering:
        return on_registered(machine, event, now_ms)
    machine.stored(event)
    machine.final_checkpoint = machine.full_checkpoint()
    machine.state = PartitionState.CLOSED
    machine.is_released = True
    return []


def on_give_up(machine: PartitionMachine, event: ev.MoveRequested, now_ms: int) -> list[Effect]:
    """End an ownership that accepted nothing yet: the next owner fences as after any predecessor."""
    machine.state = PartitionState.CLOSED
    return [ev.Abort()]


def on_other_epoch(machine: PartitionMachine, event: ev.EpochChanged, now_ms: int) -> list[Effect]:
    """Stop, unless the epoch is this owner's: refuse every batch that waits, and abort the files."""
    return machine.fence() if event.epoch != machine.epoch else []


def on_older_store(machine: PartitionMachine, event: ev.RecoveryRefused, now_ms: int) -> list[Effect]:
    """Stop before the first write: the folder has segments that the metadata store does not know."""
    return _go_offline(machine, event.reason)


def on_unreadable(machine: PartitionMachine, event: ev.RecordUnreadable, now_ms: int) -> list[Effect]:
    """Stop as if fenced, since the writer of the record may own the partition; wait for an operator."""
    return _go_offline(machine, event.reason)


def _go_offline(machine: PartitionMachine, reason: str) -> list[Effect]:
    machine.final_checkpoint = machine.full_checkpoint()
    machine.state = PartitionState.OFFLINE
    machine.offline_reason = reason
    return [*machine.refuse_all(reason), ev.ReportOffline(reason)]
