"""A repair of a log with transactions: unknown ends are never taken for ends, and what is proven is written again."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from dataclasses import replace

import pytest

from bmq.broker.partition.driver import PartitionDriver
from bmq.broker.partition.states import PartitionState
from bmq.broker.repair.facts import PartitionIdentity
from bmq.broker.repair.log_plan import RepairRequest
from bmq.broker.repair.plan import Choice
from bmq.broker.repair.repair import Repair, RepairReport
from bmq.cli.segment.targets import find_targets
from bmq.cli.segment.verify import verify
from bmq.core.clock import SystemClock
from bmq.core.model import SegmentName
from bmq.core.records.batch import HEADER_BYTES, Batch
from bmq.core.records.control import Marker, marker_of
from bmq.meta import ownership
from bmq.meta.kv_memory import MemoryKeyValue
from bmq.storage.checkpoint import AbortedTransaction, Checkpoint
from bmq.storage.damage_reader import FoundBatch, walk_batches
from bmq.storage.memory import MemoryFileSystem
from bmq.storage.segment import decode_idx
from tests.harness.waiting import until
from tests.simulation.world import KEY, PATH, SMALL, Process, World
from tests.unit.broker.partition.transactional import data, marker

pytestmark = [pytest.mark.slow, pytest.mark.leaves_tasks, pytest.mark.seed(7)]

COVERED = SMALL
UNCOVERED = replace(SMALL, checkpoint_bytes=1 << 30, checkpoint_ms=1 << 30)
PLACE = PartitionIdentity("bmq", KEY, PATH, 1)


class Log:
    """A partition whose owner was killed after these batches, each at the offset of its place in the list."""

    def __init__(self, world: World, batches: list[Batch]) -> None:
        self.world = world
        self.fs = MemoryFileSystem(world.storage, "tool")
        self.kv = MemoryKeyValue(world.store, random=world.rng)
        self.batches = batches

    @property
    def open_segment(self) -> str:
        """Path of the log's only segment."""
        namespace = self.world.storage.namespace
        paths = [namespace.path_of(file) for file in namespace.files.values()]
        (path,) = (path for path in paths if path.startswith(PATH.folder) and path.endswith(".log"))
        return path

    def damage(self, *offsets: int, path: str = "") -> None:
        """Damage the records of these batches, whose headers stay as they are."""
        namespace = self.world.storage.namespace
        wanted = path or self.open_segment
        file = next(file for file in namespace.files.values() if namespace.path_of(file) == wanted)
        base = int(wanted.rsplit("/", 1)[1][:20])
        position = 0
        for offset, batch in enumerate(self.batches[base:], base):
            if offset in offsets:
                file.data[position + HEADER_BYTES] ^= 1
            position += batch.size

    def cut(self, end: int) -> None:
        """Have storage lose the batches from offset ``end`` on."""
        namespace = self.world.storage.namespace
        file = next(file for file in namespace.files.values() if namespace.path_of(file) == self.open_segment)
        size = sum(batch.size for batch in self.batches[:end])
        del file.data[size:]
        for replica in file.replicas:
            replica.length = min(replica.length, size)

    async def repair(self, **wanted: object) -> RepairReport:
        request = replace(RepairRequest(topic="orders", partition=0, is_dry=False), **wanted)  # type: ignore[arg-type]
        return await Repair(self.fs, self.kv, SystemClock(), PLACE).run(request)

    async def index(self) -> Checkpoint:
        """Return the index that the repair wrote."""
        return decode_idx(await self.fs.read(self.open_segment.replace(".log", ".idx"), 0, 1 << 20))

    async def markers(self) -> list[tuple[int, int, int, Marker]]:
        """Return offset, producer id, epoch and type of each marker in the log."""
        found = []
        length = await self.fs.visible_length(self.open_segment)
        async for item in walk_batches(self.fs, self.open_segment, 0, length, 0):
            assert isinstance(item, FoundBatch)
            batch = item.batch
            if batch.is_control:
                found.append((batch.base_offset, batch.producer_id, batch.producer_epoch, marker_of(batch)))
        return found

    async def heir(self) -> PartitionDriver:
        """Return the next owner, which opens what the repair left."""
        process = self.world.process()
        await until(lambda: process.driver is not None)
        driver = writer_of(process)
        assert driver.machine.state is PartitionState.WRITE, driver.machine.offline_reason
        return driver


