"""A shard that serves: reads, parked members and generations."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.wire import messages as m
from tests.unit.coordinator.fakes import (
    CLIENT,
    World,
    join_alone,
    join_request,
    running,
    sync_request,
)
from tests.unit.coordinator.txn_requests import end, txn_commit


async def test_rule_2_a_fetch_shows_durable_offsets_only() -> None:
    async with running(World()) as world:
        assert await world.commit("g", 1) == 0
        assert await world.commit("other", 5) == 0
        world.log.flush_s = 2.0
        commit = asyncio.ensure_future(world.commit("g", 2))
        await asyncio.sleep(0.1)
        assert await world.fetch("other") == 5  # of another group: not held up
        assert not commit.done()
        assert await world.fetch("g") == 2  # waits, and then shows what is durable
        assert commit.done()


async def test_a_cancelled_join_leaves_its_member_until_the_session_ends() -> None:
    async with running(World()) as world:
        await join_alone(world, "g")
        other = await world.coordinator.join_group(join_request("g"), CLIENT)
        parked = asyncio.ensure_future(world.coordinator.join_group(join_request("g", other.member_id), CLIENT))
        await asyncio.sleep(1)
        parked.cancel()
        await asyncio.sleep(1)
        described = await world.coordinator.describe_groups(
            m.DescribeGroupsRequest(version=5, groups=["g"], include_authorized_operations=True), CLIENT
        )
        assert len(described.groups[0].members) == 2
        assert described.groups[0].authorized_operations == {3, 6, 8, 10, 11}
        assert world.coordinator.groups_by_state()["PreparingRebalance"] == 1


async def test_a_generation_is_answered_when_it_is_durable() -> None:
    async with running(World()) as world:
        first = await world.coordinator.join_group(join_request("g", version=3), CLIENT)
        world.log.fail_next = 1
        synced = await world.coordinator.sync_group(
            sync_request("g", first.member_id, first.generation_id, {first.member_id: b"a"}), CLIENT
        )
        assert synced.error_code == ErrorCode.NOT_COORDINATOR
        await world.coordinator.ready("g")
        assert world.facts() == {}


async def test_a_generation_that_is_too_large_is_refused_and_the_group_goes_on() -> None:
    async with running(World()) as world:
        first = await world.coordinator.join_group(join_request("g", version=3), CLIENT)
        world.log.max_batch_bytes = 2_000
        sync = sync_request("g", first.member_id, first.generation_id, {first.member_id: b"a" * 3_000})
        assert (await world.coordinator.sync_group(sync, CLIENT)).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        again = await world.coordinator.join_group(join_request("g", first.member_id), CLIENT)
        assert (again.error_code, again.generation_id) == (0, 2)


async def test_a_writer_that_has_failed_refuses_to_wait_for_room() -> None:
    async with running(World()) as world:
        await world.coordinator.ready("g")
        serving = world.coordinator.shards._shards[0].serving
        assert serving is not None
        serving.writer.fail(RequestError(ErrorCode.KAFKA_STORAGE_ERROR, "gone"))
        with pytest.raises(RequestError) as refused:
            await serving.room()
        assert refused.value.code is ErrorCode.NOT_COORDINATOR


@pytest.mark.slow
async def test_a_lost_shard_is_in_no_circle_of_references() -> None:
    async with running(World()) as world:
        await join_alone(world, "g")
        assert await txn_commit(world, "other", 5) is ErrorCode.NONE
        assert await end(world) is ErrorCode.NONE
        serving = weakref.ref(await world.coordinator.shards.serving("g"))
        gc.collect()  # of the requests before
        gc.disable()
        try:
            await world.crash()
            for _ in range(20):
                await asyncio.sleep(0)  # turns of the loop: its last callbacks hold the shard
            assert serving() is None, "the garbage collector would free its groups all at once"
        finally:
            gc.enable()
