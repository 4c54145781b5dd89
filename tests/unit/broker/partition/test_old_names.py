"""Names that a takeover leaves in the record until indexes are written: in every order of events."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from bmq.broker import events as ev
from bmq.broker.events import Effect
from bmq.broker.partition.machine import PartitionMachine
from bmq.core.model import SegmentName
from bmq.meta.ownership import PartitionRecord, SegmentEntry, Swap
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.recovery import FencedSegment, Found, Recovered
from tests.unit.broker.partition.machines import KEY, SPARE, append, claimed

NAMES = tuple(SegmentName(10 * n, 1, n) for n in range(3))
FIRST, SECOND, NEWEST = NAMES
SWAP = Swap(name=SegmentName(0, 1, 0, 1), draft="/p/.clean-a", draft_index="/p/.clean-b")
EVENTS = "first", "second", "janitor", "stored", "unknown", "refused", "swap", "append"


def taken_over(unindexed: tuple[SegmentName, ...] = NAMES[:2]) -> PartitionMachine:
    """Return a machine in WRITE, whose record names two segments and the newest one."""
    entries = tuple(replace(SPARE, name=name, spare=f"/s{name.n}") for name in NAMES)
    machine, _ = claimed(PartitionRecord(epoch=1, owner="old", segments=entries, journals=("old",)))
    machine.handle(ev.SegmentsFenced(tuple(FencedSegment(name=n, found=Found.FINAL, length=5) for n in NAMES)), 0)
    base = Checkpoint(key=KEY, segment=NEWEST, position=5, end_offset=30, log_start=0)
    recovered = Recovered(end_offset=30, segments=[], bytes_read=0, labels=[])
    machine.handle(ev.LogRecovered(recovered, base, (), 0, frozenset(unindexed)), 0)
    machine.handle(ev.CheckpointWritten(30, 0), 0)
    return machine


class Story:
    """A machine, and what stands for the janitor, the metadata store and storage around it."""

    def __init__(self) -> None:
        self.machine = taken_over()
        self.pending: list[ev.StoreRecord] = []
        self.files: list[SegmentEntry] = []
        self.lacking = {FIRST, SECOND}
        self.revision = 1
        self.drops = 0

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, ev.RunAgain):
                effect = effect.effect
            if isinstance(effect, ev.StoreRecord):
                assert not self.pending, "one write at a time"
                self.pending.append(effect)
                self.check(effect.record)
            elif isinstance(effect, ev.CreateSpare):
                self.perform(self.machine.handle(ev.SpareReady(replace(SPARE, spare="/new")), 0))
            elif isinstance(effect, ev.NameSegment):
                self.perform(self.machine.handle(ev.SegmentNamed(effect.entry.name), 0))

    def check(self, record: PartitionRecord) -> None:
        names = {entry.name for entry in record.segments}
        assert names >= self.lacking | {NEWEST}, "a successor needs them"
        assert record.journals
        assert record.last_registered >= NEWEST.registration

    def happen(self, event: str) -> None:
        machine = self.machine
        if event in ("first", "second"):
            name = FIRST if event == "first" else SECOND
            if name in self.lacking:
                self.lacking.remove(name)
                self.perform(machine.handle(ev.IndexWritten(name), 0))
        elif event == "janitor":
            if machine.has_indexed_names and machine.has_old_names:
                before = len(self.pending)
                self.perform(machine.handle(ev.OldNamesUnneeded(), 0))
                self.drops += len(self.pending) - before
        elif event == "swap":
            self.perform(machine.handle(ev.SwapWanted(SWAP if machine.swap is None else None), 0))
        elif event == "append":
            append(machine)
            self.perform(machine.after_append(0))
        elif self.pending:
            store = self.pending.pop()
            if event == "stored":
                self.revision += 1
                self.perform(machine.handle(ev.RecordStored(store.record, self.revision), 0))
            elif event == "unknown":
                self.perform(machine.handle(ev.RecordUnknown(store.record), 0))
            else:
                self.revision += 1
                self.perform(machine.handle(ev.RecordRefused(machine.record, self.revision), 0))
                assert self.pending[0].record == store.record


@pytest.mark.slow
def test_in_every_order_of_events_exactly_the_indexed_names_are_dropped() -> None:
    for events in itertools.product(EVENTS, repeat=4):
        story = Story()
        for event in events:
            story.happen(event)
        for event in ("first", "second", *("janitor", "stored") * 6):
            story.happen(event)
        machine = story.machine
        names = {entry.name for entry in machine.record.segments}
        assert not story.pending, events
        assert not names & {FIRST, SECOND}, events
        assert NEWEST in names, events
        assert not machine.has_indexed_names, events
        assert story.drops <= 2, events


def test_a_name_whose_index_comes_while_the_record_is_written_is_dropped_too() -> None:
    """Nobody writes to the log, and its last segment may stay open for minutes."""
    story = Story()
    for event in ("first", "janitor", "second", "stored"):
        story.happen(event)
    assert [entry.name for entry in story.machine.record.segments] == [SECOND, NEWEST]
    assert story.machine.has_indexed_names
    for event in ("janitor", "stored"):
        story.happen(event)
    assert [entry.name for entry in story.machine.record.segments] == [NEWEST]
    assert not story.machine.has_indexed_names


def test_nothing_is_dropped_for_the_index_of_the_newest_segment() -> None:
    machine = taken_over((NEWEST,))
    machine.handle(ev.IndexWritten(NEWEST), 0)
    (store,) = machine.handle(ev.OldNamesUnneeded(), 0)
    assert isinstance(store, ev.StoreRecord)
    assert [entry.name for entry in store.record.segments] == [NEWEST]
    machine.handle(ev.RecordStored(store.record, 3), 0)
    machine.handle(ev.IndexWritten(NEWEST), 0)
    assert not machine.has_old_names
    assert machine.handle(ev.OldNamesUnneeded(), 0) == []
