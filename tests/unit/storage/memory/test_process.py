"""A client process of the memory HDFS that crashes or pauses."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from bmq.storage.filesystem import (
    Lease,
    LeaseLost,
    PipelineFailed,
)
from bmq.storage.memory import Faults, MemoryFileSystem, MemoryStorage


async def test_a_crashed_process_gets_no_response_and_its_bytes_may_land() -> None:
    lengths = set()

    async def story(seed: int) -> None:
        storage = MemoryStorage(Random(seed), Faults(early_bytes=0.5, ack_s=(1.0, 1.0)))
        fs = MemoryFileSystem(storage, "a")
        appender = await fs.create("/f")
        appender.write(b"123")
        await appender.flush()
        appender.write(b"45678")
        flush, read = appender.flush(), asyncio.ensure_future(fs.read("/f", 0, 1))
        fs.crash()
        after = asyncio.ensure_future(fs.create("/g"))
        appender.write(b"never sent")
        await asyncio.sleep(1600)  # 50 times within the virtual day that a test has
        assert not any(future.done() for future in (flush, read, after, appender.flush()))
        for task in (read, after):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        storage.faults = Faults()
        other = MemoryFileSystem(storage, "b")
        length = await other.fence(appender.lease)
        assert 3 <= length <= 8
        assert await other.read("/f", 0, 99) == b"12345678"[:length]
        assert storage.open_files() == {}
        lengths.add(length)

    for seed in range(50):
        await story(seed)
    assert {3, 8} < lengths


async def test_a_request_under_way_at_the_crash_may_be_done() -> None:
    async def story(seed: int) -> bool:
        storage = MemoryStorage(Random(seed), Faults(call_s=(1.0, 1.0)))
        fs = MemoryFileSystem(storage, "a")
        task = asyncio.ensure_future(fs.create("/f"))
        await asyncio.sleep(0.5)
        fs.crash()
        await asyncio.sleep(10)
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return "/f" in storage.open_files()

    assert {await story(seed) for seed in range(20)} == {True, False}


async def test_a_paused_process_gets_its_responses_when_it_resumes() -> None:
    async def story(fenced: bool) -> None:
        storage = MemoryStorage(Random(1), Faults(ack_s=(1.0, 1.0), call_s=(1.0, 1.0)))
        fs, other = MemoryFileSystem(storage, "a"), MemoryFileSystem(storage, "b")
        appender = await fs.create("/f")
        appender.write(b"123")
        await appender.flush()
        appender.write(b"45")
        flush, create = appender.flush(), asyncio.ensure_future(fs.create("/g"))
        await asyncio.sleep(0.1)
        fs.pause()
        appender.write(b"6")
        held, waiting = appender.flush(), asyncio.ensure_future(fs.status("/g"))
        await asyncio.sleep(100)
        assert not any(future.done() for future in (flush, create, held, waiting))
        assert set(storage.open_files()) == {"/f", "/g"}, "what was under way arrived"
        if fenced:
            assert await other.fence(appender.lease) == 5
        fs.resume()
        assert await flush == 5, "a late ack, within the fenced length"
        assert (await create).lease.paths == ("/g",)
        assert (await waiting).path == "/g"
        if fenced:
            with pytest.raises(LeaseLost):
                await held
        else:
            assert await held == 6

    await story(fenced=False)
    await story(fenced=True)


async def test_a_process_paused_while_its_pipeline_breaks_gets_the_error_when_it_resumes() -> None:
    storage = MemoryStorage(Random(1), Faults(ack_s=(1.0, 1.0)))
    fs = MemoryFileSystem(storage, "a")
    appender = await fs.create("/f")
    flush = appender.flush()
    fs.pause()
    storage.kill_datanode(appender.nodes[0])
    await asyncio.sleep(10)
    assert not flush.done()
    fs.resume()
    with pytest.raises(PipelineFailed):
        await flush


async def test_a_file_created_for_a_process_and_fenced_before_it_knows_takes_no_flush() -> None:
    storage = MemoryStorage(Random(1), Faults(call_s=(1.0, 1.0)))
    owner, other = MemoryFileSystem(storage, "a"), MemoryFileSystem(storage, "b")
    task = asyncio.ensure_future(owner.create("/f"))
    await asyncio.sleep(1.5)
    storage.faults = Faults()
    assert await other.fence(lease := leased("/f")) == 0
    appender = await task
    appender.write(b"x")
    with pytest.raises(LeaseLost):
        await appender.flush()
    assert await other.fence(lease) == 0


def leased(path: str) -> Lease:
    return Lease(paths=(path,), holder="a", file_id=0)
