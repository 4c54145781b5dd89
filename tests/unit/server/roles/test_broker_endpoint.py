"""Kafka's Produce and Fetch on the internal port, beside a process's own clients: what is shared and what is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from kafka.protocol.consumer import FetchRequest, FetchResponse

from bmq.broker.shard_log_fence import ShardFence
from bmq.core.clock import LoopClock
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.net.request import Response
from bmq.core.records.cursor import read_batches
from bmq.endpoint.fetch.context import FetchContext
from bmq.endpoint.fetch.service import FetchService
from bmq.endpoint.scopes import ListenerView
from bmq.meta.catalog import OFFSETS_TOPIC
from bmq.meta.kv_memory import KvFaults
from bmq.meta.shard_kinds import GROUPS, ShardId
from bmq.server.roles.broker_endpoint import internal_endpoint
from bmq.server.roles.local_shard_log import LocalShardLogs
from bmq.storage.block_cache import BlockCache, ReadConfig
from tests.unit.broker.world import World, answered, batch, world

VERSION = 13  # by topic id


class Process(World):
    """A process that is proxy and broker; ``endpoint`` is the internal one, for the handlers of ``World``."""

    async def start(self) -> None:
        await super().start()
        self.pool = BlockCache(self.fs, ReadConfig())
        clock = LoopClock()
        fetches = FetchContext(self.config, self.catalog, self.pool)
        self.fetch_service = FetchService(self.config, self.catalog, self.assigned, fetches, clock)
        self.wiring.flush_listener = fetches
        self.endpoint = internal_endpoint(
            ListenerView(config=self.config),
            clock,
            self.catalog,
            self.assigned,
            self.broker.context.load,
            fetches,
        )
        self.internal = self.endpoint.scopes.process

    async def stop(self) -> None:
        await super().stop()
        await self.internal.fetch_service.close()
        await self.fetch_service.close()
        await self.pool.close()

    def fetch(
        self, offset: int, *, name: str = "orders", partition: int = 0, session: tuple[int, int] = (0, -1),
        max_wait_ms: int = 500, listed: bool = True,
    ) -> Awaitable[Response] | Response:  # fmt: skip
        Topic = FetchRequest.FetchTopic
        wanted = Topic.FetchPartition(
            partition=partition, current_leader_epoch=-1, fetch_offset=offset, last_fetched_epoch=-1,
            log_start_offset=-1, partition_max_bytes=1 << 20,
        )  # fmt: skip
        topics = [Topic(topic_id=self.catalog.topics[name].topic_id, partitions=[wanted])] if listed else []
        request = FetchRequest(
            replica_id=-1, max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20, isolation_level=0,
            session_id=session[0], session_epoch=session[1], topics=topics, forgotten_topics_data=[], rack_id="",
        )  # fmt: skip
        return self.send(request, VERSION)


@asynccontextmanager
async def process(**options: Any) -> AsyncIterator[Process]:
    made = Process(**options)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def fetched(reply: Awaitable[Response] | Response) -> Any:
    response = await answered(reply, FetchResponse, VERSION)
    assert response.error_code == 0
    return response


def bases(response: Any) -> list[int]:
    (topic,) = response.responses
    (part,) = topic.partitions
    data = memoryview(bytes(part.records or b""))
    return [each.base_offset for each in read_batches(data)]


async def test_produce_and_fetch_by_topic_id() -> None:
    async with process() as p:
        p.topic()
        for number in range(3):
            (reply,) = await p.produce({("orders", 0): batch()}, version=13)
            assert (reply.error_code, reply.base_offset) == (0, number)
        response = await fetched(p.fetch(0))
        assert bases(response) == [0, 1, 2]
        assert response.responses[0].partitions[0].high_watermark == 3


async def test_one_copy_of_a_tail_and_one_register() -> None:
    """Notify one flush: it wakes a proxy's parked fetch, which finds it in the tails of the process's own clients."""

    async with process() as p:
        p.topic()
        await p.owner()
        assert p.internal.fetch_service.tails is p.fetch_service.tails
        assert p.internal.fetch_service.budget is p.fetch_service.budget
        parked = asyncio.ensure_future(fetched(p.fetch(0, max_wait_ms=60_000)))
        await asyncio.sleep(1)
        assert len(p.internal.fetch_service.parked) == 1
        assert not p.fetch_service.parked
        data = batch(b"x" * 1000)
        began = asyncio.get_running_loop().time()
        await p.produce({("orders", 0): data}, version=13)
        assert bases(await parked) == [0]
        assert asyncio.get_running_loop().time() == began
        assert p.endpoint.scopes.caller.metrics.tail_hit_bytes == len(data)
        assert len(data) <= p.fetch_service.tails.used < 2 * len(data) + 1000


async def test_sessions_drains_and_counters_are_apart() -> None:
    async with process() as p:
        p.topic()
        await p.owner()
        response = await fetched(p.fetch(0, session=(0, 0), max_wait_ms=0))
        assert len(p.internal.fetch_service.sessions) == 1
        assert len(p.fetch_service.sessions) == 0
        going_on = asyncio.ensure_future(
            fetched(p.fetch(0, session=(response.session_id, 1), max_wait_ms=60_000, listed=False))
        )
        await asyncio.sleep(1)
        p.fetch_service.drain()
        await asyncio.sleep(1)
        assert not going_on.done(), "clients are sent away, proxies are not"
        await p.produce({("orders", 0): batch()}, version=13)
        assert bases(await going_on) == [0]
        assert p.metrics.topics == {}
        assert p.endpoint.scopes.caller.metrics.topic("orders").messages_in == 1
        p.catalog.put("orders", None)
        assert p.endpoint.scopes.caller.metrics.topics == {}


async def test_what_is_served_is_counted_for_the_controller() -> None:
    async with process() as p:
        p.topic("orders", 2)
        load = p.broker.context.load
        await load.take("controller")
        data = batch(b"x" * 100)
        await p.produce({("orders", 1): bytearray(data)}, version=13)
        await fetched(p.fetch(0, partition=1))
        await fetched(p.fetch(1, partition=1, max_wait_ms=0))
        ((key, traffic),) = (await load.take("controller")).items()
        assert key == p.key("orders", 1)
        assert (traffic.bytes_in, traffic.bytes_out, traffic.requests) == (len(data), len(data), 2)


async def test_a_partition_that_is_not_ours_is_refused_at_once_and_one_being_opened_is_held() -> None:
    async with process() as p:
        p.topic("elsewhere", assign=False)
        loop = asyncio.get_running_loop()
        began = loop.time()
        (refused,) = await p.produce({("elsewhere", 0): batch()}, version=13)
        assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert loop.time() == began
        p.kv.faults = KvFaults(latency_s=0.5)
        p.topic("orders")
        (held,) = await p.produce({("orders", 0): batch()}, version=13)
        assert (held.error_code, held.base_offset) == (0, 0)
        assert loop.time() > began


async def test_the_offsets_topic_is_read_and_not_produced_to() -> None:
    async with process() as p:
        p.topic(OFFSETS_TOPIC)
        owner = await p.owner(OFFSETS_TOPIC)
        await owner.append_internal(memoryview(batch()))
        assert bases(await fetched(p.fetch(0, name=OFFSETS_TOPIC))) == [0]
        (refused,) = await p.produce({(OFFSETS_TOPIC, 0): batch()}, version=13)
        assert refused.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_without_clients_of_its_own_it_stands_alone() -> None:
    async with world() as w:
        pool = BlockCache(w.fs, ReadConfig())
        w.endpoint = internal_endpoint(
            ListenerView(config=w.config),
            LoopClock(),
            w.catalog,
            w.assigned,
            w.broker.context.load,
            FetchContext(w.config, w.catalog, pool),
        )
        fetch_service = w.endpoint.scopes.process.fetch_service
        w.wiring.flush_listener = fetch_service.context
        w.topic()
        await w.produce({("orders", 0): batch()}, version=13)
        assert fetch_service.tails.used > 0
        await fetch_service.close()
        await pool.close()


async def test_coordinators_here_and_elsewhere_meet_one_fence() -> None:
    """A shard moves from this process to another one: its handle here ends, and cannot be had again."""

    async with process() as p:
        p.topic(OFFSETS_TOPIC)
        fence, ended = ShardFence(), []
        logs = LocalShardLogs(p.assigned, p.catalog, p.pool, fence)
        log = await logs.open(ShardId(GROUPS, 0), 5, 5.0, lambda: ended.append(5))
        assert await log.append(batch()) == 0
        fence.open(p.key(OFFSETS_TOPIC), log.epoch, 6, object())  # as ShardOpen does
        with pytest.raises(RequestError):
            log.append(batch())
        await asyncio.sleep(0)
        assert ended == [5]
        with pytest.raises(RequestError) as stale:
            await logs.open(ShardId(GROUPS, 0), 5, 5.0, lambda: ended.append(5))
        assert stale.value.code is ErrorCode.NOT_COORDINATOR
        newer = await logs.open(ShardId(GROUPS, 0), 7, 5.0, lambda: ended.append(7))
        assert await newer.append(batch()) == 1
        fence.closed(p.key(OFFSETS_TOPIC))
        await asyncio.sleep(0)
        assert ended == [5, 7]
        assert len(fence) == 0
