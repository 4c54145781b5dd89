"""A takeover, from the claim over fence and recovery to WRITE, or to OFFLINE."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bmq.broker import events as ev
from bmq.broker.config import BrokerConfig
from bmq.broker.partition.segment_steps import create_spare
from bmq.broker.partition.states import PartitionState
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import SegmentName
from bmq.meta.ownership import NEVER, PartitionRecord
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.recovery import FencedSegment, Found, Recovered
from tests.unit.broker.partition.machines import (
    KEY,
    SPARE,
    append,
    batch,
    claimed,
    kinds,
    offer,
    only,
    partition,
    state_of,
)


def test_a_new_partition_goes_from_claim_to_write() -> None:
    machine, effects = claimed()
    assert machine.state is PartitionState.WRITE
    assert machine.epoch == 1
    assert kinds(effects) == ["StateChanged"]


def test_a_partition_without_segments_looks_at_its_folder_once_before_its_first_file() -> None:
    """A file there would prove the metadata store to be older than storage: nothing is registered then."""
    machine, _ = claimed(PartitionRecord(epoch=3, last=(2, 5)))
    append(machine)
    create = only(machine.after_append(0), ev.CreateSpare)
    assert isinstance(create, ev.CreateSpare)
    assert (create.epoch, create.after) == (4, (2, 5))
    effects = machine.handle(ev.RecoveryRefused("the store is older"), 0)
    assert kinds(effects) == ["Reject", "Abort", "ReportOffline", "StateChanged"]
    assert state_of(machine) is PartitionState.OFFLINE
    sound, _ = claimed()
    append(sound)
    first = only(sound.after_append(0), ev.CreateSpare)
    assert isinstance(first, ev.CreateSpare)
    assert first.after == NEVER
    sound.handle(ev.SpareReady(SPARE), 0)
    second = create_spare(sound)
    assert isinstance(second, ev.CreateSpare)
    assert second.after is None


def test_an_inherited_partition_fences_reads_and_checkpoints_before_it_writes() -> None:
    entry = replace(SPARE, name=SegmentName(0, 1, 0))
    machine, effects = claimed(PartitionRecord(epoch=1, owner="old", segments=(entry,), journals=("old",)))
    assert state_of(machine) is PartitionState.FENCE
    assert only(effects, ev.FenceSegments) == ev.FenceSegments((entry,))
    fenced = FencedSegment(name=entry.name, found=Found.FINAL, length=5)
    effects = machine.handle(ev.SegmentsFenced((fenced,)), 0)
    recover = only(effects, ev.RecoverLog)
    assert recover == ev.RecoverLog((fenced,), (entry,), ("old",), epoch=2, last=(1, 0))
    base = Checkpoint(key=KEY, segment=entry.name, position=5, end_offset=3, log_start=1)
    recovered = Recovered(end_offset=3, segments=[], bytes_read=0, labels=[])
    effects = machine.handle(ev.LogRecovered(recovered, base, (), 1), 0)
    assert kinds(effects) == ["WriteIndexes", "WriteCheckpoint"]
    assert state_of(machine) is PartitionState.RECOVER
    with pytest.raises(RequestError) as refused:
        offer(machine, batch(), 1)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    machine.handle(ev.CheckpointWritten(3, 1), 0)
    assert (machine.state, machine.log_start, machine.high_watermark, machine.next_offset) == (
        PartitionState.WRITE,
        1,
        3,
        3,
    )


def test_a_claim_keeps_what_the_takeover_needs() -> None:
    """Keep all open segments and the journals of earlier owners in the record, but not the mark that no journal need be
    read."""
    entries = tuple(replace(SPARE, name=SegmentName(0, 3, n)) for n in range(2))
    found = PartitionRecord(epoch=3, owner="old", segments=entries, journals=("older", "old"), is_settled=True)
    machine = partition()
    machine.handle(ev.Start(), 0)
    store = only(machine.handle(ev.RecordRead(found, 5), 0), ev.StoreRecord)
    claim = replace(found, epoch=4, owner="me", journals=("older", "old", "me"), is_settled=False)
    assert store == ev.StoreRecord(claim, 5)


def test_a_claim_that_meets_a_registration_of_the_old_owner_is_claimed_again() -> None:
    machine = partition()
    machine.handle(ev.Start(), 0)
    machine.handle(ev.RecordRead(PartitionRecord(epoch=3, owner="old"), 5), 0)
    newer = PartitionRecord(epoch=3, owner="old", segments=(SPARE,))
    store = only(machine.handle(ev.RecordRefused(newer, 6), 0), ev.StoreRecord)
    assert isinstance(store, ev.StoreRecord)
    assert (store.record.epoch, store.record.segments, store.revision) == (4, (SPARE,), 6)


def test_a_claim_that_meets_a_higher_epoch_gives_up() -> None:
    machine = partition()
    machine.handle(ev.Start(), 0)
    machine.handle(ev.RecordRead(PartitionRecord(epoch=3), 5), 0)
    machine.handle(ev.RecordRefused(PartitionRecord(epoch=4, owner="other"), 6), 0)
    assert machine.state is PartitionState.FENCED


def test_an_unknown_store_is_asked_again_with_the_same_compare() -> None:
    machine = partition()
    machine.handle(ev.Start(), 0)
    store = only(machine.handle(ev.RecordRead(PartitionRecord(), 0), 0), ev.StoreRecord)
    assert isinstance(store, ev.StoreRecord)
    delays = []
    for _ in range(8):
        again = only(machine.handle(ev.RecordUnknown(store.record), 0), ev.RunAgain)
        assert isinstance(again, ev.RunAgain)
        assert again.effect == store
        delays.append(again.delay_ms)
    assert delays[:3] == [100, 200, 400]
    assert max(delays) == BrokerConfig().retry_ms.most


def test_a_failed_recovery_begins_with_the_fence_again() -> None:
    entry = replace(SPARE, name=SegmentName(0, 1, 0))
    machine, _ = claimed(PartitionRecord(epoch=1, owner="old", segments=(entry,)))
    machine.handle(ev.SegmentsFenced(()), 0)
    again = only(machine.handle(ev.RecoveryFailed("away"), 0), ev.RunAgain)
    assert isinstance(again, ev.RunAgain)
    assert isinstance(again.effect, ev.FenceSegments)
    assert machine.state is PartitionState.FENCE


def test_an_unreadable_log_is_tried_again_for_a_while_then_offline() -> None:
    """Ever more slowly, and from the fence on; counted from the first time; at last without damaged journals."""
    entry = replace(SPARE, name=SegmentName(0, 1, 0))
    machine, _ = claimed(PartitionRecord(epoch=1, owner="old", segments=(entry,)))
    delays = []
    for now_ms in (5_000, 6_000, 30_000, 64_999, 65_000):
        recover = only(machine.handle(ev.SegmentsFenced(()), now_ms), ev.RecoverLog)
        assert isinstance(recover, ev.RecoverLog)
        assert not recover.passes_damaged
        again = only(machine.handle(ev.LogUnreadable("x is short"), now_ms), ev.RunAgain)
        assert isinstance(again, ev.RunAgain)
        assert isinstance(again.effect, ev.FenceSegments)
        assert state_of(machine) is PartitionState.FENCE
        delays.append(again.delay_ms)
    assert delays == [100, 200, 400, 800, 1600]
    recover = only(machine.handle(ev.SegmentsFenced(()), 65_000), ev.RecoverLog)
    assert isinstance(recover, ev.RecoverLog)
    assert recover.passes_damaged
    assert kinds(machine.handle(ev.LogUnreadable("x is short"), 65_000)) == ["ReportOffline", "StateChanged"]
    assert (state_of(machine), machine.offline_reason) == (PartitionState.OFFLINE, "x is short")


def test_refused_recovery_is_offline_and_reported() -> None:
    entry = replace(SPARE, name=SegmentName(0, 1, 0))
    machine, _ = claimed(PartitionRecord(epoch=1, owner="old", segments=(entry,)))
    machine.handle(ev.SegmentsFenced(()), 0)
    effects = machine.handle(ev.RecoveryRefused("file x is short"), 0)
    assert kinds(effects) == ["ReportOffline", "StateChanged"]
    with pytest.raises(RequestError, match="file x is short"):
        offer(machine, batch(), 1)
