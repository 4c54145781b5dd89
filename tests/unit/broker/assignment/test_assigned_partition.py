"""One assigned partition: every state with every event, then the stories that the rows are for."""

from __future__ import annotations

import itertools
from typing import Any, get_args

import pytest

from bmq.broker.assignment import events as ev
from bmq.broker.assignment.assigned_partition import (
    EVENTS,
    OFFLINE_LOOK_MS,
    OFFLINE_LOOKS_MAX,
    REPAIR_OWNER,
    TABLE,
    AssignedPartition,
)
from bmq.broker.assignment.assigned_partitions import PERFORM
from bmq.broker.assignment.events import Effect, Event
from bmq.broker.assignment.open_state import OpenState
from bmq.broker.config import BrokerConfig
from bmq.broker.partition.release import ReleaseNote
from bmq.core.transitions import Cell
from bmq.meta.ownership import PartitionRecord

CONFIG = BrokerConfig()
WAIT_MS, RETRY_MS = CONFIG.handover_wait_ms, CONFIG.retry_ms.least
NOTE = ReleaseNote(PartitionRecord(epoch=4), 9)
Q, A, AW, W, OG, OP, D, OFF, X = OpenState

WAYS: dict[OpenState, list[Event]] = {
    Q: [],
    A: [ev.Asked()],
    AW: [ev.Awaited()],
    W: [ev.TurnCame(Q, is_lost=False), ev.RecordRead("other", 4)],
    OG: [ev.TurnCame(Q, is_lost=False)],
    OP: [ev.TurnCame(Q, is_lost=False), ev.RecordRead("", 0), ev.Opened()],
    D: [ev.TurnCame(Q, is_lost=False), ev.RecordRead("", 0), ev.Failed("x")],
    OFF: [ev.TurnCame(Q, is_lost=False), ev.RecordRead("", 0), ev.WentOffline("x", 4)],
    X: [ev.Withdrawn()],
}
"""How each state comes about."""

ENQUEUE, FORGET, TAKE_OVER, WAKE = ev.Enqueue(), ev.ForgetOwner("other"), ev.TakeOver(), ev.WakeRequests()
BUG = "bug"
LATE: dict[OpenState, tuple[OpenState, list[Effect]]] = {state: (state, []) for state in OpenState}
NEVER: dict[OpenState, Any] = {**dict.fromkeys(OpenState, BUG), X: (X, [])}
FAILED = (D, [ev.SetTimer(RETRY_MS, 1)])
WENT_OFFLINE = (OFF, [WAKE, ev.SetTimer(OFFLINE_LOOK_MS, 1)])
OUTCOMES: dict[Event, dict[OpenState, Any]] = {
    ev.Asked(): {**LATE, Q: (A, [ENQUEUE])},
    ev.Awaited(): {**LATE, Q: (AW, [ENQUEUE]), A: (AW, [ENQUEUE]), W: (W, [ev.PrecreateSegment(5)])},
    ev.TurnCame(Q, is_lost=False): {**LATE, Q: (OG, [TAKE_OVER])},
    ev.TurnCame(A, is_lost=False): {**LATE, A: (OG, [TAKE_OVER])},
    ev.TurnCame(AW, is_lost=False): {**LATE, AW: (OG, [TAKE_OVER])},
    ev.TurnCame(Q, is_lost=True): {**LATE, Q: (D, [ev.AwaitMembership(1)])},
    ev.RecordRead("", 0): {**NEVER, OG: (OG, [])},
    ev.RecordRead("", 4): {**NEVER, OG: (OG, [])},
    ev.RecordRead("", 4, is_written=True): {**NEVER, OG: (OG, [ev.PrecreateSegment(5)])},
    ev.RecordRead("other", 4): {**NEVER, OG: (W, [ev.AwaitOwner("other"), ev.SetTimer(WAIT_MS, 1)])},
    ev.Opened(): {**NEVER, OG: (OP, [WAKE])},
    ev.Failed("y"): {**LATE, OG: FAILED, OP: FAILED},
    ev.WentOffline("y", 5): {**LATE, OG: WENT_OFFLINE, OP: WENT_OFFLINE},
    ev.HandedOver(NOTE): {
        **LATE, Q: (A, [ENQUEUE]), A: (A, [ENQUEUE]), AW: (A, [ENQUEUE]), W: (A, [FORGET, ENQUEUE]), D: (A, [ENQUEUE])
    },
    ev.MemberGone(): {**NEVER, W: (A, [FORGET, ENQUEUE])},
    ev.TimerExpired(1): {**LATE, W: (A, [FORGET, ENQUEUE]), D: (Q, [ENQUEUE]), OFF: (OFF, [ev.CheckRecord()])},
    ev.TimerExpired(0): LATE,
    ev.RecordChecked(PartitionRecord(epoch=5)): {**NEVER, OFF: (Q, [ENQUEUE])},
    ev.CheckFailed(): {**NEVER, OFF: (OFF, [ev.SetTimer(OFFLINE_LOOK_MS, 2)])},
    ev.Withdrawn(): {
        **{state: (X, []) for state in OpenState},
        W: (X, [FORGET, ev.DropPrecreated()]), OG: (X, [ev.DropPrecreated()]),
    },
}  # fmt: skip
"""Written down a second time; no request waits, the record was last read by the takeover."""


