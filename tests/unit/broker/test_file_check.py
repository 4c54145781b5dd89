"""An open segment's file that is deleted or moved from outside: noticed within a bound, reported, and left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bmq.broker.config import BrokerConfig
from bmq.core.errors import ErrorCode
from bmq.meta.kv_memory import KvFaults
from bmq.storage.memory import Faults
from tests.harness.waiting import until
from tests.unit.broker.world import World, batch, world

pytestmark = pytest.mark.slow

BOUND_S = BrokerConfig().file_check_ms / 1000 + 1.5
"""A look is due after ``file_check_ms``, and begins within a second of that."""


@asynccontextmanager
async def checked(file_check_ms: int = BrokerConfig().file_check_ms) -> AsyncIterator[World]:
    async with world(broker=BrokerConfig(file_check_ms=file_check_ms)) as w:
        w.topic()
        await w.produce_one(batch())
        yield w


def open_path(w: World) -> str:
    """Return the path of the one open segment, under its final name."""
    (path,) = [path for path in w.storage.open_files() if path.endswith(".log")]
    return path


async def write_for(w: World, seconds: float) -> None:
    """Produce a batch every 100 ms for that long; each must be acknowledged."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end:
        assert (await w.produce_one(batch())).error_code == 0
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("is_moved", [False, True])
async def test_it_is_noticed_within_the_bound_and_left(is_moved: bool) -> None:
    async with checked() as w:
        path = open_path(w)
        if is_moved:
            await w.fs.rename(path, "/elsewhere.log")
        else:
            await w.fs.delete(path)
        await write_for(w, BOUND_S)
        (logged,) = [line for line in w.broker.reports if "was deleted or moved while" in line]
        assert path in logged
        await write_for(w, 3 * BOUND_S)
        assert open_path(w) != path
        assert sum("deleted or moved" in line for line in w.broker.reports) == 1, "the new one stands"


async def test_another_file_under_its_name_is_not_it() -> None:
    async with checked() as w:
        path = open_path(w)
        await w.fs.rename(path, "/elsewhere.log")
        await (await w.fs.create(path)).close()
        await write_for(w, BOUND_S)
        assert any("was deleted or moved while" in line for line in w.broker.reports)


async def test_an_idle_segment_costs_nothing_and_a_written_one_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    async with checked() as w:
        looked = 0
        status = w.fs.status

        async def count(path: str) -> object:
            nonlocal looked
            looked += path.endswith(".log")
            return await status(path)

        monkeypatch.setattr(w.fs, "status", count)
        await asyncio.sleep(60)
        assert looked == 1, "once after its last flush"
        await write_for(w, 60)
        assert 60 / BOUND_S - 1 <= looked <= 60_000 / BrokerConfig().file_check_ms + 2


async def test_trouble_of_storage_or_store_is_no_sign_of_it() -> None:
    async with checked(file_check_ms=1000) as w:
        path = open_path(w)
        w.storage.faults = Faults(unavailable=1.0)
        await write_for(w, 4.0)
        w.storage.faults = Faults()
        assert open_path(w) == path
        await w.fs.delete(path)
        w.kv.faults = KvFaults(unavailable=1.0)
        await write_for(w, 4.0)
        assert not any("deleted or moved" in line for line in w.broker.reports), "it may be a successor's doing"
        w.kv.faults = KvFaults()
        await until(lambda: any("deleted or moved" in line for line in w.broker.reports))
        response = await w.produce_one(batch())
        assert response.error_code == ErrorCode.NONE
