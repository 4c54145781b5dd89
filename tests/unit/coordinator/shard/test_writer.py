"""The writer of a shard: which records share a batch, what it refuses, and what waits for the log."""

from __future__ import annotations

import asyncio

import pytest

from bmq.coordinator.shard import writer
from bmq.core.errors import ErrorCode
from bmq.core.wire import messages as m
from tests.unit.coordinator.fakes import (
    CLIENT,
    World,
    commit_request,
    join_alone,
    join_code,
    running,
    sync_request,
)


async def test_rule_1_a_commit_is_answered_when_it_is_flushed() -> None:
    async with running(World()) as world:
        await world.coordinator.ready("g")
        world.log.flush_s = 2.0
        before = asyncio.get_running_loop().time()
        assert await world.commit("g", 7) == 0
        assert asyncio.get_running_loop().time() - before >= 2.0


async def test_commits_of_one_turn_share_a_batch() -> None:
    async with running(World()) as world:
        await world.coordinator.ready("g")
        before = len(world.log.batches)
        await asyncio.gather(*(world.commit("g", n, partition=n) for n in range(50)))
        assert len(world.log.batches) - before == 1
        # Those that come while it is in flight go into the next, together.
        first = asyncio.ensure_future(world.commit("g", 1))
        await asyncio.sleep(0.0005)
        await asyncio.gather(first, *(world.commit("g", n, partition=n) for n in range(50)))
        assert len(world.log.batches) - before == 3


async def test_a_large_commit_is_split_and_answered_once() -> None:
    async with running(World()) as world:
        await world.coordinator.ready("g")
        world.log.max_batch_bytes = 1_000
        request = commit_request("g", [("orders", n, n) for n in range(200)], metadata="x" * 100)
        response = await world.coordinator.offset_commit(request, CLIENT)
        assert {each.partitions[0].error_code for each in response.topics} == {0}
        assert all(len(data) <= 1_000 for _, data in world.log.batches)
        assert await world.fetch("g", partition=199) == 199


async def test_a_record_that_the_log_does_not_take_is_refused_alone() -> None:
    async with running(World()) as world:
        await world.coordinator.ready("g")
        world.log.max_batch_bytes = 300
        assert await world.commit("g", 1, metadata="x" * 400) == ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        assert await world.commit("g", 1) == 0


async def test_a_write_that_hangs_is_answered_in_time() -> None:
    async with running(World()) as world:
        await world.coordinator.ready("g")
        world.log.hang = True
        assert await world.commit("g", 1) == ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_requests_that_wait_for_room_are_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log hangs, and more waits for it than may."""
    monkeypatch.setattr(writer, "QUEUE_BYTES_MAX", 10_000)

    async with running(World()) as world:
        member, generation = await join_alone(world, "g", session_timeout_ms=1_000_000)
        assert await world.commit("simple", 1) == 0
        world.log.hang = True
        first = [asyncio.ensure_future(world.commit("in flight", 1))]
        await asyncio.sleep(1)
        first += [asyncio.ensure_future(world.commit(f"g{n}", n, metadata="x" * 4_000)) for n in range(5)]
        await asyncio.sleep(0)
        began = asyncio.get_running_loop().time()
        topic_class = m.OffsetDeleteRequest.OffsetDeleteRequestTopic
        part = topic_class.OffsetDeleteRequestPartition(partition_index=0)
        deletion = m.OffsetDeleteRequest(group_id="simple", topics=[topic_class(name="orders", partitions=[part])])
        answers = await asyncio.gather(
            world.commit("late", 1),
            join_code(world, "g", member),
            _sync(world, member, generation),
            _delete(world, "simple"),
            _code(world.coordinator.offset_delete(deletion, CLIENT)),
        )
        assert set(answers) == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert asyncio.get_running_loop().time() - began < 5.1
        assert {await each for each in first} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}


async def _code(response: object) -> int:
    return int((await response).error_code)  # type: ignore[misc]


async def _sync(world: World, member: str, generation: int) -> int:
    return await _code(world.coordinator.sync_group(sync_request("g", member, generation), CLIENT))


async def _delete(world: World, group: str) -> int:
    response = await world.coordinator.delete_groups(m.DeleteGroupsRequest(groups_names=[group]), CLIENT)
    return int(response.results[0].error_code)
