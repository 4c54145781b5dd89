"""A small world for fetches: a catalog, owners that flush at once, storage in memory, and the real ``FetchService``."""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from bmq.core.clock import LoopClock
from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.metrics.counters import RequestCounters
from bmq.core.metrics.traffic import TrafficMeter
from bmq.core.model import PartitionKey, SegmentName
from bmq.core.records.batch import Batch, Ends, Record, build_batch
from bmq.core.records.control import TransactionMarker
from bmq.core.records.cursor import read_batches
from bmq.core.wire.produce import Transaction
from bmq.endpoint.fetch.context import FetchContext
from bmq.endpoint.fetch.fetch_params import FetchParams
from bmq.endpoint.fetch.purgatory import Identity, SessionPartition
from bmq.endpoint.fetch.result import FetchResult
from bmq.endpoint.fetch.service import FetchService
from bmq.endpoint.partitions import AppendCallback, Appended, Owner, PartitionView
from bmq.endpoint.topic_counters import forget_gone_topics
from bmq.meta.catalog import Topic
from bmq.storage.aborted import RecentAborted
from bmq.storage.block_cache import BlockCache, ReadConfig
from bmq.storage.checkpoint import ProducerState
from bmq.storage.filesystem import write_once
from bmq.storage.layout import PartitionPath
from bmq.storage.log_reader import ActiveSegment
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.harness.fakes import FakeCatalog

EPOCH = 3


class FakeOwner:
    """``endpoint.partitions.Owner`` as far as fetches ask it."""

    def __init__(self, key: PartitionKey) -> None:
        self.key = key
        self.epoch = EPOCH
        self.is_open = True
        self.log_start = self.high_watermark = 0
        self.stable: int | None = None
        self.active_segment: ActiveSegment | None = None
        self.recent_aborted: RecentAborted | None = None
        self.is_at_end = self.knows_active_segment = True
        self.has_room = True
        self.segments = 0

    @property
    def last_stable_offset(self) -> int:
        return self.high_watermark if self.stable is None else self.stable

    def ask_end(self) -> bool:
        return self.is_at_end

    async def room(self) -> None:
        raise NotImplementedError

    def append(self, data: memoryview, callback: AppendCallback, *, acks_all: bool, held_until: float = 0.0) -> None:
        raise NotImplementedError

    async def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        raise NotImplementedError

    async def offset_of_max_timestamp(self) -> tuple[int, int]:
        raise NotImplementedError

    async def offset_for_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        raise NotImplementedError

    async def flushed_ends(self) -> Ends:
        return await self.ends()

    async def ends(self) -> Ends:
        return Ends(self.epoch, self.log_start, self.last_stable_offset, self.high_watermark)

    async def ask_active_segment(self) -> ActiveSegment | None:
        return self.active_segment

    async def producers(self) -> Sequence[ProducerState]:
        raise NotImplementedError

    async def end_transaction(self, marker: TransactionMarker) -> None:
        raise NotImplementedError

    async def delete_before(self, offset: int) -> int:
        raise NotImplementedError

    async def log_bytes(self) -> int:
        raise NotImplementedError


class GivenBack(RequestError):
    """The batch waits for the next owner."""


class AppendFuture:
    """An ``AppendCallback`` whose result is awaited."""

    transaction: Transaction | None = None

    def __init__(self) -> None:
        self.future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()

    @property
    def is_over(self) -> bool:
        return self.future.done()

    def on_appended(self, appended: Appended) -> None:
        assert not self.future.done()
        self.future.set_result(appended)

    def on_failed(self, error: RequestError) -> None:
        assert not self.future.done()
        self.future.set_exception(error)

    def on_given_back(self, data: memoryview, *, may_be_appended: bool) -> None:
        self.on_failed(GivenBack(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"given back, {may_be_appended=}"))


