"""A broker on storage and store in memory, its assigned partitions, and the endpoint in front of them.

Requests and answers are bytes on the wire, made and read by kafka-python.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from kafka.protocol.producer import ProduceRequest, ProduceResponse

from bmq.broker.assignment.assigned_partitions import AssignedPartitions
from bmq.broker.broker import Broker
from bmq.broker.config import BrokerConfig, log_config
from bmq.broker.partition.owner import PartitionOwner
from bmq.broker.partition.recompress import Offload, run_inline
from bmq.core.clock import LoopClock
from bmq.core.config import NodeConfig
from bmq.core.metrics.counters import RequestCounters
from bmq.core.metrics.traffic import TrafficMeter
from bmq.core.model import PartitionKey
from bmq.core.net.request import Response
from bmq.core.records.batch import Batch, Record, build_batch
from bmq.core.transaction_answers import Verifier
from bmq.endpoint.produce import handler as produce
from bmq.meta.catalog import Topic
from bmq.meta.kv_memory import KvFaults, MemoryKeyValue, MemoryStore
from bmq.meta.proxy_addresses import ProxyAddress
from bmq.proxy.handlers import (
    delete_records,
    describe_log_dirs,
    describe_producers,
    list_offsets,
    offset_for_leader_epoch,
)
from bmq.storage.aborted import StableMove
from bmq.storage.layout import PartitionPath
from bmq.storage.memory import Faults, MemoryFileSystem, MemoryStorage
from tests.harness.broker_wiring import LooseWiring
from tests.harness.fakes import FakeCatalog, FakeClient
from tests.harness.members import OneProxy, Registered
from tests.harness.scopes import change, make_endpoint, make_scopes

MODULES = (produce, list_offsets, offset_for_leader_epoch, delete_records, describe_producers, describe_log_dirs)
APIS = tuple(api for module in MODULES for api in module.APIS)
Parts = dict[tuple[str, int], bytes | bytearray | None]
FIELDS = ("error_code", "base_offset", "log_append_time_ms", "log_start_offset")


class RecordingFlushListener:
    """A FlushListener that records its notifications."""

    def __init__(self) -> None:
        self.notified: list[tuple[Any, ...]] = []
        self.broker: Broker | None = None

    def opened(self, key: PartitionKey, epoch: int, log_start: int, high_watermark: int) -> None:
        self.notified.append(("opened", key.partition, epoch, log_start, high_watermark))

    def flushed(
        self, key: PartitionKey, batches: Sequence[Batch], high_watermark: int, move: StableMove | None = None
    ) -> None:
        self.notified.append(("flushed", key.partition, [batch.base_offset for batch in batches], high_watermark))

    def log_start_moved(self, key: PartitionKey, log_start: int) -> None:
        self.notified.append(("log start", key.partition, log_start))

    def changed(self, key: PartitionKey) -> None:
        self.notified.append(("changed", key.partition))

    def closed(self, key: PartitionKey) -> None:
        self.notified.append(("closed", key.partition))


class World:
    def __init__(
        self,
        *,
        broker: BrokerConfig | None = None,
        offload: Offload = run_inline,
        faults: Faults | None = None,
        verifier: Verifier | None = None,
        **options: Any,
    ) -> None:
        rng = Random(0)
        self.storage = MemoryStorage(rng, faults or Faults(), datanodes=4)
        self.store = MemoryStore()
        self.rng = rng
        self.broker_config = broker or BrokerConfig()
        self.offload = offload
        self.config = NodeConfig(root="file:///data", **options)
        self.catalog = FakeCatalog()
        self.metrics = RequestCounters(traffic=TrafficMeter())
        self.client = FakeClient()
        self.flush_listener = RecordingFlushListener()
        self.wiring = LooseWiring(self.flush_listener, verifier=verifier)
        self._correlation = 0
        self._starts = 0

    async def start(self) -> None:
        """Start a fresh process on the same storage and store."""
        self._starts += 1
        self.membership = membership = Registered()
        name = f"b{self._starts}"
        self.fs = MemoryFileSystem(self.storage, name)
        self.kv = MemoryKeyValue(self.store, random=self.rng, faults=KvFaults())
        self.broker = Broker(
            self.fs,
            self.kv,
            incarnation=name,
            is_member=lambda: membership.is_member,
            is_alive=lambda incarnation: False,
            wiring=self.wiring.frozen(),
            clock=LoopClock(),
            config=self.broker_config,
        )
        self.assigned = AssignedPartitions(self.broker, offload=self.offload)
        self.scopes = make_scopes(
            config=self.config,
            metrics=self.metrics,
            catalog=self.catalog,
            proxies=OneProxy(ProxyAddress(0, "h", 9092)),
            owners=self.assigned,
        )
        self.endpoint = make_endpoint(self.scopes, APIS)
        await self.broker.start()

    def change(self, **parts: Any) -> None:
        """Serve further requests with other parts of the scopes."""
        self.scopes = change(self.scopes, **parts)
        self.endpoint = make_endpoint(self.scopes, APIS)

    async def stop(self) -> None:
        await self.assigned.close()
        await self.broker.close()

    # Topics

    def topic(self, name: str = "orders", partitions: int = 1, *, assign: bool = True, **configs: str) -> Topic:
        topic = Topic(
            name=name,
            topic_id=uuid.UUID(int=len(self.catalog.topics) + 1),
            partitions=partitions,
            configs={key.replace("_", "."): value for key, value in configs.items()},
        )
        self.catalog.put(name, topic)
        if assign:
            self.assign(name)
        return topic

    def assign(self, name: str = "orders") -> None:
        topic = self.catalog.topics[name]
        for partition in range(topic.partitions):
            self.assigned.assign(
                self.path(name, partition),
                self.key(name, partition),
                log_config(topic.configs, topic.replication_factor),
            )

    def key(self, name: str = "orders", partition: int = 0) -> PartitionKey:
        return PartitionKey(self.catalog.topics[name].topic_id, partition)

    def path(self, name: str = "orders", partition: int = 0) -> PartitionPath:
        return PartitionPath(name, str(self.catalog.topics[name].topic_id), partition)

    async def owner(self, name: str = "orders", partition: int = 0) -> PartitionOwner:
        return await self.assigned.wait(self.key(name, partition), 10.0)

    # Requests

    def send(self, request: Any, version: int) -> Awaitable[Response] | Response:
        """Hand the request's bytes to the endpoint, as a connection does."""
        self._correlation += 1
        request.with_header(correlation_id=self._correlation, client_id="test")
        frame = bytearray(request.encode(version=version, header=True, framed=False))
        return self.endpoint(memoryview(frame), self.client)

    async def call(self, request: Any, response: Any, version: int) -> Any:
        return await answered(self.send(request, version), response, version)

    def produce(self, parts: Parts, **options: Any) -> asyncio.Future[list[Any]]:
        """Send parts, and return a future of their answers in order.  The request is with the endpoint on return."""
        version = options.setdefault("version", 11)
        return asyncio.ensure_future(produced(self.send(self._produce_request(parts, **options), version), version))

    def produce_frame(self, parts: Parts, **options: Any) -> bytes:
        """Return the bytes of a produce request, with its size in front."""
        request = self._produce_request(parts, **options)
        self._correlation += 1
        request.with_header(correlation_id=self._correlation, client_id="test")
        return bytes(request.encode(version=options.get("version", 11), header=True, framed=True))

    def _produce_request(
        self,
        parts: Parts,
        *,
        version: int = 11,
        acks: int = -1,
        timeout_ms: int = 30_000,
        transactional_id: str | None = None,
        topic_id: uuid.UUID = uuid.UUID(int=1 << 90),  # noqa: B008
    ) -> Any:
        """Return a produce request; ``topic_id`` names topics that the catalog does not have."""
        Data = ProduceRequest.TopicProduceData
        topics = []
        for (name, index), records in parts.items():
            known = self.catalog.topics.get(name)
            named = {"name": name} if version < 13 else {"topic_id": known.topic_id if known else topic_id}
            piece = Data.PartitionProduceData(index=index, records=None if records is None else bytes(records))
            topics.append(Data(**named, partition_data=[piece]))
        return ProduceRequest(transactional_id=transactional_id, acks=acks, timeout_ms=timeout_ms, topic_data=topics)

    async def produce_one(self, records: bytes | bytearray | None, partition: int = 0, **options: Any) -> Any:
        """Produce to one partition and return its part of the response."""
        (response,) = await self.produce({("orders", partition): records}, **options)
        return response


async def answered(outcome: Awaitable[Response] | Response, response: Any, version: int) -> Any:
    reply = outcome if isinstance(outcome, Response) else await outcome
    return response.decode(b"".join(reply.buffers), version=version, header=True)


async def produced(outcome: Awaitable[Response] | Response, version: int) -> list[Any]:
    reply = outcome if isinstance(outcome, Response) else await outcome
    if not reply.buffers:
        return []
    response = ProduceResponse.decode(b"".join(reply.buffers), version=version, header=True)
    return [part for topic in response.responses for part in topic.partition_responses]


@asynccontextmanager
async def world(**options: Any) -> AsyncIterator[World]:
    made = World(**options)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


def batch(value: bytes = b"v", count: int = 1, **options: Any) -> bytearray:
    """Return a batch of records of one value, a millisecond apart."""
    options.setdefault("base_timestamp", 1_700_000_000_000)
    return build_batch([Record(value=value, timestamp_delta=number) for number in range(count)], **options)


def idempotent(sequence: int, count: int = 1, producer_id: int = 7, epoch: int = 0) -> bytearray:
    return batch(count=count, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
