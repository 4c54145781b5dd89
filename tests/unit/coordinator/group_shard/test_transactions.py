"""Offsets inside transactions, at the group's shard: pending, decided, expired, deleted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bmq.coordinator.group_shard.refused_markers import KEPT_S
from bmq.core.errors import ErrorCode
from bmq.core.wire import messages as m
from tests.unit.coordinator.fakes import AGAIN, CLIENT, World, join_alone, join_request, running
from tests.unit.coordinator.txn_requests import end, stable, txn_commit

UNSTABLE = (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)


@pytest.mark.parametrize("version", [7, 8, 10])
@pytest.mark.parametrize("crashes", [False, True])
async def test_an_offset_is_unstable_until_the_marker(version: int, *, crashes: bool) -> None:
    async with running(World()) as world:
        assert await world.commit("g", 1) == 0
        assert await txn_commit(world, "g", 5) is ErrorCode.NONE
        if crashes:
            await world.crash()
        assert await stable(world, "g", version=version) == UNSTABLE
        assert await stable(world, "g", 1, version=version) == (ErrorCode.NONE, -1)
        assert await world.fetch("g") == 1, "without the flag what is committed"
        assert await end(world) is ErrorCode.NONE
        if crashes:
            await world.crash()
        assert await stable(world, "g", version=version) == (ErrorCode.NONE, 5)


@pytest.mark.parametrize("crashes", [False, True])
async def test_an_aborted_offset_never_comes_back(*, crashes: bool) -> None:
    async with running(World()) as world:
        assert await world.commit("g", 1) == 0
        assert await txn_commit(world, "g", 5) is ErrorCode.NONE
        assert await end(world, commits=False) is ErrorCode.NONE
        if crashes:
            await world.crash()
        assert await stable(world, "g") == (ErrorCode.NONE, 1)


@pytest.mark.parametrize("crashes", [False, True])
async def test_of_two_commits_the_later_record_wins(*, crashes: bool) -> None:
    async with running(World()) as world:
        assert await txn_commit(world, "g", 5) is ErrorCode.NONE  # overtaken by the plain commit
        assert await world.commit("g", 7) == 0
        assert await txn_commit(world, "g", 6, partition=1, producer=1) is ErrorCode.NONE  # overtaken by producer 2's
        assert await txn_commit(world, "g", 8, partition=1, producer=2) is ErrorCode.NONE
        assert await stable(world, "g") == UNSTABLE
        assert await end(world, 2) is ErrorCode.NONE
        if crashes:
            await world.crash()
        assert await end(world, 1) is ErrorCode.NONE
        if crashes:
            await world.crash()
        assert await stable(world, "g") == (ErrorCode.NONE, 7)
        assert await stable(world, "g", 1) == (ErrorCode.NONE, 8)


@pytest.mark.parametrize(
    ("fields", "code", "is_ended"),
    [
        ({"epoch": 2}, ErrorCode.INVALID_PRODUCER_EPOCH, False),
        ({"epoch": 3, "coordinator": 4}, ErrorCode.TRANSACTION_COORDINATOR_FENCED, False),
        ({"epoch": 3, "version": 0}, ErrorCode.NONE, True),
        ({"epoch": 3, "version": 1}, ErrorCode.NONE, True),
        ({"epoch": 3, "version": 2}, ErrorCode.NONE, False),  # late: it was of the transaction before
        ({"epoch": 4, "version": 2}, ErrorCode.NONE, True),
    ],
)
@pytest.mark.parametrize("crashes", [False, True])
async def test_epochs_of_a_marker_while_a_transaction_is_open(
    fields: dict[str, int], code: ErrorCode, *, is_ended: bool, crashes: bool
) -> None:
    async with running(World()) as world:
        assert await txn_commit(world, "g", 1, epoch=2) is ErrorCode.NONE
        assert await end(world, epoch=3, coordinator=5) is ErrorCode.NONE
        assert await txn_commit(world, "g", 2, epoch=2) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await txn_commit(world, "g", 3, epoch=3) is ErrorCode.NONE
        if crashes:
            await world.crash()
        assert await end(world, **{"coordinator": 5, **fields}) is code
        assert await stable(world, "g") == ((ErrorCode.NONE, 3) if is_ended else UNSTABLE)


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_a_repeated_marker_is_written_again_before_version_2(version: int) -> None:
    """The epochs may be those of a later transaction's marker: only the log's owner can know."""
    async with running(World()) as world:
        assert await txn_commit(world, "g", 1, epoch=2) is ErrorCode.NONE
        assert await end(world, epoch=3, version=version) is ErrorCode.NONE
        before = world.log.next_offset
        assert await end(world, epoch=3, version=version) is ErrorCode.NONE
        assert world.log.next_offset == before + (version < 2)
        assert world.log.confirmations == (version == 2), "what is not written needs a proof of the ownership"


async def test_a_marker_of_version_2_ends_a_transaction_at_the_last_epoch() -> None:
    async with running(World()) as world:
        assert await txn_commit(world, "g", 1, epoch=32_767) is ErrorCode.NONE
        assert await end(world, epoch=32_767, version=2) is ErrorCode.NONE
        assert await stable(world, "g") == (ErrorCode.NONE, 1)


async def test_a_marker_without_a_producer_is_refused_and_not_written() -> None:
    async with running(World()) as world:
        assert await txn_commit(world, "g", 1, epoch=2) is ErrorCode.NONE
        before = world.log.next_offset
        for fields in ({"epoch": -1}, {"producer": -1}, {"producer": -5}):
            assert await end(world, **{"producer": 9, **fields}) is ErrorCode.INVALID_REQUEST
        assert world.log.next_offset == before


async def test_a_marker_fences_a_producer_that_the_shard_has_not_seen() -> None:
    async with running(World()) as world:
        assert await end(world, epoch=4) is ErrorCode.NONE
        assert await txn_commit(world, "g", 2, epoch=3) is ErrorCode.INVALID_PRODUCER_EPOCH


async def test_a_shard_that_another_process_serves_says_so() -> None:
    async with running(World()) as world:
        world.coordinator.abandon()
        assert await end(world) is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_checks_of_group_and_producer() -> None:
    async with running(World()) as world:
        assert await txn_commit(world, "", 1) is ErrorCode.INVALID_GROUP_ID
        assert await txn_commit(world, "g", 1, producer=-1) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert await txn_commit(world, "g", 1, epoch=-1) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await txn_commit(world, "g", 1, topic="nowhere") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await txn_commit(world, "g", 1, partition=9_999) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await txn_commit(world, "g", 1, generation=3, member_id="m") is ErrorCode.ILLEGAL_GENERATION
        member, generation = await join_alone(world, "g", group_instance_id="i")
        named: dict[str, Any] = {"member_id": member, "generation": generation, "instance_id": "i"}
        assert await txn_commit(world, "g", 1, **named) is ErrorCode.NONE
        assert await txn_commit(world, "g", 1, **{**named, "generation": 9}) is ErrorCode.ILLEGAL_GENERATION
        assert await txn_commit(world, "g", 1, **{**named, "member_id": "m"}) is ErrorCode.FENCED_INSTANCE_ID
        assert await txn_commit(world, "g", 1, generation=generation, member_id="m") is ErrorCode.UNKNOWN_MEMBER_ID
        for version in (0, 1, 2):
            assert await txn_commit(world, "g", 1, version=version) is ErrorCode.NONE, "it names no member"


async def test_a_commit_during_a_rebalance_is_taken() -> None:
    """The offsets belong to records that the producer has sent already, as in Kafka."""
    async with running(World()) as world:
        first = await world.coordinator.join_group(join_request("g", version=3), CLIENT)
        named = {"member_id": first.member_id, "generation": first.generation_id}
        assert await world.commit("g", 1, **named) == ErrorCode.REBALANCE_IN_PROGRESS
        assert await txn_commit(world, "g", 1, **named) is ErrorCode.NONE


async def test_the_answer_comes_when_the_offsets_are_durable() -> None:
    async with running(World()) as world:
        await world.coordinator.ready("g")
        world.log.flush_s = 2.0
        commit = asyncio.ensure_future(txn_commit(world, "g", 1))
        await asyncio.sleep(1)
        assert not commit.done()
        assert await commit is ErrorCode.NONE
        world.log.fail_next = 1
        assert await txn_commit(world, "g", 2) is ErrorCode.NOT_COORDINATOR
        assert await end(world) is ErrorCode.NONE
        assert await world.fetch("g") == 1


async def test_a_commit_waits_for_the_marker_of_the_transaction_before() -> None:
    async with running(World()) as world:
        assert await txn_commit(world, "g", 1) is ErrorCode.NONE
        world.log.flush_s = 1.0
        ending = asyncio.ensure_future(end(world))
        await asyncio.sleep(0.1)
        assert await txn_commit(world, "g", 2) is ErrorCode.NONE
        assert await ending is ErrorCode.NONE
        assert await stable(world, "g") == UNSTABLE
        assert await world.fetch("g") == 1


@pytest.mark.parametrize("code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED])
async def test_what_the_log_refuses_is_refused_with_its_reason_and_the_shard_goes_on(code: ErrorCode) -> None:
    """A snapshot and a failover later the shard may know less of a producer than the partition's owner."""
    async with running(World()) as world:
        assert await txn_commit(world, "g", 1) is ErrorCode.NONE
        world.log.refuse_next = code
        ending = asyncio.ensure_future(end(world))
        await asyncio.sleep(0)
        late = asyncio.ensure_future(txn_commit(world, "g", 2))
        assert await ending is code
        assert await late is ErrorCode.NOT_COORDINATOR, "the refusal is the marker's"
        assert await stable(world, "g") == UNSTABLE
        world.log.refuse_next = code
        assert await txn_commit(world, "g", 3) is code
        assert await end(world, coordinator=2) is ErrorCode.NONE
        assert await stable(world, "g") == (ErrorCode.NONE, 1)


