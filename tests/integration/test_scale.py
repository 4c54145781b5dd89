"""Many partitions: a start reads tails only, an idle one costs a few kilobytes and no time.

On a local folder, where a segment of 100 MB is made as a hole with real batches at its end: a start that looked into
the hole would find no batch there and take the partition OFFLINE.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import tempfile
import time
import uuid
from array import array
from collections.abc import Coroutine, Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import psutil
import pytest
import uvloop

from bmq.broker.config import BrokerConfig
from bmq.broker.partition.driver import PartitionDriver
from bmq.broker.partition.states import PartitionState
from bmq.core.model import PartitionKey, SegmentName
from bmq.core.records.batch import Batch
from bmq.meta import ownership
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.meta.open import open_keyvalue
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.filesystem import FileSystem
from bmq.storage.journal_writer import JournalWriter
from bmq.storage.layout import PartitionPath
from bmq.storage.open import open_filesystem
from tests.integration.driver import DriverProcess, WatchedFs, partition_of, watched
from tests.integration.history import broker_on, report, spread
from tests.integration.test_log_kill9 import BATCH_BYTES, BYTES_READ_MAX
from tests.simulation.world import make

TIMEOUT_S = 600.0
PARTITIONS = 1_000
SEGMENT_BYTES = 100 << 20
TAIL_BATCHES = 20
INDEX_BYTES = 64 << 10
IDLE = 10_000
IDLE_BYTES_MAX = 20 << 10
IDLE_CPU_SHARE_MAX = 0.05
WATCHED_S = 5.0
TASKS_MAX = 10
"""The broker's own (journal, membership, upkeep), the store's, and the test."""
GONE = "gone"


def test_start_with_a_thousand_partitions_of_100_mb(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Open the partitions of a killed owner: of each only the tail behind its checkpoint is read, and once."""

    async def test() -> None:
        root, store, topic_id = (tmp_path / "root").as_uri(), MemoryStore(), uuid.uuid4()
        kv = MemoryKeyValue(store)
        tail_bytes = await leave_behind(root, kv, topic_id)
        counters: list[WatchedFs] = []

        def count(fs: FileSystem) -> FileSystem:
            passed, counter = watched(fs, lambda event: None)
            counters.append(counter)
            return passed

        async with broker_on(root, kv, watch=count) as broker:
            began, cpu = time.monotonic(), time.process_time()
            targets = [partition_of(topic_id, at) for at in range(PARTITIONS)]
            writers = await asyncio.gather(*(broker.open(path, key) for path, key in targets))
            took, cpu = time.monotonic() - began, time.process_time() - cpu
            report(request, f"{PARTITIONS} partitions open after {took:.1f} s, {cpu:.1f} s of CPU")
            ends = {writer.machine.high_watermark for writer in writers}
            assert ends == {SEGMENT_BYTES // INDEX_BYTES + TAIL_BATCHES}
            assert counters[0].log_bytes_read.total() == tail_bytes, "only tails are read, and once"
            assert not broker.reports

    run(test())


async def leave_behind(root: str, kv: MemoryKeyValue, topic_id: uuid.UUID) -> int:
    """Store what a killed broker leaves: open segments, checkpoints, records.  Returns the bytes behind checkpoints."""
    fs = await open_filesystem(root, holder=f"bmq-{GONE}")
    checkpoints: list[Checkpoint] = []
    size = 0
    for at in range(PARTITIONS):
        path, key = partition_of(topic_id, at)
        entry, checkpoint, tail_bytes = await leave_segment(fs, path, key)
        checkpoints.append(checkpoint)
        size += tail_bytes
        record = ownership.PartitionRecord(epoch=1, owner=GONE, segments=(entry,), journals=(GONE,))
        stored = await ownership.store(kv, ownership.partition_key("bmq", key), record, 0)
        assert isinstance(stored, ownership.Stored)
    journal = JournalWriter(fs, GONE, lambda: checkpoints)
    writing = asyncio.ensure_future(journal.run())
    await journal.append(checkpoints[-1])  # durable only behind the snapshot of all
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    await fs.close()
    return size


async def leave_segment(
    fs: FileSystem, path: PartitionPath, key: PartitionKey
) -> tuple[ownership.SegmentEntry, Checkpoint, int]:
    name = SegmentName(0, 1, 0)
    appender = await fs.create(path.log(name))
    os.truncate(unquote(urlsplit(fs.url).path) + path.log(name), SEGMENT_BYTES)
    count = SEGMENT_BYTES // INDEX_BYTES
    for number in range(TAIL_BATCHES):
        batch = Batch(make(1, number, pid=1, size=1000))
        batch.assign(count + number, 1)
        appender.write(batch.data)
    await appender.flush()
    tail_bytes = appender.position
    lease = appender.lease
    appender.abort()
    entry = ownership.SegmentEntry(name=name, spare=path.spare(1, 1, GONE), holder=lease.holder, file_id=lease.file_id)
    index = array("q", (value for at in range(count) for value in (at, at * INDEX_BYTES, 1)))
    checkpoint = Checkpoint(
        key=key, segment=name, position=SEGMENT_BYTES, end_offset=count, log_start=0, index=index, epochs=((1, 0),)
    )
    return entry, checkpoint, tail_bytes


def test_start_is_flat_in_the_size_of_real_segments(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The same with every byte written by a broker: 5 MB or 100 MB in each partition, then ``kill -9``."""

    async def test() -> None:
        lines = []
        for size in (5 << 20, SEGMENT_BYTES):
            folder = tmp_path / str(size)
            folder.mkdir()
            opens = await write_kill_open(folder, 4, size)
            read = max(read for _, read in opens)
            lines.append(f"{size >> 20} MB: {spread([open_ms for open_ms, _ in opens])} ms, at most {read} bytes read")
            assert read <= BYTES_READ_MAX
        report(request, "open min / median / max of " + ", of ".join(lines))

    run(test())


async def write_kill_open(folder: Path, partitions: int, size: int) -> list[tuple[float, int]]:
    """Return (milliseconds, bytes read) of opening each partition."""
    root, meta, topic_id = (folder / "root").as_uri(), f"sqlite://{folder / 'meta.db'}", uuid.uuid4()
    driver = DriverProcess(folder, root, meta, topic_id, partitions=partitions, producers=1, size=BATCH_BYTES)
    try:
        driver.start()
        await driver.until_acks(partitions * size // BATCH_BYTES, timeout_s=TIMEOUT_S)
        driver.kill()
        driver.start()
        await driver.until_ready(partitions)
        return [(event["took_ms"], event["bytes_read"]) for event in driver.transcript.of("ready")[partitions:]]
    finally:
        driver.kill()


async def until_idle(writers: Iterable[PartitionDriver | None]) -> None:
    """Wait until each has closed its segment and waits for nothing."""
    for writer in writers:
        assert writer is not None
        while writer.machine.current is not None or writer.machine.deadline_ms() is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def run(test: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await test

    uvloop.run(bounded())


class Cost(NamedTuple):
    bytes_each: float
    cpu_share: float
    tasks: int
    deadlines: int
    states: set[PartitionState]


def test_idle_partitions_cost_little(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Measure, in an own process, partitions that an idempotent producer wrote to once and that are idle since."""
    memory = Path("/dev/shm")  # where there is one: some 40,000 syncs to a disk take minutes
    with (
        tempfile.TemporaryDirectory(prefix="bmq-", dir=memory if os.access(memory, os.W_OK) else tmp_path) as folder,
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool,
    ):
        cost = pool.submit(measure_idle, folder).result(TIMEOUT_S)
    report(
        request,
        f"{IDLE} idle partitions: {cost.bytes_each / 1024:.1f} KB each, {100 * cost.cpu_share:.2f} % of a core,"
        f" {cost.tasks} tasks",
    )
    assert cost.states == {PartitionState.WRITE}
    assert cost.bytes_each < IDLE_BYTES_MAX
    assert cost.tasks <= TASKS_MAX
    assert cost.deadlines == 0, "an idle partition waits for no time"
    assert cost.cpu_share < IDLE_CPU_SHARE_MAX


def measure_idle(folder: str) -> Cost:
    return uvloop.run(_measure_idle(Path(folder)))


async def _measure_idle(folder: Path) -> Cost:
    kv = await open_keyvalue(f"sqlite://{folder / 'meta.db'}")
    config = BrokerConfig(idle_close_ms=500, checkpoint_ms=100)
    async with asyncio.timeout(TIMEOUT_S), broker_on((folder / "root").as_uri(), kv, config=config) as broker:
        topic_id = uuid.uuid4()

        async def use(at: int) -> None:
            path, key = partition_of(topic_id, at)
            writer = await broker.open(path, key)
            await writer.append(make(at, 0, pid=at, size=100))

        warm = 500  # caches, pools and the interpreter's arenas have their size
        process = psutil.Process()
        before = 0
        for start in range(0, warm + IDLE, warm):
            await asyncio.gather(*(use(at) for at in range(start, start + warm)))
            await until_idle(broker.get(partition_of(topic_id, at)[1]) for at in range(start, start + warm))
            if start == 0:
                gc.collect()
                before = process.memory_info().rss
        gc.collect()
        used = process.memory_info().rss - before
        cpu, wall = time.process_time(), time.monotonic()
        await asyncio.sleep(WATCHED_S)  # what is measured is what happens meanwhile: nothing
        share = (time.process_time() - cpu) / (time.monotonic() - wall)
        writers = [broker.get(partition_of(topic_id, at)[1]) for at in range(warm + IDLE)]
        partitions = [writer.machine for writer in writers if writer is not None]
        assert len(partitions) == len(broker) == warm + IDLE
        deadlines = sum(partition.deadline_ms() is not None for partition in partitions)
        cost = Cost(used / IDLE, share, len(asyncio.all_tasks()), deadlines, {each.state for each in partitions})
    await kv.close()
    return cost
