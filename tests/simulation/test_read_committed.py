"""Readers at both isolation levels, through a proxy, while owners take transactions and their ends, roll and move.

Seeded histories. A coordinator's batches and markers are appended in the owner's process, as internal batches. Readers
of one proxy read from its tail cache, from storage, and from the owner's process. Each leaves out what Kafka's consumer
leaves out, by the list in the response. So whatever a reader at read_committed keeps is what was committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

import pytest

from bmq.broker.partition.owner import PartitionOwner
from bmq.core.errors import ErrorCode
from bmq.core.records.batch import Batch
from bmq.core.records.control import Marker, marker_of
from bmq.core.records.cursor import read_batches
from bmq.endpoint.fetch.fetch_params import FetchParams
from bmq.endpoint.fetch.partition_read import PartitionRead
from bmq.endpoint.fetch.result import FetchResult
from bmq.endpoint.fetch.service import FetchService
from bmq.endpoint.fetch.tail_cache import TailCache
from tests.harness.waiting import until
from tests.unit.broker.partition.transactional import data, marker
from tests.unit.proxy.cluster import Cluster, cluster


class Fetch(Protocol):
    def __call__(
        self, offset: int, committed: bool, max_wait_s: float, max_bytes: int = 1 << 20
    ) -> Awaitable[PartitionRead]: ...


@dataclass
class Log:
    """The acknowledged batches with their producers, and the outcome of each transaction."""

    batches: list[tuple[int, int, int]] = field(default_factory=list)  # offset, producer id, number of its transaction
    outcomes: dict[int, Marker] = field(default_factory=dict)  # by number of the transaction
    opened: dict[int, tuple[int, int]] = field(default_factory=dict)  # number and first offset, by producer id
    aborted: list[tuple[int, int, int]] = field(default_factory=list)  # producer id, first and last offset
    end: int = 0
    count: int = 0

    def next(self, rng: Random) -> Batch:
        pid = rng.choice([1, 2, 3, 9])
        if pid in self.opened and rng.random() < 0.5:
            return marker(rng.choice([Marker.ABORT, Marker.COMMIT]), pid=pid)
        return data(-1, pid=pid, count=rng.randint(1, 3), is_transactional=pid != 9)

    def add(self, batch: Batch, offset: int) -> None:
        pid = batch.producer_id
        self.end = offset + batch.count
        if batch.is_control:
            number, first = self.opened.pop(pid)
            self.outcomes[number] = marker_of(batch)
            if marker_of(batch) is Marker.ABORT:
                self.aborted.append((pid, first, offset))
            return
        if batch.is_transactional and pid not in self.opened:
            self.count += 1
            self.opened[pid] = self.count, offset
        self.batches.append((offset, pid, self.opened[pid][0] if pid in self.opened else 0))

    @property
    def stable(self) -> int:
        return min((first for _, first in self.opened.values()), default=self.end)

    def committed(self, start: int, end: int) -> list[int]:
        """Return the offsets of the batches in [start, end) that were committed, or belong to no transaction."""
        return [
            offset
            for offset, _, number in self.batches
            if start <= offset < end and (not number or self.outcomes.get(number) is Marker.COMMIT)
        ]

    def must_list(self, start: int, end: int) -> list[tuple[int, int]]:
        return [(pid, first) for pid, first, last in self.aborted if last >= start and first < end]


def consume(read: PartitionRead, kept: list[int]) -> int:
    """Keep the batches that a consumer keeps, as ``CompletedFetch`` does; return the offset behind the last batch."""
    waiting = sorted(((each.first_offset, each.producer_id) for each in read.aborted), reverse=True)
    hidden: set[int] = set()
    end = read.offset
    for batch in read_batches(memoryview(b"".join(bytes(each) for each in read.buffers))):
        end = batch.next_offset
        while waiting and waiting[-1][0] <= batch.next_offset - 1:
            hidden.add(waiting.pop()[1])
        if batch.is_control:
            if marker_of(batch) is Marker.ABORT:
                hidden.discard(batch.producer_id)
        elif not (batch.is_transactional and batch.producer_id in hidden):
            kept.append(batch.base_offset)
    return end


async def served(fetched: FetchResult | Awaitable[FetchResult]) -> PartitionRead:
    result = fetched if isinstance(fetched, FetchResult) else await fetched
    if result.release is not None:
        result.release()
    (read,) = result.results
    return read


def fetch_at(world: Cluster, service: FetchService) -> Fetch:
    async def fetch(offset: int, committed: bool, max_wait_s: float, max_bytes: int = 1 << 20) -> PartitionRead:
        params = FetchParams(1, max_bytes, max_wait_s, committed=committed, metrics=world.metrics)
        return await served(service.fetch(0, -1, [world.want(offset)], (), params, by_id=True))

    return fetch


async def owner_at(world: Cluster, name: str) -> PartitionOwner:
    return await world.broker(name).assigned.wait(world.key(), 10)


async def send(owner: PartitionOwner, log: Log, rng: Random, count: int) -> None:
    for _ in range(count):
        batch = log.next(rng)
        log.add(batch, await owner.append_internal(batch.data))


async def read_all(fetch: Fetch, log: Log, start: int, *, committed: bool, max_wait_s: float = 2) -> list[int]:
    """Return what a reader keeps from ``start`` to the end of what it may read, and compare each list on the way."""
    kept: list[int] = []
    end = log.stable if committed else log.end
    while start < end:
        read = await fetch(start, committed, max_wait_s)
        assert not read.error, read
        assert read.size, f"nothing at {start} of {end}"
        following = consume(read, kept)
        if committed:
            assert following <= log.stable
            assert [(each.producer_id, each.first_offset) for each in read.aborted] == log.must_list(start, following)
        else:
            assert not read.aborted
        start = following
    return kept


async def check(world: Cluster, log: Log, rng: Random, owner_name: str) -> None:
    inside = world.broker(owner_name).scopes.process.fetch_service
    for service in (world.fetch_service, inside):
        fetch = fetch_at(world, service)
        for start in {0, *rng.sample(range(log.end), min(3, log.end))}:
            first = next((offset for offset, _, _ in reversed(log.batches) if offset <= start), 0)
            kept = await read_all(fetch, log, first, committed=True)
            assert kept == log.committed(first, log.stable)
        await read_all(fetch, log, 0, committed=False)


def shrink(tails: TailCache, rng: Random) -> None:
    tails.shrink(rng.randint(0, tails.used + 1))


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_a_reader_at_read_committed_keeps_was_committed(seed: int) -> None:
    rng, log = Random(seed), Log()
    async with cluster(
        seed=seed, partitions=1, segment_bytes=rng.choice([400, 1_500, 1 << 20]), configs={"retention.ms": "-1"}
    ) as world:
        at = "b1"
        for _ in range(rng.randint(3, 6)):
            owner = await owner_at(world, at)
            await send(owner, log, rng, rng.randint(1, 25))
            await until(lambda: _has(world, log.end))
            assert owner.last_stable_offset == log.stable
            await check(world, log, rng, at)
            shrink(world.fetch_service.tails, rng)
            shrink(world.broker(at).scopes.process.fetch_service.tails, rng)
            await asyncio.sleep(rng.choice([0.0, 1.0, 20.0]))
            await check(world, log, rng, at)
            if rng.random() < 0.5:
                at = "b2" if at == "b1" else "b1"
                world.move(0, at)
                await owner_at(world, at)
                await until(lambda: _has(world, log.end))
                await check(world, log, rng, at)


def _has(world: Cluster, end: int) -> bool:
    view = world.owners.follow(world.key())
    return view is not None and view.high_watermark >= end


async def follow(fetch: Fetch, log: Log, rng: Random, ended: asyncio.Event, *, committed: bool) -> list[int]:
    """Read from offset 0 until ``ended`` and the end, as a consumer that waits; return the batches that it keeps."""
    kept: list[int] = []
    offset = 0
    while not (ended.is_set() and offset >= (log.stable if committed else log.end)):
        read = await fetch(offset, committed, rng.choice([0.0, 0.5]), rng.choice([1, 300, 1 << 20]))
        assert read.error in (ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER), read
        offset = consume(read, kept)
        await asyncio.sleep(rng.choice([0.0, 0.001, 0.2]))
    return kept


@pytest.mark.parametrize("seed", range(12))
async def test_readers_beside_a_writer_keep_what_was_committed(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the proxy's tail lag behind its owner, so that a marker is further than the batches that have come."""
    rng, log, ended = Random(seed), Log(), asyncio.Event()
    monkeypatch.setattr("bmq.proxy.routing.fetch_session_handler.PARTITION_BYTES", rng.choice([1, 300, 1 << 20]))
    segment_bytes, configs = rng.choice([400, 1_500, 1 << 20]), {"retention.ms": "-1"}
    async with cluster(seed=seed, partitions=1, segment_bytes=segment_bytes, configs=configs) as world:
        proxy, inside = (
            fetch_at(world, service)
            for service in (world.fetch_service, world.broker("b1").scopes.process.fetch_service)
        )
        sides = [(proxy, True), (proxy, True), (proxy, False), (inside, True)]
        readers = [
            asyncio.ensure_future(follow(fetch, log, Random(rng.random()), ended, committed=committed))
            for fetch, committed in sides
        ]
        owner = await owner_at(world, "b1")
        for _ in range(rng.randint(3, 8)):
            await send(owner, log, rng, rng.randint(1, 15))
            await asyncio.sleep(rng.choice([0.0, 0.01, 0.3, 2.0]))
            if rng.random() < 0.3:
                shrink(world.fetch_service.tails, rng)
        ended.set()
        found = await asyncio.wait_for(asyncio.gather(*readers), 60)
        expected = log.committed(0, log.stable)
        assert [found[0], found[1], found[3]] == [expected] * 3
        assert len(found[2]) == len(log.batches)
