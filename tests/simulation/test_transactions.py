"""Transactions in the state of a partition: whatever an owner knows, the next owner knows, and every index says it.

Seeded histories of producers with and without transactions, and of a coordinator that writes without sequences, with
failures of files, crashes and moves of owners between any two batches. The model is the log itself: what a reader of
every batch from the first one on must find.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from bmq.broker import events as ev
from bmq.broker.partition.driver import PartitionDriver
from bmq.broker.partition.machine import PartitionMachine
from bmq.broker.partition.states import PartitionState
from bmq.core.records.batch import Batch
from bmq.core.records.control import Marker, end_marker_of
from bmq.storage import layout
from bmq.storage.checkpoint import AbortedTransaction, Checkpoint
from bmq.storage.memory import MemoryFileSystem
from bmq.storage.segment import decode_idx
from tests.harness.loop import run
from tests.simulation.stories import owner, writer_of
from tests.simulation.world import KEY, PATH, SMALL, SMALL_LOG, World, read_log
from tests.unit.broker.partition.transactional import data, marker

Known = dict[int, tuple[int, int, int, list[tuple[int, int]]]]
"""Epoch, coordinator epoch, start of the transaction and kept batches (sequence, offset), by producer id."""


@dataclass
class Model:
    """The state behind the batches so far, derived by the words of the rule, without a line of the code under test."""

    producers: Known = field(default_factory=dict)
    aborted: list[AbortedTransaction] = field(default_factory=list)
    end: int = 0

    def pass_batch(self, batch: Batch) -> None:
        self.end = batch.next_offset
        if batch.producer_id < 0:
            return
        epoch, coordinator_epoch, start, kept = self.producers.get(batch.producer_id, (-1, -1, -1, []))
        kept = kept if epoch == batch.producer_epoch else []
        if batch.is_control:
            end = end_marker_of(batch)
            assert end is not None
            self.producers[batch.producer_id] = (batch.producer_epoch, end.coordinator_epoch, -1, kept)
            if start >= 0 and end.marker is Marker.ABORT:
                stable = batch.base_offset + 1 if self.first_open < 0 else self.first_open
                self.aborted.append(AbortedTransaction(batch.producer_id, start, batch.base_offset, stable))
            return
        if start < 0 and batch.is_transactional:
            start = batch.base_offset
        if batch.base_sequence >= 0:
            kept = [*kept, (batch.base_sequence, batch.base_offset)][-5:]
        self.producers[batch.producer_id] = (batch.producer_epoch, coordinator_epoch, start, kept)

    @property
    def first_open(self) -> int:
        return min((start for _, _, start, _ in self.producers.values() if start >= 0), default=-1)

    @property
    def last_stable_offset(self) -> int:
        return self.end if self.first_open < 0 else self.first_open


class Producers:
    """Producers that send what their last batch allows: 1-3 with transactions, 4 plain, 5 a coordinator's."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._at: dict[int, tuple[int, int]] = {}
        self._open: set[int] = set()
        self._counts: dict[tuple[int, int, int], int] = {}  # records, by producer id, epoch and sequence
        self._coordinator_epoch = 0

    def go_on(self, model: Model) -> None:
        """Go on from what is in the log: batches without an answer may be there or not."""
        self._at = {}
        for pid, (epoch, _, _, kept) in model.producers.items():
            self._at[pid] = epoch, kept[-1][0] + self._counts[pid, epoch, kept[-1][0]] if kept else 0
        self._open = {pid for pid, (_, _, start, _) in model.producers.items() if start >= 0}

    def next(self) -> Batch:
        rng, pid = self._rng, self._rng.choice([1, 1, 2, 3, 4, 5])
        epoch, sequence = self._at.get(pid, (0, 0))
        if pid in self._open and rng.random() < 0.4:
            self._open.discard(pid)
            self._coordinator_epoch += rng.random() < 0.2
            if rng.random() < 0.3:
                epoch, sequence = epoch + 1, 0
            self._at[pid] = epoch, sequence
            kind = rng.choice([Marker.ABORT, Marker.COMMIT])
            return marker(kind, pid=pid, epoch=epoch, coordinator_epoch=self._coordinator_epoch)
        if pid not in self._open and rng.random() < 0.1:
            return marker(Marker.ABORT, pid=pid, epoch=epoch, coordinator_epoch=self._coordinator_epoch)
        count = rng.randint(1, 3)
        if pid == 5:
            self._open.add(pid)
            return data(-1, pid=pid, epoch=epoch, count=count)
        is_transactional = pid in self._open or (pid != 4 and rng.random() < 0.7)
        if is_transactional:
            self._open.add(pid)
        self._at[pid] = epoch, sequence + count
        self._counts[pid, epoch, sequence] = count
        return data(sequence, pid=pid, epoch=epoch, count=count, is_transactional=is_transactional)