def append(owner: Owner, data: bytearray, *, held_until: float = math.inf) -> asyncio.Future[Appended]:
    """Append with acks=all."""
    callback = AppendFuture()
    owner.append(memoryview(data), callback, acks_all=True, held_until=held_until)
    return callback.future


class FakeOwners:
    """``endpoint.partitions.Owners``; counts how often it is asked."""

    def __init__(self) -> None:
        self.by_key: dict[PartitionKey, FakeOwner] = {}
        self.asked: list[PartitionKey] = []

    def get(self, key: PartitionKey) -> Owner | None:
        self.asked.append(key)
        return self.by_key.get(key)

    def follow(self, key: PartitionKey) -> PartitionView | None:
        self.asked.append(key)
        return self.by_key.get(key)

    async def wait(self, key: PartitionKey, timeout_s: float) -> Owner:
        raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "not here")


class GatedFileSystem(MemoryFileSystem):
    """Reads of logs wait for ``gate`` and are counted, with the most bytes under way at once."""

    def __init__(self) -> None:
        super().__init__(MemoryStorage(), "h")
        self.gate = asyncio.Event()
        self.gate.set()
        self.log_reads = 0
        self.running = self.running_max = 0
        self.fault: Exception | None = None
        self.faulty = ""

    async def read(self, path: str, position: int, length: int) -> bytes:
        if not path.endswith(".log"):
            return await super().read(path, position, length)
        self.log_reads += 1
        self.running += 1
        self.running_max = max(self.running, self.running_max)
        try:
            await self.gate.wait()
            if self.fault is not None and self.faulty in path:
                raise self.fault
            return await super().read(path, position, length)
        finally:
            self.running -= 1


class World:
    def __init__(self, *, block_bytes: int = 4096, **options: Any) -> None:
        self.config = NodeConfig(**{"cache_bytes": 64 << 20, **options})
        self.catalog = FakeCatalog()
        self.owners = FakeOwners()
        self.gone: dict[PartitionKey, FakeOwner] = {}
        self.fs = GatedFileSystem()
        self.pool = BlockCache(self.fs, ReadConfig(cache_bytes=self.config.cache_bytes, block_bytes=block_bytes))
        self.metrics = RequestCounters(traffic=TrafficMeter())
        self.fetch_service = FetchService(
            self.config,
            self.catalog,
            self.owners,
            FetchContext(self.config, self.catalog, self.pool),
            LoopClock(),
        )
        forget_gone_topics(self.catalog, self.metrics)

    # The cluster

    def topic(self, name: str, partitions: int = 1, *, number: int = 0) -> Topic:
        """Add a topic, all of whose partitions have an owner."""
        topic_id = uuid.UUID(int=number or len(self.catalog.topics) + 1)
        topic = Topic(name=name, topic_id=topic_id, partitions=partitions)
        self.catalog.put(name, topic)
        for partition in range(partitions):
            self.open(name, partition)
        return topic

    def key(self, name: str, partition: int = 0) -> PartitionKey:
        return PartitionKey(self.catalog.topics[name].topic_id, partition)

    def owner(self, name: str, partition: int = 0) -> FakeOwner:
        return self.owners.by_key[self.key(name, partition)]

    def open(self, name: str, partition: int = 0, watermark: int = 0) -> FakeOwner:
        key = self.key(name, partition)
        owner = self.owners.by_key[key] = FakeOwner(key)
        owner.high_watermark = watermark
        self.fetch_service.context.opened(key, owner.epoch, owner.log_start, watermark)
        return owner

    def close(self, name: str, partition: int = 0) -> FakeOwner:
        owner = self.owners.by_key.pop(self.key(name, partition))
        owner.is_open = False
        self.gone[owner.key] = owner
        self.fetch_service.context.closed(owner.key)
        return owner

    def reopen(self, name: str, partition: int = 0) -> FakeOwner:
        """Open another owner of the same log."""
        old = self.gone.pop(self.key(name, partition))
        owner = self.open(name, partition, old.high_watermark)
        owner.segments = old.segments
        return owner

    # Records

    def flush(self, name: str, partition: int = 0, *, count: int = 1, size: int = 100) -> int:
        """Flush a batch that only the tail cache has, and return its size."""
        owner = self.owner(name, partition)
        batch = Batch(memoryview(batch_of(owner.high_watermark, count, size)))
        owner.high_watermark = batch.next_offset
        self.fetch_service.context.flushed(owner.key, [batch], owner.high_watermark)
        return len(batch.data)

    async def store(self, name: str, partition: int = 0, *, batches: int = 1, count: int = 1, size: int = 100) -> int:
        """Store batches that only storage has, in a segment of their own, and return their size."""
        owner = self.owner(name, partition)
        base = owner.high_watermark
        data = b"".join(batch_of(base + number * count, count, size) for number in range(batches))
        topic = self.catalog.topics[name]
        path = PartitionPath(name, str(topic.topic_id), partition)
        await write_once(self.fs, path.log(SegmentName(base, owner.epoch, owner.segments)), data)
        owner.segments += 1
        owner.high_watermark = base + batches * count
        return len(data)

    async def produce(self, name: str, partition: int = 0) -> None:
        """Store a batch and notify its flush: storage and the tail cache both have it."""
        owner = self.owner(name, partition)
        base = owner.high_watermark
        await self.store(name, partition)
        self.fetch_service.context.flushed(owner.key, [Batch(memoryview(batch_of(base)))], owner.high_watermark)

    # Fetches

    async def fetch(
        self,
        listed: Iterable[SessionPartition] = (),
        *,
        session: tuple[int, int] = (0, -1),
        forgotten: Iterable[Identity] = (),
        min_bytes: int = 1,
        max_bytes: int = 50 << 20,
        max_wait_s: float = 0.5,
        committed: bool = False,
        by_id: bool = False,
    ) -> FetchResult:
        params = FetchParams(min_bytes, max_bytes, max_wait_s, committed=committed, metrics=self.metrics)
        fetched = self.fetch_service.fetch(*session, list(listed), forgotten, params, by_id=by_id)
        return fetched if isinstance(fetched, FetchResult) else await fetched


