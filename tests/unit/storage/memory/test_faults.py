"""All faults of the memory HDFS at once, by seed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, TypeVar

import pytest

from bmq.storage.filesystem import (
    Appender,
    OutOfSpace,
    PipelineFailed,
    StorageError,
    StorageUnavailable,
)
from bmq.storage.memory import Faults, MemoryFileSystem, MemoryStorage
from tests.harness.loop import run
from tests.harness.seeds import seeds

pytestmark = pytest.mark.slow


T = TypeVar("T")

SEEDS = seeds(90, 3_000)
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


@pytest.mark.parametrize(
    "faults", [{"hung_ack": 1.01}, {"early_bytes": -0.1}, {"ack_s": (0.2, 0.1)}, {"call_s": (-1.0, 0.0)}]
)
def test_a_value_that_is_not_a_probability_or_a_range_is_a_bug(faults: dict[str, Any]) -> None:
    with pytest.raises(AssertionError, match=next(iter(faults))):
        Faults(**faults)