def known(machine: PartitionMachine) -> Known:
    """Return what an owner knows of its producers."""
    return {
        state.producer_id: (
            state.epoch,
            state.coordinator_epoch,
            state.txn_start,
            [(batch.base_sequence, batch.base_offset) for batch in state.batches],
        )
        for state in machine.producers.snapshot()
    }


def check(machine: PartitionMachine, model: Model) -> None:
    assert machine.high_watermark == model.end
    assert known(machine) == model.producers
    assert machine.producers.transactions.first_open == model.first_open
    assert machine.last_stable_offset == model.last_stable_offset


async def indexes(world: World) -> list[Checkpoint]:
    fs = MemoryFileSystem(world.storage, "reader")
    found = []
    async for status in fs.list(PATH.folder):
        named = layout.parse_segment(layout.base_name(status.path))
        if named is not None and named[1] == "idx":
            found.append(decode_idx(await fs.read(status.path, 0, 1 << 20)))
    return found


async def check_indexes(world: World, batches: list[Batch]) -> int:
    """Compare each index with the batches before its end; return the number of indexes."""
    found = await indexes(world)
    for index in found:
        model = Model()
        for batch in batches:
            if batch.base_offset < index.end_offset:
                model.pass_batch(batch)
        assert index.first_open_txn == model.first_open, index.segment
        own = tuple(each for each in model.aborted if each.last_offset >= index.segment.base)
        assert index.aborted == own, index.segment
        opened = {state.producer_id: state.txn_start for state in index.producers if state.txn_start >= 0}
        assert opened == {pid: start for pid, (_, _, start, _) in model.producers.items() if start >= 0}
    return len(found)


async def send(driver: PartitionDriver, producers: Producers, model: Model, count: int) -> None:
    """Append batches as coordinators do, some of them before the earlier ones are flushed."""
    while count > 0:
        sent = [producers.next() for _ in range(min(count, 3))]
        for batch, offset in zip(sent, [driver.append(batch.data, is_internal=True) for batch in sent], strict=True):
            batch.base_offset = await offset
            model.pass_batch(batch)
        count -= len(sent)


async def leave_unanswered(driver: PartitionDriver, producers: Producers, rng: Random) -> None:
    """Append batches of which any number may reach the log: the owner dies at once."""
    if driver.machine.state is not PartitionState.WRITE:
        return
    for _ in range(rng.randint(0, 4)):
        response = driver.append(producers.next().data, is_internal=True)
        response.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.sleep(rng.choice([0.0, 0.001]))


async def model_of(world: World, end: int) -> Model:
    model = Model()
    for batch in await read_log(MemoryFileSystem(world.storage, "reader"), end):
        model.pass_batch(batch)
    return model


@pytest.mark.parametrize("seed", range(40))
def test_the_next_owner_knows_what_the_last_one_knew_and_every_index_says_it(seed: int) -> None:
    async def main() -> None:
        rng = Random(seed)
        checkpoint_bytes, full_bytes = rng.choice([1, 300, 600, 1 << 20]), rng.choice([24, 400])
        config = replace(SMALL, checkpoint_bytes=checkpoint_bytes, checkpoint_full_bytes=full_bytes)
        world = World(seed, config=config, log_config=replace(SMALL_LOG, segment_bytes=rng.choice([500, 1_500])))
        producers, model = Producers(rng), Model()
        for _ in range(rng.randint(2, 4)):
            process = await owner(world)
            check(writer_of(process).machine, model)
            for _ in range(rng.randint(0, 4)):
                await send(writer_of(process), producers, model, rng.randint(0, 12))
                check(writer_of(process).machine, model)
                await asyncio.sleep(rng.choice([0.0, 0.1, 1.0, 5.0]))
                if rng.random() < 0.3:
                    writer_of(process).post(ev.StorageSlow())  # the next segment begins
            if rng.random() < 0.4:
                await process.broker.move(KEY)
            if rng.random() < 0.6:
                await leave_unanswered(writer_of(process), producers, rng)
                process.crash()
                await asyncio.sleep(1)
                heir = await owner(world)
                model = await model_of(world, writer_of(heir).machine.high_watermark)
                producers.go_on(model)
                check(writer_of(heir).machine, model)
        heir = await owner(world)
        check(writer_of(heir).machine, model)
        await send(writer_of(heir), producers, model, 3)
        await heir.broker.move(KEY)
        await asyncio.sleep(60)
        batches = await read_log(MemoryFileSystem(world.storage, "reader"), model.end)
        assert await check_indexes(world, batches) > 0

    run(main(), seed)
