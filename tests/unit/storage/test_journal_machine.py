"""The journal writer's table: every (state, event) pair, and what is acknowledged when."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, get_args

import pytest

from bmq.core.transitions import Cell
from bmq.storage import journal_events as ev
from bmq.storage.journal_events import Effect, Event, QueuedRecord
from bmq.storage.journal_machine import (
    IDLE_RETRY_S,
    PATIENCE_MAX_S,
    ROLL_AGAIN_S,
    SYNC_S,
    TABLE,
    JournalMachine,
)
from bmq.storage.journal_states import REFUSING, JournalState

S = JournalState
BLOCK = 64 << 20
FIRST = 100
"""Bytes of the first file's snapshot."""
NOW = 1_000.0
LATER = NOW + 100.0
"""A time at which every planned try is due."""


def record(size: int = 10, *, sync: bool = False, is_probe: bool = False) -> QueuedRecord:
    return QueuedRecord(b"x" * size, size, asyncio.get_running_loop().create_future(), sync, is_probe)


def types(effects: list[Effect]) -> list[type[Any]]:
    return [type(effect) for effect in effects]


def play(machine: JournalMachine, *events: Event, now: float = NOW) -> list[Effect]:
    """Let the machine handle all events, and return the effects of the last one."""
    effects: list[Effect] = []
    for event in events:
        effects = machine.handle(event, now)
    return effects


def machine_in(state: JournalState) -> JournalMachine:
    """Return a machine that has reached the state by events, as the shell sends them."""
    machine = JournalMachine(roll_bytes=1_000)
    begun: list[Event] = [ev.Start(), ev.Created(3, BLOCK), ev.SnapshotFlushed(3, FIRST)]
    creating = [*begun, ev.RenewalRequested(), ev.Turn(FIRST)]
    roll = [*creating, ev.Turn(FIRST, is_next_known=True)]
    rolling = [*roll, ev.Created(3, BLOCK, 3)]
    paths: dict[JournalState, list[Event]] = {
        S.START: [],
        S.CREATE: begun[:1],
        S.SNAPSHOT: begun[:2],
        S.PAUSE: [*begun[:1], ev.CreateFailed("away")],
        S.IDLE_PAUSE: [*begun[:1], ev.CreateFailed("away"), ev.PauseOver()],
        S.OPEN: begun,
        S.FLUSH: begun,
        S.LEAVE: [*begun, ev.Turn(FIRST, is_broken=True)],
        S.ROLL: roll,
        S.ROLL_SNAPSHOT: rolling,
        S.REPLACE: [*rolling, ev.SnapshotFlushed(3, FIRST)],
        S.CLOSE: [*begun, ev.CloseRequested(), ev.Turn(FIRST)],
        S.DISCARD: [*creating, ev.CloseRequested(), ev.Turn(FIRST), ev.FileClosed()],
        S.ENDED: [*begun, ev.CloseRequested(), ev.Turn(FIRST), ev.FileClosed()],
    }
    if state is S.DROP:
        play(machine, ev.Start(), ev.Created(1, BLOCK), ev.SnapshotFlushed(1, FIRST))
        play(machine, ev.Turn(FIRST), ev.Turn(FIRST, is_next_known=True), ev.Created(1, BLOCK, 1), now=LATER)
    else:
        play(machine, *paths[state])
    if state is S.FLUSH:
        machine.accept(record())
        play(machine, ev.Turn(FIRST))
        machine.take(100)
    assert machine.state is state
    return machine


