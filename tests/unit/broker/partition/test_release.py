"""The handover of a partition: the release note, what the successor prepares before it, and what is left for
afterwards."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from bmq.broker import events as ev
from bmq.broker.assignment.handover import BYTES_MAX, PARTITIONS_MAX, UNDER_WAY_MAX, _messages
from bmq.broker.config import BrokerConfig
from bmq.broker.files import deferred_indexes
from bmq.broker.files.deferred_indexes import BEHIND_MS, LOOK_MS
from bmq.broker.files.open_file_limit import OpenFileLimit
from bmq.broker.files.precreated import PrecreatedSegments
from bmq.broker.partition.release import NOTHING, ReleaseNote
from bmq.core.aio.timers import TimerHeap
from bmq.core.errors import FormatError, RequestError
from bmq.core.model import PartitionKey
from bmq.core.rpc.messages.broker import HandedOverRequest, Release
from bmq.meta.ownership import PartitionRecord
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.filesystem import NoSuchFile, OutOfSpace, PipelineFailed, StorageError
from bmq.storage.index import ENTRY
from bmq.storage.layout import PartitionPath
from bmq.storage.memory import Faults
from bmq.storage.segment import decode_idx
from tests.harness.waiting import now, until
from tests.unit.broker.assignment.test_follower import count_gets, record_of
from tests.unit.broker.cluster import Cluster, Node, cluster
from tests.unit.broker.world import batch, idempotent

HDFS = Faults(call_s=(0.001, 0.001), ack_s=(0.0003, 0.0003))


def path_of(c: Cluster, partition: int = 0) -> PartitionPath:
    return PartitionPath("orders", str(c.catalog.topics["orders"].topic_id), partition)


async def names(c: Cluster, partition: int = 0) -> list[str]:
    """Return the names of the partition's files."""
    listed = [status.path async for status in c["a"].fs.list(path_of(c, partition).folder)]
    return [path.rsplit("/", 1)[-1] for path in listed]


async def kinds(c: Cluster) -> list[str]:
    return ["spare" if name.startswith(".spare") else name.rsplit(".", 1)[-1] for name in await names(c)]


