"""Flushes in flight: each is counted once, and ends as flushed, failed or given up."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from bmq.broker import events as ev
from bmq.broker.context import BrokerState
from bmq.broker.events import Event
from bmq.broker.partition.flushes import JOIN_BYTES, InFlightFlushes
from bmq.broker.pending import Pending
from bmq.core.model import SegmentName
from bmq.storage.filesystem import OutOfSpace, PipelineFailed, StorageError
from tests.unit.broker.partition.machines import batch

NAME, OTHER = SegmentName(0, 1, 0), SegmentName(0, 1, 1)


class Appender:
    """An open file on two datanodes, whose flushes are ended by the test."""

    nodes = ("dn1", "dn2")

    def __init__(self) -> None:
        self.writes: list[int] = []
        self.flushes: list[asyncio.Future[int]] = []
        self.refuses: StorageError | None = None

    def write(self, data: memoryview) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.writes.append(len(data))

    def flush(self, *, sync: bool) -> asyncio.Future[int]:
        self.flushes.append(asyncio.get_running_loop().create_future())
        return self.flushes[-1]


class Partition:
    """The flushes of one partition, what they posted, and what the broker noted of them."""

    def __init__(self) -> None:
        self.posted: list[Event] = []
        self.noted: list[tuple[Any, ...]] = []
        note = self.noted.append
        self.context = SimpleNamespace(
            now_ms=lambda: 1_000,
            health=SimpleNamespace(
                flushed=lambda nodes, ms: note(("flushed", nodes, ms)), failed=lambda nodes, ms: note(("failed", nodes))
            ),
            flush_ms=SimpleNamespace(observe=lambda ms: None),
            open_files=SimpleNamespace(lacks_room=lambda why: note(("lacks room", why))),
            scheduler=SimpleNamespace(on_flush_ended=lambda flusher: note(("ended",))),
            state=BrokerState(trouble="of an earlier flush"),
        )
        shared: Any = self.context
        flusher: Any = object()
        self.flushes = InFlightFlushes(shared, flusher, self.posted.append)
        self.file = Appender()

    def send(self, *sizes: int, name: SegmentName = NAME) -> None:
        taken, position = [], 0
        for size in sizes:
            pending = Pending(batch(size=size), None, 1)
            pending.start_position = position
            position = pending.end_position = position + pending.batch.size
            taken.append(pending)
        file: Any = self.file
        self.flushes.send(name, file, taken, 900, sync=False)

    @property
    def ended(self) -> int:
        return self.noted.count(("ended",))


async def test_a_flush_that_is_acknowledged_ends_the_trouble() -> None:
    partition = Partition()
    partition.send(10)
    size = batch(size=10).size
    assert partition.flushes.bytes == size
    partition.file.flushes[0].set_result(size)
    await asyncio.sleep(0)
    (flushed,) = partition.posted
    assert isinstance(flushed, ev.Flushed)
    assert (flushed.name, flushed.position) == (NAME, size)
    assert partition.noted == [("flushed", ("dn1", "dn2"), 100), ("ended",)]
    assert (partition.flushes.bytes, partition.context.state.trouble) == (0, "")


async def test_small_batches_are_joined_and_large_ones_are_not_copied() -> None:
    partition = Partition()
    partition.send(10, 20)
    assert partition.file.writes == [batch(size=10).size + batch(size=20).size]
    partition.file.writes.clear()
    partition.send(JOIN_BYTES, JOIN_BYTES)
    assert partition.file.writes == [batch(size=JOIN_BYTES).size] * 2


async def test_a_failed_pipeline_is_posted_once_with_its_suspects() -> None:
    partition = Partition()
    partition.send(10)
    partition.file.flushes[0].set_exception(PipelineFailed("reset", suspects=("dn2",)))
    await asyncio.sleep(0)
    (failed,) = partition.posted
    assert isinstance(failed, ev.SegmentFailed)
    assert failed.name == NAME
    assert partition.noted == [("failed", ("dn2",)), ("ended",)]
    assert (partition.flushes.bytes, partition.context.state.trouble) == (0, "reset")


async def test_a_write_that_is_refused_fails_the_flush_in_the_next_turn() -> None:
    partition = Partition()
    partition.file.refuses = OutOfSpace("no datanode has room")
    partition.send(10)
    assert partition.posted == []
    await asyncio.sleep(0)
    assert len(partition.posted) == 1
    assert partition.noted == [("lacks room", "no datanode has room"), ("ended",)]
    assert partition.flushes.bytes == 0


async def test_the_results_of_flushes_that_were_given_up_are_ignored() -> None:
    partition = Partition()
    partition.send(10)
    partition.send(10, name=OTHER)
    partition.send(10)
    partition.flushes.give_up(NAME)
    assert (partition.ended, partition.flushes.bytes) == (2, batch(size=10).size)
    partition.file.flushes[0].set_result(1)
    partition.file.flushes[2].set_exception(PipelineFailed("reset"))
    await asyncio.sleep(0)
    assert (partition.posted, partition.ended) == ([], 2)
    partition.flushes.give_up()
    assert (partition.ended, partition.flushes.bytes) == (3, 0)
    partition.file.flushes[1].cancel()
    await asyncio.sleep(0)
    assert (partition.posted, partition.ended) == ([], 3)