def batch_of(base: int, count: int = 1, size: int = 100) -> bytearray:
    return build_batch([Record(value=b"x" * size)] * count, base_offset=base, leader_epoch=EPOCH)


def want(
    name: str | uuid.UUID, partition: int = 0, offset: int = 0, max_bytes: int = 1 << 20, epoch: int = -1
) -> SessionPartition:
    return SessionPartition(name, partition, offset, max_bytes, epoch)


def offsets(fetched: FetchResult) -> dict[tuple[str, int], list[int]]:
    """Return the base offsets of the batches of each partition in the response."""
    found = {}
    for look in fetched.results:
        data = memoryview(b"".join(look.buffers))
        found[str(look.wanted.topic), look.wanted.partition] = [part.base_offset for part in read_batches(data)]
    return found


def errors(fetched: FetchResult) -> dict[tuple[str, int], str]:
    return {(str(look.wanted.topic), look.wanted.partition): look.error.name for look in fetched.results if look.error}


def release(fetched: FetchResult) -> None:
    """Release the response's memory, as after it was sent."""
    if fetched.release is not None:
        fetched.release()


@asynccontextmanager
async def serving(partitions: int = 2, *, has_sessions: bool = False, **options: Any) -> AsyncIterator[World]:
    """Yield a world with topic t; afterwards nothing is held and, unless a session is left, no partition is
    followed."""
    world = World(**options)
    world.topic("t", partitions)
    yield world
    await world.fetch_service.close()
    assert (world.fetch_service.budget.memory.used, world.fetch_service.budget.storage.used) == (0, 0)
    assert not world.fetch_service.parked
    assert has_sessions or len(world.fetch_service.poll) == 0


async def quiesce() -> None:
    """Wait until all tasks that can continue stand still again."""
    for _ in range(20):
        await asyncio.sleep(0)
