"""Clients of the simulated servers: producers, readers, an administrator (``group_clients``: members of groups).

Each does what a careful real client does: retries what is retriable, resends in order, believes what it is told, and
writes down in ``Observed`` what that was.  An answer that no client should get is written to ``Observed.errors``.
"""

from __future__ import annotations

import asyncio
import contextlib
from random import Random
from typing import Any, Protocol

from kafka.protocol.admin import CreateTopicsRequest, CreateTopicsResponse, DeleteTopicsRequest, DeleteTopicsResponse
from kafka.protocol.consumer import FetchRequest, FetchResponse, ListOffsetsRequest, ListOffsetsResponse
from kafka.protocol.metadata import MetadataRequest, MetadataResponse
from kafka.protocol.producer import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
)

from bmq.core.errors import ErrorCode
from bmq.core.records.batch import Record, build_batch
from bmq.core.records.cursor import read_batches
from bmq.core.records.reader import read_records
from tests.harness.network import Disconnected
from tests.simulation.kafka_world import Observed

BYTES_MAX = 1 << 20
METADATA_S = 3.0
"""For Metadata of a proxy that may hang: a member that waits for it sends no heartbeat meanwhile."""
REFRESHED = 0.03
"""So often a fetch is preceded by Metadata, as for ``metadata.max.age.ms`` or for another topic of the client's."""


class Client(Protocol):
    """A client's connection, made again when it breaks."""

    async def call(self, request: Any, response: type[Any], version: int, timeout_s: float = 30.0) -> Any:
        """Disconnected when the connection breaks or the answer takes too long."""

    def close(self) -> None: ...


class World(Protocol):
    """The parts of a world that its clients use."""

    rng: Random
    observed: Observed
    is_over: bool

    def client(self) -> Client: ...


class Refused(Exception):
    """An answer with an error code."""

    def __init__(self, code: int) -> None:
        super().__init__(ErrorCode(code).name)
        self.code = ErrorCode(code)


def check(code: int) -> None:
    if code:
        raise Refused(code)


async def pause(world: World, longest_s: float = 0.3) -> None:
    await asyncio.sleep(world.rng.uniform(0.01, longest_s))


# ------------------------------------------------------------------------------------------------------- producing


def produce_request(topic: str, partition: int, data: bytes, acks: int) -> Any:
    Topic = ProduceRequest.TopicProduceData
    part = Topic.PartitionProduceData(index=partition, records=data)
    return ProduceRequest(
        transactional_id=None, acks=acks, timeout_ms=20_000, topic_data=[Topic(name=topic, partition_data=[part])]
    )


async def produce(world: World, name: str, topic: str, partition: int, count: int, *, window: int = 5) -> None:
    """Produce idempotently with ``window`` requests in flight; after an error send all open batches again, in order."""
    client, rng, version = world.client(), world.rng, world.rng.choice((3, 7, 9, 12))
    producer_id, first = -1, 0
    while first < count and not world.is_over:
        try:
            if producer_id < 0:
                response = await client.call(
                    InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), InitProducerIdResponse, 2
                )
                check(response.error_code)
                producer_id = response.producer_id
            # The first goes alone: a server that does not know the topic yet refuses it, and would take the second.
            numbers = range(first, min(first + rng.randint(1, window if first else 1), count))
            calls = []
            for number in numbers:
                value = f"{name}:{number}".encode()
                padding = b"." * rng.choice((5, 40, 200, 900))
                batch = build_batch(
                    [Record(key=padding, value=value)],
                    producer_id=producer_id,
                    producer_epoch=0,
                    base_sequence=number,
                )
                request = produce_request(topic, partition, bytes(batch), -1)
                calls.append(client.call(request, ProduceResponse, version))
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            for number, outcome in zip(numbers, outcomes, strict=True):
                if isinstance(outcome, BaseException):
                    raise outcome
                part = outcome.responses[0].partition_responses[0]
                if part.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and number > numbers[0]:
                    raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)  # an earlier one of this window was refused
                check(part.error_code)
                note_acked(world, topic, partition, part.base_offset, f"{name}:{number}".encode())
                first = number + 1
            await pause(world)
        except Disconnected as lost:
            world.observed.refused.append(f"producer {name} at {first}: {lost}")
            await pause(world)
        except Refused as refused:
            world.observed.refused.append(f"producer {name} at {first}: {refused}")
            if not refused.code.is_retriable:
                world.observed.errors.append(world.observed.refused[-1])
                return
            await pause(world)
    client.close()


