"""The contract of every ``FileSystem`` (``bmq.storage.filesystem``), written once for all adapters.

Another adapter joins by a module of its own with a fixture ``root`` and
``from tests.unit.storage.test_filesystem_contract import *``.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from bmq.core.file_access import Access
from bmq.storage.filesystem import (
    AlreadyExists,
    Appender,
    CreateOptions,
    FileSystem,
    Lease,
    LeaseLost,
    NoSuchFile,
    PipelineFailed,
    StorageError,
    read_parts,
    write_once,
)
from bmq.storage.local.filesystem import LocalFileSystem
from bmq.storage.memory import MemoryFileSystem, MemoryStorage

pytestmark = [pytest.mark.slow, pytest.mark.loops("asyncio")]

Connect = Callable[[str], Awaitable[FileSystem]]

FENCED = (LeaseLost, PipelineFailed)  # the errors of a writer that is not the owner any more
SMALL = CreateOptions(block_bytes=1 << 20)


@pytest.fixture(params=["memory", "local"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Connect:
    """Return a client of one empty root for each ``await root(holder)``, as of another process."""
    storage = MemoryStorage(page=3)

    async def connect(holder: str) -> FileSystem:
        return MemoryFileSystem(storage, holder) if request.param == "memory" else LocalFileSystem(tmp_path, holder)

    return connect


class World:
    """The processes of one test."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._clients: list[FileSystem] = []

    async def client(self, holder: str) -> FileSystem:
        self._clients.append(await self._connect(holder))
        return self._clients[-1]

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


def story(body: Callable[[World], Awaitable[None]]) -> Callable[[Connect], Awaitable[None]]:
    """Make a test of ``body``: on a new root, with the clients closed at its end."""

    @functools.wraps(body)
    async def test(root: Connect) -> None:
        world = World(root)
        try:
            await asyncio.wait_for(body(world), 60)
        finally:
            await world.close()

    del test.__dict__["__wrapped__"]  # or pytest asks for a fixture named after the body's argument
    return test


def lease_of(appender: Appender, *more: str) -> Lease:
    """Return the lease as the log keeps it, with all names that the file may have."""
    return Lease(paths=(*appender.lease.paths, *more), holder=appender.lease.holder, file_id=appender.lease.file_id)


async def put(fs: FileSystem, path: str, data: bytes) -> None:
    appender = await fs.create(path, SMALL)
    appender.write(data)
    assert await appender.close() == len(data)


async def names(fs: FileSystem, path: str, after: str = "") -> list[str]:
    return [status.path.rpartition("/")[2] async for status in fs.list(path, after=after)]


async def fails(appender: Appender, *errors: type[StorageError]) -> StorageError:
    """Write and flush, of which either may fail, and return the error."""

    async def attempt() -> None:
        appender.write(b"late")
        await appender.flush()

    with pytest.raises(errors or StorageError) as caught:
        await attempt()
    return caught.value


# Writing


@story
async def test_flush_acknowledges_positions_in_order(world: World) -> None:
    fs = await world.client("a")
    appender = await fs.create("/f", SMALL)
    assert (appender.position, appender.flushed, appender.pending, appender.failure) == (0, 0, 0, None)
    done: list[int] = []
    futures = []
    for n in range(1, 6):
        assert appender.write(b"x" * 10) == 10 * n
        futures.append(appender.flush(sync=n == 3))
        futures[-1].add_done_callback(lambda future: done.append(future.result()))
    assert appender.position == 50
    assert appender.pending == 5
    assert await asyncio.gather(*futures) == [10, 20, 30, 40, 50]
    assert done == [10, 20, 30, 40, 50]
    assert (appender.flushed, appender.pending) == (50, 0)
    assert await appender.flush() == 50, "nothing new is acknowledged at once"
    assert await appender.close() == 50
    assert await fs.read("/f", 0, 100) == b"x" * 50


@story
async def test_write_takes_all_kinds_of_buffers(world: World) -> None:
    fs = await world.client("a")
    appender = await fs.create("/f", SMALL)
    appender.write(b"ab")
    appender.write(bytearray(b"cd"))
    appender.write(memoryview(b"--ef--")[2:4])
    appender.write(b"")
    assert await appender.close() == 6
    assert await fs.read("/f", 0, 6) == b"abcdef"


