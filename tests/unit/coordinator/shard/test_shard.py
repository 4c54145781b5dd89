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
from bmq.meta.catalog import OFFSETS_TOPIC
from tests.unit.coordinator.fakes import (
    CLIENT,
    MemoryLogs,
    World,
    commit_request,
    join_alone,
    join_request,
    running,
    sync_request,
    topic,
)


async def test_rule_1_a_commit_is_answered_when_it_is_flushed() -> None:
    async with running(World()) as world:
        await world.coordinator.ready("g")
        world.log.flush_s = 2.0
        before = asyncio.get_running_loop().time()
        assert await world.commit("g", 7) == 0
        assert asyncio.get_running_loop().time() - before >= 2.0


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
async def test_a_crash_keeps_what_was_answered(read_bytes: int) -> None:
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


async def test_120_121_of_two_coordinators_of_one_shard_one_is_fenced() -> None:
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


async def test_what_a_stale_shard_got_in_before_the_barrier_counts() -> None:
    logs = MemoryLogs()
    stale, fresh = World(logs), World(logs)
    async with running(stale), running(fresh):
        assert await stale.commit("g", 41) == 0
        stale.isolate()
        await fresh.coordinator.ready("g")
        assert await fresh.fetch("g") == 41


async def test_a_shard_that_cannot_load_answers_and_tries_again() -> None:
    world = World()
    world.logs.fail_opens = 8
    async with running(world):
        assert await world.commit("g", 1) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await asyncio.sleep(60)
        assert await world.commit("g", 1) == 0


async def test_a_log_that_cannot_be_read_does_not_grow_and_is_said_aloud() -> None:
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
        assert world.coordinator.shards_not_loaded() == {0: why}
        with pytest.raises(RequestError, match="segment 0 ends at 566"):
            await world.coordinator.ready("g")
        world.log.fail_reads = None
        await asyncio.sleep(10)
        assert world.coordinator.shards_not_loaded() == {}
        assert await world.fetch("g") == 1


async def test_a_load_that_hangs_is_said_aloud_too() -> None:
    world = World()
    async with running(world):
        assert await world.commit("g", 1) == 0
        world.log.hang = True
        await world.crash()
        await asyncio.sleep(60)
        assert world.coordinator.shards_not_loaded() == {0: "its log is being read"}


async def test_what_was_written_while_the_log_was_read_counts() -> None:
    """The stale coordinator's last batch comes between the first reading and the barrier."""

    world = World(read_bytes=1)
    async with running(world):
        for offset in range(20):
            assert await world.commit("g", offset) == 0
        key, value = encode(OffsetRecord("g", "orders", 0, Offset(99)))
        late = build_batch([Record(key=key, value=value)], base_timestamp=0)
        await world.crash()
        await asyncio.sleep(0)
        assert world.coordinator._shards._shards[0].serving is None
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
        assert world.coordinator._shards._shards[0].serving is None
        await world.coordinator.ready("g")
        assert await world.heartbeat(beat) == 0


async def test_a_write_that_hangs_is_answered_in_time() -> None:
    async with running(World()) as world:
        await world.coordinator.ready("g")
        world.log.hang = True
        assert await world.commit("g", 1) == ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_parked_members_hear_of_a_lost_shard_and_sessions_begin_anew() -> None:
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


async def test_snapshot_in_the_middle_of_traffic_bounds_the_log() -> None:
    world = World(snapshot_bytes=20_000, snapshot_chunk_bytes=500)
    async with running(world):
        member, _ = await join_alone(world, "members", session_timeout_ms=1_000_000)
        for turn in range(400):
            assert await world.commit(f"g{turn % 30}", turn, partition=turn % 4) == 0
        await asyncio.sleep(1)
        assert world.log.log_start > 0
        assert sum(len(data) for _, data in world.log.batches) < 60_000
        before = world.facts()
        await world.crash()
        await world.coordinator.ready("members")
        assert world.facts() == before
        assert any(member in str(value) for value in before.values())


