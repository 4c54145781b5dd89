"""Bounded writes to a pipeline that hangs."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from bmq.storage.filesystem import WRITE_ONCE_S, Appender, CreateOptions, PipelineFailed, in_time, write_once
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.harness.loop import run


class Hanging(MemoryFileSystem):
    """Storage on which a datanode of each new file stops at once."""

    def __init__(self, storage: MemoryStorage, holder: str) -> None:
        super().__init__(storage, holder)
        self.created: list[Appender] = []

    async def create(self, path: str, options: CreateOptions | None = None) -> Appender:  # type: ignore[override]
        appender = await super().create(path, options or CreateOptions())
        self.storage.stop_datanode(appender.nodes[0])
        self.created.append(appender)
        return appender


def test_a_step_that_hangs_names_its_nodes_and_leaves_the_appender_to_its_caller() -> None:
    async def story() -> None:
        storage = MemoryStorage(Random(1))
        appender = await MemoryFileSystem(storage, "a").create("/f")
        storage.stop_datanode(appender.nodes[0])
        appender.write(b"12345")
        begun = asyncio.get_running_loop().time()
        with pytest.raises(PipelineFailed) as caught:
            async with in_time(appender, "/f: nothing acknowledged"):
                await appender.flush()
        assert asyncio.get_running_loop().time() - begun == pytest.approx(WRITE_ONCE_S)
        assert str(caught.value) == f"/f: nothing acknowledged in {WRITE_ONCE_S:g} s"
        assert caught.value.suspects == appender.nodes
        assert appender.failure is None

    run(story())


def test_a_step_in_time_raises_its_own_errors() -> None:
    async def story() -> None:
        appender = await MemoryFileSystem(MemoryStorage(Random(1)), "a").create("/f")
        async with in_time(appender, "/f: nothing acknowledged"):
            appender.write(b"12345")
            assert await appender.flush() == 5
        with pytest.raises(ZeroDivisionError):
            async with in_time(appender, "/f: nothing acknowledged"):
                raise ZeroDivisionError

    run(story())


def test_a_file_that_is_written_once_is_given_up_with_its_pipeline() -> None:
    async def story() -> None:
        fs = Hanging(MemoryStorage(Random(1)), "a")
        with pytest.raises(PipelineFailed, match="/f: nothing acknowledged in 20 s") as caught:
            await write_once(fs, "/f", b"12345")
        (appender,) = fs.created
        assert caught.value.suspects == appender.nodes
        assert appender.failure is not None

    run(story())
