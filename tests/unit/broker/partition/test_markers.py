"""Markers at a partition (marker_rules, PartitionMachine.end_transaction, PartitionOwner.end_transaction).

Every combination of version, epochs and open transaction; repetitions before and after the flush; states that refuse.
"""

from __future__ import annotations

import asyncio
from itertools import product

import pytest

from bmq.broker.partition.batches import Duplicate
from bmq.broker.partition.machine import PartitionMachine
from bmq.broker.partition.marker_rules import is_to_be_written
from bmq.broker.pending import Pending
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.records.batch import CONTROL, TRANSACTIONAL
from bmq.core.records.control import EndMarker, Marker, TransactionMarker, end_marker_of
from bmq.meta.catalog import INTERNAL_TOPICS
from bmq.storage.checkpoint import ProducerState
from bmq.storage.memory import Faults
from tests.unit.broker.partition.machines import flush, opened, partition, writing
from tests.unit.broker.partition.transactional import PID, data
from tests.unit.broker.world import world

OPEN, NONE_OPEN = 10, -1
LAST = 32_767


def ends(
    epoch: int = 0, coordinator_epoch: int = 0, *, version: int = 0, kind: Marker = Marker.COMMIT
) -> TransactionMarker:
    return TransactionMarker(PID, epoch, coordinator_epoch, kind, version)


def fate(version: int, epoch: int, current: int, coordinator_epoch: int, txn_start: int) -> str:
    """Return what becomes of a marker at a producer with epoch ``current`` and coordinator epoch 5."""
    state = ProducerState(PID, current, 5, 0, txn_start, ())
    try:
        is_written = is_to_be_written(state, ends(epoch, coordinator_epoch, version=version))
    except RequestError as error:
        return error.code.name
    return "written" if is_written else "done"


FENCED, OLD_EPOCH = "TRANSACTION_COORDINATOR_FENCED", "INVALID_PRODUCER_EPOCH"
EQUAL = {  # version, transaction -> fate at an equal producer epoch
    (0, NONE_OPEN): "written",
    (0, OPEN): "written",
    (1, NONE_OPEN): "written",
    (1, OPEN): "written",
    (2, NONE_OPEN): "done",
    (2, OPEN): "done",
}


@pytest.mark.parametrize(("version", "txn_start"), list(product((0, 1, 2), (NONE_OPEN, OPEN))))
@pytest.mark.parametrize("coordinator_epoch", [4, 5, 6])
def test_rule_9_a_markers_fate_by_version_epochs_and_transaction(
    version: int, txn_start: int, coordinator_epoch: int
) -> None:
    def by_epoch(epoch: int, current: int) -> str:
        return fate(version, epoch, current, coordinator_epoch, txn_start)

    is_fenced = coordinator_epoch < 5
    lower = OLD_EPOCH if txn_start == OPEN else "done"
    assert by_epoch(6, 7) == lower
    assert by_epoch(7, 7) == (FENCED if is_fenced else EQUAL[version, txn_start])
    assert by_epoch(8, 7) == (FENCED if is_fenced else "written")
    assert by_epoch(LAST - 1, LAST) == lower
    at_last = "written" if txn_start == OPEN else EQUAL[version, txn_start]
    assert by_epoch(LAST, LAST) == (FENCED if is_fenced else at_last)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_marker_of_an_unknown_producer_is_written(version: int) -> None:
    assert is_to_be_written(None, ends(3, version=version))


def accept(machine: PartitionMachine, sequence: int, *, epoch: int = 0) -> Pending:
    accepted = machine.accept(data(sequence, epoch=epoch), 1)
    assert isinstance(accepted, Pending)
    return accepted


def end(machine: PartitionMachine, marker: TransactionMarker) -> Pending | Duplicate:
    return machine.end_transaction(marker, 77)


def flushed(machine: PartitionMachine) -> None:
    machine.take(1 << 20, 0)
    flush(machine)


def test_a_marker_is_a_control_batch_with_both_epochs() -> None:
    machine = opened()
    accept(machine, 0)
    pending = end(machine, ends(1, 9, version=2, kind=Marker.ABORT))
    assert isinstance(pending, Pending)
    batch = pending.batch
    assert batch.attributes & (CONTROL | TRANSACTIONAL) == CONTROL | TRANSACTIONAL
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.base_offset) == (PID, 1, -1, 2)
    assert (end_marker_of(batch), batch.max_timestamp) == (EndMarker(Marker.ABORT, 9), 77)
    flushed(machine)
    assert machine.high_watermark == machine.last_stable_offset == 3


