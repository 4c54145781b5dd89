"""The write pipeline against real datanodes: late and dead ones, heartbeats, time-outs, and what is done about it."""

import asyncio
import contextlib
import logging
import os
import time
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from bmq.storage.filesystem import Appender, CreateOptions, PipelineFailed
from bmq.storage.hdfs import HdfsFileSystem, HdfsSettings
from bmq.storage.hdfs.pipeline_timer import TICK_S
from tests.harness.log_text import lines
from tests.services.hdfs import HdfsCluster

pytestmark = pytest.mark.loops("uvloop")

TIMEOUT_S = 120.0
PATIENT = HdfsSettings(setup_timeout_s=30.0, ack_timeout_s=30.0, probe_timeout_s=10.0)
"""A dead datanode refuses connections at once; on a busy machine a living one may be slow to answer, and is not to be
suspected for it."""
DATANODE_TIMEOUT_S = 60.0
"""`dfs.client.socket-timeout`: after it a datanode behind a silent one gives the pipeline up by itself."""


@contextlib.asynccontextmanager
async def opened(root: str, settings: HdfsSettings | None = None) -> AsyncIterator[HdfsFileSystem]:
    fs = await HdfsFileSystem.open(root, holder=f"test-{uuid.uuid4().hex}", settings=settings)
    try:
        yield fs
    finally:
        await fs.close()


async def write_for_ever(file: Appender) -> None:
    while True:
        file.write(b"y" * 1000)
        await file.flush()