async def verified(log: Log) -> PartitionDriver:
    """Check the repaired log by `bmq segment verify`, and return the next owner."""
    arguments = Namespace(paths=[], topic=PATH.topic, partition=None, topic_id=None, json=True, records=True)
    assert await verify(log.fs, await find_targets(log.fs, arguments), arguments) == 0
    return await log.heir()


def writer_of(process: Process) -> PartitionDriver:
    assert process.driver is not None
    return process.driver


async def written(*batches: Batch, config: object = UNCOVERED, covered: int | None = None) -> Log:
    """Return a log with these batches, the first ``covered`` of them before the last checkpoint; None: as they come."""
    world = World(7, config=config)  # type: ignore[arg-type]
    process = world.process()
    await until(lambda: process.is_serving)
    stored = []
    for number, batch in enumerate(batches):
        if number == covered:
            await asyncio.sleep(1.0)
        stored.append(Batch(memoryview(bytearray(batch.data))))
        await writer_of(process).append(batch.data, is_internal=True)
    await asyncio.sleep(1.0 if covered is None else 0.0)
    process.crash()
    return Log(world, stored)


def touched(report: RepairReport) -> list[tuple[int, int, list[tuple[int, int]], int, Marker | None, bool]]:
    return [
        (each.producer_id, each.first_offset, each.lost, each.ended_at, each.marker, each.is_written)
        for each in report.transactions
    ]


async def test_a_transaction_whose_marker_may_be_lost_stays_open_and_is_named() -> None:
    log = await written(data(0, pid=1), data(0, pid=2), marker(pid=1), data(-1, pid=-1, is_transactional=False))
    log.damage(2)
    report = await log.repair()
    assert touched(report) == [(1, 0, [(2, 3)], -1, None, False), (2, 1, [(2, 3)], -1, None, False)]
    assert report.transactions[0].dropped == ["a marker at offset 2"]
    index = await log.index()
    assert (index.first_open_txn, index.aborted) == (0, ())
    assert {state.producer_id: state.txn_start for state in index.producers} == {1: 0, 2: 1}
    heir = await verified(log)
    assert (heir.machine.high_watermark, heir.machine.last_stable_offset) == (4, 0)


async def test_a_hanging_transaction_is_aborted_on_request_at_the_logs_end() -> None:
    """Abort what the loss may have ended, also in a second run; a transaction that began behind the loss goes on."""
    log = await written(data(0, pid=1), marker(pid=1), data(0, pid=2), data(0, pid=3))
    log.damage(1)
    await log.repair()
    again = await log.repair(aborts_hanging=True)
    assert touched(again) == [(1, 0, [(1, 2)], 4, Marker.ABORT, True)]
    assert await log.markers() == [(4, 1, 0, Marker.ABORT)]
    index = await log.index()
    assert (index.first_open_txn, index.aborted) == (2, (AbortedTransaction(1, 0, 4, 2),))
    heir = await verified(log)
    assert (heir.machine.high_watermark, heir.machine.last_stable_offset) == (5, 2)


async def test_markers_that_a_checkpoint_proves_are_written_again() -> None:
    """Lose a COMMIT and an ABORT: the checkpoint behind them lists one transaction as aborted, and none as open."""
    log = await written(
        data(0, pid=1),
        data(0, pid=2),
        marker(Marker.COMMIT, pid=1),
        marker(Marker.ABORT, pid=2),
        data(-1, pid=-1, is_transactional=False),
        config=COVERED,
    )
    log.damage(2, 3, 4)
    report = await log.repair()
    assert touched(report) == [(1, 0, [(2, 5)], 4, Marker.COMMIT, True), (2, 1, [(2, 4)], 3, Marker.ABORT, True)]
    assert await log.markers() == [(3, 2, 0, Marker.ABORT), (4, 1, 0, Marker.COMMIT)]
    index = await log.index()
    assert (index.first_open_txn, index.aborted) == (-1, (AbortedTransaction(2, 1, 3, 0),))
    heir = await verified(log)
    assert heir.machine.last_stable_offset == heir.machine.high_watermark == 5


