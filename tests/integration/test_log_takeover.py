"""Takeover on a real HDFS: a new owner against a process that lives, writes without pause and is not notified.

A zombie process fills a partition.  A broker in this process takes it over, also while datanodes of the zombie's
pipeline are dead or stopped, and while the zombie recovers that pipeline by itself.  Then the clients turn to the new
owner: each producer sends again what it has no answer for.  In the end every batch that anybody acknowledged, at any
time, stands at the offset that was answered, once, in order.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from bmq.broker.broker import Broker
from bmq.broker.config import BrokerConfig
from bmq.broker.partition.driver import PartitionDriver
from bmq.core.model import SegmentName
from bmq.core.records.batch import Record, build_batch
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.storage.filesystem import Appender, FileSystem, StorageError
from bmq.storage.open import open_filesystem
from tests.integration.driver import WINDOW, DriverProcess, partition_of, watched
from tests.integration.history import Ack, Transcript, broker_on, check_partition, report, segment_names, spread
from tests.integration.kv_server import serve_store
from tests.services.hdfs import HdfsCluster
from tests.simulation.world import make

PATIENT = BrokerConfig(stalled_ms=60_000)
"""Settings without the report for slow flushes, which a busy machine causes: all other reports mean damage."""
ROUNDS = 50 if os.environ.get("BMQ_SOAK") else 3
ROUND_TIMEOUT_S = 300.0
PRODUCERS = 4
ACKS_BEFORE = 300
"""Acknowledgements of the zombie before its partition is taken: several flushes are in flight by then."""

Break = Callable[[HdfsCluster, DriverProcess, list[int]], Awaitable[None]]


async def nothing(hdfs: HdfsCluster, zombie: DriverProcess, nodes: list[int]) -> None:
    """Leave the zombie's pipeline whole."""


async def kill_one(hdfs: HdfsCluster, zombie: DriverProcess, nodes: list[int]) -> None:
    """Kill the middle datanode of the zombie's pipeline."""
    await asyncio.to_thread(hdfs.kill_datanode, nodes[1])


async def stop_one(hdfs: HdfsCluster, zombie: DriverProcess, nodes: list[int]) -> None:
    """Stop the middle datanode of the zombie's pipeline, so that it is silent."""
    hdfs.stop_datanode(nodes[1])


async def kill_first_two(hdfs: HdfsCluster, zombie: DriverProcess, nodes: list[int]) -> None:
    """Kill all datanodes of the zombie's pipeline but the last."""
    await asyncio.gather(*(asyncio.to_thread(hdfs.kill_datanode, node) for node in nodes[:2]))


async def kill_and_let_recover(hdfs: HdfsCluster, zombie: DriverProcess, nodes: list[int]) -> None:
    """Kill a datanode and wait until the zombie recovers its own file: it does then the same as the new owner."""
    await asyncio.to_thread(hdfs.kill_datanode, nodes[0])
    await zombie.until(lambda seen: bool(seen.of("fence")), "the zombie recovers its pipeline")


class Times:
    """Milliseconds from the claim: to the last fence, and to WRITE."""

    def __init__(self) -> None:
        self.fenced: list[float] = []
        self.write: list[float] = []

    def __str__(self) -> str:
        times = f"fenced {spread(self.fenced)}, WRITE {spread(self.write)}"
        return f"{len(self.write)} takeovers, min / median / max ms: {times}"


@pytest.mark.smoke
def test_one_takeover_from_a_writing_zombie(hdfs: HdfsCluster, hdfs_root: str, tmp_path: Path) -> None:
    """Nothing is broken but the zombie's belief that it is the owner."""
    take_over_again_and_again(hdfs, hdfs_root, tmp_path, nothing, 1)


