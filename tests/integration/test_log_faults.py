"""A real HDFS breaks under continuous load: appends come late, they never fail, and the next segment is elsewhere.

Each test prints the longest time without an acknowledgement.  At the end the writer is killed, a new owner opens
every partition, and all that was acknowledged stands where it was said to.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
import uvloop

from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.storage.layout import base_name, parse_spare
from tests.integration.conftest import HdfsFactory
from tests.integration.driver import DriverProcess, partition_of
from tests.integration.history import Transcript, broker_on, check_partition, report
from tests.integration.kv_server import serve_store
from tests.services.hdfs import HdfsCluster

TIMEOUT_S = 400.0
PARTITIONS = 4
STEADY_ACKS = 1000
LONG_S = 180.0
"""Bound of a wait that includes a NameNode's restart, on a loaded machine."""
ROUNDS = 5 if os.environ.get("BMQ_SOAK") else 1


class Load:
    """A driver under way on a cluster."""

    def __init__(self, hdfs: HdfsCluster, root: str, driver: DriverProcess) -> None:
        self.hdfs = hdfs
        self.root = root
        self.driver = driver
        self.topic_id = uuid.uuid4()

    @property
    def seen(self) -> Transcript:
        self.driver.transcript.refresh()
        return self.driver.transcript

    def segments(self, since: int = 0) -> list[list[int]]:
        """Return the datanodes of every segment created, from this event on."""
        created = [event for event in self.seen.of("created", since=since) if is_segment(event["path"])]
        return [[self.hdfs.datanode_of(node) for node in event["nodes"]] for event in created]

    async def until_all_flow(self, more: int = 50, *, timeout_s: float = LONG_S) -> None:
        """Wait until every partition has so many acknowledgements more: each pipeline works."""
        start = {partition: self._count(partition) for partition in range(PARTITIONS)}
        await self.driver.until(
            lambda _: all(self._count(partition) >= count + more for partition, count in start.items()),
            "acknowledgements in every partition",
            timeout_s=timeout_s,
        )

    def _count(self, partition: int) -> int:
        return sum(self.driver.transcript.acked(partition).values())

    def pause_ms(self, since_s: float) -> float:
        """Return the longest time, in ms, that any partition was without an acknowledgement."""
        return max(self.seen.longest_gap_ms(since_s, partition) for partition in range(PARTITIONS))


def is_segment(path: str) -> bool:
    return parse_spare(base_name(path)) is not None


@asynccontextmanager
async def load_on(hdfs: HdfsCluster, root: str, folder: Path, **options: object) -> AsyncIterator[Load]:
    """Continuous load; afterwards nothing may have failed, and all of it must be there."""
    store = MemoryStore()
    topic_id = uuid.uuid4()
    async with asyncio.timeout(TIMEOUT_S), serve_store(store, folder / "kv") as meta:
        options = {"partitions": PARTITIONS, "producers": 2, "pause_ms": 2, **options}
        driver = DriverProcess(folder, root, meta, topic_id, **options)
        try:
            driver.start()
            await driver.until_ready(PARTITIONS)
            load = Load(hdfs, root, driver)
            load.topic_id = topic_id
            await load.until_all_flow()
            yield load
            driver.kill()
            assert not load.seen.of("error")
            assert not load.seen.of("ended")
            async with broker_on(root, MemoryKeyValue(store)) as broker:
                for partition in range(PARTITIONS):
                    path, key = partition_of(topic_id, partition)
                    writer = await broker.open(path, key)
                    acks = [ack for ack in load.seen.acks if ack.partition == partition]
                    await check_partition(root, path, writer.machine.high_watermark, acks)
        finally:
            driver.kill()


async def most_used(load: Load) -> int:
    """Return the datanode that is in the pipelines of most of the segments created so far."""
    nodes = [node for segment in load.segments() for node in segment]
    return max(set(nodes), key=nodes.count)


