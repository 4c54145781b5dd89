"""Snapshots: the log is bounded by them, and one that breaks off loses nothing."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.coordinator.fakes import (
    World,
    join_alone,
    running,
)


@pytest.mark.slow
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
        shard = world.coordinator.shards._shards[0]
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
