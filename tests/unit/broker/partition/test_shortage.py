"""``min.insync.replicas`` in the pure machine: what waits for copies, what is refused, and how it goes on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bmq.broker import events as ev
from bmq.broker.config import BrokerConfig, LogConfig
from bmq.broker.events import Effect
from bmq.broker.partition.batches import Duplicate
from bmq.broker.partition.machine import PartitionMachine
from bmq.broker.partition.shortage import Shortage
from bmq.broker.pending import Pending
from bmq.core.errors import ErrorCode, RequestError
from tests.unit.broker.partition.machines import KEY, SPARE, batch, kinds, only, writing

HOLD_MS = BrokerConfig().short_hold_ms
SHORT = ev.SpareFailed("1 of 2 nodes", is_short=True)
AFTER_APPEND = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


def two_copies() -> PartitionMachine:
    """Return a machine in WRITE, without a segment, with min.insync.replicas=2."""
    machine = writing()
    machine.reconfigure(LogConfig(min_insync=2))
    return machine


def put(machine: PartitionMachine, copies: int = 2, *, pid: int = -1, sequence: int = -1) -> Pending:
    accepted = machine.accept(batch(pid=pid, sequence=sequence), 1, copies)
    assert isinstance(accepted, Pending)
    return accepted


def created(effects: list[Effect]) -> ev.CreateSpare:
    """Return the file that the effects request, now or later. Raises AssertionError if they request none."""
    for effect in effects:
        asked = effect.effect if isinstance(effect, ev.RunAgain) else effect
        if isinstance(asked, ev.CreateSpare):
            return asked
    raise AssertionError(effects)


def open_segment(machine: PartitionMachine, copies: int, now_ms: int = 0) -> list[Effect]:
    """Report the requested file as created on ``copies`` nodes, register it if the machine asks for that, and return
    the effects of the first step."""
    effects = machine.handle(ev.SpareReady(SPARE, copies), now_ms)
    stores = [effect for effect in effects if isinstance(effect, ev.StoreRecord)]
    if stores:
        machine.handle(ev.RecordStored(stores[0].record, machine.revision + 1), now_ms)
        machine.handle(ev.SegmentNamed(stores[0].record.segments[-1].name), now_ms)
    return effects


def refuse(machine: PartitionMachine) -> list[Effect]:
    """Report too few nodes until nothing is held any more, and return the effects of the last report."""
    machine.handle(SHORT, 0)
    return machine.handle(SHORT, HOLD_MS)


def test_the_first_segment_is_asked_for_with_the_copies_that_its_first_batch_needs() -> None:
    machine = two_copies()
    put(machine)
    assert created(machine.after_append(0)).copies == 2
    machine = two_copies()
    put(machine, 1)
    assert created(machine.after_append(0)).copies == 1, "acks=1 is not bound"


def test_batches_wait_for_copies_and_are_refused_when_that_lasts() -> None:
    """Refused batches leave no trace: the next ones get their offsets, and their producers continue at the same
    sequence."""
    machine = two_copies()
    waiting = [put(machine, pid=7, sequence=number) for number in range(2)]
    machine.after_append(0)
    effects = machine.handle(SHORT, 0)
    assert kinds(effects) == ["RunAgain"]
    assert created(effects).copies == 2
    put(machine, pid=7, sequence=2)
    effects = machine.handle(SHORT, HOLD_MS)
    reject = only(effects, ev.Reject)
    assert isinstance(reject, ev.Reject)
    assert (reject.code, reject.batches[:2], len(reject.batches)) == (ErrorCode.NOT_ENOUGH_REPLICAS, tuple(waiting), 3)
    assert "RunAgain" not in kinds(effects), "nobody waits for a file"
    assert (machine.next_offset, machine.batches.buffered_bytes) == (0, 0)
    with pytest.raises(RequestError) as refused:
        put(machine, pid=7, sequence=0)
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    machine.handle(ev.CopiesWanted(), 2 * HOLD_MS)
    open_segment(machine, 2)
    assert put(machine, pid=7, sequence=0).batch.base_offset == 0, "no gap, and no duplicate"


def test_a_shortage_that_ends_in_time_costs_only_time() -> None:
    machine = two_copies()
    first = put(machine)
    machine.after_append(0)
    machine.handle(SHORT, 0)
    machine.handle(SHORT, HOLD_MS - 1)
    open_segment(machine, 2, HOLD_MS)
    taken, _ = machine.take(1 << 20, HOLD_MS)
    assert taken == [first]
    put(machine)


def test_a_batch_that_was_sent_stays_in_the_log_and_is_written_when_nodes_are_back() -> None:
    """Break the pipeline after a batch was sent: it may be in the file, so it cannot be taken back. A repetition waits
    for it (rule 9)."""
    machine = two_copies()
    sent = put(machine, pid=7, sequence=0)
    machine.after_append(0)
    open_segment(machine, 3)
    machine.take(1 << 20, 0)
    assert machine.current is not None
    effects = machine.handle(ev.SegmentFailed(machine.current.entry.name, "a node died"), 0)
    assert created(effects).copies == 2
    unsent = put(machine, pid=7, sequence=1)
    effects = refuse(machine)
    left = only(effects, ev.LeaveUnacknowledged)
    assert isinstance(left, ev.LeaveUnacknowledged)
    assert (left.batches, left.code) == ((sent,), AFTER_APPEND)
    reject = only(effects, ev.Reject)
    assert isinstance(reject, ev.Reject)
    assert reject.batches == (unsent,)
    assert created(effects).copies == 2, "tried again"
    machine.handle(ev.CopiesWanted(), 1 << 30)
    open_segment(machine, 2, HOLD_MS)
    repeated = machine.accept(batch(pid=7, sequence=0), 1, 2)
    assert isinstance(repeated, Duplicate)
    assert repeated.pending is sent
    assert put(machine, pid=7, sequence=1).batch.base_offset == 1


def test_batches_before_an_acknowledged_one_stay_in_the_log() -> None:
    """A batch with acks=1 was acknowledged with its offset: nothing before it may be taken back."""
    machine = two_copies()
    batches = put(machine), put(machine, 1)
    machine.after_append(0)
    left = only(refuse(machine), ev.LeaveUnacknowledged)
    assert isinstance(left, ev.LeaveUnacknowledged)
    assert left.batches == batches
    assert machine.next_offset == 2


def test_a_short_segment_takes_acks_1_and_ends_where_more_is_needed() -> None:
    machine = two_copies()
    one = put(machine, 1)
    machine.after_append(0)
    open_segment(machine, 1)
    two = put(machine)
    taken, effects = machine.take(1 << 20, 0)
    assert taken == [one]
    assert created(effects).copies == 2
    assert machine.is_draining
    assert machine.current is not None
    machine.handle(ev.Flushed(machine.current.entry.name, machine.current.position), 0)
    open_segment(machine, 2)
    assert machine.take(1 << 20, 0)[0] == [two]


def test_a_spare_of_too_few_nodes_is_not_taken() -> None:
    """A spare made ahead or for acks=1 has fewer copies than acks=all needs: drop it and ask for another one."""
    machine = two_copies()
    first = put(machine, 1)
    machine.after_append(0)
    machine.take_back([first])
    put(machine)
    effects = machine.handle(ev.SpareReady(SPARE, 1), 0)
    assert kinds(effects) == ["DropSpare", "CreateSpare"]
    assert created(effects).copies == 2


def test_a_refused_batch_starts_one_new_try_at_a_time() -> None:
    machine = two_copies()
    put(machine)
    machine.after_append(0)
    assert machine.handle(ev.CopiesWanted(), 0) == [], "a try is under way"
    refuse(machine)
    assert machine.handle(ev.CopiesWanted(), HOLD_MS) == [], "a moment ago"
    later = HOLD_MS + machine.broker.retry_ms.most
    assert created(machine.handle(ev.CopiesWanted(), later)).copies == 2
    assert machine.handle(ev.CopiesWanted(), later) == []
    assert machine.handle(SHORT, later) == []
    with pytest.raises(RequestError):
        put(machine)
    put(machine, 1)  # is not bound, and opens a segment on what there is
    assert created(machine.after_append(later)).copies == 1


def test_a_lower_min_insync_replicas_applies_to_batches_that_wait() -> None:
    machine = two_copies()
    put(machine)
    machine.after_append(0)
    refuse(machine)
    machine.reconfigure(LogConfig(min_insync=1))
    put(machine, 1)
    machine = two_copies()
    waiting = put(machine)
    machine.after_append(0)
    machine.handle(SHORT, 0)
    machine.reconfigure(LogConfig(min_insync=1))
    assert waiting.copies == 1
    assert kinds(open_segment(machine, 1)) == ["StoreRecord"]


def test_a_shortage_is_held_then_refused() -> None:
    shortage = Shortage(hold_ms=1000)
    shortage.notice(5000, 100)
    assert not shortage.is_refusing
    assert not shortage.may_try(6000)
    shortage.notice(5999, 100)
    assert not shortage.is_refusing
    shortage.notice(6000, 100)
    assert shortage.is_refusing
    assert not shortage.may_try(6099)
    assert shortage.may_try(6100)
    shortage.end()
    assert not shortage.is_refusing
    shortage.notice(7000, 100)
    assert not shortage.is_refusing, "counted from the beginning"


def test_min_insync_replicas_below_1_is_refused() -> None:
    with pytest.raises(ValueError, match=r"min\.insync\.replicas=0 is under 1"):
        LogConfig(min_insync=0).validate()
    assert replace(LogConfig(), min_insync=2) != LogConfig()
    assert PartitionMachine(KEY, "me", LogConfig(min_insync=2), BrokerConfig()).config.min_insync == 2