def note_acked(world: World, topic: str, partition: int, offset: int, value: bytes) -> None:
    known = world.observed.acked[topic, partition].setdefault(offset, value)
    if known != value:
        world.observed.errors.append(f"{topic}-{partition}: offset {offset} was answered for {known!r} and {value!r}")


def _is_unknown(outcome: Any) -> bool:
    """Return whether the record may stand in the log or not, now or later: its outcome is unknown to the client."""
    if outcome is None or isinstance(outcome, Disconnected):
        return True
    return bool(outcome.responses[0].partition_responses[0].error_code == ErrorCode.REQUEST_TIMED_OUT)


async def produce_plain(world: World, name: str, topic: str, partition: int, count: int, *, window: int = 1) -> None:
    """Produce without idempotence, with up to ``window`` requests in flight; never repeat a batch of unknown outcome.

    Its records keep their order up to one of unknown fate, which may arrive late: by then the values say so.
    """
    client, rng, version, unknown, first = world.client(), world.rng, world.rng.choice((3, 8, 9)), 0, 0
    while first < count and not world.is_over:
        numbers = range(first, min(first + (rng.randint(1, window) if window > 1 else 1), count))
        values = [f"{name}.{unknown}:{number}".encode() for number in numbers]
        acks = [rng.choice((-1, -1, 1, 0)) for _ in values]
        calls = [
            client.call(
                produce_request(topic, partition, bytes(build_batch([Record(value=value)])), each),
                ProduceResponse,
                version,
            )
            for value, each in zip(values, acks, strict=True)
        ]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        for value, each, outcome in zip(values, acks, outcomes, strict=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, Disconnected):
                raise outcome
            if outcome is not None and not isinstance(outcome, Disconnected):
                part = outcome.responses[0].partition_responses[0]
                if part.error_code:
                    world.observed.refused.append(f"producer {name}: {ErrorCode(part.error_code).name}")
                    if not ErrorCode(part.error_code).is_retriable:
                        world.observed.errors.append(world.observed.refused[-1])
                elif each == -1:
                    note_acked(world, topic, partition, part.base_offset, value)
        unknown += any(_is_unknown(outcome) for outcome in outcomes)
        first = numbers.stop
        await pause(world)
    client.close()


# --------------------------------------------------------------------------------------------------------- reading


async def look_for_epochs(world: World, topic: str) -> None:
    """Ask any server for Metadata: a leader epoch in it is an error, as one of -1 after it means no leader to
    franz-go.  Raises Disconnected, Refused."""
    client = world.client()
    try:
        response = await client.call(metadata_request(topic), MetadataResponse, 12, METADATA_S)
    finally:
        client.close()
    check(response.topics[0].error_code)
    for part in response.topics[0].partitions:
        if part.leader_epoch != -1:
            partition = f"{topic}-{part.partition_index}"
            world.observed.errors.append(f"Metadata gave {partition} leader epoch {part.leader_epoch}")


def metadata_request(topic: str) -> Any:
    wanted = MetadataRequest.MetadataRequestTopic(name=topic)
    return MetadataRequest(topics=[wanted], allow_auto_topic_creation=False)


