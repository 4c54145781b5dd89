"""Coordinators that open and append to their shards' logs at the broker that owns the partition."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bmq.core.aio.standstill import GIVEN_UP_S
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.records.batch import Record, build_batch
from bmq.core.rpc.messages.broker import (
    ShardAppendRequest,
    ShardAppendResponse,
    ShardConfirmRequest,
    ShardOpenRequest,
)
from bmq.meta.kv_memory import KvFaults
from tests.unit.broker.cluster import Caller, Cluster, cluster, owned


def records(value: bytes = b"v") -> bytearray:
    return build_batch([Record(value=value)])


class Coordinator:
    """Opens and appends over one connection, as one that believes to have ``ownership``."""

    def __init__(self, c: Cluster, broker: str, key: PartitionKey, ownership: int) -> None:
        self._caller = Caller(c[broker])
        self._key = key
        self._ownership = ownership
        self.epoch = -1

    async def open(self) -> ErrorCode:
        request = ShardOpenRequest(self._key.topic_id, self._key.partition, self._ownership)
        response = await self._caller.ask(request)
        if response.error is ErrorCode.NONE:
            self.epoch = response.epoch
        return response.error

    async def confirm(self) -> ErrorCode:
        request = ShardConfirmRequest(self._key.topic_id, self._key.partition, self.epoch, self._ownership)
        return (await self._caller.ask(request)).error

    def send(self, value: bytes = b"v") -> asyncio.Future[ShardAppendResponse]:
        """Send an append; its place in the log is decided when this returns."""
        key = self._key
        request = ShardAppendRequest(key.topic_id, key.partition, self.epoch, self._ownership, records(value))
        return asyncio.ensure_future(self._caller.ask(request))

    async def append(self, value: bytes = b"v") -> ErrorCode | int:
        response = await self.send(value)
        return response.base_offset if response.error is ErrorCode.NONE else response.error


async def test_a_coordinator_opens_a_shards_log_and_appends() -> None:
    async with cluster() as c:
        key = await owned(c)
        coordinator = Coordinator(c, "a", key, 5)
        assert await coordinator.append() is ErrorCode.NOT_LEADER_OR_FOLLOWER, "it is not open yet"
        assert await coordinator.open() is ErrorCode.NONE
        assert [await coordinator.append() for _ in range(3)] == [0, 1, 2]
        answers = await asyncio.gather(*(coordinator.send() for _ in range(10)))
        assert [response.base_offset for response in answers] == list(range(3, 13))
        assert answers[-1].high_watermark == 13


async def test_a_broker_that_stood_still_confirms_no_log_that_it_cannot_prove_to_own() -> None:
    async with cluster() as c:
        key = await owned(c)
        coordinator = Coordinator(c, "a", key, 5)
        await coordinator.open()
        assert await coordinator.confirm() is ErrorCode.NONE
        standstill = c["a"].broker.context.standstill
        standstill.start()
        loop: Any = asyncio.get_running_loop()
        loop.clock.now += GIVEN_UP_S
        standstill.look()
        c["a"].kv.faults = KvFaults(unavailable=1.0)
        assert await coordinator.confirm() is ErrorCode.REQUEST_TIMED_OUT
        c["a"].kv.faults = KvFaults()
        assert await coordinator.confirm() is ErrorCode.NONE
        standstill.stop()


async def test_kafscale_121_two_coordinators_for_one_group() -> None:
    """The stale one is refused once the newer one has opened the log, and cannot open it again."""

    async with cluster() as c:
        key = await owned(c)
        stale, newer = Coordinator(c, "a", key, 5), Coordinator(c, "a", key, 6)
        await stale.open()
        assert await stale.append() == 0
        assert await newer.open() is ErrorCode.NONE
        assert await stale.append() is ErrorCode.NOT_COORDINATOR
        assert await newer.append() == 1
        assert await stale.open() is ErrorCode.NOT_COORDINATOR
        assert await stale.append() is ErrorCode.NOT_COORDINATOR
        assert await newer.append() == 2


async def test_a_stale_coordinators_accepted_append_lies_before_the_barrier() -> None:
    """The batch was sent before the newer coordinator opened: it is flushed and acknowledged late, and in the log
    before what comes after."""

    async with cluster() as c:
        key = await owned(c)
        stale, newer = Coordinator(c, "a", key, 5), Coordinator(c, "a", key, 6)
        await stale.open()
        late = stale.send()
        await asyncio.sleep(0)
        await newer.open()
        assert await newer.append() == 1
        assert (await late).base_offset == 0


async def test_fencing_holds_across_a_change_of_the_partitions_owner() -> None:
    """The new owner knows no number.  The stale coordinator's appends name the old epoch, so they are refused; if it
    opens the log there first, the newer one opens it later and sees all that it has written."""

    async with cluster() as c:
        key = await owned(c)
        stale, newer = Coordinator(c, "a", key, 5), Coordinator(c, "a", key, 6)
        await stale.open()
        await newer.open()
        assert await newer.append() == 0
        c.give("b", key)
        await c["b"].assigned.wait(key, 5.0)
        assert await newer.append() is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await stale.append() is ErrorCode.NOT_LEADER_OR_FOLLOWER
        stale_again, newer_again = Coordinator(c, "b", key, 5), Coordinator(c, "b", key, 6)
        stale_again.epoch = stale.epoch
        assert await stale_again.append() is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await stale_again.open() is ErrorCode.NONE
        assert stale_again.epoch == 2
        assert await stale_again.append() == 1
        assert await newer_again.open() is ErrorCode.NONE
        assert await stale_again.append() is ErrorCode.NOT_COORDINATOR
        assert await newer_again.append() == 2


async def test_a_broken_connections_bytes_do_not_follow_the_next_barrier() -> None:
    """One coordinator lost its connection and opened the log again: what still comes over the old one is refused."""

    async with cluster() as c:
        key = await owned(c)
        before, after = Coordinator(c, "a", key, 5), Coordinator(c, "a", key, 5)
        await before.open()
        await before.append()
        await after.open()
        assert await after.append() == 1
        assert await before.append() is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await after.append() == 2


async def test_no_append_follows_one_that_failed_until_the_log_is_opened_again() -> None:
    async with cluster() as c:
        key = await owned(c)
        coordinator = Coordinator(c, "a", key, 5)
        await coordinator.open()
        owner = await c["a"].assigned.wait(key, 1.0)
        append = type(owner).append_internal
        calls: list[int] = []

        def refuse_the_second(self: Any, data: memoryview) -> asyncio.Future[int]:
            calls.append(len(data))
            if len(calls) == 2:
                raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, "no")
            return append(self, data)

        patch = pytest.MonkeyPatch()
        patch.setattr(type(owner), "append_internal", refuse_the_second)
        try:
            answers = await asyncio.gather(*(coordinator.send() for _ in range(4)))
        finally:
            patch.undo()
        assert [response.error for response in answers] == [
            ErrorCode.NONE,
            ErrorCode.KAFKA_STORAGE_ERROR,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ]
        assert await coordinator.open() is ErrorCode.NONE
        assert await coordinator.append() == 1
