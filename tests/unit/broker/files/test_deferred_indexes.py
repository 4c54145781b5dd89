"""Indexes that are written some time after their segment was closed."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from bmq.broker.files.deferred_indexes import ATTEMPTS, BEHIND_MS, LOOK_MS
from bmq.broker.files.segment_files import SegmentFiles
from bmq.core.clock import LoopClock
from bmq.core.model import SegmentName
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.storage.filesystem import NoSuchFile, write_once
from bmq.storage.memory import Faults, MemoryFileSystem, MemoryStorage
from tests.harness.members import lone_broker
from tests.simulation.world import PATH

NAME = SegmentName(0, 1, 0)
LENGTH = 10


@pytest.mark.parametrize(
    ("length", "is_written", "reports"),
    [(LENGTH, True, 0), (LENGTH + 5, False, 0), (LENGTH - 1, False, 1), (-1, False, 0)],
    ids=["as it was", "joined with its neighbour", "shorter", "gone"],
)
async def test_an_index_is_written_only_beside_the_file_that_it_describes(
    length: int, is_written: bool, reports: int
) -> None:
    """A longer file has an index of its own, or will have: this index would stand in its way."""

    fs = MemoryFileSystem(MemoryStorage(Random(1)), "b")
    kv = MemoryKeyValue(MemoryStore(), random=Random(1))
    broker = lone_broker(fs, kv, incarnation="b", clock=LoopClock())
    files = SegmentFiles(broker.shared, PATH, is_synced=False, replication=3)
    if length >= 0:
        await write_once(fs, PATH.log(NAME), b"x" * length)
    late = broker.shared.deferred_indexes
    late.add(files, NAME, LENGTH, b"index", after_ms=LOOK_MS)
    await asyncio.sleep(LOOK_MS / 1000 - 0.1)
    with pytest.raises(NoSuchFile):
        await fs.status(PATH.idx(NAME))
    await asyncio.sleep(1)
    assert len(late) == 0
    found = [status.path async for status in fs.list(PATH.folder) if status.path == PATH.idx(NAME)]
    assert bool(found) is is_written
    if is_written:
        assert await fs.read(PATH.idx(NAME), 0, 99) == b"index"
    assert len(broker.reports) == reports


async def test_storage_that_is_away_is_asked_a_few_times_and_the_operator_hears_of_it() -> None:
    storage = MemoryStorage(Random(1))
    fs = MemoryFileSystem(storage, "b")
    broker = lone_broker(fs, MemoryKeyValue(MemoryStore(), random=Random(1)), incarnation="b", clock=LoopClock())
    files = SegmentFiles(broker.shared, PATH, is_synced=False, replication=3)
    await write_once(fs, PATH.log(NAME), b"x" * LENGTH)
    storage.faults = Faults(unavailable=1.0)
    broker.shared.deferred_indexes.add(files, NAME, LENGTH, b"index", after_ms=BEHIND_MS)
    await asyncio.sleep(ATTEMPTS)
    (report,) = broker.reports
    assert "could not write the index" in report


async def test_a_broker_that_cannot_write_its_indexes_in_time_counts_them_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The writing is cancelled then, and still counts."""

    storage = MemoryStorage(Random(1))
    fs = MemoryFileSystem(storage, "b")
    broker = lone_broker(fs, MemoryKeyValue(MemoryStore(), random=Random(1)), incarnation="b", clock=LoopClock())
    files = SegmentFiles(broker.shared, PATH, is_synced=False, replication=3)
    await write_once(fs, PATH.log(NAME), b"x" * LENGTH)
    storage.faults = Faults(waits_for_namenode=1.0)
    storage.restart_namenode(1000.0)
    late = broker.shared.deferred_indexes
    for _ in range(3):
        late.add(files, NAME, LENGTH, b"index", after_ms=0)
    await broker.close()
    texts = [record.getMessage() for record in caplog.records]
    assert "3 segments' indexes are not written: their partitions' next owners write them" in texts
    assert len(late) == 0