class Fetcher:
    """Fetches with an incremental session, or without one, as the version and the luck of the draw have it."""

    def __init__(self, world: World, client: Client, topic: str) -> None:
        self.world = world
        self.client = client
        self.topic = topic
        self.version = world.rng.choice((4, 6, 7, 10, 11, 12, 13, 16))
        self.has_session = self.version >= 7 and world.rng.random() < 0.7
        self.leader_epoch = world.rng.choice((-1, 0))
        """In fetches: Metadata gives none, which is 0 with librdkafka."""
        self.topic_id: Any = None
        self.offsets: dict[int, int] = {}
        self._reset()

    def _reset(self) -> None:
        self._session, self._epoch = 0, 0 if self.has_session else -1
        self._observed: dict[int, int] = {}  # offset by partition that the session has

    async def poll(self) -> dict[int, list[Record]]:
        """Return records by partition from ``offsets`` on, and move these past them.

        Raises Disconnected or Refused if the fetch fails.
        """
        if self.version >= 13 and self.topic_id is None:
            self.topic_id = await topic_id(self.client, self.topic)
        if self.world.rng.random() < REFRESHED:
            await look_for_epochs(self.world, self.topic)
        wanted = dict(self.offsets)
        gone = [p for p in self._observed if p not in wanted]
        Topic = FetchRequest.FetchTopic
        listed = [
            Topic.FetchPartition(
                partition=p,
                current_leader_epoch=self.leader_epoch,
                fetch_offset=offset,
                partition_max_bytes=self.world.rng.choice((50, 4000)),
            )
            for p, offset in wanted.items()
            if self._observed.get(p) != offset
        ]
        names = {"topic": self.topic} if self.version < 13 else {"topic_id": self.topic_id}
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=self.world.rng.choice((0, 50, 500)),
            min_bytes=self.world.rng.choice((1, 1, 500)),
            max_bytes=self.world.rng.choice((100, 10_000, BYTES_MAX)),
            isolation_level=self.world.rng.choice((0, 1)),
            session_id=self._session,
            session_epoch=self._epoch,
            topics=[Topic(**names, partitions=listed)] if listed else [],
            forgotten_topics_data=[FetchRequest.ForgottenTopic(**names, partitions=gone)] if gone else [],
        )
        try:
            response = await self.client.call(request, FetchResponse, self.version)
            check(response.error_code)
        except (Disconnected, Refused):
            self._reset()
            raise
        if self.has_session:
            self._session = response.session_id
            self._epoch = self._epoch + 1 if response.session_id else 0
            self._observed = wanted if response.session_id else {}
        return self._records(response)

    async def close(self) -> None:
        """End the session, as Java's consumer does: from then on no broker follows its partitions for it."""
        if self._session:
            request = FetchRequest(
                replica_id=-1,
                max_wait_ms=0,
                min_bytes=0,
                max_bytes=0,
                isolation_level=0,
                session_id=self._session,
                session_epoch=-1,
                topics=[],
                forgotten_topics_data=[],
            )
            self._reset()
            await self.client.call(request, FetchResponse, self.version)

    def _records(self, response: Any) -> dict[int, list[Record]]:
        found: dict[int, list[Any]] = {}
        refused: Refused | None = None
        for topic in response.responses:
            for part in topic.partitions:
                if part.error_code:
                    self._observed.pop(part.partition_index, None)
                    refused = Refused(part.error_code)
                    continue
                if part.partition_index not in self.offsets:
                    continue
                records = self._decode(part.partition_index, part.records or b"")
                if records:
                    found[part.partition_index] = records
                    self.offsets[part.partition_index] = records[-1].offset + 1
        if refused is not None and not found:
            raise refused
        return found

    def _decode(self, partition: int, data: bytes) -> list[Any]:
        observed, start = self.world.observed, self.offsets[partition]
        records: list[Any] = []
        for batch in read_batches(memoryview(bytes(data))):
            if not batch.has_valid_crc:
                observed.errors.append(f"a fetched batch with a bad CRC: {batch!r}")
            records += [each for each in read_records(batch, bytes_max=BYTES_MAX) if each.offset >= start]
        expected = start
        for record in records:
            if record.offset != expected:
                observed.errors.append(f"{self.topic}-{partition}: offset {record.offset} where {expected} should")
            expected = record.offset + 1
            known = observed.seen[self.topic, partition].setdefault(record.offset, record.value)
            if known != record.value:
                observed.errors.append(f"{self.topic}-{partition}: offset {record.offset} changed after it was visible")
        return records


