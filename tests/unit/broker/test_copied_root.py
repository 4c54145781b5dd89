"""A local root that was copied after its server was killed opens, with every acknowledged record."""

from __future__ import annotations

import asyncio
import shutil
import uuid
from pathlib import Path
from random import Random

import pytest

from bmq.broker.config import LogConfig
from bmq.broker.partition.states import PartitionState
from bmq.core.model import PartitionKey
from bmq.core.records.batch import Record, build_batch
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.storage.layout import PartitionPath
from bmq.storage.local.filesystem import LocalFileSystem
from tests.harness.members import lone_broker
from tests.simulation.world import read_log

KEY = PartitionKey(uuid.UUID(int=5), 0)
PATH = PartitionPath("orders", str(KEY.topic_id), 0)


@pytest.mark.slow
@pytest.mark.loops("asyncio")
@pytest.mark.parametrize("is_synced", [False, True])
async def test_a_copied_root_opens(tmp_path: Path, is_synced: bool) -> None:
    """Copy the folder of a killed broker: its record lists an open segment by an inode number that the copy does not
    have."""

    store, config = MemoryStore(), LogConfig(flush_sync=is_synced)
    (tmp_path / "root").mkdir()
    fs = LocalFileSystem(tmp_path / "root", "first")
    broker = lone_broker(fs, MemoryKeyValue(store, random=Random(1)), incarnation="first")
    await broker.start()
    driver = await broker.open(PATH, KEY, config)
    for number in range(3):
        data = build_batch([Record(value=b"%d" % number)])
        assert await driver.append(memoryview(data)) == number
    await driver.abandon()  # killed: nothing is closed, nothing released
    for task in broker._tasks:
        task.cancel()
    await asyncio.gather(*broker._tasks, return_exceptions=True)
    broker.context.timers.close()
    await fs.close()

    await asyncio.to_thread(shutil.copytree, tmp_path / "root", tmp_path / "copy")
    fs = LocalFileSystem(tmp_path / "copy", "second")
    async with lone_broker(fs, MemoryKeyValue(store, random=Random(2)), incarnation="second") as heir:
        driver = await heir.open(PATH, KEY, config)
        assert driver.machine.state is PartitionState.WRITE
        assert await driver.append(memoryview(build_batch([Record(value=b"3")]))) == 3
        assert len(await read_log(fs, 4, PATH)) == 4
    await fs.close()
