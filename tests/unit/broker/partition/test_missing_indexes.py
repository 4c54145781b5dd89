"""Closed segments whose owner died before it wrote their index."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest

from bmq.broker import events as ev
from bmq.broker.files.deferred_indexes import LOOK_MS
from bmq.broker.files.index_rounds import PARALLEL
from bmq.broker.files.segment_files import SegmentFiles
from bmq.broker.partition.index_maker import IndexMaker, UnreadSegment
from bmq.broker.partition.missing_indexes import ATTEMPTS, MissingIndexes
from bmq.core.clock import LoopClock
from bmq.core.model import PartitionKey, SegmentName
from bmq.core.records.control import Marker
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.storage.checkpoint import AbortedTransaction, Checkpoint
from bmq.storage.filesystem import CorruptData, CreateOptions, NoSuchFile, StorageUnavailable, write_once
from bmq.storage.memory import Faults, MemoryFileSystem, MemoryStorage
from bmq.storage.segment import decode_idx, encode_idx
from tests.harness.members import lone_broker
from tests.harness.waiting import now, until
from tests.simulation.world import KEY, PATH
from tests.unit.broker.cluster import Cluster, cluster
from tests.unit.broker.moves import count_calls, index_of, later, names, owned, path_of, record_of
from tests.unit.broker.partition.transactional import data, marker
from tests.unit.broker.world import idempotent


@pytest.mark.slow
@pytest.mark.leaves_tasks
async def test_an_index_that_an_owner_died_before_writing_is_written_by_the_next() -> None:
    """Readers would scan the segment for ever without the index, and compaction would end before it."""
    async with cluster("a", "b", "c") as c:
        key = await owned(c, 3)
        path = path_of(c).idx((await record_of(c)).segments[0].name)
        never_publish(c, "b", path)
        await die(c, "a")
        c.give("b", key)
        for sequence in (3, 4, 5):
            assert await c.write("b", key, idempotent(sequence)) == sequence
            driver = c["b"].broker.get(key)
            assert driver is not None
            driver.post(ev.StorageSlow())  # the next segment begins
            await later(LOOK_MS)
        assert path.rpartition("/")[2] not in await names(c)
        await die(c, "b")
        c.give("c", key)
        assert await c.write("c", key, idempotent(6)) == 6
        await later(2 * LOOK_MS)
        index = await index_of(c, "c")
        assert index is not None
        assert (index.segment.base, index.end_offset, index.epochs) == (0, 3, ((1, 0),))
        (producer,) = index.producers
        assert [batch.base_sequence for batch in producer.batches] == [0, 1, 2]
        assert await c.write("c", key, idempotent(7)) == 7


@pytest.mark.slow
@pytest.mark.leaves_tasks
async def test_an_index_is_written_however_many_owners_died_before() -> None:
    """A takeover does not read the segment: a later checkpoint covers it. The record names it all the same."""
    async with cluster("a", "b", "c", "d", "e") as c:
        key = await owned(c, 3)
        first = (await record_of(c)).segments[0].name
        written = 3
        never_publish(c, "b", path_of(c).idx(first))
        for former, owner in itertools.pairwise("abcd"):
            await die(c, former)
            c.give(owner, key)
            for _ in range(2):
                assert await c.write(owner, key, idempotent(written)) == written
                written += 1
                await roll(c, owner, key)
            named = [entry.name for entry in (await record_of(c)).segments]
            assert named[0] == first, f"{owner} has taken the name out"
        await die(c, "d")
        c.give("e", key)
        assert await c.write("e", key, idempotent(written)) == written
        await later(2 * LOOK_MS)
        index = await index_of(c, "e")
        assert index is not None
        assert (index.segment, index.end_offset) == (first, 3)


@pytest.mark.slow
@pytest.mark.leaves_tasks
@pytest.mark.parametrize("writes_more", [True, False])
async def test_an_index_that_came_by_a_release_note_is_written_though_both_owners_died(writes_more: bool) -> None:
    async with cluster("a", "b", "c") as c:
        key = await owned(c, 3)
        first = (await record_of(c)).segments[0].name
        c.give("b", key)
        assert await c.write("b", key, idempotent(3)) == 3
        await die(c, "a")
        if writes_more:
            await roll(c, "b", key)
            assert await c.write("b", key, idempotent(4)) == 4
        assert first in [entry.name for entry in (await record_of(c)).segments]
        await die(c, "b")
        c.give("c", key)
        written = 4 + writes_more
        assert await c.write("c", key, idempotent(written)) == written
        await roll(c, "c", key)
        assert await c.write("c", key, idempotent(written + 1)) == written + 1
        await later(2 * LOOK_MS)
        index = await index_of(c, "c")
        assert index is not None
        assert (index.segment, index.end_offset) == (first, 3)
        await roll(c, "c", key)
        assert await c.write("c", key, idempotent(written + 2)) == written + 2
        assert first not in [entry.name for entry in (await record_of(c)).segments], "it has its index"


@pytest.mark.slow
@pytest.mark.leaves_tasks
async def test_a_name_leaves_the_record_once_the_old_owner_has_written_the_index() -> None:
    async with cluster("a", "b") as c:
        key = await owned(c, 3)
        first = (await record_of(c)).segments[0].name
        c.give("b", key)
        for sequence in (3, 4, 5):
            assert await c.write("b", key, idempotent(sequence)) == sequence
            await roll(c, "b", key)
        assert (await record_of(c)).segments[0].name == first
        await later(LOOK_MS)
        assert await c.write("b", key, idempotent(6)) == 6
        assert (await record_of(c)).segments[0].name != first


@pytest.mark.slow
@pytest.mark.leaves_tasks
async def test_an_index_that_its_owner_had_not_written_when_it_died_is_written_by_the_next() -> None:
    """The takeover begins behind the segment, at a checkpoint of the next one; the record lists the segment as open."""
    async with cluster("a", "b") as c:
        key = await owned(c, 3)
        first = (await record_of(c)).segments[0].name
        never_publish(c, "a", path_of(c).idx(first))
        await roll(c, "a", key)
        assert await c.write("a", key, idempotent(3)) == 3
        driver = c["a"].broker.get(key)
        assert driver is not None
        driver.apply(driver.machine.checkpoint())
        await later(500)
        await die(c, "a")
        c.give("b", key)
        assert await c.write("b", key, idempotent(4)) == 4
        assert (await record_of(c)).segments[0].name == first
        await later(2 * LOOK_MS)
        index = await index_of(c, "b")
        assert index is not None
        assert (index.segment, index.end_offset) == (first, 3)


@pytest.mark.slow
@pytest.mark.leaves_tasks
async def test_work_that_waits_needs_no_task_and_a_few_partitions_do_it_at_once() -> None:
    """A death leaves such work to thousands of partitions at the same moment, most of them idle."""
    count = 20
    async with cluster("a", "b") as c:
        c.topic(count)
        keys = c.keys()
        c.give("a", *keys)
        paths = [path_of(c, n).idx(SegmentName(0, 1, 0)) for n in range(count)]
        for n, key in enumerate(keys):
            assert await c.write("a", key, idempotent(0, producer_id=n)) == 0
            never_publish(c, "a", paths[n])
            await roll(c, "a", key)
            assert await c.write("a", key, idempotent(1, producer_id=n)) == 1
            driver = c["a"].broker.get(key)
            assert driver is not None
            driver.apply(driver.machine.checkpoint())
        await later(500)
        await die(c, "a")
        c.give("b", *keys)
        for key in keys:
            await c["b"].assigned.wait(key, 5.0)
        drivers = [driver for key in keys if (driver := c["b"].broker.get(key)) is not None]
        await later(LOOK_MS // 2)
        assert [len(driver.tasks) for driver in drivers] == [0] * count
        statuses = count_calls(c["b"], "status")
        c.storage.faults = Faults(call_s=(0.01, 0.01))
        await until(lambda: any(driver.tasks for driver in drivers), LOOK_MS / 1000, every_s=0.001)
        most = 0
        while tasks := sum(len(driver.tasks) for driver in drivers):
            most = max(most, tasks)
            await later(1)
        assert most == PARALLEL
        assert Counter(path for path in statuses if path.endswith(".idx")) == dict.fromkeys(paths, 1)
        c.storage.faults = Faults()
        for path in paths:
            await c["b"].fs.status(path)


@pytest.mark.slow
@pytest.mark.leaves_tasks
@pytest.mark.parametrize("owners", [1, 2, 3])
async def test_an_index_that_ends_before_its_segment_gives_place_to_a_whole_one(owners: int) -> None:
    """A broken segment is indexed up to what was acknowledged. Its owner dies before it registers the next one.

    The next owner keeps a whole batch behind that end. Readers of committed records cannot read the segment without a
    whole index, and compaction ends before it. ``owners``: the last of them finds storage ready to take the index.
    """
    async with cluster(*"abcd"[: owners + 1]) as c:
        key = await owned(c, 3)
        await seal_early(c, "a", key)
        index = await index_of(c, "a")
        assert index is not None
        assert index.end_offset == 3
        for number, (former, owner) in enumerate(itertools.pairwise("abcd"[: owners + 1]), 1):
            if number < owners:
                never_replace(c, owner)
            await die(c, former)
            c.give(owner, key)
            assert await c.write(owner, key, idempotent(3)) == 3, "a repetition of the batch that was kept"
            assert await c.write(owner, key, idempotent(3 + number)) == 3 + number
            await roll(c, owner, key)
            await later(2 * LOOK_MS)
        index = await index_of(c, owner)
        assert index is not None
        assert (index.segment.base, index.end_offset) == (0, 4)
        assert await c.write(owner, key, idempotent(4 + owners)) == 4 + owners
        assert index.segment not in [entry.name for entry in (await record_of(c)).segments], "it has its index"


async def seal_early(c: Cluster, name: str, key: PartitionKey) -> None:
    """Break a node's segment under a batch that has reached the datanodes, while storage gives it no new file."""
    driver = c[name].broker.get(key)
    assert driver is not None
    assert driver.machine.current is not None
    create = c[name].fs.create

    async def created(path: str, options: CreateOptions = CreateOptions()) -> Any:  # noqa: B008
        if ".spare" in path:
            raise StorageUnavailable("no datanode is free")
        return await create(path, options)

    c[name].fs.create = created  # type: ignore[method-assign]
    c.storage.faults = Faults(hung_ack=1.0)
    lost = asyncio.create_task(c.write(name, key, idempotent(3), 1e6))
    await until(lambda: bool(driver.machine.batches.inflight))
    await later(100)
    driver.post(ev.SegmentFailed(driver.machine.current.entry.name, "a node does not respond"))
    c.storage.faults = Faults()
    await later(30_000)
    lost.cancel()
    assert driver.machine.is_all_closed


