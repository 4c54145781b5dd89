"""The seam over a real HDFS: what every adapter promises, and what readers of other kinds see of our files."""

import asyncio
import contextlib
import os
import uuid
from collections.abc import AsyncIterator

import hdfs_native
import pytest

from bmq.storage.filesystem import (
    AlreadyExists,
    CreateOptions,
    Lease,
    LeaseLost,
    NoSuchFile,
    PipelineFailed,
    StorageError,
    StorageUnavailable,
    Unsupported,
    read_into,
    write_once,
)
from bmq.storage.hdfs import HdfsFileSystem, HdfsSettings, WebHdfsFileSystem
from tests.services.hdfs import HdfsCluster

pytestmark = pytest.mark.loops("uvloop")

DATA = os.urandom(3000)


@contextlib.asynccontextmanager
async def opened(root: str) -> AsyncIterator[HdfsFileSystem]:
    fs = await HdfsFileSystem.open(root, holder=f"test-{uuid.uuid4().hex}")
    try:
        yield fs
    finally:
        await fs.close()


@pytest.mark.smoke
async def test_write_flush_read_fence_and_close(hdfs_root: str) -> None:
    """The one path: create, flush, read while open, rename, close, read, append, fence."""

    async with opened(hdfs_root) as fs:
        file = await fs.create("/topics/a/spare.log")
        assert (file.position, file.flushed, file.pending, len(file.nodes)) == (0, 0, 0, 3)
        assert file.write(DATA) == len(DATA)
        assert await file.flush() == len(DATA) == file.flushed
        assert await fs.read("/topics/a/spare.log", 100, 500) == DATA[100:600]
        assert await fs.visible_length("/topics/a/spare.log") == len(DATA)

        await fs.rename("/topics/a/spare.log", "/topics/b/final.log")
        file.write(DATA)
        await file.flush(sync=True)
        assert await fs.read("/topics/b/final.log", 0, 1 << 20) == DATA * 2
        assert await file.close() == 2 * len(DATA)
        status = await fs.status("/topics/b/final.log")
        assert (status.length, status.is_dir, status.file_id) == (2 * len(DATA), False, file.lease.file_id)
        assert await fs.read("/topics/b/final.log", 10, 1 << 20) == (DATA * 2)[10:]
        assert await fs.read("/topics/b/final.log", 1 << 20, 10) == b""

        file = await fs.append("/topics/b/final.log")
        assert file.position == 2 * len(DATA) == file.flushed
        file.write(DATA)
        await file.flush()
        assert await fs.fence(file.lease) == 3 * len(DATA)
        assert await fs.fence(file.lease) == 3 * len(DATA), "a fence may be repeated"
        with pytest.raises((PipelineFailed, LeaseLost)):
            await file.flush()
        with pytest.raises((PipelineFailed, LeaseLost)):
            file.write(DATA)
        with pytest.raises((PipelineFailed, LeaseLost)):
            await file.close()
        assert await fs.read("/topics/b/final.log", 0, 1 << 20) == DATA * 3


async def test_flushes_complete_in_order_and_together(hdfs_root: str) -> None:
    """Many flushes under way at once, of sizes that end anywhere in a chunk."""

    async with opened(hdfs_root) as fs:
        file = await fs.create("/f")
        order: list[int] = []
        flushes = []
        data = b""
        for size in range(1, 1500, 7):
            piece = os.urandom(size)
            data += piece
            file.write(piece)
            flush = file.flush(sync=size % 5 == 0)
            flush.add_done_callback(lambda done: order.append(done.result()))
            flushes.append(flush)
        assert file.pending == len(flushes)
        positions = await asyncio.gather(*flushes)
        await asyncio.sleep(0)
        assert order == positions == sorted(positions)
        assert await fs.read("/f", 0, len(data)) == data
        assert await file.close() == len(data)


