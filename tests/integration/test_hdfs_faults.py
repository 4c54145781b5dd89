"""HDFS itself in trouble: NameNodes killed and failing over, replicas damaged on disk, datanodes gone while reading."""

import asyncio
import contextlib
import os
import uuid
from collections.abc import AsyncIterator, Callable

import hdfs_native
import pytest

from bmq.storage.filesystem import (
    CorruptData,
    CreateOptions,
    LeaseLost,
    PipelineFailed,
    StorageUnavailable,
    read_parts,
    write_once,
)
from bmq.storage.hdfs import HdfsFileSystem, HdfsSettings
from tests.services.hdfs import HdfsCluster
from tests.services.processes import wait_for

pytestmark = pytest.mark.loops("uvloop", limit_s=240)

PATIENT = HdfsSettings(call_deadline_s=120.0, complete_timeout_s=120.0)
"""Settings with the time that a busy machine may take to bring a NameNode back, and its datanodes to report."""


@contextlib.asynccontextmanager
async def opened(root: str, settings: HdfsSettings | None = None) -> AsyncIterator[HdfsFileSystem]:
    fs = await HdfsFileSystem.open(root, holder=f"test-{uuid.uuid4().hex}", settings=settings)
    try:
        yield fs
    finally:
        await fs.close()


async def test_rule_1_open_pipelines_outlive_the_namenode(hdfs: HdfsCluster, hdfs_root: str) -> None:
    """Killed: flushes go on, calls fail in bounded time.  Restarted: the file is closed, fenced and whole."""

    impatient = HdfsSettings(call_timeout_s=1.0, call_deadline_s=1.5)
    async with opened(hdfs_root, impatient) as fs, opened(hdfs_root, PATIENT) as patient:
        closed, fenced = await patient.create("/closed"), await fs.create("/fenced")
        data = os.urandom(5000)
        for file in (closed, fenced):
            file.write(data)
            await file.flush()
        await asyncio.to_thread(hdfs.kill_namenode)
        for file in (closed, fenced):
            for _ in range(20):
                file.write(data)
                await file.flush()
        for call in (fs.create("/new"), fs.status("/closed"), fs.delete("/x")):
            with pytest.raises(StorageUnavailable):
                await call
        closing = asyncio.create_task(closed.close())
        await asyncio.to_thread(hdfs.restart_namenode)
        assert await closing == 21 * len(data)
        assert await patient.fence(fenced.lease) == 21 * len(data)
        for path in ("/closed", "/fenced"):
            assert await patient.read(path, 0, 1 << 20) == data * 21
        with pytest.raises(PipelineFailed):
            await fenced.flush()


async def test_rule_1_first_flush_waits_for_the_namenode(hdfs: HdfsCluster, hdfs_root: str) -> None:
    """Nothing is promised of a block that a restarted NameNode would believe empty."""

    async with opened(hdfs_root, PATIENT) as fs:
        file = await fs.create("/f")
        await asyncio.to_thread(hdfs.kill_namenode)
        file.write(b"x" * 1000)
        flush = file.flush()
        done, _ = await asyncio.wait({flush}, timeout=1.0)
        assert not done
        assert file.flushed == 0
        await asyncio.to_thread(hdfs.restart_namenode)
        assert await flush == 1000 == file.flushed
        assert await fs.fence(file.lease) == 1000


async def test_fence_right_after_a_namenode_restart(hdfs: HdfsCluster, hdfs_root: str) -> None:
    """Safe mode, then no locations until datanodes report: the fence waits, and loses nothing."""

    async with opened(hdfs_root) as fs:
        file = await fs.create("/f")
        data = os.urandom(300_000)
        file.write(data)
        await file.flush()
        await asyncio.to_thread(hdfs.restart_namenode, 0, wait_safemode_off=False)
        assert await fs.fence(file.lease) == len(data)
        assert await fs.read("/f", 0, 1 << 20) == data


async def test_failover_to_the_standby(hdfs_ha: Callable[..., HdfsCluster]) -> None:
    """Several NameNodes in one URL: open files, new ones, reads of closed ones, and a fence, across two failovers."""
    hdfs = hdfs_ha(datanodes=3)
    names = ",".join(f"{host}:{port}" for host, port in hdfs.namenode_addresses)

    async with opened(f"hdfs://{names}/root", PATIENT) as fs:
        large = os.urandom(2 << 20)
        await write_once(fs, "/large", large, CreateOptions())
        file = await fs.create("/f")
        file.write(b"x" * 1000)
        await file.flush()
        await asyncio.to_thread(hdfs.kill_namenode)
        file.write(b"y" * 1000)
        await file.flush()
        creating = asyncio.create_task(fs.create("/during"))
        await asyncio.to_thread(hdfs.failover)
        during = await creating
        during.write(b"z")
        await during.flush()
        assert await fs.fence(file.lease) == 2000
        assert await during.close() == 1
        fs._known_files.forget_all_under("/root")
        assert await fs.read("/large", 1000, 1 << 20) == large[1000 : 1000 + (1 << 20)]
        await asyncio.to_thread(hdfs.heal)
        await asyncio.to_thread(hdfs.failover)
        assert await fs.read("/f", 0, 5000) == b"x" * 1000 + b"y" * 1000
        await write_once(fs, "/after", b"1")


