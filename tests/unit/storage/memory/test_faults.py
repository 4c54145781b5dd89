"""The memory HDFS fails as HDFS does: each fault on its own, then all at once by seed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

import pytest

from bmq.storage.filesystem import (
    AlreadyExists,
    Appender,
    CreateOptions,
    Lease,
    LeaseLost,
    NoSuchFile,
    OutOfSpace,
    PipelineFailed,
    StorageError,
    StorageUnavailable,
    write_once,
)
from bmq.storage.memory import Faults, MemoryFileSystem, MemoryStorage
from tests.harness.loop import run

pytestmark = pytest.mark.slow

T = TypeVar("T")

SEEDS = range(300)
EVERYTHING = Faults(
    call_s=(0.0, 0.02),
    ack_s=(0.0, 0.01),
    slow_ack=0.02,
    hung_ack=0.003,
    pipeline_fails=0.01,
    early_bytes=0.5,
    create_fails=0.05,
    out_of_space=0.02,
    unavailable=0.03,
    lost_answer=0.03,
    namenode_dies=0.01,
    waits_for_namenode=0.5,
    lease_recovery=0.3,
)


def opened(storage: MemoryStorage, holder: str = "a", path: str = "/f") -> Awaitable[Appender]:
    return MemoryFileSystem(storage, holder).create(path)


async def result_within(awaitable: Awaitable[T], after_s: float) -> T | None:
    """Return the result within ``after_s`` virtual seconds, None if there is none."""
    task = asyncio.ensure_future(awaitable)
    await asyncio.wait([task], timeout=after_s)
    return task.result() if task.done() else None


# Flushes


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


def test_a_broken_pipeline_leaves_any_prefix_of_what_was_not_acked() -> None:
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
        run(story(seed), seed)
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


def test_a_late_ack_may_come_after_the_fence_but_only_within_its_length() -> None:
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
        run(story(seed), seed)
    assert late > 0


# Datanodes


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


async def test_exclude_is_advice() -> None:
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
    appender = await opened(storage)
    storage.slow_datanode(appender.nodes[2], 2.0)
    assert await result_within(appender.flush(), 1.9) is None
    storage.slow_datanode(appender.nodes[2], 0.0)
    assert await result_within(appender.flush(), 0.2) == 0


async def test_a_file_without_a_living_replica_can_be_neither_read_nor_fenced_until_one_returns() -> None:
    storage = MemoryStorage(Random(1))
    fs = MemoryFileSystem(storage, "b")
    appender = await opened(storage)
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


async def test_full_disks() -> None:
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
    with pytest.raises(StorageError):
        await fs.concat("/d/small", ["/d/large"])
    await fs.concat("/d/large", ["/d/small"])
    assert await fs.read("/d/large", 0, 100) == b"/d/large/d/small"


# The NameNode


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


def test_the_first_ack_waits_for_the_namenode_so_that_no_acked_byte_is_dropped() -> None:
    """Rule 1: a restarted NameNode that believes a block empty may drop it in lease recovery."""

    async def story(told: bool) -> int:
        storage = MemoryStorage(Random(1), Faults(ack_s=(1.0, 1.0)))
        writer = MemoryFileSystem(storage, "a")
        appender = await writer.create("/f")
        appender.write(b"x" * 100)
        flush = appender.flush()
        await asyncio.sleep(2 if told else 0.99)
        assert flush.done() is told
        storage.restart_namenode(30.0)
        await asyncio.sleep(20)
        assert flush.done() is told, "the ack waits"
        if not told:
            writer.crash()
        await asyncio.sleep(20)
        storage.faults = Faults(lease_recovery=1.0)
        return await MemoryFileSystem(storage, "b").fence(appender.lease)

    assert run(story(told=True)) == 100
    assert run(story(told=False)) == 0


async def test_a_lost_answer_is_done_and_a_refusal_is_not() -> None:
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


async def test_a_deleted_open_file_goes_on_being_acked() -> None:
    """The danger behind rule 4: datanodes do not ask the NameNode, so only fencing stops a writer."""

    storage = MemoryStorage(Random(1))
    other = MemoryFileSystem(storage, "b")
    appender = await opened(storage)
    young = await opened(storage, path="/young")
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


# Processes


def test_a_crashed_process_hears_nothing_and_its_bytes_may_land() -> None:
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
        await asyncio.sleep(3600)
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
        run(story(seed), seed)
    assert {3, 8} < lengths


def test_a_request_under_way_at_the_crash_may_be_done() -> None:
    async def story(seed: int) -> bool:
        storage = MemoryStorage(Random(seed), Faults(call_s=(1.0, 1.0)))
        fs = MemoryFileSystem(storage, "a")
        task = asyncio.ensure_future(fs.create("/f"))
        await asyncio.sleep(0.5)
        fs.crash()
        await asyncio.sleep(10)
        assert not task.done()
        return "/f" in storage.open_files()

    assert {run(story(seed), seed) for seed in range(20)} == {True, False}


def test_a_paused_process_hears_on_resume_what_happened_meanwhile() -> None:
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

    run(story(fenced=False))
    run(story(fenced=True))


async def test_a_process_paused_while_its_pipeline_breaks_hears_it_on_resume() -> None:
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


async def test_a_grant_heard_after_the_file_was_fenced_is_worth_nothing() -> None:
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


# All at once


async def disaster(seed: int) -> list[str]:
    """Run writers, fencers and a saboteur against the contract's promise on acked bytes, and return what happened."""
    rng = Random(seed)
    storage = MemoryStorage(Random(seed + 1), EVERYTHING)
    log: list[str] = []

    async def persistently(call: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await call()
            except (StorageUnavailable, OutOfSpace, PipelineFailed) as error:
                log.append(f"{asyncio.get_running_loop().time():.6f} {error!r}")
                await asyncio.sleep(0.5)

    async def writer(fs: MemoryFileSystem, path: str, created: list[Appender]) -> None:
        appender = await fs.create(path)
        created.append(appender)
        for n in range(200):
            appender.write(bytes([n % 251]) * rng.randint(0, 50))
            appender.flush()
            if rng.random() < 0.3:
                await asyncio.sleep(rng.random() * 0.02)
        await appender.close()

    async def saboteur() -> None:
        while True:
            await asyncio.sleep(rng.random() * 0.5)
            name = rng.choice(list(storage.datanodes))
            rng.choice([storage.kill_datanode, storage.stop_datanode])(name)
            await asyncio.sleep(rng.random() * 0.3)
            if storage.datanodes[name].state.value == "stopped":
                storage.resume_datanode(name)
            storage.start_datanode(name)

    async def one(n: int) -> None:
        fs, path = MemoryFileSystem(storage, f"owner{n}"), f"/{n}"
        created: list[Appender] = []
        task = asyncio.ensure_future(writer(fs, path, created))
        await asyncio.sleep(rng.random())
        ends: list[Callable[[], None]] = [fs.crash, fs.pause, fs.resume]
        end = rng.choice(ends)
        end()
        await asyncio.sleep(rng.random() * 0.1)
        if created:
            others = [MemoryFileSystem(storage, f"new{n}.{k}") for k in range(2)]
            lease, handed_over = created[0].lease, created[0].position
            lengths = await asyncio.gather(*(persistently(lambda fs=fs: fs.fence(lease)) for fs in others))  # type: ignore[misc]
            fs.resume()
            await asyncio.wait([task], timeout=30)
            flushed = created[0].flushed
            assert len(set(lengths)) == 1
            assert flushed <= lengths[0] <= max(handed_over, created[0].position)
            assert await persistently(lambda: others[0].visible_length(path)) == lengths[0]
            data = await persistently(lambda: others[0].read(path, 0, 1 << 20))
            assert len(data) == lengths[0]
            assert list(data) == sorted(data), "a prefix of what was written"
            log.append(f"{path} {end.__name__} {flushed} {lengths[0]}")
        task.cancel()
        outcomes = await asyncio.gather(task, return_exceptions=True)
        assert all(isinstance(o, StorageError | asyncio.CancelledError) for o in outcomes if o is not None), outcomes

    sabotage = asyncio.ensure_future(saboteur())
    await asyncio.gather(*(one(n) for n in range(6)))
    sabotage.cancel()
    return log


@pytest.mark.parametrize("chunk", range(3))
def test_whatever_happens_acked_bytes_survive_the_fence(chunk: int) -> None:
    for seed in SEEDS[chunk::3]:
        try:
            run(disaster(seed), seed, limit_s=3600)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def test_the_same_seed_gives_the_same_disaster() -> None:
    assert run(disaster(7), 7) == run(disaster(7), 7)
    assert run(disaster(7), 7) != run(disaster(8), 8)
