"""The servers of the memory HDFS: datanodes and a NameNode that die, stop and come back, and disks that are full."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from random import Random
from typing import TypeVar

import pytest

from bmq.storage.filesystem import (
    AlreadyExists,
    CreateOptions,
    LeaseLost,
    NoSuchFile,
    OutOfSpace,
    PipelineFailed,
    StorageUnavailable,
    Unjoinable,
    delete_joined,
    write_once,
)
from bmq.storage.memory import Faults, MemoryFileSystem, MemoryStorage

T = TypeVar("T")


async def result_within(awaitable: Awaitable[T], after_s: float) -> T | None:
    """Return the result within ``after_s`` virtual seconds, None if there is none."""
    task = asyncio.ensure_future(awaitable)
    await asyncio.wait([task], timeout=after_s)
    return task.result() if task.done() else None


async def test_a_killed_datanode_breaks_its_pipelines_and_is_the_suspect() -> None:
    storage = MemoryStorage(Random(1))
    fs = MemoryFileSystem(storage, "a")
    appender = await fs.create("/f")
    appender.write(b"12345")
    await appender.flush()
    storage.kill_datanode(appender.nodes[0])
    with pytest.raises(PipelineFailed) as caught:
        await appender.flush()
    assert caught.value.suspects == (appender.nodes[0],)
    assert await fs.fence(appender.lease) == 5, "the others have all"
    again = await fs.create("/g", CreateOptions(exclude=appender.nodes[:1]))
    assert appender.nodes[0] not in again.nodes


async def test_nodes_to_exclude_are_used_if_there_are_no_others() -> None:
    storage = MemoryStorage(Random(1), datanodes=["x", "y"])
    fs = MemoryFileSystem(storage, "a")
    assert (await fs.create("/f", CreateOptions(exclude=("x",)))).nodes == ("y",)
    assert set((await fs.create("/g", CreateOptions(exclude=("x", "y")))).nodes) == {"x", "y"}


async def test_a_stopped_datanode_hangs_its_pipelines_and_a_fence_does_without_it() -> None:
    storage = MemoryStorage(Random(1))
    fs = MemoryFileSystem(storage, "a")
    appender, fenced = await fs.create("/f"), await fs.create("/g", CreateOptions(replication=4))
    name = appender.nodes[0]
    storage.stop_datanode(name)
    appender.write(b"x")
    fenced.write(b"y")
    hung, never = appender.flush(), fenced.flush()
    await asyncio.sleep(60)
    assert not hung.done()
    assert await fs.fence(fenced.lease) == 0
    storage.resume_datanode(name)
    assert await hung == 1
    with pytest.raises(LeaseLost):
        await never


async def test_a_slow_datanode_slows_its_pipelines() -> None:
    storage = MemoryStorage(Random(1))
    appender = await MemoryFileSystem(storage, "a").create("/f")
    storage.slow_datanode(appender.nodes[2], 2.0)
    assert await result_within(appender.flush(), 1.9) is None
    storage.slow_datanode(appender.nodes[2], 0.0)
    assert await result_within(appender.flush(), 0.2) == 0


async def test_a_file_without_a_living_replica_can_be_neither_read_nor_fenced_until_one_returns() -> None:
    storage = MemoryStorage(Random(1))
    fs = MemoryFileSystem(storage, "b")
    appender = await MemoryFileSystem(storage, "a").create("/f")
    appender.write(b"123")
    await appender.flush()
    for name in appender.nodes:
        storage.kill_datanode(name)
    for call in (fs.read("/f", 0, 1), fs.fence(appender.lease), fs.visible_length("/f")):
        with pytest.raises(StorageUnavailable):
            await call
    storage.start_datanode(appender.nodes[1])
    assert await fs.fence(appender.lease) == 3
    assert await fs.read("/f", 0, 9) == b"123"


async def test_on_full_disks_pipelines_break_and_no_file_is_made() -> None:
    storage = MemoryStorage(Random(1))
    fs = MemoryFileSystem(storage, "a")
    appender = await fs.create("/f")
    storage.is_full = True
    with pytest.raises(PipelineFailed):
        await appender.flush()
    with pytest.raises(OutOfSpace):
        await fs.create("/g")
    storage.is_full, storage.faults = False, Faults(out_of_space=1.0)
    with pytest.raises(OutOfSpace):
        await fs.create("/g")
    storage.faults = Faults()
    assert await (await fs.create("/g")).close() == 0


async def test_concat_appends_no_larger_blocks_to_smaller_ones() -> None:
    """Refuse the concat as HDFS does: "source file has preferred block size which is greater than the target
    file's"."""

    fs = MemoryFileSystem(MemoryStorage(Random(1)), "a")
    for name, block_bytes in (("/d/small", 1 << 20), ("/d/large", 2 << 20)):
        await write_once(fs, name, name.encode(), CreateOptions(block_bytes=block_bytes))
    assert (await fs.status("/d/large")).block_bytes == 2 << 20
    with pytest.raises(Unjoinable):
        await fs.concat("/d/small", ["/d/large"])
    await fs.concat("/d/large", ["/d/small"])
    assert await fs.read("/d/large", 0, 100) == b"/d/large/d/small"