def damage(hdfs: HdfsCluster, path: str, replicas: slice, offset: int) -> None:
    """Change one byte on disk in some replicas, in the order of their addresses (the NameNode shuffles them)."""
    (block,) = hdfs.blocks(path)
    for address in sorted(block.xfer_addresses)[replicas]:
        (replica,) = hdfs.datanodes[hdfs.datanode_of(address)].replica_paths(block.block_id)
        with replica.open("r+b") as file:
            file.seek(offset)
            byte = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([byte ^ 0xFF]))


@pytest.mark.parametrize("size", [100_000, 3 << 20])
async def test_damaged_replicas_are_read_around(hdfs: HdfsCluster, hdfs_root: str, size: int) -> None:
    """Damage two of three replicas: every way to read gives the right bytes, and so does another client."""

    async with opened(hdfs_root) as fs:
        data = os.urandom(size)
        await write_once(fs, "/f", data, CreateOptions())
        full = fs._address.full_path("/f")
        await asyncio.to_thread(hdfs.wait_replicated, full)
        await asyncio.to_thread(damage, hdfs, full, slice(2), 50_000)
        for _ in range(5):
            fs._known_files.forget(full)
            assert await fs.read("/f", 40_000, 20_000) == data[40_000:60_000]
            assert await fs.read("/f", 3, size - 5) == data[3:-2]
            out = memoryview(bytearray(20_000))
            assert await fs.read_into("/f", 40_000, out) == len(out)
            assert out == data[40_000:60_000]
        native = hdfs_native.AsyncClient(hdfs.root)
        reader = await native.read(full)
        assert bytes(await reader.read_range(40_000, 20_000)) == data[40_000:60_000]


async def test_a_damaged_replica_is_read_around_by_reads_of_several_parts(hdfs: HdfsCluster, hdfs_root: str) -> None:
    """The damage is in the middle of packets that are received together."""

    async with opened(hdfs_root) as fs:
        data = os.urandom(5 << 20)
        await write_once(fs, "/f", data, CreateOptions(chunk_bytes=4096))
        full = fs._address.full_path("/f")
        await asyncio.to_thread(hdfs.wait_replicated, full)
        await asyncio.to_thread(damage, hdfs, full, slice(2), (1 << 20) + 500_000)
        for _ in range(5):
            fs._known_files.forget(full)
            assert b"".join(await read_parts(fs, "/f", 0, [1 << 20] * 4)) == data[: 4 << 20]


async def test_an_open_file_is_read_on_through_the_loss_of_the_datanode_it_is_read_from(
    hdfs: HdfsCluster, hdfs_root: str
) -> None:
    """Read by the kept locations: as it grows, as its datanodes go one by one, and after another process's fence."""

    async with opened(hdfs_root) as writer, opened(hdfs_root) as fs, opened(hdfs_root) as other:
        data = os.urandom(12 << 20)
        file = await writer.create("/f", CreateOptions(chunk_bytes=4096, replication=3))
        full = fs._address.full_path("/f")

        async def write(start: int, stop: int) -> None:
            file.write(data[start:stop])
            await file.flush()

        async def check(stop: int) -> None:
            for position in range(0, stop, 3 << 20):
                lengths = [1 << 20] * ((min(stop, position + (3 << 20)) - position) >> 20)
                found = b"".join(await read_parts(fs, "/f", position, lengths))
                assert found == data[position : position + sum(lengths)]

        await write(0, 6 << 20)
        await check(6 << 20)
        known = fs._known_files.get(full, 6 << 20, asyncio.get_running_loop().time())
        assert known is not None
        await write(6 << 20, 12 << 20)
        await check(12 << 20)
        assert fs._known_files.get(full, 12 << 20, asyncio.get_running_loop().time()) is known
        (first,) = known.shown
        await asyncio.to_thread(hdfs.kill_datanode, hdfs.datanode_of(first))
        await check(12 << 20)
        assert await other.fence(file.lease) == len(data)
        await check(12 << 20)
        (_, second, *_) = known.shown
        await asyncio.to_thread(hdfs.kill_datanode, hdfs.datanode_of(second))
        await check(12 << 20)
        with pytest.raises((PipelineFailed, LeaseLost)):
            await file.flush()


