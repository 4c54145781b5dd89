"""Committed offsets over the deletion of their topic, and over a topic that is made again under its name."""

from __future__ import annotations

import asyncio

import pytest

from bmq.coordinator.records import CoordinatorRecord, Offset, OffsetRecord, encode
from bmq.core.errors import ErrorCode, FormatError
from bmq.core.records.batch import Record, build_batch
from bmq.meta.kv import KvUnavailable
from tests.unit.coordinator.fakes import AGAIN, MemoryLogs, World, running, topic

GROUPS = 300


def append(world: World, *records: CoordinatorRecord) -> None:
    """Store records as an earlier coordinator wrote them."""
    batch = [Record(key=key, value=value) for key, value in map(encode, records)]
    world.log.store(build_batch(batch, base_timestamp=0))


@pytest.mark.slow
async def test_offsets_for_the_new_topic_outlive_the_removal_of_the_old_ones() -> None:
    """Let all groups commit to the new topic while the removal of their old offsets is still under way."""

    async with running(World()) as world:
        groups = [f"g{n}" for n in range(GROUPS)]
        assert set(await asyncio.gather(*(world.commit(each, 1000) for each in groups))) == {0}
        world.log.flush_s = 0.05  # so that the removal takes long
        world.catalog.delete("orders")
        world.catalog.create(AGAIN)
        assert set(await asyncio.gather(*(world.commit(each, 7) for each in groups))) == {0}
        await asyncio.sleep(60)
        assert {await world.fetch(each) for each in groups} == {7}
        await world.crash()
        assert {await world.fetch(each) for each in groups} == {7}


async def test_only_groups_that_commit_again_have_an_offset() -> None:
    async with running(World()) as world:
        for each in ("a", "b"):
            assert await world.commit(each, 1000) == 0
        world.catalog.delete("orders")
        world.catalog.create(AGAIN)
        assert await world.fetch("a") == -1, "at once, and not when it has been removed"
        assert await world.commit("b", 7) == 0
        await asyncio.sleep(5)
        assert [await world.fetch("a"), await world.fetch("b")] == [-1, 7]
        assert list(world.offsets()) == [("b", "orders", 0)]


@pytest.mark.parametrize("is_made_again", [False, True])
@pytest.mark.parametrize("retention_ms", [-1, 3_600_000], ids=["", "with an expiry of its own"])
async def test_a_deletion_while_no_coordinator_lives(is_made_again: bool, retention_ms: int) -> None:
    """kill -9 between the deletion's answer and the removal."""

    world = World()
    async with running(world):
        assert await world.commit("g", 1000, version=4, retention_ms=retention_ms) == 0
        assert await world.commit("g", 5, topic="events") == 0
        world.coordinator.abandon()
        world.catalog.delete("orders")
        if is_made_again:
            world.catalog.create(AGAIN)
        await world.crash()
        assert await world.fetch("g") == -1
        assert await world.fetch("g", topic="events") == 5
        await asyncio.sleep(1)
        assert list(world.offsets()) == [("g", "events", 0)]


async def test_a_deletion_while_the_shard_loads() -> None:
    """Load an offset from before ids were kept: only the deletion itself distinguishes it from one of the new topic."""

    world = World()
    append(world, OffsetRecord("g", "orders", 0, Offset(1000)), OffsetRecord("g", "orders", 1, Offset(1)))
    async with running(world):
        await asyncio.sleep(0)
        assert world.coordinator.shards._shards == {}
        await world.coordinator.ready("g")
        assert await world.fetch("g") == 1000, "records without an id belong to the topic of the name"
        world.logs.fail_opens = 3
        await world.crash()
        await asyncio.sleep(0.01)
        assert world.coordinator.shards._shards[0].serving is None
        world.catalog.delete("orders")
        world.catalog.create(AGAIN)
        await asyncio.sleep(5)
        assert await world.fetch("g") == -1
        assert world.offsets() == {}


async def test_offsets_without_an_id_go_with_the_topic_of_their_name() -> None:
    world = World()
    append(world, OffsetRecord("g", "orders", 0, Offset(1000)), OffsetRecord("g", "gone", 0, Offset(1)))
    async with running(world):
        assert await world.fetch("g") == 1000
        assert await world.fetch("g", topic="gone") == -1
        await asyncio.sleep(1)
        assert list(world.offsets()) == [("g", "orders", 0)]
        assert await world.commit("g", 1001, partition=1) == 0
        world.catalog.delete("orders")
        world.catalog.create(AGAIN)
        await asyncio.sleep(1)
        assert world.offsets() == {}


async def test_a_catalog_that_is_behind_removes_no_offsets() -> None:
    """The last owner's catalog showed the new topic already; the new owner's does not yet."""

    logs = MemoryLogs()
    ahead, behind = World(logs), World(logs)
    async with running(ahead), running(behind):
        ahead.catalog.delete("orders")
        ahead.catalog.create(AGAIN)
        assert await ahead.commit("g", 7) == 0
        ahead.isolate()
        assert behind.catalog.topics["orders"] == topic("orders")
        behind.catalog.unseen["orders"] = AGAIN
        assert await behind.fetch("g") == 7
        await asyncio.sleep(1)
        assert list(behind.offsets()) == [("g", "orders", 0)]


async def test_a_store_that_does_not_answer_removes_no_offsets() -> None:
    world = World()
    async with running(world):
        assert await world.commit("g", 7) == 0
        del world.catalog.topics["orders"]
        world.catalog.unseen["orders"] = topic("orders")
        world.catalog.refresh_error = KvUnavailable("no member answers")
        await world.crash()
        assert await world.commit("g", 8) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        world.catalog.refresh_error = None
        await asyncio.sleep(10)
        assert await world.fetch("g") == 7


async def test_a_topic_that_cannot_be_read_removes_no_offsets(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    async with running(world):
        assert await world.commit("g", 7) == 0
        del world.catalog.topics["orders"]
        world.catalog.refresh_error = FormatError("written by a later version")
        await world.crash()
        assert await world.fetch("g") == -1
        await asyncio.sleep(1)
        assert list(world.offsets()) == [("g", "orders", 0)]
        assert "written by a later version" in caplog.text


@pytest.mark.slow
async def test_a_removal_that_breaks_off_is_taken_up_by_the_next_load() -> None:
    async with running(World()) as world:
        groups = [f"g{n}" for n in range(GROUPS)]
        await asyncio.gather(*(world.commit(each, 1000) for each in groups))
        world.catalog.delete("orders")
        await asyncio.sleep(0.005)
        world.log.fail_next = 1
        await asyncio.sleep(10)
        assert world.offsets() == {}


async def test_offsets_of_a_deleted_topic_that_are_left_go_with_the_next_round_of_expiry() -> None:
    """A commit that was decided when its topic was there, and written after the removal had passed."""

    async with running(World(expiry_interval_s=60.0)) as world:
        await world.coordinator.ready("g")
        shard = world.coordinator.shards._shards[0]
        serving = shard.serving
        assert serving is not None
        late = Offset(3, topic_id=topic("long gone").topic_id)
        await serving.commit("g", "", None, -1, [("long gone", 0, late)], says_group_not_found=True)
        assert world.offsets()
        await asyncio.sleep(90)
        assert world.offsets() == {}