async def test_a_snapshot_that_breaks_off_loses_nothing() -> None:
    world = World(snapshot_bytes=1 << 30, snapshot_chunk_bytes=200)
    async with running(world):
        for turn in range(60):
            assert await world.commit(f"g{turn % 20}", turn) == 0
        shard = world.coordinator._shards._shards[0]
        shard._snapshot_at = 0
        before = world.facts()
        for _ in range(10):  # broken off at another place each time
            await world.coordinator.ready("g0")
            shard._snapshot_at = 0
            commit = asyncio.ensure_future(world.commit("g0", 40))
            await asyncio.sleep(0.001 * (_ + 2))
            world.log.fail_next = 1
            await commit
            await asyncio.sleep(5)
            assert world.facts() == {**before, ("g0", "orders", 0): world.facts()["g0", "orders", 0]}
        assert await world.fetch("g0") == 40


async def test_offsets_of_a_deleted_topic_are_removed() -> None:
    async with running(World()) as world:
        assert await world.commit("g", 1) == 0
        assert await world.commit("g", 2, topic="events") == 0
        world.catalog.delete("orders")
        await asyncio.sleep(1)
        assert list(world.facts()) == [("g", "events", 0)]
        assert await world.commit("g", 3) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_deleting_the_offsets_topic_ends_all_groups() -> None:
    async with running(World()) as world:
        assert await world.commit("g", 1) == 0
        world.catalog.delete(OFFSETS_TOPIC)
        world.offsets_topic = topic(OFFSETS_TOPIC, 1)
        world.log.batches.clear()
        world.log.log_start = world.log.next_offset
        assert await world.fetch("g") == -1


async def test_rule_8_nothing_is_written_for_shards_without_groups() -> None:
    world = World(MemoryLogs(20))
    async with running(world):
        assert await world.commit("g", 1) == 0
        own = world.coordinator.shard_of("g")
        for _ in range(3):
            await world.crash()
            await asyncio.sleep(1)
            listed = await world.coordinator.list_groups(m.ListGroupsRequest(version=4), CLIENT)
            assert [each.group_id for each in listed.groups] == ["g"]
            written = [number for number, each in enumerate(world.logs.partitions) if each.batches]
            assert written == [own]
        beat = m.HeartbeatRequest(group_id="other", member_id="m", generation_id=1)
        assert world.coordinator.shard_of("other") != own
        assert await world.heartbeat(beat) == ErrorCode.UNKNOWN_MEMBER_ID
        assert await world.commit("other", 2) == 0  # now it is needed
        assert await world.fetch("other") == 2
        listed = await world.coordinator.list_groups(m.ListGroupsRequest(version=4), CLIENT)
        assert {each.group_id for each in listed.groups} == {"g", "other"}


async def test_existing_shards_load_at_start_and_offsets_expire() -> None:
    world = World(MemoryLogs(3), retention_ms=3_600_000, expiry_interval_s=600)
    async with running(world):
        for n in range(20):
            assert await world.commit(f"g{n}", n) == 0
        await world.crash()
        await asyncio.sleep(30 * 60)
        assert sum(len(world.facts(n)) for n in range(3)) == 20, "loaded, though nobody asked"
        await asyncio.sleep(45 * 60)
        assert sum(len(world.facts(n)) for n in range(3)) == 0


async def test_drain_answers_those_who_wait_and_serves_the_rest() -> None:
    async with running(World()) as world:
        member, generation = await join_alone(world, "g")
        other = await world.coordinator.join_group(join_request("g"), CLIENT)
        parked = asyncio.ensure_future(world.coordinator.join_group(join_request("g", other.member_id), CLIENT))
        await asyncio.sleep(1)
        world.coordinator.drain()
        assert (await parked).error_code == ErrorCode.NOT_COORDINATOR
        again = await world.coordinator.join_group(join_request("g", member), CLIENT)
        assert again.error_code == ErrorCode.NOT_COORDINATOR
        assert await world.commit("g", 5, member_id=member, generation=generation) == 0
        assert await world.fetch("g") == 5
        await asyncio.sleep(11)
        assert world.coordinator.groups_by_state()["Empty"] == 1, "sessions go on, and end"


async def test_close_answers_everybody_and_leaves_no_task() -> None:
    world = World()
    await world.coordinator.start()
    await join_alone(world, "g")
    other = await world.coordinator.join_group(join_request("g"), CLIENT)
    parked = asyncio.ensure_future(world.coordinator.join_group(join_request("g", other.member_id), CLIENT))
    await asyncio.sleep(1)
    await world.coordinator.close()
    assert (await parked).error_code == ErrorCode.NOT_COORDINATOR
    assert await world.commit("g", 1) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert asyncio.all_tasks() == {asyncio.current_task()}