async def test_missing_and_existing(hdfs_root: str) -> None:
    """Every error is one of the seam's."""

    async with opened(hdfs_root) as fs:
        await write_once(fs, "/a", b"1")
        with pytest.raises(AlreadyExists):
            await fs.create("/a")
        with pytest.raises(AlreadyExists):
            await write_once(fs, "/a", b"2")
        held = await fs.create("/held")
        with pytest.raises(AlreadyExists):
            await fs.create("/held")
        with pytest.raises(LeaseLost):
            await fs.append("/held")
        for call in (
            fs.append("/missing"),
            fs.status("/missing"),
            fs.read("/missing", 0, 1),
            fs.visible_length("/missing"),
            fs.rename("/missing", "/b"),
            fs.fence(Lease(paths=("/missing", "/nor/this"), holder="x", file_id=0)),
            fs.fence(Lease(paths=("/a",), holder="x", file_id=1 << 40)),
        ):
            with pytest.raises(NoSuchFile):
                await call
        await write_once(fs, "/b", b"2")
        with pytest.raises(AlreadyExists):
            await fs.rename("/a", "/b")
        await fs.replace("/a", "/b")
        assert await fs.read("/b", 0, 10) == b"1"
        assert await fs.delete("/a") is False
        assert await fs.delete("/b") is True
        await write_once(fs, "/folder/x", b"")
        with pytest.raises(StorageError):
            await fs.delete("/folder")
        assert await fs.delete("/folder", recursive=True) is True
        held.abort()


async def test_empty_files_close_and_fence(hdfs_root: str) -> None:
    async with opened(hdfs_root) as fs:
        closed = await fs.create("/closed")
        assert await closed.close() == 0
        fenced = await fs.create("/fenced")
        assert await fs.visible_length("/fenced") == 0
        assert await fs.read("/fenced", 0, 10) == b""
        assert await fs.fence(fenced.lease) == 0
        again = await fs.append("/closed")
        again.write(b"x")
        assert await again.close() == 1
        assert [await fs.read(path, 0, 9) for path in ("/closed", "/fenced")] == [b"x", b""]


async def test_listing_is_paged_and_starts_after(hdfs_root: str) -> None:
    async with opened(hdfs_root) as fs:
        names = [f"{number:05d}" for number in range(1050)]  # more than a page (dfs.ls.limit)
        for number in range(0, len(names), 50):
            await asyncio.gather(
                *(fs._client.namenode.mkdirs(f"{fs._address.root}/d/{name}") for name in names[number : number + 50])
            )
        assert [status.path async for status in fs.list("/d")] == [f"/d/{name}" for name in names]
        assert [status.path async for status in fs.list("/d", after="01040")] == [f"/d/{n}" for n in names[1041:]]
        assert [status.path async for status in fs.list("/missing")] == []
        assert [(status.path, status.is_dir) async for status in fs.list("/")] == [("/d", True)]


async def test_concat_joins_small_neighbours(hdfs_root: str) -> None:
    async with opened(hdfs_root) as fs:
        pieces = [os.urandom(size) for size in (1000, 5, 70_000)]
        for index, piece in enumerate(pieces):
            await write_once(fs, f"/d/{index}", piece, CreateOptions(block_bytes=1 << 20))
        await fs.concat("/d/0", ["/d/1", "/d/2"])
        whole = b"".join(pieces)
        assert await fs.read("/d/0", 0, 1 << 20) == whole
        assert await fs.read("/d/0", 998, 10) == whole[998:1008]
        assert [status.path async for status in fs.list("/d")] == ["/d/0"]


async def test_one_block_is_all_that_a_file_takes(hdfs_root: str) -> None:
    """Files are rolled, not blocks; what was written before stays good, and a full block is followed by an append."""

    async with opened(hdfs_root) as fs:
        options = CreateOptions(block_bytes=1 << 20)
        file = await fs.create("/f", options)
        data = os.urandom(1 << 20)
        file.write(data)
        with pytest.raises(Unsupported):
            file.write(b"x")
        assert await file.close() == 1 << 20
        more = await fs.append("/f", options)
        more.write(b"more")
        await more.flush()
        assert await fs.read("/f", (1 << 20) - 3, 100) == data[-3:] + b"more"
        assert await fs.fence(more.lease) == (1 << 20) + 4
        assert await fs.read("/f", 0, 1 << 22) == data + b"more"


