"""Large transactions at the group's shard: no stop of the loop, and the same state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from bmq.coordinator.group.states import GroupRules
from bmq.coordinator.group_shard.state import GroupsState
from bmq.coordinator.records import Offset, OffsetRecord
from bmq.coordinator.shard.log_records import BatchProducer
from bmq.core.aio.steps import finish_steps
from bmq.core.aio.turns import ELEMENTS_A_TURN
from bmq.core.errors import ErrorCode
from bmq.core.records.control import EndMarker, Marker
from bmq.core.wire import messages as m
from tests.harness.loop_stops import is_short, loop_stops
from tests.harness.seeds import amount
from tests.unit.coordinator.fakes import CLIENT, World, running, topic
from tests.unit.coordinator.txn_requests import end

T = TypeVar("T")
COUNT = amount(20_000, 50_000)
"""Offsets of a transaction: twenty times what a turn of the loop handles."""


def wide_commit(group: str, partitions: range, producer: int = 1) -> Any:
    topic_class = m.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    offsets = [
        topic_class.TxnOffsetCommitRequestPartition(
            partition_index=each, committed_offset=5, committed_leader_epoch=-1, committed_metadata=""
        )
        for each in partitions
    ]
    return m.TxnOffsetCommitRequest(
        version=3, transactional_id="t", group_id=group, producer_id=producer, producer_epoch=0, generation_id=-1,
        member_id="", group_instance_id=None, topics=[topic_class(name="wide", partitions=offsets)],
    )  # fmt: skip


async def commit(world: World, group: str, partitions: range, producer: int = 1) -> None:
    response = await world.coordinator.txn_offset_commit(wide_commit(group, partitions, producer), CLIENT)
    assert {each.error_code for each in response.topics[0].partitions} == {ErrorCode.NONE}


async def measured(work: Awaitable[T]) -> T:
    with loop_stops() as stops:
        result = await work
    assert is_short(stops.longest_s), stops.longest_s
    return result


@asynccontextmanager
async def wide_world() -> AsyncIterator[World]:
    async with running(World()) as world:
        world.catalog.topics["wide"] = topic("wide", COUNT)
        await world.coordinator.ready("g")
        yield world


@pytest.mark.slow
@pytest.mark.parametrize("commits", [True, False])
async def test_a_transaction_with_many_offsets_ends_and_is_replayed_in_turns(*, commits: bool) -> None:
    async with wide_world() as world:
        request = wide_commit("g", range(COUNT))
        response = await measured(world.coordinator.txn_offset_commit(request, CLIENT))
        assert {each.error_code for each in response.topics[0].partitions} == {ErrorCode.NONE}
        assert await measured(end(world, commits=commits)) is ErrorCode.NONE
        facts = world.offsets()
        assert sum(key[:2] == ("g", "wide") for key in facts) == (COUNT if commits else 0)
        await world.crash()
        await measured(world.coordinator.ready("g"))
        assert world.offsets() == facts


@pytest.mark.slow
async def test_the_markers_of_many_producers_are_written_and_applied_in_turns() -> None:
    async with wide_world() as world:
        for producer in range(COUNT // 100):
            await commit(world, "g", range(producer * 100, producer * 100 + 100), producer)
        codes = await measured(asyncio.gather(*(end(world, producer) for producer in range(COUNT // 100))))
        assert set(codes) == {ErrorCode.NONE}
        assert len(world.offsets()) == COUNT


@pytest.mark.slow
async def test_a_group_with_many_pending_offsets_is_deleted_in_turns() -> None:
    async with wide_world() as world:
        await commit(world, "g", range(COUNT))
        request = m.DeleteGroupsRequest(version=2, groups_names=["g"])
        response = await measured(world.coordinator.delete_groups(request, CLIENT))
        assert response.results[0].error_code == ErrorCode.NONE
        assert await end(world) is ErrorCode.NONE
        assert world.offsets() == {}


@pytest.mark.slow
@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("which", ["plain", "tombstone", "end", "later commit"])
def test_rule_14_what_comes_between_two_steps_of_an_end_is_as_if_it_came_behind(which: str, *, commits: bool) -> None:
    count = 3 * ELEMENTS_A_TURN

    def record(number: int, offset: int | None) -> OffsetRecord:
        return OffsetRecord("g", "wide", number, None if offset is None else Offset(offset, -1, "", 0))

    def made() -> GroupsState:
        state = GroupsState(GroupRules())
        for producer in (2, 1, 3):  # of some keys the offset of another transaction is before, of others behind
            for number in range(count) if producer < 3 else range(0, count, 2):
                state.apply(record(number, producer), BatchProducer(producer, 0))
        return state

    def come(state: GroupsState) -> None:
        if which == "end":
            for producer in (2, 3):
                finish_steps(state.end_transaction(BatchProducer(producer, 0), EndMarker(Marker.COMMIT, 1)))
        for number in range(0, count, 3):
            if which == "later commit":
                state.apply(record(number, 8), BatchProducer(4, 0))
            elif which != "end":
                state.apply(record(number, None if which == "tombstone" else 9))

    end = EndMarker(Marker.COMMIT if commits else Marker.ABORT, 1)
    behind, between = made(), made()
    finish_steps(behind.end_transaction(BatchProducer(1, 0), end))
    come(behind)
    steps = between.end_transaction(BatchProducer(1, 0), end)
    next(steps)
    assert 0 < between.pending.count_of_producer(1) < count
    assert between.pending.is_open(1, 0), "a snapshot spares its records until the end"
    come(between)
    finish_steps(steps)
    assert between.facts() == behind.facts()
    assert not between.pending.is_open(1, 0)
