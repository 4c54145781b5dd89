"""The swap of segments for a cleaned segment, as the partition's record has it."""

from __future__ import annotations

from bmq.broker import events as ev
from bmq.broker.partition.machine import PartitionMachine
from bmq.broker.partition.states import PartitionState
from bmq.core.model import SegmentName
from bmq.meta.ownership import PartitionRecord, Swap
from tests.unit.broker.partition.machines import SPARE, append, flush, kinds, only, opened, partition, writing

SWAP = Swap(name=SegmentName(0, 1, 0, 1), draft="/p/.clean-a", draft_index="/p/.clean-b")


def stored(effects: list[ev.Effect]) -> PartitionRecord:
    store = only(effects, ev.StoreRecord)
    assert isinstance(store, ev.StoreRecord)
    return store.record


def test_a_swap_is_stored_and_later_removed() -> None:
    machine = opened()
    record = stored(machine.handle(ev.SwapWanted(SWAP), 0))
    assert (record.swap, record.segments, record.owner) == (SWAP, machine.record.segments, machine.record.owner)
    assert machine.record.swap is None
    assert kinds(machine.handle(ev.RecordStored(record, 3), 0)) == ["SwapStored"]
    assert machine.record.swap == SWAP
    assert machine.handle(ev.SwapWanted(SWAP), 0) == []  # it is there already
    record = stored(machine.handle(ev.SwapWanted(None), 0))
    assert record.swap is None
    machine.handle(ev.RecordStored(record, 4), 0)
    assert machine.record.swap is None


def registering() -> tuple[PartitionMachine, PartitionRecord]:
    """Return a machine while the registration of its first segment is under way, and the record."""
    machine = writing()
    append(machine)
    machine.after_append(0)
    return machine, stored(machine.handle(ev.SpareReady(SPARE), 0))


def test_a_swap_waits_for_a_registration_that_is_under_way() -> None:
    machine, record = registering()
    assert machine.handle(ev.SwapWanted(SWAP), 0) == []
    effects = machine.handle(ev.RecordStored(record, 2), 0)
    assert kinds(effects) == ["NameSegment", "StoreRecord"]
    second = stored(effects[1:])
    assert (second.swap, second.segments) == (SWAP, record.segments)
    machine.handle(ev.SegmentNamed(SegmentName(0, 1, 0)), 0)
    assert kinds(machine.handle(ev.RecordStored(second, 3), 0)) == ["SwapStored"]
    assert machine.record.swap == SWAP


def test_a_registration_waits_for_a_swap_that_is_under_way_and_keeps_it() -> None:
    machine = writing()
    swapped = stored(machine.handle(ev.SwapWanted(SWAP), 0))
    append(machine)
    assert kinds(machine.after_append(0)) == []
    effects = machine.handle(ev.RecordStored(swapped, 2), 0)
    assert kinds(effects) == ["SwapStored", "CreateSpare"]
    record = stored(machine.handle(ev.SpareReady(SPARE), 0))
    assert (record.swap, record.segments[-1].name) == (SWAP, SegmentName(0, 1, 0))


def test_an_unknown_outcome_is_sent_again_and_a_change_without_a_new_owner_is_written_over() -> None:
    machine = opened()
    record = stored(machine.handle(ev.SwapWanted(SWAP), 0))
    assert kinds(machine.handle(ev.RecordUnknown(record), 0)) == ["RunAgain"]
    again = only(machine.handle(ev.RecordRefused(machine.record, 9), 0), ev.StoreRecord)
    assert again == ev.StoreRecord(record, 9)


def test_another_owner_ends_the_ownership_before_the_swap_is_stored() -> None:
    machine = opened()
    machine.handle(ev.SwapWanted(SWAP), 0)
    machine.handle(ev.RecordRefused(PartitionRecord(epoch=2, owner="other"), 9), 0)
    assert machine.state is PartitionState.FENCED
    assert machine.record.swap is None


def test_a_move_during_a_swap_releases_the_partition_with_it() -> None:
    """The released record lists the swap, and the next owner completes it."""
    machine = opened()
    flush(machine)
    swapped = stored(machine.handle(ev.SwapWanted(SWAP), 0))
    close = only(machine.handle(ev.MoveRequested(), 0), ev.CloseSegment)
    assert isinstance(close, ev.CloseSegment)
    assert machine.handle(ev.SegmentClosed(close.entry.closed(machine.high_watermark, 1)), 0) == []
    released = stored(machine.handle(ev.RecordStored(swapped, 3), 0))
    assert (released.owner, released.swap) == ("", SWAP)
    machine.handle(ev.RecordStored(released, 4), 0)
    assert machine.state is PartitionState.CLOSED


def test_a_claim_keeps_the_swap_of_the_owner_before() -> None:
    machine = partition()
    machine.handle(ev.Start(), 0)
    found = PartitionRecord(epoch=4, owner="other", swap=SWAP)
    claim = stored(machine.handle(ev.RecordRead(found, 7), 0))
    assert claim.swap == SWAP
    machine.handle(ev.RecordStored(claim, 8), 0)
    assert (machine.state, machine.swap) == (PartitionState.WRITE, SWAP)
    assert stored(machine.handle(ev.SwapWanted(None), 0)).swap is None
