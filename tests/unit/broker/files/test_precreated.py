"""First files of partitions that are about to come: made ahead, bounded, and removed if nobody takes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from bmq.broker import events as ev
from bmq.broker.config import BrokerConfig
from bmq.broker.files.open_file_limit import OpenFileLimit
from bmq.broker.files.precreated import PrecreatedSegments
from bmq.core.aio.timers import TimerHeap
from bmq.storage.filesystem import NoSuchFile, OutOfSpace, PipelineFailed, StorageError
from bmq.storage.layout import PartitionPath
from tests.harness.waiting import until
from tests.unit.broker.cluster import cluster
from tests.unit.broker.moves import HDFS, count_calls, later, names, owned, record_of
from tests.unit.broker.world import idempotent


async def test_the_first_file_is_there_when_the_partition_comes() -> None:
    """The successor creates its first file while the old owner closes its own; the file is created once and used."""

    async with cluster() as c:
        key = await owned(c)
        c.storage.faults = replace(HDFS, ack_s=(0.02, 0.02))
        created = count_calls(c["b"], "create")
        c.give("b", key)
        writing = asyncio.ensure_future(c.write("b", key, idempotent(2)))
        await c["a"].wire.has_asked.wait()
        (spare,) = [path for path in created if ".spare" in path]
        assert await writing == 2
        assert [path for path in created if ".spare" in path] == [spare]
        assert (await record_of(c)).segments[-1].spare == spare
        assert len(c["b"].broker.context.precreated) == 0


async def test_no_file_is_made_for_a_partition_that_no_request_waits_for() -> None:
    async with cluster() as c:
        key = await owned(c)
        created = count_calls(c["b"], "create")
        c.give("b", key)
        await later(1000)
        assert c["b"].assigned.get(key) is not None
        assert not any(".spare" in path for path in created)


async def test_no_file_is_made_while_others_wait_for_a_place() -> None:
    async with cluster(broker=BrokerConfig(open_pipelines_max=1)) as c:
        c.topic(2)
        mine, theirs = c.keys()
        c.give("a", mine)
        c.give("b", theirs)
        for name, key in (("a", mine), ("b", theirs)):
            await c.write(name, key, idempotent(0))
        c.storage.faults = replace(HDFS, ack_s=(0.02, 0.02))
        created = count_calls(c["b"], "create")
        c.give("b", mine)
        writing = asyncio.ensure_future(c.write("b", mine, idempotent(1)))
        await c["a"].wire.has_asked.wait()
        assert not any(".spare" in path for path in created)
        assert await writing == 1


@pytest.mark.parametrize("how", ["nobody writes", "it goes elsewhere", "the process ends"])
async def test_a_first_file_that_is_not_wanted_is_removed(how: str) -> None:
    async with cluster() as c:
        key = await owned(c)
        b = c["b"]
        b.view.assign("b", key)  # the old owner is not notified yet
        waiting = asyncio.ensure_future(b.assigned.wait(key, 20.0))
        await later(100)
        assert any(name.startswith(".spare") and name.endswith("-b") for name in await names(c))
        if how == "nobody writes":
            await waiting
            await later(c.broker_config.handover_wait_ms + 6_000)
        elif how == "it goes elsewhere":
            b.view.assign("a", key)
            await later(100)
        else:
            await c.nodes.pop("b").stop()
        left = [name for name in await names(c) if name.startswith(".spare") and name.endswith("-b")]
        assert left == []
        assert len(b.broker.context.precreated) == 0
        await asyncio.gather(waiting, return_exceptions=True)


class Appender:
    """An open file."""

    def __init__(self, path: str, closes_s: float) -> None:
        self.lease = type("Lease", (), {"paths": (path,)})
        self.is_closed = self.is_aborted = False
        self.failure: StorageError | None = None
        self._closes_s = closes_s

    async def close(self) -> None:
        if self.failure is not None:
            raise self.failure
        await asyncio.sleep(self._closes_s)
        self.is_closed = True

    def abort(self) -> None:
        self.is_aborted = True


class Storage:
    def __init__(self) -> None:
        self.made: list[Appender] = []
        self.deleted: list[str] = []
        self.may_create = asyncio.Event()
        self.fails: StorageError | None = None
        self.closes_s = 0.0
        self.places = OpenFileLimit(10, 10, lambda _: None, lambda *_, **__: None)
        self.taken = 0

    async def create(self, asked: ev.CreateSpare) -> Any:
        await self.may_create.wait()
        if self.fails is not None:
            raise self.fails
        self.made.append(Appender(f"/{asked.epoch}", self.closes_s))
        return self.made[-1]

    async def delete(self, path: str) -> bool:
        self.deleted.append(path)
        return True


PATH = PartitionPath("orders", "id", 0)


def asked(epoch: int = 2, block_bytes: int = 100) -> ev.CreateSpare:
    return ev.CreateSpare(epoch, 0, block_bytes, 4096)


@asynccontextmanager
async def precreated() -> AsyncIterator[tuple[PrecreatedSegments, Storage]]:
    loop, storage = asyncio.get_running_loop(), Storage()

    def now_ms() -> int:
        return int(loop.time() * 1000)

    timers = TimerHeap(now_ms)
    made = PrecreatedSegments(storage, storage.places, timers, now_ms, most=2, keep_ms=1000)  # type: ignore[arg-type]
    yield made, storage
    await made.close()
    places = storage.places
    assert (places.opening, places.held - storage.taken, places.closing) == (0, 0, 0), "every place is given back"
    timers.close()
    places.close()


async def test_a_partition_that_takes_a_file_waits_until_it_is_made() -> None:
    async with precreated() as (made, storage):
        made.make(PATH, asked(), storage.create)
        made.make(PATH, asked(), storage.create)
        taking = asyncio.ensure_future(made.take(PATH, asked(block_bytes=50)))
        await asyncio.sleep(0.1)
        assert not taking.done()
        storage.may_create.set()
        taken: object = await taking
        assert taken is storage.made[0]
        assert len(storage.made) == 1
        assert storage.places.held == 1, "whoever takes it has its place too"
        storage.taken = 1
        assert await made.take(PATH, asked()) is None


@pytest.mark.parametrize("wanted", [asked(epoch=3), asked(block_bytes=101)])
async def test_a_file_of_another_epoch_or_too_small_a_block_is_removed(wanted: ev.CreateSpare) -> None:
    async with precreated() as (made, storage):
        made.make(PATH, asked(), storage.create)
        storage.may_create.set()
        assert await made.take(PATH, wanted) is None
        await asyncio.sleep(0.1)
        assert (storage.made[0].is_closed, storage.deleted) == (True, ["/2"])


async def test_a_file_whose_pipeline_broke_while_it_waited_is_not_given() -> None:
    async with precreated() as (made, storage):
        made.make(PATH, asked(), storage.create)
        storage.may_create.set()
        await asyncio.sleep(0.1)
        storage.made[0].failure = PipelineFailed("dn0 died")
        assert await made.take(PATH, asked()) is None
        await asyncio.sleep(0.1)
        assert storage.made[0].is_aborted
        assert storage.deleted == ["/2"], "nobody sweeps it while its epoch lasts"


async def test_files_are_bounded_in_number_and_time() -> None:
    async with precreated() as (made, storage):
        storage.may_create.set()
        for partition in range(4):
            made.make(PartitionPath("orders", "id", partition), asked(), storage.create)
        assert len(made) == 2
        await asyncio.sleep(1.1)
        assert (len(made), len(storage.deleted)) == (0, 2)


async def test_a_file_that_cannot_be_made_ahead_fails_nothing() -> None:
    async with precreated() as (made, storage):
        storage.fails = NoSuchFile("no")
        storage.may_create.set()
        made.make(PATH, asked(), storage.create)
        assert await made.take(PATH, asked()) is None
        made.make(PATH, asked(), storage.create)
        made.forget(PATH)
        assert storage.deleted == []


async def test_files_made_ahead_have_their_places() -> None:
    """Files made ahead count in the number that the controller divides by, and one that storage has no room for counts
    as a refusal."""

    async with precreated() as (made, storage):
        places = storage.places
        places.share(1, 60.0)
        made.make(PATH, asked(), storage.create)
        assert places.opening == 1
        storage.may_create.set()
        await until(lambda: places.held == 1)
        other = PartitionPath("orders", "id", 1)
        made.make(other, asked(), storage.create)
        assert len(made) == 1, "there is no place for another"
        made.forget(PATH)
        await until(lambda: places.held + places.closing == 0)
        storage.fails = OutOfSpace("no datanode has room")
        made.make(other, asked(), storage.create)
        assert await made.take(other, asked()) is None
        assert places.refusals == 1


async def test_a_file_that_is_not_taken_in_its_turn_makes_room_for_others() -> None:
    async with precreated() as (made, storage):
        storage.may_create.set()
        for partition in range(2):
            made.make(PartitionPath("orders", "id", partition), asked(), storage.create)
            await asyncio.sleep(0.3)
        assert made.drop_older(0, 400) == 0
        assert made.drop_older(2, 400) == 1, "the other one is not as old"
        assert len(made) == 1
        await until(lambda: storage.places.held == 1 and not storage.places.closing)
        assert len(storage.deleted) == 1


async def test_a_removal_that_is_cut_short_aborts_the_pipeline() -> None:
    """Cancel the removal, as a process that ends does: the pipeline is aborted, and the file is left to the sweeper."""

    async with precreated() as (made, storage):
        storage.may_create.set()
        storage.closes_s = 5.0
        made.make(PATH, asked(), storage.create)
        await asyncio.sleep(0.1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await made.close()
        assert (storage.made[0].is_aborted, storage.deleted) == (True, [])


async def test_a_cancelled_take_leaves_no_file_open() -> None:
    async with precreated() as (made, storage):
        made.make(PATH, asked(), storage.create)
        taking = asyncio.ensure_future(made.take(PATH, asked()))
        await asyncio.sleep(0)
        taking.cancel()
        storage.may_create.set()
        await asyncio.gather(taking, return_exceptions=True)
        await asyncio.sleep(0.1)
        assert storage.made[0].is_closed
        assert storage.deleted == ["/2"]