def brought_to(state: OpenState, *, is_awaited: bool = False) -> AssignedPartition:
    partition = AssignedPartition(CONFIG)
    if is_awaited:
        partition.waiters.append(object())
    for event in WAYS[state]:
        partition.handle(event)
    assert partition.state is state
    return partition


def state_of(partition: AssignedPartition) -> OpenState:
    """Return the state, which mypy, unlike the attribute's, does not narrow by an earlier comparison."""
    return partition.state


def timer_of(effects: list[Effect]) -> ev.SetTimer:
    (timer,) = (effect for effect in effects if isinstance(effect, ev.SetTimer))
    return timer


# ------------------------------------------------------------------------------------------------------ the table


@pytest.mark.parametrize(("event", "state"), list(itertools.product(OUTCOMES, OpenState)))
def test_every_state_with_every_event(event: Event, state: OpenState) -> None:
    partition = brought_to(state)
    outcome = OUTCOMES[event][state]
    if outcome is BUG:
        with pytest.raises(AssertionError):
            partition.handle(event)
        return
    after, effects = outcome
    assert partition.handle(event) == effects
    assert state_of(partition) is after


def test_the_table_is_whole() -> None:
    assert set(TABLE) == set(itertools.product(OpenState, get_args(Event)))
    assert set(EVENTS) == set(get_args(Event)) == {type(event) for event in OUTCOMES}
    assert all(TABLE[X, event] is Cell.LATE for event in EVENTS)


def test_every_effect_is_performed() -> None:
    assert set(PERFORM) == set(get_args(Effect))


# ------------------------------------------------------------------------------------------------- what they mean


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (Q, ev.HandedOver(NOTE)),
        (W, ev.HandedOver(NOTE)),
        (W, ev.MemberGone()),
        (W, ev.TimerExpired(1)),
        (D, ev.TimerExpired(1)),
    ],
)
def test_a_partition_that_a_request_waits_for_goes_to_the_first_queue(state: OpenState, event: Event) -> None:
    partition = brought_to(state, is_awaited=True)
    assert ev.Enqueue() in partition.handle(event)
    assert state_of(partition) is AW


def test_the_first_file_is_created_ahead_if_a_request_waits() -> None:
    partition = brought_to(OG, is_awaited=True)
    assert ev.PrecreateSegment(5) in partition.handle(ev.RecordRead("other", 4))
    assert partition.handle(ev.Awaited()) == [ev.PrecreateSegment(5)]


def test_the_first_file_is_created_while_a_dead_owners_files_are_fenced_if_a_request_waits() -> None:
    partition = brought_to(OG, is_awaited=True)
    assert partition.handle(ev.RecordRead("", 4)) == [ev.PrecreateSegment(5)]
    assert brought_to(OG, is_awaited=True).handle(ev.RecordRead("", 0)) == [], "the epoch is not known"


def test_a_turn_in_a_queue_that_it_has_left_is_passed() -> None:
    partition = brought_to(AW)
    assert partition.handle(ev.TurnCame(Q, is_lost=False)) == []
    assert partition.handle(ev.TurnCame(A, is_lost=False)) == []
    assert partition.handle(ev.TurnCame(AW, is_lost=False)) == [TAKE_OVER]


def test_a_partition_that_was_released_waits_for_no_owner_once() -> None:
    """The next takeover reads its record again."""
    partition = brought_to(W)
    partition.handle(ev.HandedOver(NOTE))
    partition.handle(ev.TurnCame(A, is_lost=False))
    assert not partition.needs_record
    assert partition.handle(ev.RecordRead("other", 4)) == []
    assert state_of(partition) is OG
    assert partition.needs_record
    assert partition.take_note() == NOTE
    assert partition.take_note() is None


def test_a_note_that_comes_while_the_record_is_read_counts() -> None:
    partition = brought_to(OG)
    assert partition.handle(ev.HandedOver(NOTE)) == []
    assert partition.handle(ev.RecordRead("other", 4)) == []
    assert state_of(partition) is OG
    assert partition.take_note() == NOTE


