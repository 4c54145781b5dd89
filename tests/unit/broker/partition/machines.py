"""Partitions' state machines in tests, without any I/O around them, and events for them."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

from bmq.broker import events as ev
from bmq.broker.config import BrokerConfig, LogConfig
from bmq.broker.events import Effect
from bmq.broker.partition.batches import Duplicate
from bmq.broker.partition.machine import PartitionMachine
from bmq.broker.partition.segment_steps import advance
from bmq.broker.partition.states import PartitionState
from bmq.broker.pending import Pending
from bmq.core.model import PartitionKey, SegmentName
from bmq.core.records.batch import Batch, Record, build_batch
from bmq.meta.ownership import PartitionRecord, SegmentEntry

KEY = PartitionKey(uuid.UUID(int=1), 0)
SPARE = SegmentEntry(name=SegmentName(-1, 1, -1), spare="/s1", holder="me", file_id=1)
OTHER = PartitionRecord(epoch=9, owner="other")


def partition(**config: Any) -> PartitionMachine:
    return PartitionMachine(KEY, "me", LogConfig(), replace(BrokerConfig(), **config))


def batch(*, pid: int = -1, sequence: int = -1, size: int = 10) -> Batch:
    epoch = 0 if pid >= 0 else -1
    data = build_batch(
        [Record(value=b"x" * size)], producer_id=pid, producer_epoch=epoch, base_sequence=sequence, base_timestamp=1
    )
    return Batch(memoryview(data))


def offer(machine: PartitionMachine, produced: Batch, wall_ms: int) -> Pending | Duplicate:
    machine.check(produced)
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


def with_spare() -> PartitionMachine:
    """Return an idle machine with an open segment that is nearly full and the next one's file ready."""
    machine = opened()
    assert machine.current is not None
    machine.reconfigure(replace(machine.config, segment_bytes=machine.current.position))
    flush(machine)
    assert kinds(machine.handle(ev.CheckpointWritten(1, 0), 0)) == []
    effects = advance(machine)
    assert kinds(effects) == ["CreateSpare"]
    assert machine.handle(ev.SpareReady(replace(SPARE, spare="/s2")), 0) == []
    return machine
