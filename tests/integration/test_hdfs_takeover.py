"""Fencing against writers that do not know that they are fenced.

A zombie is another process that writes without pause under its own holder name, several flushes in flight, and keeps
the last acknowledged position in a shared file.  After each fence: every acknowledged byte is in the file, in its
place, and nothing is acknowledged past the fenced length, however long the zombie goes on.

This module is also the zombie: ``python -m tests.integration.test_hdfs_takeover <root> <path> <behaviour> <board>``.
"""

import asyncio
import contextlib
import hashlib
import json
import mmap
import os
import random
import statistics
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import uvloop

from bmq.storage.filesystem import CreateOptions, Lease, OutOfSpace, PipelineFailed, StorageError, StorageUnavailable
from bmq.storage.hdfs import HdfsFileSystem, HdfsSettings
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.appender import HdfsAppender
from bmq.storage.hdfs.block_reader import read_block
from bmq.storage.hdfs.pipeline import Pipeline
from bmq.storage.hdfs.pipeline_setup import Setup, members_of, open_pipeline
from tests.services.hdfs import HdfsCluster
from tests.services.hdfs_nodes import jmx

ROUNDS = 50 if os.environ.get("BMQ_SOAK") == "1" else 5
TIMEOUT_S = 300.0
PATTERN = b"".join(
    hashlib.sha256(struct.pack(">I", n)).digest() for n in range(3125)
)  # 100,000 bytes, no period inside
WINDOW = 8


