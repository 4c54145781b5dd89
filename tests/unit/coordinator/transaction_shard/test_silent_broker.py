"""Markers beside a silent broker: those to other brokers do not wait for it, in one transaction or in many."""

from __future__ import annotations

import asyncio

import pytest

from bmq.coordinator.transaction_shard import markers
from bmq.coordinator.transaction_shard.call_room import PATIENCE_S, CallRoom
from tests.unit.coordinator.transaction_shard.world import World, key, running

SILENT = key(0)


def silenced() -> World:
    """Return processes beside partitions of which ``SILENT`` takes no marker until the broker heals."""
    world = World()
    world.partitions.silent.add(SILENT)
    return world


async def test_slices_of_a_transaction_do_not_wait_for_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "PARTITIONS_A_CALL", 1)
    world = silenced()
    async with running(world):
        producer = await world.a.begin(*range(10))
        assert (await world.a.end(producer, commit=True)).error_code == 0
        await asyncio.sleep(PATIENCE_S / 2)
        assert len(world.partitions.taken) == 9, "all but the silent broker's"
        world.partitions.heals.set()
        await asyncio.sleep(0.1)
        assert await world.a.state() == "CompleteCommit"


async def test_transactions_with_a_silent_broker_give_their_places_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "SENDING_MAX", 3)
    world = silenced()
    async with running(world):
        for number in range(7):
            producer = await world.a.begin(0, tid=f"silent-{number}")
            assert (await world.a.end(producer, commit=True, tid=f"silent-{number}")).error_code == 0
        producer = await world.a.begin(1)
        assert (await world.a.end(producer, commit=True)).error_code == 0
        await asyncio.sleep(PATIENCE_S * 3)
        assert await world.a.state() == "CompleteCommit"
        assert await world.a.state("silent-0") == "PrepareCommit"
        world.partitions.heals.set()
        await asyncio.sleep(1)
        for number in range(7):
            assert await world.a.state(f"silent-{number}") == "CompleteCommit"


async def test_a_process_has_a_bounded_number_of_calls_and_of_late_calls() -> None:
    room = CallRoom(places=2, late_max=3)
    heals = asyncio.Event()
    under_way = 0

    async def call() -> None:
        nonlocal under_way
        under_way += 1
        await heals.wait()
        under_way -= 1

    calls = [asyncio.ensure_future(room.run(call)) for _ in range(9)]
    await asyncio.sleep(PATIENCE_S / 2)
    assert under_way == 2
    await asyncio.sleep(PATIENCE_S * 5)
    assert (under_way, room.late) == (5, 3)
    heals.set()
    await asyncio.gather(*calls)
    assert room.late == 0
    heals.clear()
    again = [asyncio.ensure_future(room.run(call)) for _ in range(3)]
    await asyncio.sleep(PATIENCE_S / 2)
    assert under_way == 2, "each place is there again, and none twice"
    heals.set()
    await asyncio.gather(*again)