def test_a_marker_needs_min_insync_copies() -> None:
    machine = opened()
    pending = end(machine, ends())
    assert isinstance(pending, Pending)
    assert pending.copies == machine.config.min_insync


def test_rule_9_a_repetition_waits_for_the_first_markers_flush() -> None:
    """Check a repetition against the appended state, and answer it by the flush of the first marker alone."""
    for version, epoch in ((0, 0), (2, 1)):
        machine = opened()
        accept(machine, 0)
        first = end(machine, ends(epoch, version=version))
        repeated = end(machine, ends(epoch, version=version))
        assert isinstance(repeated, Duplicate)
        assert repeated.pending is first
        flushed(machine)
        again = end(machine, ends(epoch, version=version))
        if version == 2:
            assert isinstance(again, Duplicate)
            assert again.pending is None
        else:
            assert isinstance(again, Pending), "Kafka writes it again"


def test_a_late_marker_of_version_2_ends_nothing_and_waits_for_the_marker_before() -> None:
    machine = opened()
    accept(machine, 0)
    first = end(machine, ends(1, version=2))
    accept(machine, 0, epoch=1)
    late = end(machine, ends(1, version=2))
    assert isinstance(late, Duplicate)
    assert late.pending is first
    flushed(machine)
    late = end(machine, ends(1, version=2))
    assert isinstance(late, Duplicate)
    assert late.pending is None
    assert machine.last_stable_offset == 3, "the second transaction stays open"


def test_a_marker_of_another_coordinator_is_written_although_one_waits() -> None:
    machine = opened()
    accept(machine, 0)
    end(machine, ends(0, 3))
    assert isinstance(end(machine, ends(0, 4)), Pending)
    with pytest.raises(RequestError) as refused:
        end(machine, ends(0, 3))
    assert refused.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_a_partition_that_is_not_in_write_refuses_a_marker() -> None:
    moving = writing()
    moving.begin_move()
    fenced = writing()
    fenced.fence()
    closed = writing()
    closed.give_up()
    for machine in (partition(), moving, fenced, closed):
        with pytest.raises(RequestError) as refused:
            end(machine, ends())
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    offline = writing()
    offline.go_offline("damaged")
    with pytest.raises(RequestError) as refused:
        end(offline, ends())
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.slow
async def test_rule_1_an_owner_acknowledges_a_marker_when_it_is_flushed() -> None:
    async with world() as w:
        w.topic()
        owner = await w.owner()
        await owner.append_internal(data(-1).data)
        w.storage.faults = Faults(ack_s=(1.0, 1.0))
        ending = [asyncio.create_task(owner.end_transaction(ends(1, version=2))) for _ in range(3)]
        await asyncio.sleep(0.5)
        assert not any(task.done() for task in ending)
        assert owner.last_stable_offset == 0
        await asyncio.gather(*ending)
        assert (owner.high_watermark, owner.last_stable_offset) == (2, 2)
        await owner.end_transaction(ends(0))
        assert owner.high_watermark == 2, "of an earlier epoch there is nothing to end"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(INTERNAL_TOPICS))
async def test_the_log_of_a_coordinators_shard_takes_no_marker_from_another_process(name: str) -> None:
    """The shard's coordinator would not know of the marker, or could not read its log any more."""
    async with world() as w:
        w.topic(name)
        owner = await w.owner(name)
        with pytest.raises(RequestError) as refused:
            await owner.end_transaction(ends())
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert owner.high_watermark == 0


@pytest.mark.slow
async def test_rule_4_the_next_owner_finds_a_marker_that_was_acknowledged() -> None:
    async with world() as w:
        w.topic()
        owner = await w.owner()
        await owner.append_internal(data(-1).data)
        await owner.end_transaction(ends(1, 7, version=2))
        await w.assigned.withdraw(w.key())
        w.assign()
        later = await w.owner()
        await later.end_transaction(ends(1, 7, version=2))
        assert (later.high_watermark, later.last_stable_offset) == (2, 2), "the repetition is not written"
        (state,) = await later.producers()
        assert (state.epoch, state.coordinator_epoch, state.txn_start) == (1, 7, -1)
