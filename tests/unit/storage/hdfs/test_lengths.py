"""The lengths of open files that are reported to the NameNode: only of files that grew, are still open, and never after
the end."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from bmq.core.aio.tasks import OwnedTasks
from bmq.storage.filesystem import Lease, LeaseLost, PipelineFailed, StorageError, StorageUnavailable
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.appender import HdfsAppender
from bmq.storage.hdfs.lengths import LengthReporter
from bmq.storage.hdfs.settings import HdfsSettings
from tests.harness.waiting import until

INTERVAL_S = 0.01


class FakePipeline:
    """A pipeline whose datanodes acknowledge what the test says."""

    nodes = ("a",)
    position = flushed = pending = written = 0

    def __init__(self, acked: int = 0) -> None:
        self.acked = acked
        self.failure: StorageError | None = None
        self.on_failure: Any = None
        self.on_first_ack: Any = None

    def hold(self, on_first_ack: Any) -> None:
        self.on_first_ack = on_first_ack

    def release(self) -> None:
        self.flushed = self.acked

    def flush(self, *, sync: bool) -> asyncio.Future[int]:
        future = asyncio.get_running_loop().create_future()
        future.set_result(self.acked)
        return future

    async def finish(self) -> None: ...

    def fail(self, failure: StorageError) -> None:
        self.failure = failure
        self.on_failure(failure)


class FakeNameNode:
    """A NameNode that keeps the calls in order of arrival; `error` is its response to fsync, `gate` what fsync waits
    for."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.error: StorageError | None = None
        self.gate: asyncio.Event | None = None

    async def fsync(self, path: str, holder: str, file_id: int, last_block_length: int) -> None:
        if self.gate is not None:
            await self.gate.wait()
        self.calls.append((path, last_block_length))
        if self.error is not None:
            raise self.error


class World:
    """One client with its NameNode; `open` gives a file that a broker has created."""

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self.namenode = FakeNameNode()
        self.lengths = LengthReporter(interval_s)
        self.tasks = OwnedTasks()

        async def complete(path: str, *_: Any) -> None:
            self.namenode.calls.append((path, "complete"))

        leases = SimpleNamespace(remove=lambda _: None)
        self.client: Any = SimpleNamespace(
            namenode=self.namenode, lengths=self.lengths, tasks=self.tasks, leases=leases, complete=complete,
            suspect=lambda _: None,
        )  # fmt: skip

    def open(self, path: str = "/a", *, acked: int = 0, is_new_block: bool = True) -> tuple[HdfsAppender, FakePipeline]:
        pipeline: Any = FakePipeline(acked)
        lease = Lease(paths=(path,), holder="b", file_id=1)
        appender = HdfsAppender(
            self.client, pipeline, path=path, lease=lease, block=pb.Block(pool="p", id=1, generation=1),
            end_max=100, is_new_block=is_new_block,
        )  # fmt: skip
        return appender, pipeline

    async def receive(self, *calls: tuple[str, object]) -> None:
        """Wait until just these calls have arrived, and that no other follows in some rounds."""
        await until(lambda: len(self.namenode.calls) >= len(calls))
        await asyncio.sleep(4 * INTERVAL_S)
        assert self.namenode.calls == list(calls)

    async def close(self) -> None:
        await self.lengths.close()
        await self.tasks.close()


async def first_ack(pipeline: FakePipeline, acked: int) -> None:
    pipeline.acked = acked
    pipeline.on_first_ack(acked)
    await until(lambda: pipeline.flushed > 0)


async def test_a_files_length_is_sent_once_each_time_it_has_grown() -> None:
    world = World()
    _, pipeline = world.open()
    await world.receive()  # nothing is acknowledged: the pipeline reports the first length
    await first_ack(pipeline, 5)
    await world.receive(("/a", 5))
    pipeline.acked = 9
    await world.receive(("/a", 5), ("/a", 9))
    await world.close()


async def test_an_appended_block_is_sent_only_when_it_has_grown_past_its_first_length() -> None:
    world = World()
    _, pipeline = world.open(acked=7, is_new_block=False)
    await world.receive()
    pipeline.acked = 8
    await world.receive(("/a", 8))
    await world.close()


async def test_no_length_is_sent_after_the_call_that_closes_the_file() -> None:
    world = World()
    appender, pipeline = world.open(acked=7, is_new_block=False)
    gate = world.namenode.gate = asyncio.Event()
    pipeline.acked = 8
    telling = asyncio.ensure_future(appender.report_length())
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(appender.close())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not closing.done()
    gate.set()
    assert await closing == 8
    await telling
    pipeline.acked = 9  # cannot be: it would be reported if the file were still checked
    await world.receive(("/a", 8), ("/a", "complete"))
    await world.close()


async def test_no_length_is_sent_after_the_pipeline_failed() -> None:
    world = World()
    _, pipeline = world.open(acked=7, is_new_block=False)
    world.namenode.gate = asyncio.Event()
    pipeline.acked = 8
    await until(lambda: any(task.get_name() == "length of /a" for task in asyncio.all_tasks()))
    pipeline.fail(PipelineFailed("a datanode"))  # the file may be another's from now on
    world.namenode.gate.set()
    pipeline.acked = 9
    await world.receive()
    await world.close()


@pytest.mark.parametrize(
    ("error", "level"), [(StorageUnavailable("away"), logging.WARNING), (LeaseLost("fenced"), logging.INFO)]
)
async def test_a_refused_length_is_sent_again_and_the_file_stays_open(
    error: StorageError, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        world = World()
        world.namenode.error = error
        _, pipeline = world.open(acked=7, is_new_block=False)
        pipeline.acked = 8
        await until(lambda: len(world.namenode.calls) >= 2)
        assert pipeline.failure is None
        world.namenode.error = None
        before = len(world.namenode.calls)
        await world.receive(*world.namenode.calls[:before], ("/a", 8))
        await world.close()
    assert {record.levelno for record in caplog.records if "length" in record.getMessage()} == {level}


async def test_a_round_ends_at_the_first_file_if_the_namenode_is_unavailable() -> None:
    world = World(interval_s=3600.0)
    files = [world.open(path, acked=7, is_new_block=False) for path in ("/a", "/b")]
    for _, pipeline in files:
        pipeline.acked = 8
    world.namenode.error = StorageUnavailable("away")
    with pytest.raises(StorageUnavailable):
        await world.lengths.report_all()
    assert world.namenode.calls == [("/a", 8)]
    await world.close()


async def test_lengths_are_sent_again_after_an_unexpected_error(caplog: pytest.LogCaptureFixture) -> None:
    """A file's report raises an error that is not expected: unless reports continue, snapshots hold the first flush
    only."""
    notified: list[int] = []

    class Broken:
        async def report_length(self) -> None:
            notified.append(1)
            if len(notified) == 1:
                raise ZeroDivisionError

    lengths = LengthReporter(0.001)
    lengths.add(Broken())
    await until(lambda: len(notified) > 2)
    await lengths.close()
    text = "bug: cannot send the lengths of open files to the NameNode, trying again in 0.001 s"
    assert [record.getMessage() for record in caplog.records] == [text]


def test_an_interval_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="length_report_s"):
        HdfsSettings(length_report_s=0).validate()