@pytest.mark.parametrize("fault", ["killed", "paused", "slowed"])
def test_a_datanode_breaks(
    fault: str, hdfs: HdfsCluster, hdfs_root: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Break a datanode under load (rule 6): the next segment goes elsewhere, and appends are late, never failed."""

    async def test(folder: Path) -> None:
        async with load_on(hdfs, hdfs_root, folder) as load:
            broken = await most_used(load)
            affected = sum(broken in segment for segment in load.segments())
            events, broken_s = len(load.seen.events), time.monotonic()
            if fault == "killed":
                await asyncio.to_thread(hdfs.kill_datanode, broken)
            elif fault == "paused":
                hdfs.stop_datanode(broken)
            else:
                hdfs.slow_datanode(broken, stopped=0.9, period_s=4.0)
            await load.driver.until(lambda _: len(load.segments(events)) >= affected, "new segments", timeout_s=LONG_S)
            await load.until_all_flow(STEADY_ACKS // PARTITIONS)
            fresh = load.segments(events)
            pause_ms = load.pause_ms(broken_s)
            report(request, f"{affected} of {PARTITIONS} pipelines broken, longest pause {pause_ms:.0f} ms")
            assert all(broken not in segment for segment in fresh), f"datanode {broken} is broken: {fresh}"
        await asyncio.to_thread(hdfs.heal)

    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        uvloop.run(test(folder))


def test_namenode_killed_and_restarted(
    hdfs: HdfsCluster, hdfs_root: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Open segments go on without a NameNode; a roll waits for it."""

    async def test() -> None:
        async with load_on(hdfs, hdfs_root, tmp_path) as load:
            killed_s = time.monotonic()
            await asyncio.to_thread(hdfs.kill_namenode)
            await load.until_all_flow(STEADY_ACKS // PARTITIONS)
            without_ms = load.pause_ms(killed_s)
            await asyncio.to_thread(hdfs.restart_namenode)
            await load.until_all_flow(STEADY_ACKS // PARTITIONS)
            report(request, f"longest pause {without_ms:.0f} ms while dead, {load.pause_ms(killed_s):.0f} ms in all")

    uvloop.run(test())


def test_namenode_killed_and_restarted_while_segments_roll(
    hdfs: HdfsCluster, hdfs_root: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Each partition comes to the end of its segment while no NameNode is there: it waits, and goes on."""

    async def test() -> None:
        async with load_on(hdfs, hdfs_root, tmp_path, log={"segment_bytes": 300_000}) as load:
            events, killed_s = len(load.seen.events), time.monotonic()
            await asyncio.to_thread(hdfs.kill_namenode)
            await load.driver.until(
                lambda seen: time.monotonic() - max(ack.at_s for ack in seen.acks) > 0.5, "all partitions to be stuck"
            )
            assert not load.segments(events)
            await asyncio.to_thread(hdfs.restart_namenode)
            await load.until_all_flow(STEADY_ACKS // PARTITIONS)
            assert load.segments(events)
            report(request, f"longest pause {load.pause_ms(killed_s):.0f} ms")

    uvloop.run(test())


def test_namenode_fails_over(hdfs_ha: HdfsFactory, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The active NameNode dies, the standby takes its place: also rolls go on."""

    async def test() -> None:
        hdfs = await asyncio.to_thread(hdfs_ha)
        hosts = ",".join(f"{host}:{port}" for host, port in hdfs.namenode_addresses)
        async with load_on(hdfs, f"hdfs://{hosts}/ha", tmp_path, log={"segment_bytes": 300_000}) as load:
            killed_s = time.monotonic()
            await asyncio.to_thread(hdfs.kill_namenode)
            await asyncio.to_thread(hdfs.failover)
            events = len(load.seen.events)
            await load.driver.until(
                lambda _: len(load.segments(events)) >= 2 * PARTITIONS, "new segments", timeout_s=LONG_S
            )
            await load.until_all_flow(STEADY_ACKS // PARTITIONS)
            report(request, f"longest pause {load.pause_ms(killed_s):.0f} ms")

    uvloop.run(test())


def test_a_replica_is_corrupt(hdfs: HdfsCluster, hdfs_root: str, tmp_path: Path) -> None:
    """Every segment has one replica with wrong bytes: readers get right ones, and so does the recovery of the open one.

    (``load_on`` reads the whole log, and opens it by a new owner, whose checkpoint is then far behind the damage.)
    """

    async def test() -> None:
        log = {"segment_bytes": 400_000}
        broker = {"checkpoint_bytes": 64 << 20, "checkpoint_ms": 3_600_000}
        async with load_on(hdfs, hdfs_root, tmp_path, log=log, broker=broker) as load:
            await load.driver.until(lambda _: len(load.segments()) >= 3 * PARTITIONS, "closed and open segments")
            await load.until_all_flow()
            load.driver.process.pause()
            damaged = [damage(hdfs, path) for path in segment_paths(load)]
            assert sum(damaged) >= 2 * PARTITIONS

    uvloop.run(test())


def segment_paths(load: Load) -> list[str]:
    """Return the HDFS path of every segment that has its final name."""
    import hdfs_native

    client = hdfs_native.Client(load.hdfs.root)
    folder = urlsplit(load.root).path
    return [
        "/" + status.path.split("://")[-1].partition("/")[2].lstrip("/") if "://" in status.path else status.path
        for status in client.list_status(folder, recursive=True)
        if status.path.endswith(".log")
    ]


def damage(hdfs: HdfsCluster, path: str) -> bool:
    """Turn 4 KB of the replica that readers ask first, beyond the first batch; return False if there is none yet."""
    (block,) = hdfs.blocks(path)
    first = hdfs.datanode_of(block.xfer_addresses[0])
    (replica,) = hdfs.datanodes[first].replica_paths(block.block_id)
    size = replica.stat().st_size
    if size < 16_384:
        return False
    with replica.open("r+b") as file:
        file.seek(size // 2)
        data = file.read(4096)
        file.seek(size // 2)
        file.write(bytes(byte ^ 0xFF for byte in data))
    return True


def test_the_writer_keeps_nothing_on_its_own_disk(hdfs: HdfsCluster, hdfs_root: str, tmp_path: Path) -> None:
    """Every file that the process has open for writing is the test's: its transcript and its output."""

    async def test() -> None:
        async with load_on(hdfs, hdfs_root, tmp_path) as load:
            await load.until_all_flow(STEADY_ACKS // PARTITIONS)
            process = psutil.Process(load.driver.process.pid)
            ours = {str(load.driver.transcript.path), str(load.driver.process.log)}
            assert {file.path for file in process.open_files() if file.mode not in ("r", "rb")} <= ours

    uvloop.run(test())
