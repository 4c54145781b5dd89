"""All shards of a process: which are loaded and when, expiry, drain and close."""

from __future__ import annotations

import asyncio

import pytest

from bmq.coordinator.group_shard.state import GroupsState
from bmq.core.errors import ErrorCode
from bmq.core.wire import messages as m
from bmq.meta.catalog import OFFSETS_TOPIC, Topic
from tests.unit.coordinator.fakes import (
    CLIENT,
    MemoryLogs,
    World,
    join_alone,
    join_request,
    running,
    topic,
)


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
            assert written == [own.number]
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


async def test_a_drain_answers_parked_requests_and_serves_the_others() -> None:
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


async def test_close_answers_parked_requests_and_leaves_no_task() -> None:
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


async def test_expiry_goes_on_after_a_fault_in_a_shard(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(World(expiry_interval_s=60.0, retention_ms=100_000)) as world:
        assert await world.commit("g", 1) == 0
        right = GroupsState.expired_offsets
        faults: list[str] = []

        def fault(*arguments: object) -> list[object]:
            faults.append("once")
            monkeypatch.setattr(GroupsState, "expired_offsets", right)
            raise ZeroDivisionError("a fault of ours")

        monkeypatch.setattr(GroupsState, "expired_offsets", fault)
        await asyncio.sleep(200)
        assert faults == ["once"]
        assert "a fault of ours" in caplog.text
        assert await world.fetch("g") == -1


async def test_a_shard_that_comes_before_its_topic_is_loaded_without_a_request() -> None:
    """A process whose catalog is late must let groups expire all the same."""
    world = World(retention_ms=3_600_000, expiry_interval_s=600)
    async with running(world):
        assert await world.commit("g", 1) == 0
        late = world.catalog.topics.pop(OFFSETS_TOPIC)
        await world.crash()
        await asyncio.sleep(60)
        assert world.coordinator.shards._shards == {}
        world.catalog.create(late)
        await asyncio.sleep(60)
        assert [shard.phase.value for shard in world.coordinator.shards._shards.values()] == ["active"]
        await asyncio.sleep(2 * 3_600)
        assert len(world.facts(0)) == 0


async def test_a_request_that_waits_for_the_topic_loads_no_shard_after_the_close() -> None:
    world = World()
    gate, topic_of = asyncio.Event(), world._topic

    async def slow() -> Topic:
        await gate.wait()
        return await topic_of()

    world._topic = slow  # type: ignore[method-assign]
    world.coordinator = world._make()
    await world.coordinator.start()
    request = asyncio.create_task(world.commit("g", 1))
    await asyncio.sleep(1)
    await world.coordinator.close()
    gate.set()
    assert await request == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.coordinator.shards._shards == {}
    assert [partition.open_log for partition in world.logs.partitions] == [None]
