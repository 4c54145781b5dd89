"""The steps from one segment to the next, and to a release: shared by several transitions."""

from __future__ import annotations

from dataclasses import replace

from bmq.broker.events import Effect
from bmq.broker.partition.owned_log import OwnedLog
from bmq.broker.partition.segment_roll import Spare, block_for, whole_mb
from bmq.broker.partition.states import PartitionState


def advance(machine: OwnedLog) -> list[Effect]:
    """Close a drained segment, open the next one if it is needed, prepare it if it will be needed soon."""
    effects: list[Effect] = []
    if machine.current is not None and machine.is_draining and not machine.batches.inflight:
        effects.append(machine.close_segment())
    if machine.current is None:
        effects += _open_next(machine)
    elif machine.next_segment.spare is Spare.NONE and machine.is_next_wanted:
        effects.append(create_spare(machine))
    if machine.state is PartitionState.MOVE:
        effects += _hand_over(machine)
    return effects


def drain(machine: OwnedLog) -> list[Effect]:
    """Close the open segment once its batches are flushed; waiting batches go to the next segment."""
    machine.drain()
    return advance(machine)


def _open_next(machine: OwnedLog) -> list[Effect]:
    following, unsent = machine.next_segment, machine.batches.unsent
    if following.is_chosen or machine.storing is not None:
        return []  # a swap's write: the next segment is registered over it
    if not unsent and not machine.wants_empty:
        return following.drop()  # not needed now: it would hold a pipeline, and room on storage
    if following.spare is Spare.NONE:
        return [create_spare(machine)]
    if following.spare is Spare.CREATING:
        return []
    if unsent and (following.block_bytes < unsent[0].batch.size or following.copies < unsent[0].copies):
        return [*following.drop(), create_spare(machine)]
    return _register(machine)


def create_spare(machine: OwnedLog, copies: int = 1) -> Effect:
    """Return the effect that creates a spare: it fits the size and the copies of the first waiting batch."""
    following, broker, unsent = machine.next_segment, machine.broker, machine.batches.unsent
    if machine.current is not None:
        following.learn(machine.current)
    first_bytes = unsent[0].batch.size if unsent else 0
    segment_bytes = machine.config.segment_bytes
    usual = block_for(following.last_bytes, broker.first_block_bytes, broker.block_bytes, segment_bytes)
    copies = max(copies, unsent[0].copies) if unsent else copies
    least = max(broker.small_block_bytes, whole_mb(first_bytes))
    block_bytes = max(usual, whole_mb(first_bytes))
    return following.create(machine.epoch, block_bytes, first_bytes, copies, least, machine.unchecked_after)


def _register(machine: OwnedLog) -> list[Effect]:
    """Register the next segment: everything before its base is flushed (rules 3 and 5)."""
    assert not machine.batches.inflight
    base, unsent = machine.high_watermark, machine.batches.unsent
    assert not unsent or unsent[0].batch.base_offset == base
    entry = machine.next_segment.register(base, machine.epoch)
    return machine.store(machine.next_record(entry), machine.revision)


def _hand_over(machine: OwnedLog) -> list[Effect]:
    """Take the next step of a hand-over: flushed, then closed, then covered by a checkpoint, then released."""
    if not machine.batches.is_idle:
        return []
    if machine.current is not None:
        return [machine.close_segment()]
    dropped = machine.next_segment.drop()
    if dropped:
        return [*dropped, *_hand_over(machine)]
    if machine.next_segment.spare is Spare.CREATING or machine.next_segment.is_chosen or machine.unclosed:
        return []
    if machine.storing is not None or machine.checkpointer.is_under_way:
        return []
    is_settled = machine.unclosed.is_settled(machine.checkpointer.last, machine.log_start)
    return machine.store(replace(machine.next_record(owner=""), is_settled=is_settled), machine.revision)
