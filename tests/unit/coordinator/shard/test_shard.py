"""A shard on a log with faults: what was answered is never lost, what is shown is durable, one shard serves at a time.

``rule_N`` in a name is a rule of docs/design/rules.md; ``120_121`` are the issues of KafScale that had the fault.
"""

from __future__ import annotations

import asyncio

import pytest

from bmq.coordinator.records import Offset, OffsetRecord, encode
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.records.batch import Record, build_batch
from bmq.core.wire import messages as m
from bmq.meta.shard_kinds import GROUPS, ShardId
from tests.unit.coordinator.fakes import (
    CLIENT,
    MemoryLogs,
    World,
    join_alone,
    join_request,
    running,
)


@pytest.mark.parametrize("is_flushed", [False, True])
async def test_a_failed_append_is_answered_retriable_and_the_shard_loads_again(is_flushed: bool) -> None:
    """Fail an append, also one whose batch became durable: a crash between append and response."""

    async with running(World()) as world:
        assert await world.commit("g", 1) == 0
        if is_flushed:
            world.log.lose_answers = 1
        else:
            world.log.fail_next = 1
        assert await world.commit("g", 2) == ErrorCode.NOT_COORDINATOR
        assert await world.fetch("g") == (2 if is_flushed else 1)
        assert await world.commit("g", 3) == 0


@pytest.mark.parametrize("read_bytes", [1, 1 << 20])
async def test_acknowledged_commits_survive_a_crash(read_bytes: int) -> None:
    """Replayed in one piece, and batch by batch up to the barrier."""

    world = World(read_bytes=read_bytes)
    async with running(world):
        member, generation = await join_alone(world, "members")
        for offset in range(20):
            assert await world.commit("g", offset, partition=offset % 4) == 0
        await world.crash()
        assert [await world.fetch("g", partition=n) for n in range(4)] == [16, 17, 18, 19]
        beat = m.HeartbeatRequest(group_id="members", member_id=member, generation_id=generation)
        assert await world.heartbeat(beat) == 0


async def test_kafscale_120_121_of_two_coordinators_of_one_shard_one_is_fenced() -> None:
    """KafScale #121: a stale coordinator answers nothing that the new one does not know."""

    logs = MemoryLogs()
    stale, fresh = World(logs), World(logs)
    async with running(stale), running(fresh):
        assert await stale.commit("g", 1) == 0
        logs.partitions[0].flush_s = 1.0
        late = asyncio.ensure_future(stale.commit("g", 2))  # in flight when the other opens
        await asyncio.sleep(0.1)
        logs.partitions[0].flush_s = 0.001
        stale.isolate()
        assert await fresh.fetch("g") == 1
        assert await late == ErrorCode.NOT_COORDINATOR
        assert await fresh.commit("g", 3) == 0
        assert await fresh.fetch("g") == 3
    stored = logs.partitions[0]
    assert stored.next_offset == sum(1 for _ in stored.batches), "no offset was given twice"


async def test_a_stale_shards_record_before_the_barrier_counts() -> None:
    logs = MemoryLogs()
    stale, fresh = World(logs), World(logs)
    async with running(stale), running(fresh):
        assert await stale.commit("g", 41) == 0
        stale.isolate()
        await fresh.coordinator.ready("g")
        assert await fresh.fetch("g") == 41


async def test_requests_to_a_shard_that_cannot_load_are_refused_and_it_tries_again() -> None:
    world = World()
    world.logs.fail_opens = 8
    async with running(world):
        assert await world.commit("g", 1) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await asyncio.sleep(60)
        assert await world.commit("g", 1) == 0


@pytest.mark.slow
async def test_a_log_that_cannot_be_read_does_not_grow_and_is_reported() -> None:
    world = World()
    async with running(world):
        assert await world.commit("g", 1) == 0
        world.log.fail_reads = "segment 0 ends at 566"
        await world.crash()
        await asyncio.sleep(1)
        assert world.coordinator.shards_not_loaded() == {}, "a request would still wait for it"
        before = world.log.next_offset
        await asyncio.sleep(3600)
        assert world.log.next_offset == before
        why = "KAFKA_STORAGE_ERROR: segment 0 ends at 566"
        assert world.coordinator.shards_not_loaded() == {ShardId(GROUPS, 0): why}
        with pytest.raises(RequestError, match="segment 0 ends at 566"):
            await world.coordinator.ready("g")
        world.log.fail_reads = None
        await asyncio.sleep(10)
        assert world.coordinator.shards_not_loaded() == {}
        assert await world.fetch("g") == 1


async def test_a_load_that_hangs_is_reported() -> None:
    world = World()
    async with running(world):
        assert await world.commit("g", 1) == 0
        world.log.hang = True
        await world.crash()
        await asyncio.sleep(60)
        assert world.coordinator.shards_not_loaded() == {ShardId(GROUPS, 0): "its log is being read"}


async def test_records_written_while_the_log_was_read_count() -> None:
    """The stale coordinator's last batch comes between the first reading and the barrier."""

    world = World(read_bytes=1)
    async with running(world):
        for offset in range(20):
            assert await world.commit("g", offset) == 0
        key, value = encode(OffsetRecord("g", "orders", 0, Offset(99)))
        late = build_batch([Record(key=key, value=value)], base_timestamp=0)
        await world.crash()
        await asyncio.sleep(0)
        assert world.coordinator.shards._shards[0].serving is None
        world.log.store(late)
        assert await world.fetch("g") == 99


async def test_heartbeats_are_answered_while_a_shard_loads() -> None:
    world = World()
    async with running(world):
        member, generation = await join_alone(world, "g")
        beat = m.HeartbeatRequest(group_id="g", member_id=member, generation_id=generation)
        world.logs.fail_opens = 3
        await world.crash()
        assert await world.heartbeat(beat) == 0
        assert world.coordinator.shards._shards[0].serving is None
        await world.coordinator.ready("g")
        assert await world.heartbeat(beat) == 0


async def test_a_lost_shard_answers_parked_members_and_sessions_start_again() -> None:
    async with running(World()) as world:
        member, generation = await join_alone(world, "g")
        other = await world.coordinator.join_group(join_request("g"), CLIENT)
        parked = asyncio.ensure_future(world.coordinator.join_group(join_request("g", other.member_id), CLIENT))
        await asyncio.sleep(1)
        log = world.log.open_log
        assert log is not None
        log.end()
        assert (await parked).error_code == ErrorCode.NOT_COORDINATOR
        await world.coordinator.ready("g")
        beat = m.HeartbeatRequest(group_id="g", member_id=member, generation_id=generation)
        await asyncio.sleep(9)
        assert await world.heartbeat(beat) == 0
        await asyncio.sleep(11)
        assert await world.heartbeat(beat) == ErrorCode.UNKNOWN_MEMBER_ID


async def test_offsets_of_a_deleted_topic_are_removed() -> None:
    async with running(World()) as world:
        assert await world.commit("g", 1) == 0
        assert await world.commit("g", 2, topic="events") == 0
        world.catalog.delete("orders")
        await asyncio.sleep(1)
        assert list(world.facts()) == [("g", "events", 0)]
        assert await world.commit("g", 3) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