def never_replace(c: Cluster, name: str) -> None:
    """Let a node's replacements of files hang."""

    async def replace(source: str, target: str) -> None:
        await asyncio.Event().wait()

    c[name].fs.replace = replace  # type: ignore[method-assign]


def never_publish(c: Cluster, name: str, path: str) -> None:
    """Let a node's index hang before it gets the name ``path``."""
    publish = c[name].fs.rename

    async def rename(source: str, target: str) -> None:
        if target == path:
            await asyncio.Event().wait()
        await publish(source, target)

    c[name].fs.rename = rename  # type: ignore[method-assign]


async def roll(c: Cluster, name: str, key: PartitionKey) -> None:
    """Have the next segment begin with the next batch."""
    driver = c[name].broker.get(key)
    assert driver is not None
    driver.post(ev.PlaceWanted())
    await later(500)


PID = 7
SPAN = 2
"""Offsets of each segment in a row."""


@dataclass
class Row:
    """Closed segments in a row, which lack their indexes, and the work on these.

    Each segment begins a transaction, or aborts that of the segment before.
    """

    count: int
    storage: MemoryStorage = field(default_factory=MemoryStorage)
    ended: list[SegmentName] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.fs = MemoryFileSystem(self.storage, "b")
        kv = MemoryKeyValue(MemoryStore(), random=Random(1))
        self.broker = lone_broker(self.fs, kv, incarnation="b", clock=LoopClock())
        self.names = [SegmentName(SPAN * n, 1, n) for n in range(self.count)]
        self.segments: list[UnreadSegment] = []

    async def write(self) -> None:
        for n, name in enumerate(self.names):
            batches = [
                data(n // 2, pid=PID, base=name.base) if n % 2 == 0 else marker(Marker.ABORT, pid=PID, base=name.base)
            ]
            batches.append(data(n, pid=PID + 1, base=name.base + 1, is_transactional=False))
            raw = b"".join(bytes(batch.data) for batch in batches)
            await write_once(self.fs, PATH.log(name), raw)
            self.segments.append(UnreadSegment(name, len(raw), name.base + SPAN))

    async def damage(self, n: int) -> None:
        path = PATH.log(self.names[n])
        raw = bytearray(await self.fs.read(path, 0, 1 << 20))
        raw[-1] ^= 1
        await self.fs.delete(path)
        await write_once(self.fs, path, bytes(raw))

    def begin(self) -> asyncio.Task[None]:
        files = SegmentFiles(self.broker.context, PATH, is_synced=False, replication=3)
        work = MissingIndexes(
            self.broker.context,
            IndexMaker(self.broker.context, files, KEY, 65_536, 0),
            self.segments,
            self.ended.append,
            lambda work: asyncio.create_task(work()),
        )

        async def write() -> None:
            await work.write()
            await until(lambda: len(self.ended) == self.count, 1e6)

        return asyncio.create_task(write())

    async def index(self, n: int) -> Checkpoint | None:
        with contextlib.suppress(NoSuchFile):
            return decode_idx(await self.fs.read(PATH.idx(self.names[n]), 0, 1 << 20))
        return None


def count(fs: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch, method: str) -> list[str]:
    called: list[str] = []
    real = getattr(fs, method)

    def counted(path: str, *arguments: Any, **options: Any) -> Any:
        called.append(path)
        return real(path, *arguments, **options)

    monkeypatch.setattr(fs, method, counted)
    return called


async def test_many_segments_in_a_row_wait_once_and_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers of committed records cannot read them so long; and a folder has very many names."""
    row = Row(200)
    await row.write()
    lists, reads = count(row.fs, monkeypatch, "list"), count(row.fs, monkeypatch, "read")
    begun = now()
    await row.begin()
    assert now() - begun < 2 * LOOK_MS / 1000
    assert row.ended == row.names
    assert len(lists) <= 2, "of the folder"
    assert Counter(reads) == {PATH.log(name): 1 for name in row.names}
    for n, name in enumerate(row.names):
        index = await row.index(n)
        assert index is not None
        aborted = [AbortedTransaction(PID, name.base - SPAN, name.base, name.base + 1)] if n % 2 else []
        assert (index.aborted, index.end_offset) == (tuple(aborted), name.base + SPAN)
        assert index.first_open_txn == (-1 if n % 2 else name.base)
        last = next(state for state in index.producers if state.producer_id == PID + 1)
        assert [batch.base_sequence for batch in last.batches] == list(range(max(0, n - 4), n + 1))


@pytest.mark.slow
async def test_the_work_goes_on_when_storage_is_back() -> None:
    row = Row(2)
    await row.write()
    row.storage.faults = Faults(unavailable=1.0)
    work = row.begin()
    await later(60 * LOOK_MS)
    assert not work.done()
    assert row.ended == [], "the record names them"
    assert len(row.broker.reports) == 2, "once each"
    row.storage.faults = Faults()
    await work
    assert row.ended == row.names
    assert await row.index(0) is not None
    assert await row.index(1) is not None


@pytest.mark.slow
async def test_a_replica_that_cannot_be_read_after_an_outage_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a datanode that comes back later than the NameNode: the rounds of the outage have found no damage."""
    row = Row(1)
    await row.write()
    row.storage.faults = Faults(unavailable=1.0)
    work = row.begin()
    await later(60 * LOOK_MS)
    row.storage.faults = Faults()
    read, rounds = row.fs.read, list[str]()

    async def without_replica(path: str, position: int, length: int) -> bytes:
        if path.endswith(".log") and len(rounds) < ATTEMPTS - 1:
            rounds.append(path)
            raise CorruptData("no sound replica")
        return await read(path, position, length)

    monkeypatch.setattr(row.fs, "read", without_replica)
    await work
    assert len(rounds) == ATTEMPTS - 1
    assert await row.index(0) is not None


async def test_a_draft_that_is_gone_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a segment that is gone needs no index."""
    row = Row(1)
    await row.write()
    rename = row.fs.rename

    async def swept(source: str, target: str) -> None:
        monkeypatch.setattr(row.fs, "rename", rename)
        await row.fs.delete(source)
        await rename(source, target)

    monkeypatch.setattr(row.fs, "rename", swept)
    await row.begin()
    assert await row.index(0) is not None


async def test_two_who_write_an_index_in_one_process_take_turns() -> None:
    """The index of a former ownership is deferred when its process owns the partition again, and finds none."""
    row = Row(1)
    await row.write()
    await row.begin()
    index = await row.index(0)
    assert index is not None
    files = [SegmentFiles(row.broker.context, PATH, is_synced=False, replication=3) for _ in range(2)]

    async def write(which: int, after_ms: int) -> None:
        await later(after_ms)
        await files[which].write_idx(row.names[0], index)

    row.storage.faults = Faults(call_s=(0.001, 0.001), ack_s=(0.001, 0.001))
    for after_ms in range(12):
        await row.fs.delete(PATH.idx(row.names[0]))
        await asyncio.gather(write(0, 0), write(1, after_ms))
        assert await row.index(0) == index
        assert [status.path async for status in row.fs.list(PATH.folder) if "/.idx" in status.path] == []


async def test_segments_behind_a_damaged_one_are_given_up_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Row(40)
    await row.write()
    await row.damage(2)
    reads = count(row.fs, monkeypatch, "read")
    await row.begin()
    assert sorted(row.ended) == row.names, "records do not collect such names"
    assert [n for n in range(40) if await row.index(n) is not None] == [0, 1]
    assert PATH.log(row.names[3]) not in reads
    assert len(row.broker.reports) == 38


async def test_a_segment_is_not_given_up_for_a_damaged_one_that_is_not_its_neighbour() -> None:
    """The segment between the two was closed first. It has its index, and has left the record."""
    row = Row(3)
    await row.write()
    await row.begin()
    assert await row.index(1) is not None
    await row.fs.delete(PATH.idx(row.names[0]))
    await row.fs.delete(PATH.idx(row.names[2]))
    await row.damage(0)
    first, _, third = row.segments
    row.segments = [first._replace(end_offset=third.name.base, is_length_known=False), third]
    row.ended.clear()
    row.count = 2
    await row.begin()
    assert sorted(row.ended) == [first.name, third.name]
    assert await row.index(0) is None
    index = await row.index(2)
    assert index is not None
    assert (index.end_offset, index.first_open_txn) == (third.end_offset, third.name.base)


async def test_a_segment_that_is_deleted_meanwhile_does_not_end_the_work_on_the_next() -> None:
    row = Row(3)
    await row.write()
    await row.fs.delete(PATH.log(row.names[0]))
    await row.begin()
    assert row.ended == row.names
    assert [await row.index(n) is not None for n in range(3)] == [False, True, True]


async def test_a_damaged_index_gives_place_to_a_sound_one() -> None:
    """Readers and compaction count it as none, and no one else writes another."""
    row = Row(2)
    await row.write()
    await write_once(row.fs, PATH.idx(row.names[0]), b"damaged")
    await row.begin()
    assert row.ended == row.names
    index = await row.index(0)
    assert index is not None
    assert index.end_offset == SPAN


@pytest.mark.parametrize("is_length_known", [True, False])
async def test_an_index_that_ends_early_gives_place_to_a_whole_one(is_length_known: bool) -> None:
    row = Row(2)
    await row.write()
    await row.begin()
    first = await row.index(0)
    assert first is not None
    row.segments = [entry._replace(is_length_known=is_length_known) for entry in row.segments]
    await row.fs.delete(PATH.idx(row.names[0]))
    short = replace(first, end_offset=first.end_offset - 1, position=first.position // 2)
    await write_once(row.fs, PATH.idx(row.names[0]), encode_idx(short))
    row.ended.clear()
    await row.begin()
    assert row.ended == row.names
    index = await row.index(0)
    assert index is not None
    assert replace(index, producers=first.producers) == first, "but for the time when the producers were read"


@pytest.mark.parametrize("more", [0, 1])
async def test_a_sound_index_that_reaches_the_end_stays(more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the index of an owner before: it reaches further once the segment was merged with its neighbour."""
    row = Row(1)
    await row.write()
    await row.begin()
    first = await row.index(0)
    assert first is not None
    await row.fs.delete(PATH.idx(row.names[0]))
    there = replace(first, end_offset=first.end_offset + more, log_start=1)
    await write_once(row.fs, PATH.idx(row.names[0]), encode_idx(there))
    reads = count(row.fs, monkeypatch, "read")
    row.ended.clear()
    await row.begin()
    assert row.ended == row.names
    assert await row.index(0) == there
    assert PATH.log(row.names[0]) not in reads


async def test_a_late_index_of_a_former_owner_does_not_take_the_place_of_a_longer_one() -> None:
    row = Row(1)
    await row.write()
    await row.begin()
    first = await row.index(0)
    assert first is not None
    former = lone_broker(
        MemoryFileSystem(row.storage, "a"),
        MemoryKeyValue(MemoryStore(), random=Random(1)),
        incarnation="a",
        clock=LoopClock(),
    )
    files = SegmentFiles(former.context, PATH, is_synced=False, replication=3)
    await files.write_idx(row.names[0], replace(first, end_offset=first.end_offset - 1))
    assert await row.index(0) == first
    assert [status.path async for status in row.fs.list(PATH.folder) if "/.idx" in status.path] == []


async def die(c: Cluster, name: str) -> None:
    c[name].kill()
    for node in c.nodes.values():
        node.view.leave(name)
    del c.nodes[name]
