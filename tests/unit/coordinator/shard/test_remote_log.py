"""The log of a shard at another process: its broker, its handle and what is decoded of its responses."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import pytest

from bmq.coordinator.shard.remote_log import RemoteShardLog, RoutedShardLogs
from bmq.core.aio.standstill import DOUBT_S, Standstill
from bmq.core.clock import LoopClock
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.net.request import Buffer
from bmq.core.rpc.messages.broker import (
    ShardAppendRequest,
    ShardAppendResponse,
    ShardConfirmRequest,
    ShardConfirmResponse,
    ShardOpenResponse,
)
from bmq.core.rpc.peers import Peer
from bmq.meta.shard_kinds import GROUPS, ShardId
from bmq.server.roles.local_shard_log import LocalShardLog
from tests.unit.coordinator.cluster_world import (
    GROUP,
    LATENCY_S,
    SHARDS,
    View,
    cluster,
    group_of,
    join_alone,
)
from tests.unit.coordinator.fakes import MemoryLogs
from tests.unit.core.rpc import world as processes

pytestmark = pytest.mark.slow


async def test_the_log_follows_its_partition_to_another_broker() -> None:
    async with cluster() as world:
        proxy = world.proxies[0]
        member, generation = await join_alone(proxy, GROUP)
        for number in range(20):
            if number == 5:
                world.own(0, "b2")
            if number == 10:
                world.tell()
            code = await proxy.commit(GROUP, number, member_id=member, generation=generation)
            assert code == 0 or 5 <= number < 10
        assert await proxy.fetch(GROUP) == (0, 19)


async def test_an_append_over_an_earlier_connection_does_not_reach_the_later_handle() -> None:
    """An append of the same ownership lingers on a connection that broke: it is not for the later handle."""

    async with cluster() as world:
        proxy, process = world.proxies[0], world.coordinators["a"]
        assert await proxy.commit(GROUP, 5) == 0
        (link,) = process.peers.links.values()
        link.lag_s = 0.5  # its last request hangs in a buffer
        late = asyncio.ensure_future(proxy.commit(GROUP, 6))
        await asyncio.sleep(10 * LATENCY_S)
        link.cut(lingers=True)
        assert await late == 0  # tried again over a new connection
        assert await proxy.commit(GROUP, 7) == 0
        await asyncio.sleep(1.0)  # it has arrived
        assert await proxy.commit(group_of(1), 1) == 0
        world.give(0, "b")
        world.tell()
        assert await proxy.fetch(GROUP) == (0, 7)


async def test_a_snapshot_moves_the_log_start_at_the_broker() -> None:
    async with cluster() as world:
        proxy = world.proxies[0]
        for number in range(50):
            assert await proxy.commit(GROUP, number) == 0
        world.coordinators["a"].coordinator.shards._shards[0]._snapshot_at = 0
        assert await proxy.commit(GROUP, 50) == 0
        owner = await world.brokers["b1"].assigned.wait(world.key(0), 1.0)
        async with asyncio.timeout(10.0):
            while owner.log_start == 0:
                await proxy.fetch(GROUP)
        world.give(0, "b")
        world.tell()
        assert await proxy.fetch(GROUP) == (0, 50)


class Mumbling:
    """A peer whose responses cannot be decoded."""

    incarnation = "b"
    is_up = True

    def on_lost(self, call: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

    def call(self, api_key: int, api_version: int, body: Sequence[Buffer]) -> asyncio.Future[memoryview]:
        response: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        response.set_result(memoryview(b"\0\0?"))
        return response


@pytest.mark.parametrize("question", ["append", "read", "delete_before"])
async def test_a_response_that_cannot_be_decoded_is_a_lost_owner(question: str) -> None:
    opened = ShardOpenResponse(ErrorCode.NONE, "", epoch=1, log_start=0, high_watermark=10, max_batch_bytes=1000)
    log = RemoteShardLog(cast(Peer, Mumbling()), PartitionKey(uuid.UUID(int=1), 0), 1, opened, lambda: None)
    asked: dict[str, Callable[[], Awaitable[Any]]] = {
        "append": lambda: log.append(bytearray(b"batch")),
        "read": lambda: log.read(0, 1000),
        "delete_before": lambda: log.delete_before(5),
    }
    with pytest.raises(RequestError) as caught:
        await asked[question]()
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert log.log_start == 0


@pytest.mark.parametrize("question", ["append", "confirm"])
async def test_a_standstill_that_nobody_has_noticed_yet_does_not_end_the_handle(question: str) -> None:
    """The first call after it may be the log's.  A shard without its log is loaded again: its groups would wait."""
    async with processes.World() as world:
        flushed = ShardAppendResponse(ErrorCode.NONE, "", 10, 0, 11)
        world.endpoint.register(ShardAppendRequest, lambda *_: flushed.encode())
        world.endpoint.register(ShardConfirmRequest, lambda *_: ShardConfirmResponse(ErrorCode.NONE, "").encode())
        standstill = Standstill(LoopClock())
        standstill.start()
        world.peers._standstill = standstill
        opened = ShardOpenResponse(ErrorCode.NONE, "", epoch=1, log_start=0, high_watermark=10, max_batch_bytes=1000)
        peer = await processes.up(world)
        log = RemoteShardLog(peer, PartitionKey(uuid.UUID(int=1), 0), 1, opened, lambda: None)
        loop: Any = asyncio.get_running_loop()
        loop.clock.now += 1.1 * DOUBT_S
        if question == "append":
            assert await log.append(bytearray(b"batch")) == 10
        else:
            await log.confirm()
        assert log.is_open
        standstill.stop()


async def test_a_log_is_opened_in_this_process_when_its_partition_is_here() -> None:
    async with cluster() as world:
        view = View("b1")
        view.show(world.truth)
        view.owners[world.key(1)] = "b2"
        remote = MemoryLogs(SHARDS)
        logs = RoutedShardLogs(view, world.catalog, world.brokers["b1"].logs, remote)
        here = await logs.open(ShardId(GROUPS, 0), 9, 1.0, lambda: None)
        there = await logs.open(ShardId(GROUPS, 1), 9, 1.0, lambda: None)
        assert isinstance(here, LocalShardLog)
        assert there is remote.partitions[1].open_log
        with pytest.raises(RequestError, match="NOT_COORDINATOR"):
            await logs.open(ShardId(GROUPS, 0), 8, 1.0, lambda: None)