SAMPLES: dict[type[Event], Event] = {
    ev.Start: ev.Start(),
    ev.CloseRequested: ev.CloseRequested(),
    ev.RenewalRequested: ev.RenewalRequested(),
    ev.Stopped: ev.Stopped(),
    ev.Turn: ev.Turn(FIRST),
    ev.Created: ev.Created(3, BLOCK, 3),
    ev.NumberTaken: ev.NumberTaken(),
    ev.CreateFailed: ev.CreateFailed("full", is_no_room=True),
    ev.SnapshotFlushed: ev.SnapshotFlushed(3, FIRST),
    ev.SnapshotFailed: ev.SnapshotFailed("broken", FIRST),
    ev.Flushed: ev.Flushed(FIRST + 10),
    ev.FlushFailed: ev.FlushFailed(),
    ev.FileLeft: ev.FileLeft(),
    ev.PauseOver: ev.PauseOver(),
    ev.FormerClosed: ev.FormerClosed(True),
    ev.NextDropped: ev.NextDropped(),
    ev.FileClosed: ev.FileClosed(),
}
# What each event leads to, written down a second time, from the design: the state, and the effects in their order.
RESULTS: dict[tuple[JournalState, type[Event]], tuple[JournalState, list[type[Any]]]] = {
    (S.START, ev.Start): (S.CREATE, [ev.CreateNext, ev.AwaitNext]),
    (S.CREATE, ev.Created): (S.SNAPSHOT, [ev.WriteSnapshot]),
    (S.CREATE, ev.NumberTaken): (S.CREATE, [ev.CreateNext, ev.AwaitNext]),
    (S.CREATE, ev.CreateFailed): (S.PAUSE, [ev.ReportNoRoom, ev.Pause]),
    (S.SNAPSHOT, ev.SnapshotFlushed): (S.OPEN, [ev.WakeNow, ev.WaitForWork]),
    (S.SNAPSHOT, ev.SnapshotFailed): (S.PAUSE, [ev.LeaveNext, ev.Pause]),
    (S.PAUSE, ev.PauseOver): (S.IDLE_PAUSE, [ev.Pause]),
    (S.IDLE_PAUSE, ev.PauseOver): (S.CREATE, [ev.CreateNext, ev.AwaitNext]),
    (S.OPEN, ev.Turn): (S.OPEN, [ev.DeleteOld, ev.WaitForWork]),
    (S.FLUSH, ev.Flushed): (S.OPEN, [ev.Acknowledge, ev.DeleteOld, ev.WaitForWork]),
    (S.FLUSH, ev.FlushFailed): (S.LEAVE, [ev.Requeue, ev.LeaveFile]),
    (S.LEAVE, ev.FileLeft): (S.CREATE, [ev.CreateNext, ev.AwaitNext]),
    (S.ROLL, ev.Created): (S.ROLL_SNAPSHOT, [ev.WriteSnapshot]),
    (S.ROLL, ev.NumberTaken): (S.OPEN, [ev.WakeAt, ev.WaitForWork]),
    (S.ROLL, ev.CreateFailed): (S.OPEN, [ev.ReportNoRoom, ev.WakeAt, ev.WaitForWork]),
    (S.ROLL_SNAPSHOT, ev.SnapshotFlushed): (S.REPLACE, [ev.WakeNow, ev.ConfirmRenewal, ev.CloseFormer]),
    (S.ROLL_SNAPSHOT, ev.SnapshotFailed): (S.OPEN, [ev.LeaveNext, ev.WakeAt, ev.WaitForWork]),
    (S.DROP, ev.NextDropped): (S.OPEN, [ev.WakeAt, ev.WaitForWork]),
    (S.REPLACE, ev.FormerClosed): (S.OPEN, [ev.KeepFormer, ev.NoteOld, ev.WakeNow, ev.WaitForWork]),
    (S.CLOSE, ev.FileClosed): (S.ENDED, []),
    (S.DISCARD, ev.NextDropped): (S.ENDED, []),
    **{
        (state, event): (state, [ev.WakeNow])
        for state in S
        for event in (ev.CloseRequested, ev.RenewalRequested)
        if state not in (S.CLOSE, S.DISCARD, S.ENDED)
    },
    **{(state, ev.Stopped): (S.ENDED, [ev.AbortFiles, ev.Cancel]) for state in S if state not in (S.START, S.ENDED)},
}
REQUESTS = {ev.CloseRequested, ev.RenewalRequested}
"""Events that come from outside at any time: they are never a bug."""
PAIRS = list(itertools.product(JournalState, get_args(Event)))


