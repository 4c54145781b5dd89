"""Files that are written on the memory HDFS: the order of acknowledgements, and what a broken pipeline leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from random import Random

import pytest

from bmq.storage.filesystem import (
    Appender,
    PipelineFailed,
)
from bmq.storage.memory import Faults, MemoryFileSystem, MemoryStorage


def opened(storage: MemoryStorage, holder: str = "a", path: str = "/f") -> Awaitable[Appender]:
    return MemoryFileSystem(storage, holder).create(path)


async def test_acks_come_in_order_within_a_file_and_in_any_order_across_files() -> None:
    storage = MemoryStorage(Random(1), Faults(ack_s=(0.0, 1.0)))
    order: list[tuple[int, int]] = []
    for file in range(5):
        appender = await opened(storage, path=f"/{file}")
        for _ in range(10):
            appender.write(b"x")
            appender.flush().add_done_callback(lambda done, file=file: order.append((file, done.result())))  # type: ignore[misc]
    await asyncio.sleep(2)
    assert len(order) == 50
    assert order != sorted(order)
    for file in range(5):
        assert [position for f, position in order if f == file] == list(range(1, 11))


async def test_a_slow_ack_is_late_and_a_hung_one_never_comes() -> None:
    storage = MemoryStorage(Random(1), Faults(slow_ack=1.0, slow_ack_s=(5.0, 5.0)))
    appender = await opened(storage)
    appender.write(b"x")
    flush = appender.flush()
    await asyncio.sleep(4.9)
    assert not flush.done()
    await asyncio.sleep(0.2)
    assert flush.result() == 1

    storage.faults = Faults(hung_ack=1.0)
    appender.write(b"y")
    hung = appender.flush()
    storage.faults = Faults()
    after = appender.flush()
    await asyncio.sleep(3600)
    assert not hung.done()
    assert not after.done(), "acks do not overtake"
    appender.abort()
    with pytest.raises(PipelineFailed):
        await hung
    assert await MemoryFileSystem(storage, "b").fence(appender.lease) == 2, "its bytes had landed"


async def test_a_broken_pipeline_leaves_any_prefix_of_what_was_not_acked() -> None:
    lengths, suspects = set(), set()

    async def story(seed: int) -> None:
        storage = MemoryStorage(Random(seed), Faults(early_bytes=0.5))
        appender = await opened(storage)
        appender.write(b"12345")
        await appender.flush()
        storage.faults = Faults(pipeline_fails=1.0, early_bytes=0.5)
        appender.write(b"67890")
        first, second = appender.flush(), appender.flush()
        with pytest.raises(PipelineFailed) as caught:
            await first
        assert second.done(), "all fail together"
        assert second.exception() is caught.value
        with pytest.raises(PipelineFailed):
            appender.write(b"more")
        assert set(caught.value.suspects) <= set(appender.nodes)
        suspects.add(len(caught.value.suspects))
        storage.faults = Faults(lease_recovery=float(seed % 2), early_bytes=0.5)
        length = await MemoryFileSystem(storage, "b").fence(appender.lease)
        assert 5 <= length <= 10
        assert await MemoryFileSystem(storage, "b").read("/f", 0, 99) == b"1234567890"[:length]
        lengths.add(length)

    for seed in range(100):
        await story(seed)
    assert lengths == {5, 6, 7, 8, 9, 10}
    assert suspects == {0, 1}


async def test_replicas_show_bytes_that_were_never_acked() -> None:
    storage = MemoryStorage(Random(5), Faults(early_bytes=1.0, ack_s=(10.0, 10.0)))
    fs = MemoryFileSystem(storage, "b")
    appender = await opened(storage)
    appender.write(b"x" * 1000)
    appender.flush()
    seen = {len(await fs.read("/f", 0, 2000)) for _ in range(20)}
    assert len(seen) > 1, "replicas differ"
    assert max(seen) > 0
    assert await fs.visible_length("/f") == min(seen)
    assert appender.flushed == 0
    assert (await fs.status("/f")).length == 0, "the namespace does not know"


async def test_a_late_ack_may_come_after_the_fence_but_only_within_its_length() -> None:
    late = 0

    async def story(seed: int) -> None:
        nonlocal late
        storage = MemoryStorage(Random(seed))
        appender = await opened(storage)
        appender.write(b"0")
        await appender.flush()
        storage.faults = Faults(ack_s=(0.0, 0.1))
        flushes = []
        for _ in range(20):
            appender.write(b"x")
            flushes.append(appender.flush())
        await asyncio.sleep(0.05)
        length = await MemoryFileSystem(storage, "b").fence(appender.lease)
        before = appender.flushed
        await asyncio.gather(*flushes, return_exceptions=True)
        assert appender.flushed <= length
        late += appender.flushed > before

    for seed in range(50):
        await story(seed)
    assert late > 0