@story
async def test_flushed_bytes_are_visible_to_others_before_close(world: World) -> None:
    writer, reader = await world.client("a"), await world.client("b")
    appender = await writer.create("/d/f", SMALL)
    appender.write(b"hello")
    await appender.flush()
    assert await reader.read("/d/f", 0, 100) == b"hello"
    assert await reader.visible_length("/d/f") == 5
    assert (await reader.status("/d/f")).length <= 5
    appender.write(b" world")
    await appender.close()
    assert await reader.visible_length("/d/f") == 11
    assert (await reader.status("/d/f")).length == 11


@story
async def test_several_parts_are_read_at_once(world: World) -> None:
    """Open and closed, small and large, and behind the end, where parts are shorter."""
    writer, reader = await world.client("a"), await world.client("b")
    content = bytes(range(251)) * 12_000
    for size in (1000, 3_000_000):
        data, path = content[:size], f"/f{size}"
        file = await writer.create(path, CreateOptions(block_bytes=4 << 20))
        file.write(data)
        await file.flush()
        for is_closed in (False, True):
            if is_closed:
                await file.close()
            for position, lengths in (
                (0, [size]),
                (1, [size // 3, size // 3, size // 3 - 1]),
                (size - 10, [7, 7, 7]),
                (size, [5, 5]),
                (size // 2, [size // 4, 0, size]),
            ):
                parts = await read_parts(reader, path, position, lengths)
                ends = [position + sum(lengths[: number + 1]) for number in range(len(lengths))]
                wanted = [data[end - length : end] for end, length in zip(ends, lengths, strict=True)]
                assert [bytes(part) for part in parts] == wanted
    with pytest.raises(NoSuchFile):
        await read_parts(reader, "/none", 0, [500_000, 500_000])


@story
async def test_an_empty_file_can_be_closed_and_read(world: World) -> None:
    fs = await world.client("a")
    await put(fs, "/f", b"")
    assert await fs.read("/f", 0, 10) == b""
    assert await fs.visible_length("/f") == 0


@story
async def test_create_makes_parents_and_a_lease(world: World) -> None:
    fs = await world.client("a")
    appender = await fs.create("/a/b/c/f", SMALL)
    assert appender.lease.paths == ("/a/b/c/f",)
    assert appender.lease.holder == fs.holder == "a"
    status = await fs.status("/a/b/c/f")
    assert (status.path, status.is_dir, status.file_id) == ("/a/b/c/f", False, appender.lease.file_id)
    assert (await fs.status("/a/b")).is_dir
    appender.abort()


@story
async def test_create_never_overwrites(world: World) -> None:
    a, b = await world.client("a"), await world.client("b")
    appender = await a.create("/f", SMALL)
    appender.write(b"mine")
    with pytest.raises(AlreadyExists):
        await b.create("/f", SMALL)
    await appender.close()
    with pytest.raises(AlreadyExists):
        await b.create("/f", SMALL)
    with pytest.raises(AlreadyExists):
        await a.create("/f", SMALL)
    assert await b.read("/f", 0, 10) == b"mine"


@story
async def test_after_close_the_appender_is_dead_and_the_file_is_not(world: World) -> None:
    fs = await world.client("a")
    appender = await fs.create("/f", SMALL)
    appender.write(b"one")
    assert await appender.close() == 3
    assert appender.failure is not None
    await fails(appender)
    appender.abort()
    assert await fs.read("/f", 0, 10) == b"one"


@story
async def test_abort_fails_what_is_pending_and_leaves_the_file_open(world: World) -> None:
    a, b = await world.client("a"), await world.client("b")
    appender = await a.create("/f", SMALL)
    appender.write(b"kept")
    await appender.flush()
    appender.write(b"lost")
    pending = appender.flush()
    appender.abort()
    appender.abort()
    with pytest.raises(PipelineFailed):
        await pending
    assert await fails(appender, PipelineFailed) is appender.failure
    with pytest.raises(LeaseLost):
        await b.append("/f", SMALL)
    assert await b.fence(appender.lease) in (4, 8)
    assert (await b.read("/f", 0, 10))[:4] == b"kept"


@story
async def test_a_cancelled_waiter_disturbs_nobody(world: World) -> None:
    fs = await world.client("a")
    appender = await fs.create("/f", SMALL)
    appender.write(b"x")
    first = appender.flush()
    appender.write(b"y")
    second = appender.flush()
    first.cancel()
    assert await second == 2
    assert await appender.close() == 2


@story
async def test_a_cancelled_create_holds_nothing_that_a_fence_cannot_end(world: World) -> None:
    a, b = await world.client("a"), await world.client("b")
    task = asyncio.ensure_future(a.create("/f", SMALL))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await a.close()
    try:
        appender = await b.create("/f", SMALL)
    except AlreadyExists:
        assert await b.fence(Lease(paths=("/f",), holder="a", file_id=0)) == 0
        appender = await b.append("/f", SMALL)
    assert await appender.close() == 0


# Appending


@story
async def test_append_goes_on_at_the_end_of_a_closed_file(world: World) -> None:
    a, b = await world.client("a"), await world.client("b")
    await put(a, "/f", b"one")
    appender = await b.append("/f", SMALL)
    assert (appender.position, appender.flushed) == (3, 3)
    assert appender.lease.holder == "b"
    assert appender.write(b"two") == 6
    assert await appender.flush() == 6
    assert await appender.close() == 6
    assert await a.read("/f", 0, 10) == b"onetwo"


@story
async def test_one_writer_only(world: World) -> None:
    a, b = await world.client("a"), await world.client("b")
    first = await a.create("/f", SMALL)
    for fs in (a, b):
        with pytest.raises(LeaseLost):
            await fs.append("/f", SMALL)
    await first.close()
    second = await b.append("/f", SMALL)
    for fs in (a, b):
        with pytest.raises(LeaseLost):
            await fs.append("/f", SMALL)
    second.write(b"b")
    assert await second.close() == 1


@story
async def test_of_many_appends_at_once_one_wins(world: World) -> None:
    clients = [await world.client(name) for name in "abcd"]
    await put(clients[0], "/f", b"-")
    results = await asyncio.gather(*(fs.append("/f", SMALL) for fs in clients), return_exceptions=True)
    losers = [result for result in results if isinstance(result, LeaseLost)]
    winners = [result for result in results if not isinstance(result, BaseException)]
    assert (len(losers), len(winners)) == (3, 1)
    winners[0].write(b"x")
    assert await winners[0].close() == 2


# Fencing


@story
async def test_fence_ends_an_idle_writer(world: World) -> None:
    owner, other = await world.client("a"), await world.client("b")
    appender = await owner.create("/f", SMALL)
    appender.write(b"acked")
    await appender.flush()
    assert await other.fence(appender.lease) == 5
    error = await fails(appender, *FENCED)
    again = await fails(appender, *FENCED)
    assert type(again) is type(error), "after the first failure every call fails the same way"
    with pytest.raises(FENCED):
        await appender.close()
    assert appender.flushed == 5
    assert await other.read("/f", 0, 5) == b"acked"


@story
async def test_a_fenced_writer_cannot_close(world: World) -> None:
    owner, other = await world.client("a"), await world.client("b")
    appender = await owner.create("/f", SMALL)
    assert await other.fence(appender.lease) == 0
    with pytest.raises(FENCED):
        await appender.close()


@story
async def test_fence_under_load_keeps_every_acked_byte_and_acks_none_after(world: World) -> None:
    owner, other = await world.client("a"), await world.client("b")
    for n in range(10):
        appender = await owner.create(f"/f{n}", SMALL)
        reached = asyncio.Event()
        writing = asyncio.ensure_future(write_for_ever(appender, reached))
        await reached.wait()
        length = await other.fence(appender.lease)
        with pytest.raises(FENCED):
            await writing
        assert 2000 <= appender.flushed <= length
        data = await other.read(f"/f{n}", 0, length)
        assert data == bytes(k % 251 for k in range(length)), "and they are the bytes that were written"


async def write_for_ever(appender: Appender, reached: asyncio.Event) -> None:
    """Write until cancelled; set ``reached`` at 2,000 acknowledged bytes."""
    while True:
        position = appender.position
        appender.write(bytes(k % 251 for k in range(position, position + 100)))
        flush = appender.flush()
        if appender.pending > 5:
            await flush
        if appender.flushed >= 2000:
            reached.set()
        await asyncio.sleep(0)


@story
async def test_fence_is_idempotent_and_takes_closed_files(world: World) -> None:
    owner, other = await world.client("a"), await world.client("b")
    appender = await owner.create("/f", SMALL)
    appender.write(b"12345")
    await appender.close()
    assert await other.fence(appender.lease) == 5
    assert await owner.fence(appender.lease) == 5
    assert (await other.status("/f")).length == 5
    with pytest.raises(NoSuchFile):
        await other.fence(Lease(paths=("/nobody", "/nothing"), holder="a", file_id=0))


@story
async def test_many_fence_at_once_and_agree(world: World) -> None:
    clients = [await world.client(name) for name in "abcd"]
    appender = await clients[0].create("/f", SMALL)
    appender.write(b"1234567")
    await appender.flush()
    assert set(await asyncio.gather(*(fs.fence(appender.lease) for fs in clients))) == {7}


@story
async def test_fence_by_the_writers_own_process(world: World) -> None:
    fs = await world.client("a")
    appender = await fs.create("/f", SMALL)
    appender.write(b"1234")
    await appender.flush()
    appender.abort()
    assert await fs.fence(appender.lease) == 4
    reopened = await fs.append("/f", SMALL)
    reopened.write(b"5")
    assert await reopened.close() == 5


@story
async def test_fence_of_a_dead_process(world: World) -> None:
    owner, other = await world.client("a"), await world.client("b")
    appender = await owner.create("/f", SMALL)
    appender.write(b"1234")
    await appender.flush()
    await owner.close()
    assert await other.fence(appender.lease) == 4
    await fails(appender)


@story
async def test_a_zombie_writes_nothing_into_what_the_new_owner_appends(world: World) -> None:
    zombie, owner = await world.client("a"), await world.client("b")
    old = await zombie.create("/f", SMALL)
    old.write(b"old.")
    await old.flush()
    assert await owner.fence(old.lease) == 4
    await fails(old, *FENCED)
    new = await owner.append("/f", SMALL)
    new.write(b"new.")
    await new.flush()
    await fails(old, *FENCED)
    assert await new.close() == 8
    assert await owner.read("/f", 0, 100) == b"old.new."


# Names


@story
async def test_rename_keeps_the_writer_and_the_fence_follows_the_file(world: World) -> None:
    owner, other = await world.client("a"), await world.client("b")
    appender = await owner.create("/d/.spare", SMALL)
    appender.write(b"one")
    await appender.flush()
    await owner.rename("/d/.spare", "/d/final")
    appender.write(b"two")
    assert await appender.flush() == 6
    assert (await other.status("/d/final")).file_id == appender.lease.file_id
    assert await other.fence(lease_of(appender, "/d/final")) == 6
    await fails(appender, *FENCED)
    assert await names(other, "/d") == ["final"]


@story
async def test_fence_finds_a_file_that_is_being_renamed(world: World) -> None:
    owner, other = await world.client("a"), await world.client("b")
    for n in range(30):
        appender = await owner.create(f"/d/.spare{n}", SMALL)
        lease = lease_of(appender, f"/d/final{n}")
        _, length = await asyncio.gather(owner.rename(*lease.paths), other.fence(lease))
        assert length == 0
        await fails(appender, *FENCED)


@story
async def test_fence_leaves_another_file_of_the_same_name_alone(world: World) -> None:
    owner, other = await world.client("a"), await world.client("b")
    gone = await owner.create("/f", SMALL)
    await gone.close()
    present = await owner.create("/g", SMALL)  # before the delete: a folder may use an inode number again
    await owner.delete("/f")
    await owner.rename("/g", "/f")
    with pytest.raises(NoSuchFile):
        await other.fence(gone.lease)
    present.write(b"x")
    assert await present.close() == 1


@story
async def test_rename_never_overwrites(world: World) -> None:
    fs = await world.client("a")
    await put(fs, "/d/one", b"1")
    await put(fs, "/d/two", b"2")
    with pytest.raises(AlreadyExists):
        await fs.rename("/d/one", "/d/two")
    assert await fs.read("/d/one", 0, 9) == b"1"
    assert await fs.read("/d/two", 0, 9) == b"2"
    with pytest.raises(NoSuchFile):
        await fs.rename("/d/none", "/d/three")
    await fs.rename("/d/one", "/d/three")
    assert await names(fs, "/d") == ["three", "two"]


@story
async def test_rename_of_a_folder_takes_its_files_along(world: World) -> None:
    fs = await world.client("a")
    appender = await fs.create("/d/x/f", SMALL)
    await put(fs, "/e/f", b"")
    with pytest.raises(AlreadyExists):
        await fs.rename("/d/x", "/e")
    await fs.rename("/d/x", "/d/y")
    appender.write(b"1")
    assert await appender.close() == 1
    assert await fs.read("/d/y/f", 0, 9) == b"1"


@story
async def test_replace_overwrites(world: World) -> None:
    fs = await world.client("a")
    await put(fs, "/d/new", b"new")
    await fs.replace("/d/new", "/d/target")
    await put(fs, "/d/new", b"newer")
    await fs.replace("/d/new", "/d/target")
    assert await fs.read("/d/target", 0, 9) == b"newer"
    assert await names(fs, "/d") == ["target"]
    with pytest.raises(NoSuchFile):
        await fs.replace("/d/none", "/d/target")
    assert await fs.read("/d/target", 0, 9) == b"newer"


@story
async def test_delete(world: World) -> None:
    fs = await world.client("a")
    assert not await fs.delete("/d/f")
    await put(fs, "/d/f", b"1")
    with pytest.raises(StorageError):
        await fs.delete("/d")
    assert await fs.delete("/d/f")
    assert not await fs.delete("/d/f")
    await put(fs, "/d/f", b"22")
    assert await fs.read("/d/f", 0, 9) == b"22"
    assert await fs.delete("/d", recursive=True)
    assert not await fs.delete("/d", recursive=True)
    with pytest.raises(NoSuchFile):
        await fs.status("/d/f")


@story
async def test_list_is_in_byte_order_and_resumes_after_a_name(world: World) -> None:
    fs = await world.client("a")
    assert await names(fs, "/d") == []
    expected = sorted([f"{n:03d}.log" for n in range(20)] + [".dot", "A", "a", "~", "sub"], key=str.encode)
    for name in expected:
        await put(fs, f"/d/{name}" if name != "sub" else "/d/sub/inner", name.encode())
    assert await names(fs, "/d") == expected
    assert await names(fs, "/d", after="009.log") == [name for name in expected if name > "009.log"]
    assert await names(fs, "/d", after="009") == [name for name in expected if name > "009"]
    assert await names(fs, "/d", after="~") == []
    found = {status.path: status async for status in fs.list("/d")}
    assert [path for path, status in found.items() if status.is_dir] == ["/d/sub"]
    assert found["/d/~"].length == 1
    assert found["/d/~"].modified_ms > 1_600_000_000_000
    assert [status.path async for status in fs.list("/")] == ["/d"]


@story
async def test_a_missing_file_is_said_to_be_missing(world: World) -> None:
    fs = await world.client("a")
    await put(fs, "/d/f", b"1")
    for path in ("/none", "/d/none", "/d/f/none"):
        for call in (fs.status(path), fs.visible_length(path), fs.read(path, 0, 1), fs.append(path, SMALL)):
            with pytest.raises(NoSuchFile):
                await call


@story
async def test_no_path_leaves_the_root(world: World) -> None:
    fs = await world.client("a")
    for path in ("/../f", "/d/../../f", "/d/./f", "f", "", "//f", "/d//f", "/f\0"):
        for call in (fs.create(path, SMALL), fs.read(path, 0, 1), fs.delete(path), fs.rename(path, "/g")):
            with pytest.raises(StorageError):
                await call


@story
async def test_the_nodes_written_to_answer_a_probe(world: World) -> None:
    fs = await world.client("a")
    appender = await fs.create("/f", SMALL)
    assert [await fs.probe(node) for node in appender.nodes] == [True] * len(appender.nodes)
    appender.abort()


@story
async def test_replicas_max_is_what_a_new_file_gets_and_no_more(world: World) -> None:
    fs = await world.client("a")
    replicas_max = await fs.replicas_max()
    for wanted in (replicas_max, replicas_max + 1):
        appender = await fs.create(f"/f{wanted}", dataclasses.replace(SMALL, replication=wanted))
        copies = len(appender.nodes) or 1  # a folder has no nodes, and one copy
        appender.abort()
        assert copies == replicas_max


@story
async def test_the_blocks_of_a_file_name_the_nodes_that_it_was_written_to(world: World) -> None:
    fs = await world.client("a")
    appender = await fs.create("/f", SMALL)
    nodes = set(appender.nodes)
    appender.write(b"x" * 1000)
    await appender.flush()
    assert {node for place in await fs.block_places("/f") for node in place.nodes} == nodes
    await appender.close()

    async def are_reported() -> bool:  # a file is closed before the last datanode has reported its copy
        return {node for place in await fs.block_places("/f") for node in place.nodes} == nodes

    while not await are_reported():  # noqa: ASYNC110 - HDFS tells nobody
        await asyncio.sleep(0.02)
    places = await fs.block_places("/f")
    assert sum(place.length for place in places) == (1000 if nodes else 0)
    with pytest.raises(NoSuchFile):
        await fs.block_places("/g")


@story
async def test_a_closed_files_copies_are_counted(world: World) -> None:
    fs = await world.client("a")
    appender = await fs.create("/f", SMALL)
    nodes = len(appender.nodes) or 1
    appender.write(b"abc")
    await appender.flush()
    await appender.close()
    assert await fs.copies("/f") == nodes
    with pytest.raises(NoSuchFile):
        await fs.copies("/none")


# Reading


@story
async def test_read_returns_fewer_bytes_only_at_the_end(world: World) -> None:
    fs = await world.client("a")
    data = bytes(range(256)) * 4096
    await put(fs, "/f", data)
    assert await fs.read("/f", 0, len(data)) == data
    assert await fs.read("/f", 100, 1000) == data[100:1100]
    assert await fs.read("/f", len(data) - 3, 100) == data[-3:]
    assert await fs.read("/f", len(data), 100) == b""
    assert await fs.read("/f", len(data) + 100, 100) == b""
    assert await fs.read("/f", 5, 0) == b""


# Whole files


@story
async def test_concat_joins_and_removes(world: World) -> None:
    fs = await world.client("a")
    for name, data in (("a", b"aa"), ("b", b"bbb"), ("c", b"c")):
        await put(fs, f"/d/{name}", data)
    await fs.concat("/d/a", ["/d/b", "/d/c"])
    assert await names(fs, "/d") == ["a"]
    assert await fs.read("/d/a", 0, 100) == b"aabbbc"
    assert await fs.visible_length("/d/a") == 6
    appender = await fs.append("/d/a", SMALL)
    appender.write(b"!")
    assert await appender.close() == 7


@story
async def test_concat_changes_nothing_when_it_cannot(world: World) -> None:
    fs = await world.client("a")
    await put(fs, "/d/a", b"aa")
    await put(fs, "/d/b", b"bb")
    writer = await fs.create("/d/open", SMALL)
    with pytest.raises(NoSuchFile):
        await fs.concat("/d/a", ["/d/b", "/d/none"])
    with pytest.raises(NoSuchFile):
        await fs.concat("/d/none", ["/d/b"])
    with pytest.raises(StorageError):
        await fs.concat("/d/a", ["/d/b", "/d/open"])
    with pytest.raises(StorageError):
        await fs.concat("/d/open", ["/d/b"])
    with pytest.raises(StorageError):
        await fs.concat("/d/a", ["/d/b", "/d/a"])
    assert await names(fs, "/d") == ["a", "b", "open"]
    assert await fs.read("/d/a", 0, 100) == b"aa"
    writer.abort()


@story
async def test_write_once(world: World) -> None:
    a, b = await world.client("a"), await world.client("b")
    await write_once(a, "/d/meta.json", b"{}")
    with pytest.raises(AlreadyExists):
        await write_once(b, "/d/meta.json", b"other")
    assert await b.read("/d/meta.json", 0, 100) == b"{}"
    assert (await b.status("/d/meta.json")).length == 2
    results = await asyncio.gather(
        *(write_once(fs, "/d/race", fs.holder.encode()) for fs in (a, b)), return_exceptions=True
    )
    assert [type(result) for result in results if result] == [AlreadyExists]


# Who may read

PRIVATE = dataclasses.replace(SMALL, access=Access(mode=0o750))


@story
async def test_a_new_file_and_its_folders_have_the_mode_they_are_asked_to_have(world: World) -> None:
    fs = await world.client("a")
    await fs.make_folder("/topics/t/id", Access(mode=0o750))
    appender = await fs.create("/topics/t/id/0/f", PRIVATE)
    assert (await fs.status("/topics/t/id/0/f")).mode == 0o640
    await appender.close()
    listed = [status async for status in fs.list("/topics/t/id/0")]
    assert [status.mode for status in listed] == [0o640], "a closed file still has its mode"
    assert [(await fs.status(f"/topics/t/{name}")).mode for name in ("id", "id/0")] == [0o750] * 2


@story
async def test_a_folder_that_is_there_keeps_its_mode(world: World) -> None:
    fs = await world.client("a")
    await fs.make_folder("/x/y", Access(mode=0o700))
    await fs.make_folder("/x/y", Access(mode=0o755))
    assert (await fs.status("/x/y")).mode == 0o700
    await fs.make_folder("/")
    await put(fs, "/x/f", b"")
    with pytest.raises(StorageError):
        await fs.make_folder("/x/f/y")


@story
async def test_the_mode_of_what_is_there_is_changed(world: World) -> None:
    fs = await world.client("a")
    await put(fs, "/d/e/f", b"old")
    assert await fs.set_access("/d/e", Access(mode=0o770))
    assert await fs.set_access("/d/e/f", Access(mode=0o660))
    assert [(await fs.status(path)).mode for path in ("/d/e", "/d/e/f")] == [0o770, 0o660]
    found = await fs.status("/d/e")
    assert found.owner
    assert found.group
    assert await fs.set_access("/d/e", Access(owner=found.owner, group=found.group))
    assert await fs.status("/d/e") == found, "what is right already stays"
    with pytest.raises(NoSuchFile):
        await fs.set_access("/d/none", Access(mode=0o770))
    appender = await fs.append("/d/e/f")
    appender.write(b"new")
    assert await appender.close() == 6, "its writer may go on"
    assert (await fs.status("/d/e/f")).mode == 0o660


@story
async def test_a_file_with_another_mode_can_be_fenced_and_joined(world: World) -> None:
    fs, other = await world.client("a"), await world.client("b")
    appender = await fs.create("/d/1", PRIVATE)
    appender.write(b"one")
    await appender.flush()
    assert await other.fence(lease_of(appender)) == 3
    await fails(appender, *FENCED)
    await put(fs, "/d/2", b"two")
    await fs.concat("/d/1", ["/d/2"])
    assert await fs.read("/d/1", 0, 9) == b"onetwo"
    assert (await fs.status("/d/1")).mode == 0o640


@story
async def test_an_open_file_keeps_its_writer_when_its_mode_is_set(world: World) -> None:
    """A local root leaves the file alone until it is closed, since its mode says that it is open."""
    fs, other = await world.client("a"), await world.client("b")
    appender = await fs.create("/d/f", SMALL)
    before = (await fs.status("/d/f")).mode
    is_given = await other.set_access("/d/f", Access(mode=0o600))
    assert (await fs.status("/d/f")).mode == (0o600 if is_given else before)
    appender.write(b"goes on")
    await appender.flush()
    await appender.close()
    assert await other.set_access("/d/f", Access(mode=0o600))
    assert (await fs.status("/d/f")).mode == 0o600