def count_calls(node: Node, *methods: str) -> list[str]:
    """Return a list that collects the paths given to these methods of the node's storage from now on."""
    called: list[str] = []

    def counted(real: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(path: str, *arguments: Any, **options: Any) -> Any:
            called.append(path)
            return await real(path, *arguments, **options)

        return call

    for method in methods:
        setattr(node.fs, method, counted(getattr(node.fs, method)))
    return called


async def owned(c: Cluster, records: int = 2) -> PartitionKey:
    c.topic()
    (key,) = c.keys()
    c.give("a", key)
    for sequence in range(records):
        await c.write("a", key, idempotent(sequence))
    return key


async def later(ms: int) -> None:
    await asyncio.sleep(ms / 1000)


# -------------------------------------------------------------------------------------------------------- release notes


async def test_the_successor_asks_neither_storage_nor_the_store_for_what_it_was_told() -> None:
    async with cluster() as c:
        key = await owned(c)
        read = count_calls(c["b"], "read", "status")
        gets = count_gets(c["b"])
        c.give("b", key)
        assert await c.write("b", key, idempotent(1)) == 1, "it knows the producers"
        assert await c.write("b", key, idempotent(2)) == 2
        assert read == []
        assert len(gets) == 1, "once, to hear whom to wait for"
        driver = c["b"].broker.get(key)
        assert driver is not None
        assert driver.takeover is None, "an open partition keeps neither its note nor its index"


async def test_the_index_is_written_once_and_by_the_old_owner_when_the_new_one_is_open() -> None:
    async with cluster() as c:
        key = await owned(c)
        created = count_calls(c["b"], "create")
        c.give("b", key)
        await c.write("b", key, idempotent(2))
        assert "idx" not in await kinds(c)
        await later(2 * BEHIND_MS)
        assert (await kinds(c)).count("idx") == 1
        assert not any("idx" in path for path in created)
        data = await c["a"].fs.read(
            path_of(c).folder + "/" + next(n for n in await names(c) if n.endswith("idx")), 0, 4096
        )
        assert decode_idx(data).end_offset == 2
        await later(2 * LOOK_MS)
        assert (await kinds(c)).count("idx") == 1
        assert not c["a"].broker.reports
        assert not c["b"].broker.reports


async def test_a_process_that_ends_writes_its_indexes_first() -> None:
    async with cluster() as c:
        key = await owned(c)
        c.give("b", key)
        await c.write("b", key, idempotent(2))
        await c.nodes.pop("a").stop()
        kept = [status.path async for status in c["b"].fs.list(path_of(c).folder)]
        assert sum(path.endswith(".idx") for path in kept) == 1


@pytest.mark.leaves_tasks
async def test_an_index_whose_writer_died_is_written_by_the_successor() -> None:
    async with cluster() as c:
        key = await owned(c)
        c.give("b", key)
        await c.write("b", key, idempotent(2))
        c["a"].kill()
        c["b"].view.leave("a")
        del c.nodes["a"]
        await later(LOOK_MS + 1000)
        kept = [status.path async for status in c["b"].fs.list(path_of(c).folder)]
        assert sum(path.endswith(".idx") for path in kept) == 1


async def index_of(c: Cluster, node: str) -> Checkpoint | None:
    """Return what the index of the log's first segment says, None where there is none."""
    found = [status.path async for status in c[node].fs.list(path_of(c).folder) if status.path.endswith(".idx")]
    return decode_idx(await c[node].fs.read(found[0], 0, 1 << 20)) if found else None


@pytest.mark.leaves_tasks
@pytest.mark.parametrize("dies", [True, False])
async def test_an_index_is_whole_after_two_moves_before_it_was_written(dies: bool) -> None:
    """The second owner's journal has a checkpoint of the closed segment, without its index."""

    async with cluster("a", "b", "c") as c:
        c.topic()
        (key,) = c.keys()
        c.give("a", key)
        for _ in range(20):
            await c.write("a", key, batch(b"x" * 30_000))
        c.give("b", key)
        await c["b"].assigned.wait(key, 5.0)
        c.give("c", key)
        assert await c.write("c", key, batch()) == 20
        assert await index_of(c, "c") is None
        for name in ("a", "b") if dies else ():
            c[name].kill()
            c["c"].view.leave(name)
            del c.nodes[name]
        await later(2 * BEHIND_MS)
        assert (await index_of(c, "c") is None) == dies
        await later(2 * LOOK_MS)
        found = await index_of(c, "c")
        assert found is not None
        assert found.end_offset == 20
        assert len(found.index) // ENTRY == found.position // (3 * 30_000)
        assert not c["c"].broker.reports


@pytest.mark.leaves_tasks
async def test_no_index_is_made_again_of_what_is_deleted_meanwhile() -> None:
    async with cluster("a", "b", "c") as c:
        c.topic()
        (key,) = c.keys()
        c.give("a", key)
        for _ in range(20):
            await c.write("a", key, batch(b"x" * 30_000))
        c.give("b", key)
        await c["b"].assigned.wait(key, 5.0)
        c.give("c", key)
        await c["c"].assigned.wait(key, 5.0)
        for name in ("a", "b"):
            c[name].kill()
            c["c"].view.leave(name)
            del c.nodes[name]
        async for status in c["c"].fs.list(path_of(c).folder):
            await c["c"].fs.delete(status.path)
        await later(2 * LOOK_MS)
        assert await index_of(c, "c") is None
        assert not c["c"].broker.reports


@pytest.mark.leaves_tasks
async def test_rule_9_a_word_and_an_index_that_died_with_their_writer_cost_no_producer_its_memory() -> None:
    """The segment is scanned then, as after any death."""

    async with cluster() as c:
        key = await owned(c, 3)
        c["a"].wire.is_cut = True
        c.give("b", key)
        await c["a"].wire.has_asked.wait()
        assert (await record_of(c)).is_settled
        c["a"].kill()
        c["b"].view.leave("a")
        del c.nodes["a"]
        assert await c.write("b", key, idempotent(2)) == 2, "a repetition"
        assert await c.write("b", key, idempotent(3)) == 3
        await later(1000)
        kept = [status.path async for status in c["b"].fs.list(path_of(c).folder)]
        assert sum(path.endswith(".idx") for path in kept) == 1


@pytest.mark.leaves_tasks
async def test_rule_9_they_cost_no_producer_its_memory_of_the_segment_before() -> None:
    """The segment was begun a moment ago: no journal mentions it yet, and the record no longer lists the one before."""

    async with cluster() as c:
        key = await owned(c, 3)
        driver = c["a"].broker.get(key)
        assert driver is not None
        driver.post(ev.StorageSlow())  # the next segment begins
        assert await c.write("a", key, batch()) == 3
        assert driver.machine.current is not None
        assert driver.machine.current.entry.name.base == 3
        c["a"].wire.is_cut = True
        c.give("b", key)
        await c["a"].wire.has_asked.wait()
        assert [entry.name.base for entry in (await record_of(c)).segments] == [3]
        c["a"].kill()
        c["b"].view.leave("a")
        del c.nodes["a"]
        assert await c.write("b", key, idempotent(2)) == 2, "a repetition"
        assert await c.write("b", key, idempotent(3)) == 4


async def test_an_index_of_what_is_deleted_meanwhile_is_not_written() -> None:
    async with cluster() as c:
        key = await owned(c)
        c.give("b", key)
        await c["b"].assigned.wait(key, 5.0)
        for name in await names(c):
            await c["a"].fs.delete(f"{path_of(c).folder}/{name}")
        await later(2 * LOOK_MS)
        assert await names(c) == []
        assert not c["a"].broker.reports


@pytest.mark.parametrize("spoil", ["damaged", "of another segment", "stale", "no record", "an empty record"])
async def test_a_word_that_is_wrong_costs_time_and_nothing_else(spoil: str) -> None:
    async with cluster() as c:
        key = await owned(c)
        c["a"].wire.is_cut = True
        c.give("b", key)
        await c["a"].wire.has_asked.wait()
        _, message = c["a"].wire.asked[0]
        right = ReleaseNote.of(message.releases[0])
        c["a"].wire.is_cut = False
        if spoil == "damaged":
            wrong = right._replace(last_index=right.last_index[:-1] + b"!")
        elif spoil == "of another segment":
            last = right.record.segments[-1]
            record = replace(right.record, segments=(replace(last, length=last.length - 1),))
            wrong = right._replace(record=record)
        elif spoil == "stale":
            wrong = right._replace(revision=right.revision - 1)
        elif spoil == "an empty record":
            wrong = right._replace(record=NOTHING.record)
        else:
            wrong = NOTHING
        told = HandedOverRequest(message.partitions, (wrong.release(),))
        await c["a"].wire.ask(c["a"].view.members["b"], told, 1.0)
        assert await c.write("b", key, idempotent(1)) == 1
        assert await c.write("b", key, idempotent(2)) == 2


async def test_a_word_from_an_earlier_version_has_no_releases() -> None:
    async with cluster() as c:
        key = await owned(c)
        c["a"].wire.is_cut = True
        c.give("b", key)
        await c["a"].wire.has_asked.wait()
        c["a"].wire.is_cut = False
        await later(BEHIND_MS * 2)
        plain = HandedOverRequest(((key.topic_id, key.partition),))
        began = now()
        await c["a"].wire.ask(c["a"].view.members["b"], plain, 1.0)
        assert await c.write("b", key, idempotent(1)) == 1
        assert now() - began < 1.0


@pytest.mark.parametrize("releases", [(Release(1, b"{}", b""),), (NOTHING.release(),) * 3])
async def test_a_word_that_is_none_is_refused(releases: tuple[Release, ...]) -> None:
    async with cluster() as c:
        topic = c.topic(2)
        told = HandedOverRequest(((topic.topic_id, 0), (topic.topic_id, 1)), releases)
        with pytest.raises((RequestError, FormatError)):
            await c["b"].wire.ask(c["b"].view.members["a"], told, 1.0)


async def test_without_a_successor_the_index_is_written_first() -> None:
    async with cluster() as c:
        key = await owned(c)
        for node in c.nodes.values():
            node.view.leave("b")
        c["a"].view.assign("b", key)
        await c["a"].assigned.wait_left()
        assert "idx" in await kinds(c)
        assert len(c["a"].broker.shared.deferred_indexes) == 0


async def test_where_too_many_indexes_wait_the_next_is_written_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred_indexes, "BYTES_MAX", 1)

    async with cluster() as c:
        c.topic(2)
        keys = c.keys()
        c.give("a", *keys)
        for key in keys:
            await c.write("a", key, idempotent(0))
        c.give("b", keys[1])
        assert await c.write("b", keys[1], idempotent(1)) == 1
        assert len(c["a"].broker.shared.deferred_indexes) == 1
        assert len(c["b"].broker.shared.deferred_indexes) == 1
        c.give("b", keys[0])
        assert await c.write("b", keys[0], idempotent(0)) == 0
        assert "idx" in await kinds(c)
        assert len(c["b"].broker.shared.deferred_indexes) == 1