async def test_a_target_of_another_length_is_neither_joined_nor_settled() -> None:
    fs = MemoryFileSystem(MemoryStorage(Random(1)), "a")
    for name in ("/d/1", "/d/2"):
        await write_once(fs, name, name.encode())
    with pytest.raises(LeaseLost):
        await fs.concat("/d/1", ["/d/2"], 8)
    with pytest.raises(LeaseLost):
        await delete_joined(fs, "/d/1", ["/d/2"], 8)
    await fs.concat("/d/1", ["/d/2"], 4)
    assert await fs.read("/d/1", 0, 100) == b"/d/1/d/2"


async def test_pipelines_go_on_while_the_namenode_is_down_and_calls_fail_or_wait() -> None:
    storage = MemoryStorage(Random(1))
    fs = MemoryFileSystem(storage, "a")
    appender = await fs.create("/f")
    appender.write(b"x")
    await appender.flush()
    storage.restart_namenode(30.0, safe_mode_s=10.0)
    appender.write(b"y")
    assert await result_within(appender.flush(), 1) == 2
    for call in (fs.create("/g"), fs.status("/f"), fs.fence(appender.lease), appender.close()):
        with pytest.raises(StorageUnavailable):
            await call
    storage.faults = Faults(waits_for_namenode=1.0)
    assert await result_within(fs.create("/g"), 25) is None
    await asyncio.sleep(6)
    storage.faults = Faults()
    assert (await fs.status("/f")).length == 1, "read in safe mode"
    with pytest.raises(StorageUnavailable):
        await fs.create("/h")
    await asyncio.sleep(10)
    assert (await fs.status("/g")).length == 0, "the waiting create was served"
    assert await fs.fence(appender.lease) == 2


async def test_the_first_ack_waits_for_the_namenode_so_that_no_acked_byte_is_dropped() -> None:
    """Rule 1: a restarted NameNode that believes a block empty may drop it in lease recovery."""

    async def story(responded: bool) -> int:
        storage = MemoryStorage(Random(1), Faults(ack_s=(1.0, 1.0)))
        writer = MemoryFileSystem(storage, "a")
        appender = await writer.create("/f")
        appender.write(b"x" * 100)
        flush = appender.flush()
        await asyncio.sleep(2 if responded else 0.99)
        assert flush.done() is responded
        storage.restart_namenode(30.0)
        await asyncio.sleep(20)
        assert flush.done() is responded, "the ack waits"
        if not responded:
            writer.crash()
        await asyncio.sleep(20)
        storage.faults = Faults(lease_recovery=1.0)
        return await MemoryFileSystem(storage, "b").fence(appender.lease)

    assert await story(responded=True) == 100
    assert await story(responded=False) == 0


async def test_a_call_with_a_lost_response_was_done_and_a_refused_one_was_not() -> None:
    storage = MemoryStorage(Random(1), Faults(unavailable=1.0))
    fs = MemoryFileSystem(storage, "a")
    with pytest.raises(StorageUnavailable):
        await fs.create("/f")
    storage.faults = Faults(lost_answer=1.0)
    with pytest.raises(StorageUnavailable):
        await fs.create("/f")
    storage.faults = Faults()
    with pytest.raises(AlreadyExists):
        await fs.create("/f")
    assert storage.open_files() == {"/f": "a"}


async def test_flushes_of_a_deleted_open_file_are_still_acknowledged() -> None:
    """The danger behind rule 4: datanodes do not ask the NameNode, so only fencing stops a writer."""

    storage = MemoryStorage(Random(1))
    other = MemoryFileSystem(storage, "b")
    appender = await MemoryFileSystem(storage, "a").create("/f")
    young = await MemoryFileSystem(storage, "a").create("/young")
    appender.write(b"x")
    await appender.flush()
    assert await other.delete("/f")
    assert await other.delete("/young")
    appender.write(b"y")
    assert await appender.flush() == 2, "acknowledged, and lost"
    with pytest.raises(LeaseLost):
        await young.flush()  # but a block's first ack needs the NameNode
    with pytest.raises(NoSuchFile):
        await other.fence(appender.lease)
    with pytest.raises(LeaseLost):
        await appender.close()