def test_every_pair_of_state_and_event_has_a_cell() -> None:
    assert set(TABLE) == set(PAIRS)
    assert set(SAMPLES) == set(get_args(Event))


@pytest.mark.parametrize(("state", "event"), PAIRS)
async def test_an_event_does_what_the_design_says(state: JournalState, event: type[Event]) -> None:
    """A pair of the design has its result; a late request does nothing; any other pair cannot occur and raises."""
    machine = machine_in(state)
    if (state, event) in RESULTS:
        effects = machine.handle(SAMPLES[event], NOW)
        assert (machine.state, types(effects)) == RESULTS[state, event]
    elif event in REQUESTS:
        assert TABLE[state, event] is Cell.LATE
        before = repr(machine)
        assert machine.handle(SAMPLES[event], NOW) == []
        assert repr(machine) == before
    else:
        assert TABLE[state, event] is Cell.NEVER
        with pytest.raises(AssertionError, match=state.name):
            machine.handle(SAMPLES[event], NOW)


@pytest.mark.parametrize("state", list(JournalState))
async def test_a_record_is_accepted_while_it_can_become_durable(state: JournalState) -> None:
    machine = machine_in(state)
    before = repr(machine)
    assert machine.accept(record()) is (state not in (S.CLOSE, S.DISCARD, S.ENDED))
    assert (repr(machine) == before) is (state in REFUSING)


async def test_a_record_is_acknowledged_after_its_flush_only() -> None:
    machine = machine_in(S.OPEN)
    queued = record(sync=True)
    machine.accept(queued)
    assert play(machine, ev.Turn(FIRST)) == [ev.WriteRecords()]
    later = record()
    machine.accept(later)
    assert machine.take(100) == ([queued, later], 20, True)
    third = record()
    machine.accept(third)
    done, *rest = play(machine, ev.Flushed(FIRST + 20))
    assert isinstance(done, ev.Acknowledge)
    assert (done.records, done.size) == ([queued, later], 20)
    assert rest[0] == ev.WakeNow(), "the third record came during the flush"
    assert play(machine, ev.Turn(FIRST)) == [ev.WriteRecords()]
    assert machine.take(100) == ([third], 10, False)


async def test_a_flush_takes_as_many_records_as_fit_and_at_least_one() -> None:
    machine = machine_in(S.OPEN)
    large, *small = records = [record(200), record(60), record(40), record(1)]
    for each in records:
        machine.accept(each)
    taken = []
    while machine.state is S.OPEN and play(machine, ev.Turn(FIRST)) == [ev.WriteRecords()]:
        taken.append(machine.take(100)[0])
        play(machine, ev.Flushed(FIRST))
    assert taken == [[large], small[:2], small[2:]]


@pytest.mark.parametrize("sync", [False, True])
async def test_a_failed_flush_acknowledges_nothing_and_its_records_come_first_in_the_next_file(sync: bool) -> None:
    machine = machine_in(S.OPEN)
    first, second = record(sync=sync), record()
    machine.accept(first)
    play(machine, ev.Turn(FIRST))
    machine.take(100)
    machine.accept(second)
    effects = play(machine, ev.FlushFailed())
    assert effects == [ev.Requeue(10), ev.LeaveFile()]
    effects = play(machine, ev.FileLeft(), ev.Created(3, BLOCK), ev.SnapshotFlushed(3, FIRST))
    assert ev.Acknowledge not in types(effects), "the snapshot alone acknowledges no record"
    assert machine.is_synced is sync, "the snapshot is synced if a record that it repeats was to be"
    assert play(machine, ev.Turn(FIRST)) == [ev.WriteRecords()]
    assert machine.take(100) == ([first, second], 20, sync)