@pytest.mark.parametrize("size", [100_000, 3 << 20], ids=["small", "large"])
async def test_a_damaged_replica_that_was_read_is_replaced(hdfs: HdfsCluster, hdfs_root: str, size: int) -> None:
    """Read a damaged replica: it is reported to the NameNode, which makes another from a good one."""

    async with opened(hdfs_root) as fs:
        await write_once(fs, "/f", os.urandom(size), CreateOptions())
        full = fs._address.full_path("/f")
        await asyncio.to_thread(hdfs.wait_replicated, full)
        before = sorted(hdfs.blocks(full)[0].xfer_addresses)
        await asyncio.to_thread(damage, hdfs, full, slice(1), 50_000)
        while not fs._client.bad_replicas._reported:  # the NameNode shuffles the order of replicas
            fs._known_files.forget(full)
            assert len(await fs.read("/f", 0, size)) == size

        def is_replaced() -> bool:
            addresses = hdfs.blocks(full)[0].xfer_addresses
            return before[0] not in addresses and len(addresses) == len(before)

        await asyncio.to_thread(wait_for, is_replaced, "another replica", timeout_s=180.0)


async def test_damage_of_an_open_block_is_noticed(hdfs: HdfsCluster, hdfs_root: str) -> None:
    async with opened(hdfs_root) as fs:
        data = os.urandom(200_000)
        file = await fs.create("/f")
        file.write(data)
        await file.flush()
        full = fs._address.full_path("/f")
        await asyncio.to_thread(damage, hdfs, full, slice(2), 50_000)
        assert await fs.read("/f", 40_000, 20_000) == data[40_000:60_000]
        await asyncio.to_thread(damage, hdfs, full, slice(2, 3), 50_000)
        with pytest.raises(CorruptData):
            await fs.read("/f", 40_000, 20_000)
        assert await fs.read("/f", 60_000, 20_000) == data[60_000:80_000]
        file.abort()


async def test_reads_go_on_with_datanodes_dead_and_stopped(hdfs: HdfsCluster, hdfs_root: str) -> None:
    """Kill one datanode and stop another: one replica is enough to read an open and a closed file."""

    settings = HdfsSettings(read_timeout_s=1.0)
    async with opened(hdfs_root, settings) as fs:
        data = os.urandom(100_000)
        await write_once(fs, "/closed", data, CreateOptions())
        file = await fs.create("/open")
        file.write(data)
        await file.flush()
        hdfs.kill_datanode(hdfs.datanode_of(file.nodes[0]))
        hdfs.stop_datanode(hdfs.datanode_of(file.nodes[1]))
        assert await fs.visible_length("/open") == len(data)
        for path in ("/open", "/closed"):
            assert await fs.read(path, 100, 50_000) == data[100:50_100]


async def test_first_failure_is_kept_and_cancellation_is_clean(hdfs: HdfsCluster, hdfs_root: str) -> None:
    """A close that is cancelled or fails leaves a file that a fence can end."""

    async with opened(hdfs_root) as fs:
        for turn in range(10):
            file = await fs.create(f"/f{turn}")
            file.write(b"x" * 1000)
            await file.flush()
            closing = asyncio.create_task(file.close())
            for _ in range(turn):
                await asyncio.sleep(0)
            closing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await closing
            file.abort()
            assert await fs.fence(file.lease) == 1000
            assert await fs.read(f"/f{turn}", 0, 2000) == b"x" * 1000


async def test_kept_locations_show_the_file_of_the_name_after_a_fence_and_a_rename(
    hdfs: HdfsCluster, hdfs_root: str
) -> None:
    """Fence an open file that a reader knows, while the datanode that it reads from is silent; use the name again."""
    async with opened(hdfs_root) as writer, opened(hdfs_root) as fs, opened(hdfs_root) as other:
        data = os.urandom((6 << 20) + 777)
        file = await writer.create("/f", CreateOptions(chunk_bytes=4096, replication=3))
        full = fs._address.full_path("/f")
        file.write(data)
        await file.flush()
        assert b"".join(await read_parts(fs, "/f", 0, [1 << 20] * 4)) == data[: 4 << 20]
        known = fs._known_files.get(full, 1, asyncio.get_running_loop().time())
        assert known is not None
        (first,) = known.shown
        hdfs.stop_datanode(hdfs.datanode_of(first))
        try:
            length = await other.fence(file.lease)
        finally:
            hdfs.resume_datanode(hdfs.datanode_of(first))
        assert length == len(data)
        assert b"".join(await read_parts(fs, "/f", 4 << 20, [1 << 20] * 4)) == data[4 << 20 :]
        assert await fs.read("/f", 0, 16 << 20) == data
        await fs.rename("/f", "/g")
        assert await fs.read("/g", 6 << 20, 1 << 20) == data[6 << 20 :]
        again = os.urandom(3 << 20)
        await write_once(other, "/f", again, CreateOptions())
        assert b"".join(await read_parts(fs, "/f", 0, [1 << 20] * 4)) == again