async def test_a_later_marker_ends_what_is_left() -> None:
    log = await written(data(0, pid=1), data(1, pid=1), marker(Marker.ABORT, pid=1))
    log.damage(1)
    report = await log.repair(aborts_hanging=True)
    assert touched(report) == [(1, 0, [(1, 2)], 2, Marker.ABORT, False)]
    assert report.transactions[0].dropped == ["a batch at offset 1"]
    assert (await log.index()).aborted == (AbortedTransaction(1, 0, 2, 3),)
    await verified(log)


async def test_a_transaction_that_began_among_lost_batches_is_named() -> None:
    log = await written(data(0, pid=1), marker(pid=1), data(-1, pid=-1, is_transactional=False))
    log.damage(0)
    report = await log.repair()
    assert touched(report) == [(1, 0, [(0, 1)], 1, Marker.COMMIT, False)]
    await verified(log)


async def test_a_shorter_log_forgets_what_it_lost() -> None:
    """End the log before a transaction that only the checkpoint still knows: nothing of it is left to be open."""
    log = await written(data(0, pid=1), marker(pid=1), data(0, pid=2), config=COVERED)
    log.cut(2)
    report = await log.repair(choice=Choice.SHORTER)
    assert report.end_offset == 2
    assert (await log.index()).first_open_txn == -1
    heir = await log.heir()
    assert heir.machine.last_stable_offset == heir.machine.high_watermark == 2


async def test_open_transactions_come_from_the_index_before_the_repaired_segments() -> None:
    """Lose every journal: what is open where the last segment begins is known from its predecessor's index alone."""
    batches = [data(0, pid=1, count=3), *(data(each, pid=2, count=1) for each in range(120))]
    log = await written(*batches, config=COVERED)
    record, revision = await ownership.read(log.kv, ownership.partition_key("bmq", KEY))
    last = max(record.segments, key=lambda entry: entry.name.order)
    assert last.name.base > 0, "the log has several segments"
    lone = replace(record, segments=(last,), journals=())
    await ownership.store(log.kv, ownership.partition_key("bmq", KEY), lone, revision)
    path = PATH.log(last.name)
    file = next(f for f in log.world.storage.namespace.files.values() if log.world.storage.namespace.path_of(f) == path)
    first = Batch(memoryview(bytes(file.data)))
    file.data[first.size + HEADER_BYTES] ^= 1
    report = await log.repair()
    assert {(each.producer_id, each.first_offset) for each in report.transactions} == {(1, 0), (2, 3)}
    index = decode_idx(await log.fs.read(PATH.idx(SegmentName(*last.name)), 0, 1 << 20))
    assert index.first_open_txn == 0
    assert {state.producer_id: state.txn_start for state in index.producers} == {1: 0, 2: 3}


async def test_an_older_segments_index_has_its_producers() -> None:
    batches = [data(each, pid=2, count=1) for each in range(120)]
    log = await written(*batches, config=COVERED)
    first = SegmentName(0, 1, 0)
    log.damage(1, path=PATH.log(first))
    report = await log.repair(all_segments=True)
    assert touched(report)[0] == (2, 0, [(1, 2)], -1, None, False)
    index = decode_idx(await log.fs.read(PATH.idx(first), 0, 1 << 20))
    assert index.first_open_txn == 0
    assert [(state.producer_id, state.txn_start) for state in index.producers] == [(2, 0)]
    assert index.producers[0].batches[-1].base_offset == index.end_offset - 1