def test_a_note_that_comes_while_offline_is_kept() -> None:
    partition = brought_to(OFF)
    assert partition.handle(ev.HandedOver(NOTE)) == []
    assert state_of(partition) is OFF
    assert partition.take_note() == NOTE


def test_a_note_for_an_open_partition_is_dropped() -> None:
    partition = brought_to(OP)
    partition.handle(ev.HandedOver(NOTE))
    assert partition.take_note() is None


def test_the_timer_of_an_earlier_wait_is_late() -> None:
    partition = brought_to(W)
    partition.handle(ev.HandedOver(NOTE))
    partition.handle(ev.TurnCame(A, is_lost=False))
    partition.handle(ev.RecordRead("", 0))
    again = timer_of(partition.handle(ev.Failed("x")))
    assert partition.handle(ev.TimerExpired(1)) == []
    assert partition.handle(ev.TimerExpired(again.number)) == [ENQUEUE]


def test_failures_in_a_row_are_tried_again_ever_more_slowly() -> None:
    partition = brought_to(OG)
    delays = []
    for _ in range(8):
        timer = timer_of(partition.handle(ev.Failed("storage is away")))
        delays.append(timer.delay_ms)
        assert partition.reason == "storage is away"
        partition.handle(ev.TimerExpired(timer.number))
        partition.handle(ev.TurnCame(Q, is_lost=False))
    assert delays[:3] == [100, 200, 400]
    assert max(delays) == CONFIG.retry_ms.most
    partition.handle(ev.Opened())
    assert (partition.reason, partition.was_open) == ("", True)
    assert timer_of(partition.handle(ev.Failed("x"))).delay_ms == 100


@pytest.mark.parametrize("record", [PartitionRecord(epoch=4, owner="me"), None])
def test_an_offline_partition_is_taken_over_again_more_and_more_rarely(record: PartitionRecord | None) -> None:
    partition = brought_to(OFF)
    assert partition.reason == "partition is offline: x"
    tried = []
    for look in range(1, 3 * OFFLINE_LOOKS_MAX + 1):
        partition.handle(ev.TimerExpired(partition._timer_number))
        if partition.handle(ev.RecordChecked(record)) == [ENQUEUE]:
            tried.append(look)
            partition.handle(ev.TurnCame(Q, is_lost=False))
            partition.handle(ev.WentOffline("x", 4))
    assert tried == [1, 2, 4, 8, 16, 32, 64, 128, 192]


def test_an_offline_partition_under_repair_is_left_alone_until_it_is_released() -> None:
    partition = brought_to(OFF)
    for epoch in (4, 5):
        partition.handle(ev.TimerExpired(partition._timer_number))
        repair = PartitionRecord(epoch=epoch, owner=f"{REPAIR_OWNER}1")
        assert partition.handle(ev.RecordChecked(repair)) == [ev.SetTimer(OFFLINE_LOOK_MS, partition._timer_number)]
    partition.handle(ev.TimerExpired(partition._timer_number))
    assert partition.handle(ev.RecordChecked(PartitionRecord(epoch=5))) == [ENQUEUE]


def test_the_end_of_offline_is_reported_once() -> None:
    partition = brought_to(OFF)
    partition.handle(ev.TimerExpired(partition._timer_number))
    partition.handle(ev.RecordChecked(PartitionRecord(epoch=9)))
    partition.handle(ev.TurnCame(Q, is_lost=False))
    assert partition.handle(ev.Opened()) == [WAKE, ev.ReportServedAgain()]
    partition.handle(ev.Failed("its ownership ended"))
    partition.handle(ev.TimerExpired(partition._timer_number))
    partition.handle(ev.TurnCame(Q, is_lost=False))
    assert partition.handle(ev.Opened()) == [WAKE]


def test_a_note_that_comes_too_late_is_not_kept_for_the_next_takeover() -> None:
    partition = brought_to(OG)
    partition.handle(ev.RecordRead("", 0))
    partition.handle(ev.HandedOver(NOTE))
    partition.handle(ev.Opened())
    assert partition.take_note() is None
    partition.handle(ev.Failed("its ownership ended"))
    partition.handle(ev.TimerExpired(partition._timer_number))
    partition.handle(ev.TurnCame(Q, is_lost=False))
    assert partition.needs_record
    partition.handle(ev.RecordRead("other", 6))
    assert state_of(partition) is W


def test_a_partition_that_is_not_a_members_says_so() -> None:
    partition = brought_to(Q)
    (effect,) = partition.handle(ev.TurnCame(Q, is_lost=True))
    assert partition.reason == "this process is not a member of the cluster now"
    assert isinstance(effect, ev.AwaitMembership)
    assert partition.handle(ev.TimerExpired(effect.number)) == [ENQUEUE]