async def test_records_of_a_stopped_journal_are_cancelled_in_order() -> None:
    machine = machine_in(S.OPEN)
    first, second = record(), record()
    machine.accept(first)
    play(machine, ev.Turn(FIRST))
    machine.take(100)
    machine.accept(second)
    assert play(machine, ev.Stopped()) == [ev.AbortFiles(), ev.Cancel([first, second])]


async def test_a_closing_journal_writes_its_queue_first() -> None:
    machine = machine_in(S.OPEN)
    machine.accept(record())
    play(machine, ev.CloseRequested())
    assert play(machine, ev.Turn(FIRST)) == [ev.WriteRecords()]
    machine.take(100)
    assert machine.accept(record()), "the queue is still written"
    assert types(play(machine, ev.Flushed(FIRST)))[-1] is ev.WaitForWork
    assert play(machine, ev.Turn(FIRST)) == [ev.WriteRecords()]
    machine.take(100)
    assert types(play(machine, ev.Flushed(FIRST))) == [ev.Acknowledge, ev.DeleteOld, ev.CloseFile]


@pytest.mark.parametrize("state", [S.START, S.PAUSE, S.IDLE_PAUSE, S.SNAPSHOT, S.LEAVE, S.ROLL, S.REPLACE])
async def test_a_closing_journal_with_an_empty_queue_begins_nothing_more(state: JournalState) -> None:
    events: dict[JournalState, list[Event]] = {
        S.START: [ev.Start()],
        S.PAUSE: [ev.PauseOver()],
        S.IDLE_PAUSE: [ev.PauseOver()],
        S.SNAPSHOT: [ev.SnapshotFlushed(3, FIRST)],
        S.LEAVE: [ev.FileLeft()],
        S.ROLL: [ev.NumberTaken()],
        S.REPLACE: [ev.FormerClosed(True)],
    }
    machine = machine_in(state)
    play(machine, ev.CloseRequested(), *events[state])
    assert machine.state is (S.CLOSE if state in (S.SNAPSHOT, S.ROLL, S.REPLACE) else S.ENDED)


async def test_a_next_file_is_removed_when_the_journal_ends_without_an_open_one() -> None:
    machine = machine_in(S.OPEN)
    play(machine, ev.RenewalRequested(), ev.Turn(FIRST), ev.CloseRequested(), ev.Turn(FIRST, is_broken=True))
    assert play(machine, ev.FileLeft()) == [ev.DiscardNext()]


async def test_the_file_after_a_broken_one_is_the_one_that_was_being_created() -> None:
    machine = machine_in(S.OPEN)
    play(machine, ev.RenewalRequested(), ev.Turn(FIRST), ev.Turn(FIRST, is_broken=True))
    assert play(machine, ev.FileLeft()) == [ev.AwaitNext()]


async def test_patience_grows_with_bytes_a_sync_and_each_late_flush() -> None:
    machine = machine_in(S.FLUSH)
    first = machine.patience_s(0, sync=False)
    assert machine.patience_s(0, sync=True) == first + SYNC_S
    assert machine.patience_s(10 << 20, sync=False) == first + 1.0
    play(machine, ev.FlushFailed())
    assert machine.patience_s(0, sync=False) == first, "a pipeline that broke was not slow"
    play(machine, ev.FileLeft(), ev.Created(3, BLOCK), ev.SnapshotFailed("late", FIRST, is_late=True))
    assert machine.patience_s(0, sync=False) == 2 * first
    for _ in range(10):
        play(machine, ev.PauseOver(), ev.Created(3, BLOCK), ev.SnapshotFailed("late", FIRST, is_late=True))
    assert machine.patience_s(0, sync=False) == PATIENCE_MAX_S
    play(machine, ev.PauseOver(), ev.Created(3, BLOCK), ev.SnapshotFlushed(3, FIRST))
    assert first < machine.patience_s(0, sync=False) < PATIENCE_MAX_S


