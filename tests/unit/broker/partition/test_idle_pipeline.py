"""Pipelines that break while nothing is written: noticed without a flush, and their files closed, in turns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bmq.broker.files.context import SEALS_AT_ONCE
from bmq.storage.filesystem import Lease
from bmq.storage.memory import Faults, MemoryFileSystem
from tests.harness.waiting import until
from tests.unit.broker.world import World, batch, world

PARTITIONS = 60
AT_ONCE = Faults(lease_recovery_s=(0.0, 0.0))
CLOSED_S = 2.0
"""With takeovers that cost no time: what is left is upkeep's second."""
ROLL_BYTES = 1 << 20
SOON_S = 60.0
"""Far less than ``idle_close_ms``."""
HDFS = Faults(call_s=(0.001, 0.003), ack_s=(0.0003, 0.0003), lease_recovery_s=(2.5, 11.0))


@asynccontextmanager
async def idle_partitions(faults: Faults = AT_ONCE, **configs: Any) -> AsyncIterator[World]:
    """Yield idle partitions that have one batch each; ``configs`` are the topic's."""
    async with world(faults=faults) as w:
        w.topic(partitions=PARTITIONS, **configs)
        for number in range(PARTITIONS):
            assert (await w.produce_one(batch(), number)).error_code == 0
        await asyncio.sleep(1)
        yield w


def restart_datanodes(w: World) -> None:
    for name in w.storage.datanodes:
        w.storage.kill_datanode(name)
    for name in w.storage.datanodes:
        w.storage.start_datanode(name)


def segments(w: World) -> list[str]:
    """Return the paths of the open segments."""
    return [path for path in w.storage.open_files() if "/topics/" in path]


@pytest.mark.slow
async def test_segments_of_idle_partitions_are_closed_and_can_be_read() -> None:
    async with idle_partitions() as w:
        reader = MemoryFileSystem(w.storage, "reader")
        paths = segments(w)
        assert len(paths) == PARTITIONS
        lengths = [await reader.visible_length(path) for path in paths]
        restart_datanodes(w)
        await asyncio.sleep(CLOSED_S)
        assert [path for path in paths if path in w.storage.open_files()] == []
        assert [await reader.visible_length(path) for path in paths] == lengths
        await asyncio.sleep(120)
        assert segments(w) == [], "nobody writes: no segment is opened"
        assert w.broker.reports == []
        assert (await w.produce_one(batch())).base_offset == 1


@pytest.mark.slow
async def test_a_single_datanode_that_restarts_has_its_segments_closed() -> None:
    """Else the next one to be restarted takes the next copy of each."""

    async with idle_partitions() as w:
        struck = [each.lease.paths[0] for each in w.storage.appenders if "dn1" in each.nodes]
        others = [each.lease.paths[0] for each in w.storage.appenders if "dn1" not in each.nodes]
        assert struck
        assert others
        w.storage.kill_datanode("dn1")
        w.storage.start_datanode("dn1")
        await asyncio.sleep(CLOSED_S)
        assert "dn1" in w.broker.context.health.excluded(w.broker.context.now_ms())
        open_spares = {each.lease.paths[0] for each in w.storage.appenders}
        assert open_spares.isdisjoint(struck)
        assert open_spares.issuperset(others)


@pytest.mark.slow
async def test_takeovers_of_idle_segments_take_turns() -> None:
    async with idle_partitions(HDFS) as w:
        under_way = most = 0
        fence = w.fs.fence

        async def counted(lease: Lease, *, sync: bool = False) -> int:
            nonlocal under_way, most
            under_way += "/topics/" in lease.paths[0]
            most = max(most, under_way)
            try:
                return await fence(lease, sync=sync)
            finally:
                under_way -= "/topics/" in lease.paths[0]

        w.fs.fence = counted  # type: ignore[method-assign]
        restart_datanodes(w)
        await asyncio.wait_for(until(lambda: not segments(w)), SOON_S)
        # A takeover that takes longer than its turn goes on beside the next ones: here at most three turns.
        assert SEALS_AT_ONCE <= most <= 3 * SEALS_AT_ONCE


@pytest.mark.slow
async def test_a_spare_that_breaks_unused_is_not_left_open() -> None:
    """Files of an epoch that lasts are not swept, and HDFS keeps a file open for as long as its writer's process lives:
    a datanode with such a file cannot be decommissioned."""

    async with idle_partitions(segment_bytes=str(ROLL_BYTES)) as w:
        nearly_full = batch(bytes(ROLL_BYTES * 15 // 16))
        for records in (nearly_full, batch()):
            assert (await w.produce_one(records)).error_code == 0
        await asyncio.sleep(1)
        (spare,) = [path for path in segments(w) if "/.spare" in path]
        restart_datanodes(w)
        await asyncio.sleep(CLOSED_S)
        assert spare not in w.storage.open_files()
        assert await w.fs.delete(spare) is False, "it is gone"
