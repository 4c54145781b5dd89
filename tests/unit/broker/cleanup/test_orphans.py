"""The sweep of what earlier owners left, while each fence takes long."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bmq.broker.cleanup.orphans import FENCED_AT_ONCE, Sweeper
from bmq.storage import layout
from bmq.storage.filesystem import Lease, StorageUnavailable
from bmq.storage.memory import MemoryFileSystem
from tests.harness.loop import run
from tests.unit.broker.cleanup.test_janitor import HOUR_MS, KEY, PATH, SMALL, World

FENCE_S = 10.0
"""As while a datanode of the file is dead."""
LEFT = [PATH.spare(1, 100 + number, "dead") for number in range(3 * FENCED_AT_ONCE)]


async def sweep(unclosable: str = "") -> tuple[list[str], float]:
    """Sweep ``LEFT``, which a dead owner holds open; return the names that are left, and the virtual seconds."""
    world = World()
    owner = await world.owner("a")
    await owner.broker.move(KEY)
    driver = await owner.broker.open(PATH, KEY, SMALL)  # epoch 2
    dead = MemoryFileSystem(world.storage, "dead")
    for path in LEFT:
        await dead.create(path)
    shared, loop = owner.broker.shared, asyncio.get_running_loop()
    sweeper = Sweeper(shared, names_per_job=2_000, grace_ms=0, journal_grace_ms=HOUR_MS, journals_per_sweep=1)
    fence = MemoryFileSystem.fence

    async def slow_fence(self: MemoryFileSystem, lease: Lease) -> Any:
        await asyncio.sleep(FENCE_S)
        if unclosable in lease.paths:
            raise StorageUnavailable("no datanode of it answers")
        return await fence(self, lease)

    begun = loop.time()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryFileSystem, "fence", slow_fence)
        if unclosable:
            with pytest.raises(StorageUnavailable):
                await sweeper.sweep(driver, shared.clock.now_ms() + HOUR_MS)
        else:
            assert await sweeper.sweep(driver, shared.clock.now_ms() + HOUR_MS)
    assert sweeper.files_swept == len(LEFT) - bool(unclosable)
    return await world.names(), loop.time() - begun


def test_files_are_fenced_several_at_once() -> None:
    """Retention of the broker's other partitions waits for the sweep: one by one it would wait for minutes."""
    names, took_s = run(sweep())
    assert names == []
    assert took_s == pytest.approx(3 * FENCE_S, abs=1.0)


def test_a_file_that_cannot_be_fenced_keeps_no_other() -> None:
    names, _ = run(sweep(LEFT[0]))
    assert names == [layout.base_name(LEFT[0])]
