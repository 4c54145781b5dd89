"""Clients of a light, steady load, which lasts as long as the world.

They keep nothing of the work that is done, so that all growth is the server's.  No fault befalls the world, so each
error that cannot be retried is a failure.
"""

from __future__ import annotations

import asyncio
from typing import Any

from kafka.protocol.admin import CreateTopicsRequest, CreateTopicsResponse
from kafka.protocol.consumer import FetchRequest, FetchResponse
from kafka.protocol.producer import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
)

from bmq.core.errors import ErrorCode
from bmq.core.records.batch import Record, build_batch
from bmq.core.records.cursor import read_batches
from tests.simulation.group_clients import Member
from tests.simulation.kafka_clients import BYTES_MAX, Client, Refused, World, check, delete_topic, pause

TRANSACTIONAL = 1 << 4
VISITED = (0, 1)
"""Partitions of a visitors' topic."""
VISIT_S = 5.0
"""Pause between two visits."""
PERIOD_S = 1.0
WEEK_MS = "604800000"
"""The default of segment.ms."""


async def _ask(world: World, client: Client, request: Any, response: type[Any], version: int, codes_of: Any) -> Any:
    """Ask until there is no retriable error."""
    while True:
        found = await client.call(request, response, version)
        codes = [code for code in codes_of(found) if code]
        if not codes:
            return found
        if not ErrorCode(codes[0]).is_retriable:
            raise Refused(codes[0])
        await pause(world)


async def create(world: World, client: Client, topic: str, partitions: int, **configs: str) -> None:
    """Create a topic.  ``configs``: with ``_`` for each dot."""
    Topic = CreateTopicsRequest.CreatableTopic
    wanted = Topic(
        name=topic, num_partitions=partitions, replication_factor=1, assignments=[],
        configs=[Topic.CreatableTopicConfig(name=name.replace("_", "."), value=text) for name, text in configs.items()],
    )  # fmt: skip
    request = CreateTopicsRequest(topics=[wanted], timeout_ms=20_000)
    await _ask(world, client, request, CreateTopicsResponse, 4, lambda each: [each.topics[0].error_code])


class SteadyProducer:
    """A producer of one record a second.  ``transactional_id``: each record has a transaction of its own."""

    def __init__(self, world: World, topic: str, partition: int, *, transactional_id: str | None = None) -> None:
        self.world = world
        self.topic = topic
        self.partition = partition
        self.transactional_id = transactional_id
        self.client = world.client()
        self.written = 0
        self._id = self._epoch = -1

    async def run(self) -> None:
        await self.init()
        while not self.world.is_over:
            await self.write()
            await asyncio.sleep(PERIOD_S)
        self.client.close()

    async def init(self) -> None:
        """Get a producer id."""
        request = InitProducerIdRequest(transactional_id=self.transactional_id, transaction_timeout_ms=60_000)
        found = await _ask(self.world, self.client, request, InitProducerIdResponse, 2, lambda each: [each.error_code])
        self._id, self._epoch = found.producer_id, found.producer_epoch

    async def write(self) -> None:
        """Write one record, and commit its transaction."""
        if self.transactional_id is not None:
            await self._add_partition()
        batch = build_batch(
            [Record(key=b"k", value=b"." * 100)],
            producer_id=self._id,
            producer_epoch=self._epoch,
            base_sequence=self.written,
            attributes=0 if self.transactional_id is None else TRANSACTIONAL,
        )
        Topic = ProduceRequest.TopicProduceData
        part = Topic.PartitionProduceData(index=self.partition, records=bytes(batch))
        request = ProduceRequest(
            transactional_id=self.transactional_id, acks=-1, timeout_ms=20_000,
            topic_data=[Topic(name=self.topic, partition_data=[part])],
        )  # fmt: skip
        await _ask(
            self.world, self.client, request, ProduceResponse, 9,
            lambda each: [each.responses[0].partition_responses[0].error_code],
        )  # fmt: skip
        self.written += 1
        if self.transactional_id is not None:
            await self._commit()

    async def _add_partition(self) -> None:
        Topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction.AddPartitionsToTxnTopic
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id, v3_and_below_producer_id=self._id,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=[Topic(name=self.topic, partitions=[self.partition])],
        )  # fmt: skip
        await _ask(
            self.world, self.client, request, AddPartitionsToTxnResponse, 3,
            lambda each: [
                part.partition_error_code
                for topic in each.results_by_topic_v3_and_below
                for part in topic.results_by_partition
            ],
        )  # fmt: skip

    async def _commit(self) -> None:
        request = EndTxnRequest(
            transactional_id=self.transactional_id, producer_id=self._id, producer_epoch=self._epoch, committed=True
        )
        await _ask(self.world, self.client, request, EndTxnResponse, 3, lambda each: [each.error_code])


class SteadyMember(Member):
    """A group's only member: reads what is new, commits, and sends a heartbeat, once a second."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.read = 0

    async def run(self) -> None:
        await self.join()
        while not self.world.is_over:
            await self.work()
            await asyncio.sleep(PERIOD_S)
        await self._leave()
        self.client.close()

    async def join(self) -> None:
        """Join the group, and begin where it has committed."""
        while True:
            try:
                await self._find()
                mine = await self._join()
                self.offsets = await self._positions(mine)
                return
            except Refused as refused:
                if not refused.code.is_retriable:
                    raise
                await pause(self.world)

    async def work(self) -> None:
        """Read and commit once."""
        Topic = FetchRequest.FetchTopic
        listed = [
            Topic.FetchPartition(
                partition=p, current_leader_epoch=-1, fetch_offset=offset, partition_max_bytes=BYTES_MAX
            )
            for p, offset in self.offsets.items()
        ]
        request = FetchRequest(
            replica_id=-1, max_wait_ms=500, min_bytes=1, max_bytes=BYTES_MAX, isolation_level=1, session_id=0,
            session_epoch=-1, topics=[Topic(topic=self.topic, partitions=listed)], forgotten_topics_data=[],
        )  # fmt: skip
        response = await self.client.call(request, FetchResponse, 11)
        for part in response.responses[0].partitions:
            check(part.error_code)
            for batch in read_batches(memoryview(bytes(part.records or b""))):
                self.offsets[part.partition_index] = batch.last_offset + 1
                self.read += 1
        await self._commit(dict(self.offsets))
        await self._heartbeat()
        self.world.observed.committed.clear()


class Visitors:
    """Clients that come and go: each round has a topic, producers, a transactional id and a group of its own."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rounds = 0

    async def run(self) -> None:
        while not self.world.is_over:
            await self._visit(self.rounds)
            self.rounds += 1
            await asyncio.sleep(VISIT_S)

    async def _visit(self, number: int) -> None:
        world, topic = self.world, f"topic-{number}"
        administrator = world.client()
        await create(world, administrator, topic, len(VISITED))
        plain = SteadyProducer(world, topic, 0)
        transactional = SteadyProducer(world, topic, 1, transactional_id=f"id-{number}")
        for producer in (plain, transactional):
            await producer.init()
            await producer.write()
            await producer.write()
        member = SteadyMember(world, f"group-{number}", topic, len(VISITED))
        await member.join()
        while member.read < 2 * len(VISITED):
            await member.work()
        await member._leave()
        await delete_topic(world, administrator, topic)
        for client in (administrator, plain.client, transactional.client, member.client):
            client.close()
        world.observed.owned.clear()
