"""The transitions that end an ownership: a hand-over, another owner, a record that cannot be read."""

from __future__ import annotations

from bmq.broker import events as ev
from bmq.broker.events import Effect
from bmq.broker.partition.owned_log import OwnedLog
from bmq.broker.partition.segment_steps import advance
from bmq.broker.partition.segment_transitions import on_stored


def on_move(machine: OwnedLog, event: ev.MoveRequested, now_ms: int) -> list[Effect]:
    """Stop accepting batches; flush, close and release."""
    machine.begin_move()
    takes_more = machine.current is not None and not machine.is_draining
    return [ev.WAKE, *advance(machine)] if takes_more else advance(machine)


def on_released(machine: OwnedLog, event: ev.RecordStored, now_ms: int) -> list[Effect]:
    """Note the release, or the registration of a last segment or a swap during the move."""
    if event.record.owner:
        return on_stored(machine, event, now_ms)
    machine.released(event)
    return []


def on_give_up(machine: OwnedLog, event: ev.MoveRequested, now_ms: int) -> list[Effect]:
    """End an ownership that accepted nothing yet: the next owner fences as after any predecessor."""
    machine.give_up()
    return [ev.Abort()]


def on_other_epoch(machine: OwnedLog, event: ev.EpochChanged, now_ms: int) -> list[Effect]:
    """Stop, unless the epoch is this owner's: refuse every batch that waits, and abort the files."""
    return machine.fence() if event.epoch != machine.epoch else []


def on_older_store(machine: OwnedLog, event: ev.RecoveryRefused, now_ms: int) -> list[Effect]:
    """Stop before the first write: the folder has segments that the metadata store does not know."""
    return _go_offline(machine, event.reason)


def on_unreadable(machine: OwnedLog, event: ev.RecordUnreadable, now_ms: int) -> list[Effect]:
    """Stop as if fenced, since the writer of the record may own the partition; wait for an operator."""
    return _go_offline(machine, event.reason)


def _go_offline(machine: OwnedLog, reason: str) -> list[Effect]:
    report = machine.go_offline(reason)
    return [*machine.refuse_all(reason), report]
