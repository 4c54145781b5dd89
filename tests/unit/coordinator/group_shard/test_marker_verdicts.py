"""Markers at a group's shard: judged as at a partition, and never counted as done by a former coordinator."""

from __future__ import annotations

import asyncio
from itertools import product
from typing import Any, cast

import pytest

from bmq.broker.partition.marker_rules import is_to_be_written
from bmq.coordinator.group_shard.pending import PendingOffsets
from bmq.coordinator.records import Offset, OffsetRecord
from bmq.coordinator.shard.log_records import BatchProducer
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.records.control import EndMarker, Marker, TransactionMarker
from bmq.core.records.marker_rules import LAST_EPOCH
from bmq.storage.checkpoint import ProducerState
from tests.unit.coordinator.cluster_world import GROUP, cluster
from tests.unit.coordinator.fakes import World, running
from tests.unit.coordinator.txn_requests import end, marker_of, stable, txn_commit

PID = 1
VALUE = Offset(1, -1, "", 0)
KNOWN = [None, *product((0, 6, 7, LAST_EPOCH), (-1, 4, 5), (None, 0, 6, 7, LAST_EPOCH))]
"""Epoch and coordinator epoch of the last marker, and the epoch of the open transaction; -1: no marker was seen."""
MARKERS = [
    TransactionMarker(PID, epoch, coordinator, Marker.COMMIT, version)
    for epoch, coordinator, version in product((-1, 0, 5, 6, 7, 8, LAST_EPOCH), (3, 4, 5, 6), (0, 1, 2))
]


def at_a_group(known: tuple[int, int, int | None] | None, marker: TransactionMarker) -> ErrorCode | None:
    pending = PendingOffsets()
    if known is not None:
        ended, coordinator, opened = known
        if coordinator >= 0:
            list(pending.end(BatchProducer(PID, ended), EndMarker(Marker.COMMIT, coordinator)))
        if opened is not None:
            pending.add(OffsetRecord("g", "t", 0, VALUE), VALUE, BatchProducer(PID, opened))
    return pending.verdict(marker)


def at_a_partition(known: tuple[int, int, int | None] | None, marker: TransactionMarker) -> ErrorCode | None:
    state = None
    if known is not None and (known[1] >= 0 or known[2] is not None):
        ended, coordinator, opened = known
        epoch = max(ended if coordinator >= 0 else -1, -1 if opened is None else opened)
        state = ProducerState(PID, epoch, coordinator, 0, -1 if opened is None else 10, ())
    try:
        return None if is_to_be_written(state, marker) else ErrorCode.NONE
    except RequestError as error:
        return error.code


@pytest.mark.parametrize("known", KNOWN)
def test_rule_13_a_groups_shard_judges_each_marker_as_a_partition_does(known: tuple[int, int, int | None]) -> None:
    for marker in MARKERS:
        assert at_a_group(known, marker) is at_a_partition(known, marker), marker


@pytest.mark.slow
@pytest.mark.parametrize("version", [0, 1, 2])
async def test_rule_13_a_former_coordinator_counts_no_later_transaction_as_ended(version: int) -> None:
    """Move the shard between two transactions, while the marker's sender and the former coordinator see no move."""
    async with cluster() as world:
        former, present = (cast(Any, world.coordinators[name]) for name in ("a", "b"))
        raised = version >= 2
        assert await txn_commit(former, GROUP, 1, epoch=5) is ErrorCode.NONE
        assert await end(former, epoch=5 + raised, version=version) is ErrorCode.NONE
        world.give(0, "b")
        world.tell(present.view)
        assert await txn_commit(present, GROUP, 2, epoch=5 + raised) is ErrorCode.NONE
        second = {"epoch": 5 + 2 * raised, "version": version}
        assert await end(former, **second) is ErrorCode.NOT_COORDINATOR
        assert await end(present, **second) is ErrorCode.NONE
        assert await stable(present, GROUP) == (ErrorCode.NONE, 2)


@pytest.mark.slow
@pytest.mark.parametrize("epoch", [4, 6])
async def test_a_former_coordinator_counts_no_marker_as_done_from_memory(epoch: int) -> None:
    async with cluster() as world:
        former, present = (cast(Any, world.coordinators[name]) for name in ("a", "b"))
        assert await end(former, epoch=6, version=2) is ErrorCode.NONE
        world.give(0, "b")
        world.tell(present.view)
        assert await present.coordinator.ready(GROUP) is None
        assert await end(former, epoch=epoch, version=2) is ErrorCode.NOT_COORDINATOR
        assert await end(present, epoch=epoch, version=2) is ErrorCode.NONE


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_repetitions_of_a_marker_that_waits_are_done_with_it(version: int) -> None:
    async with running(World()) as world:
        assert await txn_commit(world, "g", 1, epoch=3) is ErrorCode.NONE
        world.log.flush_s = 1.0
        before = world.log.next_offset
        ends = [asyncio.ensure_future(end(world, epoch=3 + (version == 2), version=version)) for _ in range(5)]
        assert await asyncio.gather(*ends) == [ErrorCode.NONE] * 5
        assert world.log.next_offset == before + 1
        assert world.log.confirmations == 1, "one question for all repetitions"


async def test_a_marker_below_the_logs_epoch_is_done_if_nothing_is_open() -> None:
    """The owner of the log's partition knows a later epoch, whose batches a snapshot has dropped."""
    async with running(World()) as world:
        assert await txn_commit(world, "g", 1, producer=2) is ErrorCode.NONE
        world.log.refuse_next = ErrorCode.INVALID_PRODUCER_EPOCH
        assert await end(world) is ErrorCode.INVALID_PRODUCER_EPOCH
        await world.coordinator.ready("g")
        epoch = world.log.epoch
        world.log.refuse_next = ErrorCode.INVALID_PRODUCER_EPOCH
        assert await end(world) is ErrorCode.NONE
        assert world.log.epoch == epoch, "without a further load"
        world.log.refuse_next = None
        assert await world.coordinator.end_transaction(0, marker_of(2)) is ErrorCode.NONE