@pytest.mark.parametrize(("position", "is_rolled"), [(1_000, False), (1_001, True)])
async def test_a_full_file_is_rolled(position: int, is_rolled: bool) -> None:
    machine = machine_in(S.OPEN)
    assert (ev.CreateNext in types(play(machine, ev.Turn(position)))) is is_rolled


async def test_a_roll_that_failed_is_tried_again_after_a_pause_while_records_are_written() -> None:
    machine = machine_in(S.ROLL)
    machine.accept(record())
    effects = play(machine, ev.CreateFailed("away"))
    assert effects == [ev.WakeAt(NOW + ROLL_AGAIN_S), ev.WakeNow(), ev.WaitForWork()]
    assert play(machine, ev.Turn(FIRST)) == [ev.WriteRecords()]
    machine.take(100)
    assert ev.CreateNext not in types(play(machine, ev.Flushed(FIRST), now=NOW + ROLL_AGAIN_S - 0.1))
    assert ev.CreateNext in types(play(machine, ev.Turn(FIRST), now=NOW + ROLL_AGAIN_S)), "the renewal still waits"


async def test_a_checkpoint_that_waits_ends_the_pause_and_a_probe_does_not() -> None:
    machine = machine_in(S.PAUSE)
    machine.accept(record(is_probe=True))
    (pause,) = play(machine, ev.PauseOver())
    assert isinstance(pause, ev.Pause)
    assert pause.ends_with_work
    assert 0 < pause.seconds < IDLE_RETRY_S
    machine = machine_in(S.PAUSE)
    machine.accept(record())
    play(machine, ev.PauseOver())
    assert machine.state is S.CREATE


async def test_a_file_with_few_copies_is_replaced_by_a_fuller_one_only() -> None:
    machine = JournalMachine()
    effects = play(machine, ev.Start(), ev.Created(1, BLOCK), ev.SnapshotFlushed(1, FIRST))
    assert types(effects) == [ev.WakeAt, ev.WakeNow, ev.WaitForWork]
    assert not machine.has_all_copies
    assert ev.CreateNext not in types(play(machine, ev.Turn(FIRST)))
    _, plan, create, _ = play(machine, ev.Turn(FIRST), now=LATER)
    assert isinstance(plan, ev.WakeAt)
    assert plan.at > LATER
    assert isinstance(create, ev.CreateNext)
    assert create.options.all_copies
    play(machine, ev.Turn(FIRST, is_next_known=True), now=LATER)
    assert play(machine, ev.Created(2, BLOCK, 1), now=LATER) == [ev.WriteSnapshot()]
    play(machine, ev.SnapshotFlushed(3, FIRST), now=LATER)
    assert machine.has_all_copies
    effects = play(machine, ev.FormerClosed(True), now=LATER)
    assert ev.KeepFormer not in types(effects), "the former file had too few copies to be kept"


async def test_a_fuller_file_for_which_there_is_no_room_is_not_reported() -> None:
    machine = JournalMachine()
    play(machine, ev.Start(), ev.Created(1, BLOCK), ev.SnapshotFlushed(1, FIRST))
    play(machine, ev.Turn(FIRST), ev.Turn(FIRST, is_next_known=True), now=LATER)
    effects = play(machine, ev.CreateFailed("full", is_no_room=True), now=LATER)
    assert types(effects) == [ev.WakeAt, ev.WaitForWork]


async def test_a_file_has_fewer_copies_after_a_while_without_room() -> None:
    machine = machine_in(S.START)
    (create, _) = play(machine, ev.Start())
    assert isinstance(create, ev.CreateNext)
    assert create.options.all_copies
    play(machine, ev.CreateFailed("full", is_no_room=True), ev.PauseOver())
    (create, _) = play(machine, ev.PauseOver(), now=NOW + 10.0)
    assert isinstance(create, ev.CreateNext)
    assert not create.options.all_copies
