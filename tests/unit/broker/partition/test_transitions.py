"""The partition's table: every (state, event) pair."""

from __future__ import annotations

import itertools
from typing import Any, get_args

import pytest

from bmq.broker import events as ev
from bmq.broker.events import Event
from bmq.broker.partition.states import TERMINAL, PartitionState
from bmq.broker.partition.transitions import EVENTS, TABLE
from bmq.core.transitions import Cell
from bmq.storage.recovery import Recovered
from tests.unit.broker.partition.machines import OTHER, SPARE, partition

LIVING = [state for state in PartitionState if state not in TERMINAL]
# What may happen in which state, written down a second time, from the design: the table must agree.
EXPECTED: dict[type[Event], set[PartitionState]] = {
    ev.Start: {PartitionState.START},
    ev.RecordRead: {PartitionState.START},
    ev.RecordStored: {PartitionState.START, PartitionState.WRITE, PartitionState.MOVE},
    ev.RecordUnknown: {PartitionState.START, PartitionState.WRITE, PartitionState.MOVE},
    ev.RecordRefused: {PartitionState.START, PartitionState.WRITE, PartitionState.MOVE},
    ev.RecordUnreadable: set(LIVING),
    ev.SegmentsFenced: {PartitionState.FENCE},
    ev.FenceFailed: {PartitionState.FENCE},
    ev.LogRecovered: {PartitionState.RECOVER},
    ev.IndexWritten: {PartitionState.RECOVER, PartitionState.WRITE, PartitionState.MOVE},
    ev.RecoveryFailed: {PartitionState.RECOVER},
    ev.LogUnreadable: {PartitionState.RECOVER},
    ev.RecoveryRefused: {PartitionState.RECOVER, PartitionState.WRITE, PartitionState.MOVE},
    ev.CheckpointWritten: {PartitionState.RECOVER, PartitionState.WRITE, PartitionState.MOVE},
    ev.SpareReady: {PartitionState.WRITE, PartitionState.MOVE},
    ev.SpareFailed: {PartitionState.WRITE, PartitionState.MOVE},
    ev.SegmentNamed: {PartitionState.WRITE, PartitionState.MOVE},
    ev.NamingFailed: {PartitionState.WRITE, PartitionState.MOVE},
    ev.Flushed: {PartitionState.WRITE, PartitionState.MOVE},
    ev.SegmentFailed: {PartitionState.WRITE, PartitionState.MOVE},
    ev.SegmentClosed: {PartitionState.WRITE, PartitionState.MOVE},
    ev.EpochChanged: {
        PartitionState.START,
        PartitionState.FENCE,
        PartitionState.RECOVER,
        PartitionState.WRITE,
        PartitionState.MOVE,
    },
    ev.MoveRequested: {PartitionState.START, PartitionState.FENCE, PartitionState.RECOVER, PartitionState.WRITE},
    ev.LogStartRaised: {PartitionState.WRITE},
    ev.SwapWanted: {PartitionState.WRITE},
    ev.OldNamesUnneeded: {PartitionState.WRITE},
    ev.EmptyWanted: {PartitionState.WRITE},
    ev.PlaceWanted: {PartitionState.WRITE},
    ev.CopiesWanted: {PartitionState.WRITE},
    ev.CopiesCounted: {PartitionState.WRITE, PartitionState.MOVE},
    ev.StorageSlow: {PartitionState.WRITE},
    ev.Tick: {PartitionState.WRITE, PartitionState.MOVE},
}
EXTERNAL = {
    ev.EpochChanged,
    ev.MoveRequested,
    ev.LogStartRaised,
    ev.SwapWanted,
    ev.OldNamesUnneeded,
    ev.EmptyWanted,
    ev.PlaceWanted,
    ev.CopiesWanted,
    ev.StorageSlow,
    ev.Tick,
}
"""Events that come from outside at any time: they are never a bug."""


def test_every_pair_of_state_and_event_has_a_cell() -> None:
    """No pair is missing, none is there twice, every event class of the union is in the table."""
    assert set(TABLE) == set(itertools.product(PartitionState, get_args(Event)))
    assert set(EVENTS) == set(get_args(Event))


@pytest.mark.parametrize(("state", "event"), list(itertools.product(PartitionState, get_args(Event))))
def test_a_cell_is_what_the_design_says(state: PartitionState, event: type[Event]) -> None:
    """Handled where the design says so, ignored in terminal states, else a bug, unless it comes from outside."""
    cell = TABLE[state, event]
    if state in TERMINAL:
        assert cell is Cell.LATE
    elif state in EXPECTED[event]:
        assert callable(cell)
    elif event in EXTERNAL:
        assert cell is Cell.LATE
    else:
        assert cell is Cell.NEVER


def sample(event: Any) -> Event:
    """Return any instance of an event's class; its fields matter only to handlers."""
    fields: dict[Any, tuple[Any, ...]] = {
        ev.RecordRead: (OTHER, 1),
        ev.RecordStored: (OTHER, 1),
        ev.RecordUnknown: (OTHER,),
        ev.RecordRefused: (OTHER, 1),
        ev.RecordUnreadable: ("x",),
        ev.SegmentsFenced: ((),),
        ev.FenceFailed: ("x",),
        ev.LogRecovered: (Recovered(end_offset=0, segments=[], bytes_read=0, labels=[]), None, (), 0),
        ev.IndexWritten: (SPARE.name,),
        ev.RecoveryFailed: ("x",),
        ev.LogUnreadable: ("x",),
        ev.RecoveryRefused: ("x",),
        ev.CheckpointWritten: (0, 0),
        ev.SpareReady: (SPARE,),
        ev.CopiesCounted: (0, 1, 1),
        ev.SpareFailed: ("x",),
        ev.SegmentNamed: (SPARE.name,),
        ev.NamingFailed: (SPARE.name, "x"),
        ev.Flushed: (SPARE.name, 1),
        ev.SegmentFailed: (SPARE.name, "x"),
        ev.SegmentClosed: (SPARE,),
        ev.EpochChanged: (9,),
        ev.LogStartRaised: (1,),
        ev.SwapWanted: (None,),
        ev.Tick: (1,),
    }
    instance: Event = event(*fields.get(event, ()))
    return instance


@pytest.mark.parametrize(("state", "event"), list(itertools.product(PartitionState, get_args(Event))))
def test_a_late_event_does_nothing_and_an_impossible_one_is_a_bug(state: PartitionState, event: type[Event]) -> None:
    """LATE: no effect, no change.  NEVER: an assertion.  The rest is in the stories below."""
    machine = partition()
    machine._state = state
    cell = TABLE[state, event]
    if cell is Cell.LATE:
        before = repr(machine)
        assert machine.handle(sample(event), 0) == []
        assert repr(machine) == before
    elif cell is Cell.NEVER:
        with pytest.raises(AssertionError):
            machine.handle(sample(event), 0)