@pytest.mark.parametrize("code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED])
async def test_a_marker_that_the_log_refuses_has_the_shard_loaded_again_once(code: ErrorCode) -> None:
    async with running(World()) as world:
        assert await txn_commit(world, "g", 1) is ErrorCode.NONE
        assert await txn_commit(world, "h", 1, producer=2) is ErrorCode.NONE
        before = world.log.epoch
        for _ in range(5):
            world.log.refuse_next = code
            assert await end(world) is code
            await world.coordinator.ready("g")
        assert world.log.epoch == before + 1
        world.log.refuse_next = None
        assert await end(world, 2) is ErrorCode.NONE, "a refusal is one producer's"
        await asyncio.sleep(KEPT_S)
        assert await end(world) is ErrorCode.NONE, "the log is asked again, some time"
        assert await stable(world, "g") == (ErrorCode.NONE, 1)


async def test_expiry_spares_pending_offsets_and_their_group() -> None:
    async with running(World(retention_ms=1_000, expiry_interval_s=10)) as world:
        assert await world.commit("both", 1) == 0
        for group in ("both", "pending"):
            assert await txn_commit(world, group, 5) is ErrorCode.NONE
        await asyncio.sleep(60)
        assert await world.fetch("both") == 1
        states = {each.group_id for each in (await _described(world, "both", "pending")) if each.group_state == "Empty"}
        assert states == {"both", "pending"}
        assert await end(world) is ErrorCode.NONE
        await asyncio.sleep(60)
        assert world.offsets() == {}
        assert {each.group_state for each in await _described(world, "both", "pending")} == {"Dead"}


async def _described(world: World, *groups: str) -> list[m.DescribeGroupsResponse.DescribedGroup]:
    request = m.DescribeGroupsRequest(version=5, groups=list(groups), include_authorized_operations=False)
    return list((await world.coordinator.describe_groups(request, CLIENT)).groups)


@pytest.mark.parametrize("crashes", [False, True])
async def test_deleting_the_group_drops_its_pending_offsets(*, crashes: bool) -> None:
    async with running(World()) as world:
        assert await txn_commit(world, "g", 5) is ErrorCode.NONE
        assert await txn_commit(world, "other", 6) is ErrorCode.NONE
        response = await world.coordinator.delete_groups(m.DeleteGroupsRequest(groups_names=["g"]), CLIENT)
        assert response.results[0].error_code == 0
        if crashes:
            await world.crash()
        assert await end(world) is ErrorCode.NONE
        assert list(world.offsets()) == [("other", "orders", 0)]


@pytest.mark.parametrize("crashes", [False, True])
async def test_deleting_an_offset_drops_the_pending_one(*, crashes: bool) -> None:
    async with running(World()) as world:
        assert await txn_commit(world, "g", 5) is ErrorCode.NONE
        topic_class = m.OffsetDeleteRequest.OffsetDeleteRequestTopic
        part = topic_class.OffsetDeleteRequestPartition(partition_index=0)
        topics = [topic_class(name="orders", partitions=[part])]
        response = await world.coordinator.offset_delete(m.OffsetDeleteRequest(group_id="g", topics=topics), CLIENT)
        assert response.error_code == 0
        if crashes:
            await world.crash()
        assert await stable(world, "g") == (ErrorCode.NONE, -1)
        assert await end(world) is ErrorCode.NONE
        assert world.offsets() == {}


async def test_a_deleted_topic_does_not_take_the_pending_offset_of_the_next_of_its_name() -> None:
    async with running(World(expiry_interval_s=10)) as world:
        assert await world.commit("g", 1) == 0
        assert await txn_commit(world, "old", 2, producer=2) is ErrorCode.NONE
        world.catalog.topics["orders"] = AGAIN  # the deletion is seen late
        assert await txn_commit(world, "g", 5) is ErrorCode.NONE
        assert await stable(world, "old") == (ErrorCode.NONE, -1), "of the topic before"
        assert await stable(world, "g") == UNSTABLE
        await asyncio.sleep(30)
        assert await end(world) is ErrorCode.NONE
        assert await end(world, 2) is ErrorCode.NONE
        assert await stable(world, "g") == (ErrorCode.NONE, 5)
        await asyncio.sleep(30)
        assert list(world.offsets()) == [("g", "orders", 0)]
