"""The clients of one compacted log: producers of keyed records, transactions, and readers that look for each key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from bmq.broker.partition.driver import PartitionDriver
from bmq.core.errors import RequestError
from bmq.core.records.batch import TRANSACTIONAL, Batch, build_batch
from bmq.core.records.control import Marker, TransactionMarker
from bmq.core.records.cursor import read_batches
from bmq.meta.kv import KvError
from bmq.storage.block_cache import BlockCache, ReadConfig
from bmq.storage.filesystem import NoSuchFile, StorageUnavailable
from bmq.storage.log_reader import LogReader, OffsetNotFound
from bmq.storage.memory import MemoryFileSystem
from bmq.storage.segment_cursor import MissingRecords
from tests.simulation.judge import PATH, read_log
from tests.simulation.keyed_judge import KeyedJudge, Pass, Transaction, Update
from tests.simulation.world import Process, World

KEYS = 5
TOMBSTONES = 0.25
PATIENCE_S = 10.0
READ_BYTES = 500


class KeyedProducer:
    """A producer of batches of one to three updates; one batch is in flight, and is repeated until acknowledged."""

    def __init__(self, world: World, judge: KeyedJudge, number: int) -> None:
        self._world = world
        self._judge = judge
        self._producer = number
        self._sequence = 0

    async def run(self, batches: int) -> None:
        """Write so many batches, unless the history is over before."""
        rng = self._world.rng
        for _ in range(batches):
            if self._world.is_over:
                return
            await self._write(None)
            await asyncio.sleep(rng.uniform(0.0, 0.4))

    async def run_transactions(self) -> None:
        """Write transactions as long as the history lasts; the last one is ended after it."""
        rng = self._world.rng
        while not self._world.is_over:
            transaction = Transaction(is_committed=rng.random() < 0.5)
            for _ in range(rng.randint(1, 3)):
                await self._write(transaction)
                await asyncio.sleep(rng.uniform(0.0, 0.6))
            await self._end(transaction)
            await asyncio.sleep(rng.uniform(0.0, 1.0))

    async def _write(self, transaction: Transaction | None) -> None:
        rng, count = self._world.rng, self._world.rng.randint(1, 3)
        first, now_ms = self._sequence, self._world.clock.now_ms()
        updates = [
            Update(
                key=b"k%d" % rng.randrange(KEYS),
                value=None if rng.random() < TOMBSTONES else b"." * rng.choice((5, 40, 200)),
                timestamp=now_ms,
                transaction=transaction,
            )
            for _ in range(count)
        ]
        records = [self._judge.make(self._producer, first + at, update) for at, update in enumerate(updates)]
        self._sequence += count
        data = build_batch(
            records, base_timestamp=now_ms, producer_id=self._producer, producer_epoch=0, base_sequence=first,
            attributes=TRANSACTIONAL if transaction is not None else 0,
        )  # fmt: skip
        while (process := await self._target(transaction)) is not None:
            offset = await self._sent(process, lambda driver: driver.append(memoryview(bytes(data))))
            if offset is not None:
                self._judge.append(offset, updates)
                return

    async def _end(self, transaction: Transaction) -> None:
        kind = Marker.COMMIT if transaction.is_committed else Marker.ABORT
        marker = TransactionMarker(self._producer, 0, 0, kind, 1)
        transaction.is_marker_sent = True
        while (process := await self._target(transaction)) is not None:
            if await self._sent(process, lambda driver: driver.end_transaction(marker)) is not None:
                transaction.is_over = True
                return

    async def _target(self, transaction: Transaction | None) -> Process | None:
        """Return a process to send to; None once the history is over, unless a transaction is to be ended."""
        while True:
            if self._world.is_over and transaction is None:
                return None
            process = self._world.target()
            if process is not None:
                return process
            await asyncio.sleep(self._world.rng.uniform(0.01, 0.3))

    async def _sent(self, process: Process, send: Callable[[PartitionDriver], asyncio.Future[int]]) -> int | None:
        """Return the offset that the process answered; None if it refused, died or was silent."""
        driver = process.driver
        assert driver is not None
        died = asyncio.ensure_future(process.died.wait())
        try:
            future = send(driver)
            future.add_done_callback(_take_error)
            both: list[asyncio.Future[Any]] = [future, died]
            await asyncio.wait(both, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
            if process.is_alive and future.done():
                return future.result()
        except RequestError:
            await asyncio.sleep(self._world.rng.uniform(0.0, 0.2))
        finally:
            died.cancel()
        return None


def _take_error(future: asyncio.Future[int]) -> None:
    """Take the error of a batch whose client has given up: the batch may fail long after."""
    if not future.cancelled():
        future.exception()


class KeyedReader:
    """A reader that has listed the log before, and a new one, in turn."""

    def __init__(self, world: World, judge: KeyedJudge) -> None:
        self._world = world
        self._judge = judge
        self._fs = MemoryFileSystem(world.storage, "reader")
        self._log = self._new()

    def _new(self) -> LogReader:
        return LogReader(BlockCache(self._fs, ReadConfig(block_bytes=256)), PATH)

    async def run(self) -> None:
        """Read again and again as long as the history lasts."""
        rng = self._world.rng
        while not self._world.is_over:
            await asyncio.sleep(rng.uniform(0.5, 2.5))
            with suppress(NoSuchFile, StorageUnavailable, OffsetNotFound):  # deleted meanwhile, or storage is away
                await self.look()

    async def look(self) -> None:
        """Read the log from its start to its watermark: all files anew, then by the listing of before."""
        began_ms, start = self._world.clock.now_ms(), self._judge.start_moved
        if not self._judge.watermark:
            return
        batches: list[Batch] = []
        while not batches or batches[-1].next_offset < self._judge.watermark:
            at = batches[-1].next_offset if batches else start
            end = self._judge.watermark
            if at >= end:
                return
            batches += [batch for batch in await read_log(self._fs, end, start=at) if batch.next_offset > at]
        self._check(Pass(start=start, end=batches[-1].next_offset, began_ms=began_ms), batches, "a new reader")
        for log, who in ((self._log, "a reader that had listed before"), (self._new(), "a new consumer")):
            if who == "a new consumer" and self._world.rng.random() < 0.7:
                continue
            await self._consume(log, who)

    async def _consume(self, log: LogReader, who: str) -> None:
        began_ms, start = self._world.clock.now_ms(), self._judge.start_moved
        at, batches = start, list[Batch]()
        while at < self._judge.watermark:
            end = self._judge.watermark
            try:
                read = list(read_batches(memoryview(await log.read(at, READ_BYTES, end))))
            except MissingRecords as error:
                raise AssertionError(f"{who}: {error}") from error
            if not read:  # a batch that reaches over the end, which has moved on
                assert at < end, f"{who}: nothing at {at}, the watermark is {end}"
                at = end
            batches += read
            at = read[-1].next_offset if read else at
        self._check(Pass(start=start, end=at, began_ms=began_ms), batches, who)

    def _check(self, one: Pass, batches: Sequence[Batch], who: str) -> None:
        self._judge.judge(one, batches, self._world.clock.now_ms(), who)


async def trim_rarely(world: World) -> None:
    """Delete records now and then, but only old ones."""
    while not world.is_over:
        await asyncio.sleep(world.rng.uniform(2.0, 10.0))
        process = world.target()
        if process is None or process.driver is None:
            continue
        offset = process.driver.machine.log_start + world.rng.randint(0, 6)
        if offset > process.driver.machine.high_watermark:
            continue
        world.judge.start_asked = max(world.judge.start_asked, offset)
        try:
            await asyncio.wait_for(process.driver.delete_before(offset), world.rng.uniform(0.5, 10.0))
        except (RequestError, KvError, TimeoutError):
            continue
        if process.is_alive:
            world.confirm_start(offset)
