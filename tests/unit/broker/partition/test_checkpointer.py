"""A partition's checkpoints: when they are due, one at a time, full or delta."""

from __future__ import annotations

from bmq.broker import events as ev
from bmq.broker.partition.machine import PartitionMachine
from bmq.core.records.batch import Batch
from bmq.core.records.control import Marker
from bmq.storage.checkpoint import AbortedTransaction, Checkpoint, merge
from tests.unit.broker.partition.machines import append, flush, only, opened
from tests.unit.broker.partition.transactional import data, marker


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


# ------------------------------------------------------------------------------------------------------ transactions


def write(machine: PartitionMachine, *batches: Batch) -> None:
    """Append and flush batches, as a coordinator's."""
    for batch in batches:
        machine.accept(batch, 1)
    machine.take(1 << 20, 0)
    flush(machine)


def checkpoint_of(machine: PartitionMachine, now_ms: int) -> Checkpoint:
    """Return the checkpoint that is due by time; it is durable at once."""
    effect = only(machine.handle(ev.Tick(1), now_ms), ev.WriteCheckpoint)
    assert isinstance(effect, ev.WriteCheckpoint)
    machine.handle(ev.CheckpointWritten(effect.checkpoint.end_offset, 0), now_ms)
    return effect.checkpoint


def test_checkpoints_hold_open_and_aborted_transactions_and_deltas_only_what_is_new() -> None:
    machine = opened(checkpoint_ms=500)
    write(machine, data(-1, pid=7), data(-1, pid=8), marker(Marker.ABORT, pid=7), data(-1, pid=9))
    full = checkpoint_of(machine, 1_000)
    assert (full.is_full, full.first_open_txn, full.aborted) == (True, 2, (AbortedTransaction(7, 1, 3, 2),))
    write(machine, marker(Marker.ABORT, pid=8))
    delta = checkpoint_of(machine, 2_000)
    assert (delta.is_full, delta.first_open_txn, delta.aborted) == (False, 4, (AbortedTransaction(8, 2, 5, 4),))
    assert {state.producer_id: state.txn_start for state in delta.producers} == {8: -1}
    whole = machine.full_checkpoint()
    assert whole is not None
    assert merge(full, delta).aborted == whole.aborted == (*full.aborted, *delta.aborted)


def test_an_index_holds_the_transactions_aborted_in_its_segment_and_those_open_at_its_end() -> None:
    """Expect the same of a checkpoint while no segment is open."""
    machine = opened()
    write(machine, data(-1, pid=7), data(-1, pid=8), marker(Marker.ABORT, pid=7))
    machine.handle(ev.StorageSlow(), 0)
    closed = machine.full_checkpoint()
    assert closed is not None
    assert (closed.first_open_txn, closed.aborted) == (2, (AbortedTransaction(7, 1, 3, 2),))
    assert machine.current is None
    assert {state.producer_id: state.txn_start for state in closed.producers} == {7: -1, 8: 2}


def test_many_aborted_transactions_bring_the_next_full_checkpoint_nearer() -> None:
    """A delta is merged with those before it: their sum is bounded, whatever fills it."""
    machine = opened(checkpoint_ms=500, checkpoint_full_bytes=2 * 32)
    write(machine, data(-1))
    kinds = [checkpoint_of(machine, 1_000).is_full]
    for turn in range(2, 6):
        write(machine, marker(Marker.ABORT), data(-1))
        kinds.append(checkpoint_of(machine, 1_000 * turn).is_full)
    assert kinds == [True, False, False, False, True]