async def test_long_reads_into_memory(hdfs_root: str) -> None:
    """Closed and open, over the seam of two blocks, at places that are no chunk's beginning; as ``read``."""

    async with opened(hdfs_root) as fs:
        options = CreateOptions(block_bytes=1 << 20)
        data = os.urandom((1 << 20) + 300_001)
        for path, part in (("/f", data[: 1 << 20]), ("/g", data[1 << 20 :])):
            await write_once(fs, path, part, options)
        await fs.concat("/f", ["/g"])
        file = await fs.create("/open")
        file.write(data[:300_000])
        await file.flush()
        out = memoryview(bytearray(len(data) + 100))
        for path, whole in (("/f", data), ("/open", data[:300_000])):
            for start, length in (
                (0, len(out)),
                (1, 1000),
                (99_999, 201_000),
                ((1 << 20) - 5, 10),
                (len(whole), 9),
            ):
                expected = whole[start : start + length]
                assert await read_into(fs, path, start, out[:length]) == len(expected)
                assert out[: len(expected)] == expected
        with pytest.raises(NoSuchFile):
            await read_into(fs, "/none", 0, out)
        file.abort()


async def test_other_readers_see_closed_files(hdfs: HdfsCluster, hdfs_root: str) -> None:
    """hdfs-native and WebHDFS read what we wrote; WebHDFS is a read-only root."""

    async with opened(hdfs_root) as fs:
        data = os.urandom(3 << 20)
        file = await fs.create("/d/f.log", CreateOptions(chunk_bytes=4096))
        for start in range(0, len(data), 100_000):
            file.write(data[start : start + 100_000])
            await file.flush()
        await file.close()
        assert await fs.read("/d/f.log", 12345, 2_000_000) == data[12345:2_012_345]

        native = hdfs_native.AsyncClient(hdfs.root)
        reader = await native.read(f"{fs._address.root}/d/f.log")
        assert bytes(await reader.read()) == data

        web = await WebHdfsFileSystem.open(hdfs.webhdfs_root + fs._address.root, holder="web")
        assert await web.read("/d/f.log", 1_000_000, 100_000) == data[1_000_000:1_100_000]
        assert await web.read("/d/f.log", len(data) - 5, 100) == data[-5:]
        assert await web.read("/d/f.log", len(data), 100) == b""
        assert await web.visible_length("/d/f.log") == len(data)
        assert (await web.status("/d/f.log")) == (await fs.status("/d/f.log"))
        await write_once(fs, "/d/g.log", b"")
        assert [status.path async for status in web.list("/d")] == ["/d/f.log", "/d/g.log"]
        assert [status.path async for status in web.list("/d", after="f.log")] == ["/d/g.log"]
        assert [status.path async for status in web.list("/missing")] == []
        for call in (web.status("/missing"), web.read("/missing", 0, 1)):
            with pytest.raises(NoSuchFile):
                await call
        for refused in (web.create("/x"), web.append("/d/f.log"), web.rename("/a", "/b"), web.delete("/d/f.log")):
            with pytest.raises(Unsupported, match="read-only"):
                await refused
        await web.close()


async def test_cancelled_create_leaves_nothing(hdfs_root: str) -> None:
    """Cancelled anywhere, a create cleans up behind itself, and the name is free again."""

    async with opened(hdfs_root) as fs:
        for turn in range(40):
            task = asyncio.create_task(fs.create(f"/f{turn}"))
            for _ in range(turn):
                await asyncio.sleep(0.0005)
            task.cancel()
            try:
                (await task).abort()
            except asyncio.CancelledError:
                assert task.cancelled()
        while fs._client.tasks:
            await fs._client.tasks.finish()
        assert len(fs._client.clock) == 0
        assert fs._client.leases.files == {}


async def test_a_root_that_does_not_answer() -> None:
    settings = HdfsSettings(call_timeout_s=0.5, call_deadline_s=1.0)
    with pytest.raises(StorageUnavailable):
        await HdfsFileSystem.open("hdfs://127.0.0.1:1/x", holder="test", settings=settings)


async def test_closed_file_system_leaves_no_task(hdfs_root: str) -> None:
    before = asyncio.all_tasks()
    async with opened(hdfs_root) as fs:
        dropped = await fs.create("/dropped")
        dropped.write(b"x")
        await dropped.flush()
        dropped.abort()
        with pytest.raises(PipelineFailed):
            dropped.write(b"x")
        left_open = await fs.create("/left-open")
        left_open.write(b"x")
        flush = left_open.flush()
    assert asyncio.all_tasks() == before
    with pytest.raises(PipelineFailed):
        await flush
