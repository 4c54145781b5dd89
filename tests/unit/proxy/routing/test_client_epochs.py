"""Leader epochs of a proxy's clients: Metadata gives none, and the owner checks those that clients have elsewhere."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, cast

from bmq.core.errors import ErrorCode
from bmq.core.net.request import Client, Request, Response
from bmq.core.wire.codec import encode_response
from bmq.core.wire.messages import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from bmq.endpoint.fetch.purgatory import SessionPartition
from bmq.meta.proxy_addresses import ProxyAddress
from bmq.proxy.handlers import describe_topic_partitions, list_offsets, metadata, offset_for_leader_epoch
from tests.harness.members import OneProxy
from tests.harness.scopes import change
from tests.unit.proxy.cluster import Cluster, cluster, plain
from tests.unit.proxy.handlers.admin_serving import decode

METADATA_VERSION, LIST_VERSION, EPOCH_VERSION = 12, 7, 4
LATEST = -1
MOVED_S = 1.0
"""Longer than a planned move takes here."""


@asynccontextmanager
async def clients(**options: Any) -> AsyncIterator[ProxyClient]:
    async with cluster(**options) as world:
        yield ProxyClient(world)


class ProxyClient:
    """A consumer's requests to the proxy."""

    def __init__(self, world: Cluster) -> None:
        self.world = world
        world.scopes = change(world.scopes, proxies=OneProxy(ProxyAddress(0, "here", 9092)))

    async def _ask(self, api: Any, version: int, message: Any, kind: Any) -> Any:
        body = memoryview(bytearray(message.encode(version=version)))
        request = Request(api.key, version, 1, "me", body, cast(Client, self.world.client), 0.0)
        found = api.handle(self.world.scopes, request, type(message).decode(bytes(body), version=version))
        if isinstance(found, Awaitable):
            found = await found
        if isinstance(found, Response):
            return decode(kind, version, b"".join(found.buffers))
        return decode(kind, version, b"".join(encode_response(api.key, version, 1, found)))

    async def epochs(self) -> tuple[int, int]:
        """Return the partition's epoch in Metadata and in DescribeTopicPartitions."""
        message = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name="orders", topic_id=uuid.UUID(int=0))],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        listed = await self._ask(metadata.APIS[0], METADATA_VERSION, message, MetadataResponse)
        message = DescribeTopicPartitionsRequest(
            topics=[DescribeTopicPartitionsRequest.TopicRequest(name="orders")],
            response_partition_limit=10,
            cursor=None,
        )
        described = await self._ask(describe_topic_partitions.APIS[0], 0, message, DescribeTopicPartitionsResponse)
        return listed.topics[0].partitions[0].leader_epoch, described.topics[0].partitions[0].leader_epoch

    async def latest(self, epoch: int) -> tuple[ErrorCode, int]:
        """ListOffsets with this epoch: its error, and the owner's epoch."""
        Topic = ListOffsetsRequest.ListOffsetsTopic
        part = Topic.ListOffsetsPartition(partition_index=0, current_leader_epoch=epoch, timestamp=LATEST)
        message = ListOffsetsRequest(
            replica_id=-1, isolation_level=0, topics=[Topic(name="orders", partitions=[part])], timeout_ms=0
        )
        found = await self._ask(list_offsets.APIS[0], LIST_VERSION, message, ListOffsetsResponse)
        response = found.topics[0].partitions[0]
        return ErrorCode(response.error_code), response.leader_epoch

    async def end_of(self, epoch: int) -> ErrorCode:
        """OffsetForLeaderEpoch with this epoch, of this epoch."""
        Topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
        part = Topic.OffsetForLeaderPartition(partition=0, current_leader_epoch=epoch, leader_epoch=max(epoch, 0))
        message = OffsetForLeaderEpochRequest(replica_id=-1, topics=[Topic(topic="orders", partitions=[part])])
        api = offset_for_leader_epoch.APIS[0]
        found = await self._ask(api, EPOCH_VERSION, message, OffsetForLeaderEpochResponse)
        return ErrorCode(found.topics[0].partitions[0].error_code)

    async def fetch(self, epoch: int) -> ErrorCode:
        wanted = SessionPartition(self.world.topic.topic_id, 0, 0, 1 << 20, epoch)
        fetched = await self.world.fetch(wanted, max_wait_s=1)
        return fetched.results[0].error if fetched.results else ErrorCode.NONE


async def test_metadata_gives_no_epoch_even_if_the_owner_has_told_one() -> None:
    """A client that is given one by one proxy, and none by the next, may stay with the first for ever (franz-go)."""

    async with clients() as client:
        seen = {await client.epochs()}
        await client.world.send(plain())
        for broker in ("b2", "b1"):
            assert await client.fetch(-1) is ErrorCode.NONE
            error, epoch = await client.latest(-1)
            assert (error, epoch >= 0) == (ErrorCode.NONE, True), "the proxy has been told the owner's"
            seen.add(await client.epochs())
            client.world.move(0, broker)
            seen.add(await client.epochs())
            await asyncio.sleep(MOVED_S)
            seen.add(await client.epochs())
        assert seen == {(-1, -1)}


async def test_an_epoch_that_a_client_sends_is_compared_with_the_owners() -> None:
    """One that it has from records, or from an earlier version of the server; after a move that this proxy saw."""

    async with clients() as client:
        await client.world.send(plain())
        _, old = await client.latest(-1)
        client.world.move(0, "b2")
        await asyncio.sleep(MOVED_S)
        error, new = await client.latest(-1)
        assert (error, new > old) == (ErrorCode.NONE, True)
        for epoch, expected in (
            (old, ErrorCode.FENCED_LEADER_EPOCH),
            (new, ErrorCode.NONE),
            (new + 1, ErrorCode.UNKNOWN_LEADER_EPOCH),
            (-1, ErrorCode.NONE),
            (0, ErrorCode.NONE),  # librdkafka's, when Metadata gave none
        ):
            assert (await client.latest(epoch))[0] is expected
            assert await client.end_of(epoch) is expected
            assert await client.fetch(epoch) is expected
