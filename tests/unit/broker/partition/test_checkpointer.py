"""A partition's checkpoints: when they are due, one at a time, full or delta."""

from __future__ import annotations

from bmq.broker import events as ev
from tests.unit.broker.partition.machines import append, flush, only, opened


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
