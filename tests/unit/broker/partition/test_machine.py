"""A partition's machine: offsets, duplicates, batches that are refused, and the next segment ahead of need."""

from __future__ import annotations

from dataclasses import replace

from bmq.broker import events as ev
from bmq.broker.partition.batches import Duplicate
from bmq.core.errors import ErrorCode
from tests.unit.broker.partition.machines import SPARE, append, batch, flush, kinds, offer, only, opened, writing
from tests.unit.broker.partition.transactional import data, marker


def test_offsets_and_the_leader_epoch_are_assigned_in_order() -> None:
    machine = writing()
    assert [append(machine).batch.base_offset for _ in range(3)] == [0, 1, 2]
    assert machine.batches.unsent[0].batch.leader_epoch == 1
    assert machine.batches.unsent[0].batch.has_valid_crc


def test_a_fenced_owner_says_which_batches_may_be_in_the_log() -> None:
    """Only what was never sent to a file was certainly not accepted, and may be sent again without a producer id."""
    machine = opened()
    append(machine)
    effects = machine.handle(ev.EpochChanged(2), 0)
    rejects = [effect for effect in effects if isinstance(effect, ev.Reject)]
    rejected = [(reject.code, [pending.batch.base_offset for pending in reject.batches]) for reject in rejects]
    assert rejected == [
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, [0]),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, [1]),
    ]


def test_roll_by_size_waits_for_the_last_flush_and_prepares_ahead() -> None:
    machine = opened(block_bytes=1 << 20)
    machine.reconfigure(replace(machine.config, segment_bytes=200))
    for _ in range(3):
        append(machine)
    _, effects = machine.take(1 << 20, 0)
    assert machine.current is not None
    assert kinds(effects) == ["CreateSpare"]
    effects = flush(machine)
    assert kinds(effects) == ["Acknowledge", "CloseSegment"]
    store = only(machine.handle(ev.SpareReady(SPARE), 0), ev.StoreRecord)
    assert isinstance(store, ev.StoreRecord)
    assert store.record.segments[-1].name.base == machine.high_watermark


def test_duplicates_wait_for_their_original() -> None:
    machine = opened()
    original = append(machine, pid=5, sequence=0)
    repeated = offer(machine, batch(pid=5, sequence=0), 1)
    assert isinstance(repeated, Duplicate)
    assert (repeated.base_offset, repeated.pending) == (1, original)
    flush(machine)
    machine.take(1 << 20, 0)
    flush(machine)
    flushed = offer(machine, batch(pid=5, sequence=0), 1)
    assert isinstance(flushed, Duplicate)
    assert flushed.pending is None


# ----------------------------------------------------------------------------------------------- the last stable offset


def test_the_last_stable_offset_moves_when_a_marker_is_flushed_not_when_it_is_accepted() -> None:
    machine = opened()
    flush(machine)
    machine.accept(data(-1), 1)
    assert (machine.high_watermark, machine.last_stable_offset) == (1, 1)
    machine.take(1 << 20, 0)
    flush(machine)
    assert (machine.high_watermark, machine.last_stable_offset) == (2, 1)
    append(machine)
    machine.accept(marker(), 1)
    machine.take(1 << 20, 0)
    assert machine.last_stable_offset == 1
    flush(machine)
    assert (machine.high_watermark, machine.last_stable_offset) == (4, 4)


def test_a_transaction_open_below_the_log_start_holds_nothing_back_below_it() -> None:
    machine = opened()
    machine.accept(data(-1), 1)
    append(machine)
    machine.take(1 << 20, 0)
    flush(machine)
    machine.handle(ev.LogStartRaised(2), 0)
    assert (machine.log_start, machine.last_stable_offset, machine.high_watermark) == (2, 2, 3)