def test_words_are_bounded() -> None:
    def told(count: int, size: int) -> list[int]:
        handed = ReleaseNote(PartitionRecord(), 1, bytes(size))
        keys = [PartitionKey(uuid.UUID(int=1), number) for number in range(count)]
        return [len(message) for message in _messages(dict.fromkeys(keys, handed))]

    assert told(0, 0) == []
    assert told(PARTITIONS_MAX + 1, 0) == [PARTITIONS_MAX, 1]
    assert told(3, BYTES_MAX) == [1, 1, 1]
    assert sum(told(100, 100_000)) == 100
    assert max(told(100, 100_000)) == 10


# -------------------------------------------------------------------------------------------------------- first files


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
        assert len(c["b"].broker.shared.precreated) == 0


async def test_nothing_is_made_for_what_nobody_waits_for() -> None:
    async with cluster() as c:
        key = await owned(c)
        created = count_calls(c["b"], "create")
        c.give("b", key)
        await later(1000)
        assert c["b"].assigned.get(key) is not None
        assert not any(".spare" in path for path in created)


async def test_nothing_is_made_where_others_wait_for_room() -> None:
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
        assert len(b.broker.shared.precreated) == 0
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


async def test_whoever_takes_a_file_waits_until_it_is_made() -> None:
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
async def test_a_file_that_will_not_do_is_removed(wanted: ev.CreateSpare) -> None:
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