async def topic_id(client: Client, topic: str) -> Any:
    response = await client.call(metadata_request(topic), MetadataResponse, 12)
    check(response.topics[0].error_code)
    return response.topics[0].topic_id


async def observe(world: World, topic: str, partitions: int) -> None:
    """Read without a group, from the beginning on, until the world is over."""
    client = world.client()
    fetcher = Fetcher(world, client, topic)
    fetcher.offsets = dict.fromkeys(range(partitions), 0)
    while not world.is_over:
        try:
            await fetcher.poll()
            await pause(world)
        except Disconnected:
            await pause(world)
        except Refused as refused:
            world.observed.refused.append(f"reader of {topic}: {refused}")
            if not refused.code.is_retriable:
                world.observed.errors.append(world.observed.refused[-1])
                return
            await pause(world)
    client.close()


async def end_offset(client: Client, topic: str, partition: int) -> int:
    Topic = ListOffsetsRequest.ListOffsetsTopic
    part = Topic.ListOffsetsPartition(partition_index=partition, current_leader_epoch=-1, timestamp=-1)
    request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[Topic(name=topic, partitions=[part])])
    response = await client.call(request, ListOffsetsResponse, 5)
    found = response.topics[0].partitions[0]
    check(found.error_code)
    return int(found.offset)


async def read_all(world: World, topic: str, partition: int) -> dict[int, bytes]:
    """Read the whole partition through the last server and return the values by offset."""
    client = world.client()
    values: dict[int, bytes] = {}
    fetcher = Fetcher(world, client, topic)
    fetcher.offsets = {partition: 0}
    end: int | None = None
    for _ in range(10_000):
        try:
            if end is None:
                end = await end_offset(client, topic, partition)
            if fetcher.offsets[partition] >= end:
                await pause(world)
                await look_for_epochs(world, topic)
                await fetcher.close()
                client.close()
                return values
            for record in (await fetcher.poll()).get(partition, []):
                values[record.offset] = record.value  # type: ignore[assignment, attr-defined]
        except Disconnected:
            await pause(world)
        except Refused as refused:
            if not refused.code.is_retriable:
                raise
            await pause(world)
    raise AssertionError(f"{topic}-{partition} cannot be read to its end {end}: {fetcher.offsets}")


# --------------------------------------------------------------------------------------------------- administration


async def create_topic(world: World, name: str, partitions: int, copies: int = 1) -> None:
    """Create a topic, again and again until the server reports that it is there."""
    client = world.client()
    Topic = CreateTopicsRequest.CreatableTopic
    while not world.is_over:
        try:
            topic = Topic(name=name, num_partitions=partitions, replication_factor=copies, assignments=[], configs=[])
            request = CreateTopicsRequest(topics=[topic], timeout_ms=20_000)
            response = await client.call(request, CreateTopicsResponse, 4)
            code = response.topics[0].error_code
            if code not in (0, ErrorCode.TOPIC_ALREADY_EXISTS):
                check(code)
            return
        except (Disconnected, Refused):
            await pause(world)


async def delete_topic(world: World, client: Client, name: str) -> None:
    """Once; a refusal that no retry mends is an error of the world.  Raises Disconnected: then it is not known."""
    response = await client.call(DeleteTopicsRequest(topic_names=[name], timeout_ms=20_000), DeleteTopicsResponse, 3)
    code = ErrorCode(response.responses[0].error_code)
    if code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) and not code.is_retriable:
        world.observed.errors.append(f"deleting {name}: {code.name}")


async def create_and_delete(world: World, name: str) -> None:
    """Create a topic, write to it, and delete it, again and again."""
    client, rounds = world.client(), 0
    while not world.is_over:
        await create_topic(world, name, 1)
        await produce_plain(world, f"{name}{rounds}", name, 0, 2)
        world.observed.acked.pop((name, 0), None)  # the topic's data goes with it
        rounds += 1
        with contextlib.suppress(Disconnected):  # done or not: the next round finds out
            await delete_topic(world, client, name)
        await pause(world, 3.0)