def test_takeover_from_a_writing_zombie(
    hdfs: HdfsCluster, hdfs_root: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Repeat the takeover as often as the figures need."""
    report(request, str(take_over_again_and_again(hdfs, hdfs_root, tmp_path, nothing, ROUNDS)))


@pytest.mark.parametrize("how", [kill_one, stop_one, kill_first_two, kill_and_let_recover])
def test_takeover_when_the_pipeline_is_broken_too(
    how: Break, hdfs: HdfsCluster, hdfs_root: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Take over while datanodes of the old owner's pipeline are dead or silent, or while it recovers by itself."""
    report(request, str(take_over_again_and_again(hdfs, hdfs_root, tmp_path, how, ROUNDS)))


def take_over_again_and_again(hdfs: HdfsCluster, root: str, folder: Path, how: Break, rounds: int) -> Times:
    times = Times()
    for number in range(rounds):
        here = folder / str(number)
        here.mkdir()
        uvloop.run(take_over(hdfs, root, here, how, times))
        hdfs.heal()
    return times


async def take_over(hdfs: HdfsCluster, root: str, folder: Path, how: Break, times: Times) -> None:
    store, topic_id = MemoryStore(), uuid.uuid4()
    events: list[dict[str, Any]] = []

    def listen(fs: FileSystem) -> FileSystem:
        return watched(fs, lambda event: events.append({"at_s": time.monotonic(), **event}))[0]

    async with asyncio.timeout(ROUND_TIMEOUT_S), serve_store(store, folder / "kv") as meta:
        zombie = DriverProcess(folder, root, meta, topic_id, producers=PRODUCERS)
        try:
            zombie.start()
            async with broker_on(root, MemoryKeyValue(store), config=PATIENT, watch=listen) as broker:
                await warm_up(broker)
                await zombie.until_acks(ACKS_BEFORE)
                nodes = pipeline_of(hdfs, zombie.transcript)
                await how(hdfs, zombie, nodes)
                path, key = partition_of(topic_id)
                events.clear()
                claimed_s = time.monotonic()
                writer = await broker.open(path, key)
                times.write.append((time.monotonic() - claimed_s) * 1000)
                times.fenced.append((max(e["at_s"] for e in events if e["event"] == "fence done") - claimed_s) * 1000)
                acks = await resend(writer, zombie.transcript)
                await zombie.until(lambda seen: bool(seen.of("ended")), "the zombie learns that it is one")
                zombie.kill()
                assert [event["state"] for event in zombie.transcript.of("ended")] == ["FENCED"]
                stored = await check_partition(
                    root, path, writer.machine.high_watermark, [*zombie.transcript.acks, *acks]
                )
                assert len(stored) >= ACKS_BEFORE
                assert not zombie.transcript.of("error"), "a produce failed before the partition was lost"
                assert not broker.reports
        finally:
            zombie.kill()


def test_an_empty_file_that_no_record_lists_hides_nothing(hdfs_root: str) -> None:
    """A rename that `bmq cluster rebuild` did not see arrives late: an open file, with a base in the middle of the log.

    Readers, here `check_partition`, would end the file before it at that base.  The next owner fences it under its
    writer's lease, which the NameNode names, and deletes it.
    """
    uvloop.run(delete_the_empty_file(hdfs_root))


async def delete_the_empty_file(root: str) -> None:
    kv, (path, key) = MemoryKeyValue(MemoryStore()), partition_of(uuid.uuid4())
    writer_fs = await open_filesystem(root, holder="late-writer")
    try:
        async with asyncio.timeout(ROUND_TIMEOUT_S), broker_on(root, kv, config=PATIENT) as heir:
            async with broker_on(root, kv, config=PATIENT) as first:
                writer = await first.open(path, key)
                acks = await append_some(writer, 0)
                late = SegmentName(len(acks) // 2, writer.machine.epoch, 1)
                assert late.order > writer.machine.record.last_registered
                appender = await writer_fs.create(path.log(late))
                writer = await heir.open(path, key)
            assert late not in [name async for name in segment_names(writer_fs, path)]
            acks += await append_some(writer, len(acks))
            with pytest.raises(StorageError):
                await write_late(appender)
            appender.abort()
            await check_partition(root, path, writer.machine.high_watermark, acks)
            assert not heir.reports
    finally:
        await writer_fs.close()


async def write_late(appender: Appender) -> None:
    """Write and flush: the write raises already if the datanodes have ended the connection by now."""
    appender.write(b"late")
    await appender.flush()


async def append_some(writer: PartitionDriver, first: int, count: int = 20) -> list[Ack]:
    """Append batches of one producer, one after another."""
    acks = []
    for number in range(first, first + count):
        offset = await writer.append(make(1, number, pid=1, size=1000))
        acks.append(Ack(0, 1, number, offset, time.monotonic()))
    return acks


async def warm_up(broker: Broker) -> None:
    """Open a partition and write to it, since a broker that takes over has its journal and connections open."""
    path, key = partition_of(uuid.uuid4())
    writer = await broker.open(path, key)
    await writer.append(memoryview(build_batch([Record(value=b"warm")])))
    await broker.move(key)


def pipeline_of(hdfs: HdfsCluster, transcript: Transcript) -> list[int]:
    """Return the datanodes of the newest file that was created for a segment, in the order of the pipeline."""
    transcript.refresh()
    created = [event for event in transcript.of("created") if "/.spare-" in event["path"]]
    return [hdfs.datanode_of(node) for node in created[-1]["nodes"]]


async def resend(writer: PartitionDriver, transcript: Transcript, count: int = 20) -> list[Ack]:
    """Go on for the zombie's clients, as they would: from the first batch without an answer, five in flight."""
    transcript.refresh()
    acks: list[Ack] = []

    async def produce(producer: int, first: int) -> None:
        for start in range(first, first + count, WINDOW):
            numbers = range(start, start + WINDOW)
            futures = [writer.append(make(producer, number, pid=producer, size=1000)) for number in numbers]
            for number, offset in zip(numbers, await asyncio.gather(*futures), strict=True):
                acks.append(Ack(0, producer, number, offset, time.monotonic()))

    await asyncio.gather(*(produce(producer, first) for producer, first in transcript.acked().items()))
    return acks