async def test_a_file_that_cannot_be_made_is_no_reason_to_fail() -> None:
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


async def test_a_file_that_nobody_took_in_a_turn_makes_room_for_who_waits() -> None:
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


async def test_a_removal_that_has_no_time_leaves_no_pipeline() -> None:
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


async def test_one_who_is_cancelled_while_he_takes_it_leaves_nothing_open() -> None:
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


async def test_where_the_time_of_a_move_goes_with_waiters() -> None:
    """Storage as in the table of docs/design/hand-over.md: what is left is serial by the rules."""

    async with cluster(broker=BrokerConfig()) as c:
        key = await owned(c)
        c.storage.faults = HDFS
        began = now()
        c.give("b", key)
        assert await c.write("b", key, idempotent(2)) == 2
        assert now() - began < 0.03


async def test_a_word_does_not_wait_for_the_answer_to_the_one_before() -> None:
    """Send notes while responses are outstanding: only a few are in flight, and the notes that come then go
    together."""

    async with cluster() as c:
        topic = c.topic(20)
        keys = c.keys()
        c.wire_s = 1.0
        a = c["a"]
        a.view.assign("b", *keys)
        began = now()
        for key in keys:
            a.handovers.notify(key, NOTHING)
            await later(10)
        sizes = [len(message.partitions) for _, message in a.wire.asked]
        assert sizes == [1] * UNDER_WAY_MAX
        await a.handovers.wait_notified()
        assert now() - began < 2.5
        sizes = [len(message.partitions) for _, message in a.wire.asked]
        assert sizes == [1] * UNDER_WAY_MAX + [len(keys) - UNDER_WAY_MAX]
        told = [each for _, message in a.wire.asked for each in message.partitions]
        assert told == [(topic.topic_id, number) for number in range(20)]