@pytest.mark.parametrize(("packet_bytes", "chunk_bytes"), [(1 << 20, 512), (64 << 10, 512), (1 << 20, 65536), (999, 7)])
async def test_large_writes(hdfs_root: str, packet_bytes: int, chunk_bytes: int) -> None:
    """Many packets, windows that fill, buffers that are cut anywhere: the same bytes come back."""

    settings = HdfsSettings(packet_bytes=packet_bytes, window_bytes=2 << 20, window_packets=20)
    async with opened(hdfs_root, settings) as fs:
        size = 200_000 if packet_bytes < 1000 else 20_000_000
        data = os.urandom(size)
        file = await fs.create(
            "/f", CreateOptions(chunk_bytes=chunk_bytes, block_bytes=chunk_bytes * (1 + size // chunk_bytes))
        )
        step = size // 7 + 1
        for start in range(0, size, step):
            file.write(memoryview(data)[start : start + step])
        assert await file.flush() == size
        assert await fs.read("/f", 0, size) == data
        assert await file.close() == size
        assert await fs.read("/f", 0, size) == data


async def test_append_in_the_middle_of_a_wide_chunk(hdfs_root: str) -> None:
    """The file's own chunk decides, whatever the request says: datanodes refuse another."""

    async with opened(hdfs_root) as fs:
        data = os.urandom(300_000)
        file = await fs.create("/f", CreateOptions(chunk_bytes=65536, block_bytes=1 << 26))
        file.write(data[:70_001])
        await file.close()
        written = 70_001
        while written < len(data):
            file = await fs.append("/f", CreateOptions(chunk_bytes=512))
            for size in (10, 3000, 60_000):
                file.write(data[written : written + size])
                written = min(len(data), written + size)
                assert await file.flush() == written
            assert await file.close() == written
        assert await fs.read("/f", 0, len(data)) == data


@pytest.mark.parametrize("position", [0, 1, 2])
async def test_killed_datanode_breaks_the_pipeline_and_is_named(
    hdfs: HdfsCluster, hdfs_root: str, position: int
) -> None:
    """Every outstanding flush fails, and the next file avoids the suspect."""

    async with opened(hdfs_root, PATIENT) as fs:
        file = await fs.create("/f")
        file.write(b"x" * 1000)
        await file.flush()
        culprit = file.nodes[position]
        hdfs.kill_datanode(hdfs.datanode_of(culprit))
        with pytest.raises(PipelineFailed) as failure:
            await write_for_ever(file)
        assert failure.value.suspects == (culprit,)
        assert file.pending == 0
        with pytest.raises(PipelineFailed):
            file.write(b"z")
        with pytest.raises(PipelineFailed):
            await file.flush()
        other = await fs.create("/g", CreateOptions(exclude=failure.value.suspects))
        assert culprit not in other.nodes
        assert len(other.nodes) == 3
        assert await fs.fence(file.lease) >= 1000


@pytest.mark.parametrize("position", [0, 1, 2])
async def test_stopped_datanode_is_found_by_time_out(hdfs: HdfsCluster, hdfs_root: str, position: int) -> None:
    """Stop one datanode, whose connections stay open: after the time-out a probe finds which one it is."""

    settings = HdfsSettings(ack_timeout_s=2.0)
    async with opened(hdfs_root, settings) as fs:
        file = await fs.create("/f")
        file.write(b"x" * 1000)
        await file.flush()
        culprit = file.nodes[position]
        hdfs.stop_datanode(hdfs.datanode_of(culprit))
        file.write(b"y" * 1000)
        started = time.monotonic()
        async with asyncio.timeout(DATANODE_TIMEOUT_S):
            with pytest.raises(PipelineFailed) as failure:
                await file.flush()
        assert time.monotonic() - started + 2 * TICK_S >= settings.ack_timeout_s, "it was given its time"
        assert failure.value.suspects == (culprit,)
        length = await fs.fence(file.lease)
        assert 1000 <= length <= 2000


async def test_heartbeats_keep_a_quiet_pipeline(hdfs_new: Callable[..., HdfsCluster]) -> None:
    """Datanodes drop a silent client after dfs.client.socket-timeout (+5 s a node); here that is short."""
    hdfs = hdfs_new(datanodes=2, properties={"dfs.client.socket-timeout": "2000", "dfs.replication": "2"})

    settings = HdfsSettings(heartbeat_s=0.5)
    async with opened(hdfs.root, settings) as fs, opened(hdfs.root) as silent:
        file = await fs.create("/f", CreateOptions(replication=2))
        doomed = await silent.create("/g", CreateOptions(replication=2))
        file.write(b"x")
        doomed.write(b"x")
        await asyncio.gather(file.flush(), doomed.flush())
        while True:  # until datanodes have dropped the other one: then this one has been quiet for long enough
            try:
                doomed.write(b"")
            except PipelineFailed:
                break
            await asyncio.sleep(0.1)
        file.write(b"y")
        assert await file.flush() == 2
        assert await file.close() == 2


async def test_dead_datanode_before_set_up(hdfs: HdfsCluster, hdfs_root: str, caplog: pytest.LogCaptureFixture) -> None:
    """Kill a datanode that the NameNode still hands out: each file has three others, and it is blamed once at most."""

    with caplog.at_level(logging.INFO):
        async with opened(hdfs_root, replace(PATIENT, suspect_s=TIMEOUT_S)) as fs:
            hdfs.kill_datanode(0)
            dead = hdfs.datanodes[0].xfer_address
            for number in range(8):
                file = await fs.create(f"/f{number}")
                assert dead not in file.nodes
                assert len(file.nodes) == 3
                file.write(b"x")
                await file.flush()
                assert await file.close() == 1
            assert blamed(caplog, dead) <= 1


async def test_stopped_datanode_before_set_up(
    hdfs: HdfsCluster, hdfs_root: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Stop a datanode that still accepts connections: no pipeline has it, and it is blamed once at most."""

    with caplog.at_level(logging.INFO):
        async with opened(hdfs_root, HdfsSettings(suspect_s=TIMEOUT_S)) as fs:
            hdfs.stop_datanode(0)
            stopped = hdfs.datanodes[0].xfer_address
            for number in range(8):
                file = await fs.create(f"/f{number}")
                assert stopped not in file.nodes
                file.abort()
            assert blamed(caplog, stopped) <= 1


def blamed(caplog: pytest.LogCaptureFixture, node: str) -> int:
    """Return how many blocks were abandoned because of `node`."""
    return sum(node in line and "cannot open a block, asking for another" in line for line in lines(caplog))


async def test_exclusions_are_advice(hdfs: HdfsCluster, hdfs_root: str) -> None:
    """Exclude datanodes, an unknown one too: they are avoided unless that would cost a replica."""

    async with opened(hdfs_root, PATIENT) as fs:
        every = tuple(datanode.xfer_address for datanode in hdfs.datanodes)
        for name in every:
            file = await fs.create(f"/without-{name.replace(':', '-')}", CreateOptions(exclude=(name, "1.2.3.4:5")))
            assert name not in file.nodes
            assert len(file.nodes) == 3
            file.abort()
        file = await fs.create("/without-two", CreateOptions(exclude=every[:2]))
        assert len(file.nodes) == 3
        file.abort()
        file = await fs.create("/without-any", CreateOptions(exclude=every))
        assert len(file.nodes) == 3
        file.abort()


async def test_two_dead_datanodes_leave_two_replicas(hdfs: HdfsCluster, hdfs_root: str) -> None:
    """Kill two of four datanodes: the file is created on the other two, as its ``nodes`` shows the caller."""

    async with opened(hdfs_root, PATIENT) as fs:
        hdfs.kill_datanode(0)
        hdfs.kill_datanode(1)
        file = await fs.create("/f")
        assert set(file.nodes) == {datanode.xfer_address for datanode in hdfs.datanodes[2:]}
        file.write(b"x")
        await file.flush()
        assert await file.close() == 1


@pytest.mark.smoke
async def test_flush_latency_and_throughput(hdfs_root: str, record_property: Callable[[str, object], None]) -> None:
    """Figures of this machine, for the report; a thousand small flushes and 64 in flight each acknowledge their end."""

    async with opened(hdfs_root) as fs:
        file = await fs.create("/f")
        times = []
        for number in range(1000):
            file.write(bytes(1000))
            started = time.perf_counter()
            assert await file.flush() == 1000 * (number + 1)
            times.append((time.perf_counter() - started) * 1e3)
        record_property("flush_ms_median", sorted(times)[500])
        data, flushes = os.urandom(1 << 20), []
        started = time.perf_counter()
        for _ in range(64):
            file.write(data)
            flushes.append(file.flush())
        ends = await asyncio.gather(*flushes)
        record_property("write_mb_per_s", 64 * 1.048576 / (time.perf_counter() - started))
        assert ends == [1_000_000 + (number + 1) * len(data) for number in range(64)]
        file.abort()