def pattern(position: int, length: int) -> bytes:
    start = position % len(PATTERN)
    return (PATTERN * (1 + (start + length) // len(PATTERN)))[start : start + length]


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class Board:
    """Last acknowledged position of the zombie, in memory shared through a file."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(8))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 8)

    @property
    def acked(self) -> int:
        return int(struct.unpack(">Q", self._map[:8])[0])

    @acked.setter
    def acked(self, position: int) -> None:
        self._map[:8] = struct.pack(">Q", position)


# ---- the zombie's side


async def zombie(root: str, path: str, behaviour: str, board: Board) -> None:
    fs = await HdfsFileSystem.open(root, holder=f"zombie-{uuid.uuid4().hex}")
    appender = await create_on_three(fs, path)
    lease = appender.lease
    story = {"path": path, "holder": lease.holder, "file_id": lease.file_id, "nodes": appender.nodes}
    say(json.dumps(story))
    try:
        if behaviour == "recovers":
            await write_and_recover(fs, appender, board)
        else:
            await write_without_pause(appender.write, appender.flush, 0, board)
    except StorageError as error:
        say(f"{type(error).__name__}: {error}")
    if behaviour == "fences":
        with contextlib.suppress(StorageError):
            await fs.fence(lease)
    await fs.close()


async def create_on_three(fs: HdfsFileSystem, path: str) -> HdfsAppender:
    """Return the file once three datanodes take it, which the faults of these tests choose from.

    One that was killed a round ago is live as soon as its heartbeat comes, and may yet be too slow for the set-up of a
    pipeline on a busy machine, or be short of room by what the NameNode has planned for it: a file goes without it.
    """
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            try:
                appender = await fs.create(path, CreateOptions(block_bytes=1 << 30, all_copies=True))
            except (OutOfSpace, StorageUnavailable) as error:
                sys.stderr.write(f"{path}: {error}\n")
                await asyncio.sleep(0.1)
                continue
            assert isinstance(appender, HdfsAppender)
            if len(appender.nodes) == 3:
                return appender
            sys.stderr.write(f"{path}: on {appender.nodes} only\n")
            await appender.close()
            await fs.delete(path)


async def write_without_pause(
    write: Callable[[bytes], object], flush: Callable[[], asyncio.Future[int]], position: int, board: Board
) -> None:
    sizes = random.Random(1)
    flushes: list[asyncio.Future[int]] = []
    while True:
        size = sizes.randint(1, 5000)
        write(pattern(position, size))
        position += size
        flushes.append(flush())
        if len(flushes) >= WINDOW:
            board.acked = await flushes.pop(0)


async def write_and_recover(fs: HdfsFileSystem, appender: HdfsAppender, board: Board) -> None:
    """Hadoop's own client: after an error it recovers its pipeline and goes on, which our brokers never do."""
    client, lease = fs._client, appender.lease
    with contextlib.suppress(PipelineFailed):
        await write_without_pause(appender.write, appender.flush, 0, board)
    while True:
        located = (await client.namenode.block_locations(f"/.reserved/.inodes/{lease.file_id}")).last_block
        fresh = await client.namenode.update_block_for_pipeline(located.block, lease.holder)
        acked = board.acked
        setup = Setup(
            stage=pb.WriteBlock.SETUP_STREAMING_RECOVERY,
            block=located.block,
            token=fresh.token,
            client_name=lease.holder,
            generation=fresh.block.generation,
            received=(acked, 1 << 62),
        )
        members = members_of(located)
        try:
            pipeline = await open_pipeline(client, setup, members, base=0, length=acked, chunk_bytes=512)
            await tell_pipeline(fs, lease, located, fresh, acked)
            say("recovered")
            await write_recovered(pipeline, acked, board)
        except PipelineFailed:
            continue


async def tell_pipeline(
    fs: HdfsFileSystem, lease: Lease, located: pb.LocatedBlock, fresh: pb.LocatedBlock, length: int
) -> None:
    block = pb.Block()
    block.CopyFrom(located.block)
    block.generation, block.length = fresh.block.generation, length
    nodes = [node.id for node in located.nodes]
    await fs._client.namenode.update_pipeline(lease.holder, located.block, block, nodes, located.storage_ids)


async def write_recovered(pipeline: Pipeline, position: int, board: Board) -> None:
    await write_without_pause(pipeline.write, lambda: pipeline.flush(sync=False), position, board)


# ---- the fencing side


class Zombie:
    """The process, and what it said at its start."""

    def __init__(self, root: str, path: str, behaviour: str, folder: Path) -> None:
        board_path = folder / uuid.uuid4().hex
        self.board = Board(board_path)
        module = "tests.integration.test_hdfs_takeover"
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, root, path, behaviour, str(board_path)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        story = json.loads(self.process.stdout.readline())
        self.lease = Lease(paths=(story["path"],), holder=story["holder"], file_id=story["file_id"])
        self.nodes: list[str] = story["nodes"]

    async def has_acked(self, position: int) -> None:
        async with asyncio.timeout(60):
            while self.board.acked < position:
                assert self.process.poll() is None, "the zombie died early"
                await asyncio.sleep(0.002)

    async def end(self, *, kill: bool = False) -> str:
        """Wait until the zombie has ended, killed or because it was fenced, and return the rest of its output."""
        if kill:
            self.process.kill()
        text, _ = await asyncio.to_thread(self.process.communicate, timeout=60)
        return text


@contextlib.contextmanager
def spawned(root: str, path: str, behaviour: str, folder: Path) -> Iterator[Zombie]:
    zombie = Zombie(root, path, behaviour, folder)
    try:
        yield zombie
    finally:
        zombie.process.kill()
        zombie.process.communicate()


@contextlib.asynccontextmanager
async def opened(root: str) -> AsyncIterator[HdfsFileSystem]:
    settings = HdfsSettings()
    fs = await HdfsFileSystem.open(root, holder=f"owner-{uuid.uuid4().hex}", settings=settings)
    try:
        yield fs
    finally:
        await fs.close()


async def check(fs: HdfsFileSystem, path: str, length: int, acked: int) -> None:
    """Check that the file has this length and holds exactly the pattern, all that was acknowledged included."""
    assert acked <= length, f"{acked} bytes were acknowledged, {length} are in the file"
    assert await fs.visible_length(path) == length
    assert (await fs.status(path)).length == length
    position = 0
    while position < length:
        data = await fs.read(path, position, 4 << 20)
        assert data == pattern(position, len(data)), f"other bytes near {position}"
        position += len(data)
    assert position == length


async def fenced(hdfs: HdfsCluster, fs: HdfsFileSystem, zombie: Zombie, behaviour: str) -> int:
    """Fence as an owner does: it tries again for as long as the file is not closed, and is never given a wrong length.

    A zombie that recovers its pipeline may spoil HDFS's own recovery of the block, and the NameNode then refuses
    another attempt for 90 s.  Or one of its writer threads is stopped inside a packet: that replica's file is longer
    than the datanode remembers, and each later recovery fails with ``Block length mismatch`` until the datanode
    restarts and reads the length from its disk, as docs/operations/troubleshooting.md tells operators.
    """
    if behaviour != "recovers":
        return await fs.fence(zombie.lease)
    for _ in range(2):
        with contextlib.suppress(StorageUnavailable):
            return await fs.fence(zombie.lease)
    say("datanodes of the block restarted: HDFS could not recover it")
    for node in zombie.nodes:
        await asyncio.to_thread(hdfs.restart_datanode, hdfs.datanode_of(node))
    with contextlib.suppress(StorageUnavailable):
        return await fs.fence(zombie.lease)
    return await fs.fence(zombie.lease)


def fence_rounds(
    hdfs: HdfsCluster,
    root: str,
    folder: Path,
    *,
    behaviour: str = "plain",
    fault: Callable[[list[int]], None] | None = None,
    rounds: int = ROUNDS,
) -> list[float]:
    """Fence one zombie after another; return the milliseconds each took.  ``fault`` gets the pipeline's datanodes."""

    async def rounds_of() -> list[float]:
        times = []
        async with asyncio.timeout(2 * TIMEOUT_S + 30 * rounds), opened(root) as fs:
            for number in range(rounds):
                with spawned(root, f"/{behaviour}-{number}", behaviour, folder) as zombie:
                    await zombie.has_acked(random.Random(number).randint(20_000, 400_000))
                    if fault is not None:
                        fault([hdfs.datanode_of(node) for node in zombie.nodes])
                    started = time.monotonic()
                    length = await fenced(hdfs, fs, zombie, behaviour)
                    times.append((time.monotonic() - started) * 1e3)
                    await check(fs, zombie.lease.paths[0], length, zombie.board.acked)
                    await zombie.end()
                    await check(fs, zombie.lease.paths[0], length, zombie.board.acked)
                    assert await fs.fence(zombie.lease) == length
                if fault is not None:
                    await asyncio.to_thread(hdfs.heal)
        return times

    return uvloop.run(rounds_of())


def report(record: Callable[[str, object], None], name: str, times: list[float]) -> None:
    text = f"{min(times):.0f} / {statistics.median(times):.0f} / {max(times):.0f} ms min / median / max of {len(times)}"
    record(f"takeover {name}", text)
    say(f"\ntakeover {name}: {text}")


def test_rule_4_zombie_writing_without_pause(
    hdfs: HdfsCluster, hdfs_root: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    report(record_property, "plain", times := fence_rounds(hdfs, hdfs_root, tmp_path))
    assert statistics.median(times) < 1000


def test_rule_4_datanode_killed(
    hdfs: HdfsCluster, hdfs_root: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    def fault(nodes: list[int]) -> None:
        hdfs.kill_datanode(nodes[1])

    report(record_property, "one killed", times := fence_rounds(hdfs, hdfs_root, tmp_path, fault=fault))
    assert statistics.median(times) < 2000


def test_rule_4_datanode_stopped(
    hdfs: HdfsCluster, hdfs_root: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    def fault(nodes: list[int]) -> None:
        hdfs.stop_datanode(nodes[0])

    report(record_property, "one stopped", times := fence_rounds(hdfs, hdfs_root, tmp_path, fault=fault))
    assert statistics.median(times) < 5000


def test_rule_4_first_two_datanodes_killed(
    hdfs: HdfsCluster, hdfs_root: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    def fault(nodes: list[int]) -> None:
        hdfs.kill_datanode(nodes[0])
        hdfs.kill_datanode(nodes[1])

    report(record_property, "two killed", times := fence_rounds(hdfs, hdfs_root, tmp_path, fault=fault))
    assert statistics.median(times) < 2000


def test_rule_4_zombie_that_fences_itself(
    hdfs: HdfsCluster, hdfs_root: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Fence a file while its writer fences it too: both come to the same length."""
    report(record_property, "fencing zombie", fence_rounds(hdfs, hdfs_root, tmp_path, behaviour="fences"))


def test_rule_4_zombie_that_recovers_its_pipeline(
    hdfs: HdfsCluster, hdfs_root: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Fence a zombie that recovers its pipeline and takes the file back, as Hadoop's own client does."""
    report(record_property, "recovering zombie", fence_rounds(hdfs, hdfs_root, tmp_path, behaviour="recovers"))


def test_rule_4_many_fence_at_once(hdfs: HdfsCluster, hdfs_root: str, tmp_path: Path) -> None:
    """Fence a file three times at once, from two clients: all fences return one length."""

    async def test() -> None:
        async with opened(hdfs_root) as first, opened(hdfs_root) as second:
            for number in range(ROUNDS):
                with spawned(hdfs_root, f"/many-{number}", "plain", tmp_path) as zombie:
                    await zombie.has_acked(50_000)
                    fences = (first.fence(zombie.lease), second.fence(zombie.lease), first.fence(zombie.lease))
                    lengths = await asyncio.gather(*fences)
                    assert len(set(lengths)) == 1
                    await zombie.end()
                    await check(first, zombie.lease.paths[0], lengths[0], zombie.board.acked)

    uvloop.run(test())


def test_rule_4_fence_follows_the_file_not_the_name(hdfs_root: str, tmp_path: Path) -> None:
    """Fence a renamed file by its id, and without an id by a list of names, of which it has the second."""

    async def test() -> None:
        async with opened(hdfs_root) as fs:
            with spawned(hdfs_root, "/spare", "plain", tmp_path) as zombie:
                await zombie.has_acked(50_000)
                await fs.rename("/spare", "/final/name")
                length = await fs.fence(zombie.lease)
                await zombie.end()
                await check(fs, "/final/name", length, zombie.board.acked)
            with spawned(hdfs_root, "/spare", "plain", tmp_path) as zombie:
                await zombie.has_acked(50_000)
                await fs.rename("/spare", "/final/other")
                nameless = Lease(paths=("/spare", "/final/other"), holder=zombie.lease.holder, file_id=0)
                length = await fs.fence(nameless)
                await zombie.end()
                await check(fs, "/final/other", length, zombie.board.acked)

    uvloop.run(test())


@pytest.mark.parametrize("state", ["no block", "no pipeline", "replicas closed", "committed", "wrong holder"])
def test_rule_4_writer_that_died_at_any_step(hdfs_root: str, state: str) -> None:
    """Fence a file as a writer leaves it that dies after this step."""

    async def test() -> None:
        async with opened(hdfs_root) as fs, opened(hdfs_root) as writer:
            client, path = writer._client, writer._address.full_path("/f")
            if state in ("no block", "no pipeline"):
                info = await client.namenode.create(path, client.holder, block_bytes=1 << 20, replication=3)
                lease, length = Lease(paths=("/f",), holder=client.holder, file_id=info.file_id), 0
                if state == "no pipeline":
                    await client.namenode.add_block(path, client.holder, info.file_id, [])
            else:
                appender = await writer.create("/f")
                assert isinstance(appender, HdfsAppender)
                lease, length = appender.lease, 10_000
                appender.write(pattern(0, length))
                await appender.flush()
                if state != "wrong holder":
                    await appender._pipeline.finish()
                else:
                    lease = Lease(paths=lease.paths, holder="somebody else", file_id=lease.file_id)
                if state == "committed":
                    last = pb.Block()
                    last.CopyFrom(appender._block)
                    last.length = length
                    await client.namenode.complete(path, client.holder, lease.file_id, last)
            started = time.monotonic()
            assert await fs.fence(lease) == length
            say(f"\nfence of a file with {state}: {(time.monotonic() - started) * 1e3:.0f} ms")
            await check(fs, "/f", length, length)
            assert not (await fs._client.namenode.block_locations(path)).under_construction

    uvloop.run(test())


def fsyncs(hdfs: HdfsCluster) -> int:
    """Flushes to disk that the datanodes were asked for, all together (DataNodeMetrics).  May be ten seconds old."""
    beans = [
        jmx(node.host, node.http_port, "Hadoop:service=DataNode,name=DataNodeActivity-*") for node in hdfs.datanodes
    ]
    return sum(bean["FsyncCount"] for bean in beans if bean is not None)


def test_rule_1_a_sync_fence_puts_the_tail_on_the_datanodes_disks(hdfs_new: Callable[..., HdfsCluster]) -> None:
    """Fence by a takeover, and by a recovery of the lease, where datanodes close replicas without syncing them.
    Other fences cost no sync."""
    hdfs = hdfs_new(datanodes=3)

    async def test() -> None:
        async with opened(hdfs.root) as fs, opened(hdfs.root) as writer:
            for sync in (False, True):
                for is_nameless in (False, True):
                    path = f"/f-{sync}-{is_nameless}"
                    appender = await writer.create(path)
                    appender.write(pattern(0, 10_000))
                    await appender.flush()
                    lease = appender.lease
                    if is_nameless:
                        lease = Lease(paths=lease.paths, holder="somebody else", file_id=lease.file_id)
                    for _ in range(2):
                        assert await fs.fence(lease, sync=sync) == 10_000
                    await check(fs, path, 10_000, 10_000)
            async with asyncio.timeout(TIMEOUT_S):
                while await asyncio.to_thread(fsyncs, hdfs) < 6:  # noqa: ASYNC110  # another process counts
                    await asyncio.sleep(0.5)
            assert await asyncio.to_thread(fsyncs, hdfs) == 6

    uvloop.run(test())


def test_rule_4_fence_fills_replicas_of_other_chunks(hdfs_root: str) -> None:
    """Replicas of different lengths, checksummed in wide chunks: made equal, and readable from each alone."""

    async def test() -> None:
        async with opened(hdfs_root) as fs, opened(hdfs_root) as writer:
            appender = await writer.create("/f", CreateOptions(chunk_bytes=65536, block_bytes=1 << 24))
            assert isinstance(appender, HdfsAppender)
            appender.write(pattern(0, 200_000))
            await appender.flush()
            await advance_last_replica(writer, appender, 150_000)
            length = await fs.fence(appender.lease)
            assert length == 350_000
            await check(fs, "/f", length, 200_000)
            (located,) = (await fs._client.namenode.block_locations(fs._address.full_path("/f"))).blocks
            for node in located.nodes:
                alone = pb.LocatedBlock()
                alone.CopyFrom(located)
                del alone.nodes[:]
                alone.nodes.append(node)
                assert await read_alone(fs, alone, length) == pattern(0, length)

    uvloop.run(test())


async def advance_last_replica(writer: HdfsFileSystem, appender: HdfsAppender, size: int) -> None:
    """Bytes on the last node only, as when the nodes before it died: a pipeline of one, by the writer itself."""
    client, lease = writer._client, appender.lease
    located = (await client.namenode.block_locations(f"/.reserved/.inodes/{lease.file_id}")).last_block
    setup = Setup(
        stage=pb.WriteBlock.SETUP_STREAMING_RECOVERY,
        block=located.block,
        token=located.token,
        client_name=lease.holder,
        generation=located.block.generation,
        received=(0, 1 << 62),
    )
    length = appender.flushed
    pipe = await open_pipeline(client, setup, members_of(located)[2:], base=0, length=length, chunk_bytes=65536)
    pipe.write(pattern(length, size))
    assert await pipe.flush(sync=False) == length + size


async def read_alone(fs: HdfsFileSystem, located: pb.LocatedBlock, length: int) -> bytes:
    return await read_block(fs._client, located, 0, length, is_open=False)


if __name__ == "__main__":
    uvloop.run(zombie(sys.argv[1], sys.argv[2], sys.argv[3], Board(Path(sys.argv[4]))))
