"""A log in memory that fails on demand, and a coordinator on it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from bmq.coordinator.api import ClientInfo
from bmq.coordinator.coordinator import Coordinator
from bmq.coordinator.group_shard.commit_verifier import CommitVerifier
from bmq.coordinator.settings import CoordinatorSettings
from bmq.coordinator.shard.context import CoordinatorContext
from bmq.coordinator.shard.log import ShardLogs
from bmq.core.aio.byte_budget import ByteBudget
from bmq.core.clock import LoopClock
from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.records.batch import Batch
from bmq.core.wire import messages as m
from bmq.meta.catalog import OFFSETS_TOPIC, Catalog, Owned, Topic, TopicChange
from bmq.meta.cluster.view import ClusterView
from bmq.meta.security.client_quotas import Bounds, NoBounds
from bmq.meta.shard_kinds import ShardId
from tests.harness.members import OneView

CLIENT = ClientInfo("client", "/10.0.0.1")


class MemoryPartition:
    """A log of durable batches.  ``flush_s`` is virtual time; ``fail_next`` appends are refused, ``hang`` never end.

    ``refuse_next`` is the error of the next append, for its producer.

    ``lose_answers`` makes batches durable and then fails their appends: a crash between the two.
    """

    def __init__(self) -> None:
        self.batches: list[tuple[int, bytes]] = []
        self.log_start = 0
        self.next_offset = 0
        self.epoch = 0
        self.flush_s = 0.001
        self.fail_next = 0
        self.refuse_next: ErrorCode | None = None
        self.lose_answers = 0
        self.hang = False
        self.snapshots = 0
        self.confirmations = 0
        self.stalled: asyncio.Event | None = None
        self.fail_reads: str | None = None
        self.max_batch_bytes = 1 << 20
        self.open_log: MemoryLog | None = None

    def store(self, data: bytearray) -> int:
        batch = Batch(memoryview(data))
        base = self.next_offset
        batch.assign(base, self.epoch)
        self.batches.append((base, bytes(data)))
        self.next_offset = batch.next_offset
        return base


class MemoryLog:
    """One ownership of it."""

    def __init__(self, partition: MemoryPartition, closed: Callable[[], None]) -> None:
        self._partition = partition
        self._closed = closed
        self.epoch = partition.epoch
        self.is_open = True

    @property
    def log_start(self) -> int:
        return self._partition.log_start

    @property
    def high_watermark(self) -> int:
        return self._partition.next_offset

    @property
    def max_batch_bytes(self) -> int:
        return self._partition.max_batch_bytes

    def append(self, batch: bytearray) -> asyncio.Future[int]:
        self._check()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = loop.create_future()
        partition = self._partition
        if partition.hang:
            return future

        def flush() -> None:
            if future.cancelled():
                return
            if partition.refuse_next is not None:
                code, partition.refuse_next = partition.refuse_next, None
                future.set_exception(RequestError(code, "refused"))
                return
            if not self.is_open or partition.fail_next:
                partition.fail_next = max(0, partition.fail_next - 1)
                future.set_exception(RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "fenced or failed"))
                return
            base = partition.store(batch)
            if partition.lose_answers:
                partition.lose_answers -= 1
                future.set_exception(RequestError(ErrorCode.KAFKA_STORAGE_ERROR, "flushed, but nobody heard"))
            else:
                future.set_result(base)

        loop.call_later(partition.flush_s, flush)
        return future

    async def read(self, offset: int, max_bytes: int) -> bytes:
        self._check()
        if self._partition.fail_reads is not None:
            raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, self._partition.fail_reads)
        out = b""
        for _, data in self._partition.batches:
            if Batch(memoryview(data)).next_offset > offset and (not out or len(out) + len(data) <= max_bytes):
                out += data
            elif out:
                break
        return out

    async def confirm(self) -> None:
        self._partition.confirmations += 1
        if self._partition.stalled is not None:
            await self._partition.stalled.wait()
        if not self.is_open or self._partition.open_log is not self:
            self.end()
        self._check()

    async def delete_before(self, offset: int) -> None:
        self._check()
        self._partition.log_start = offset
        self._partition.snapshots += 1
        self._partition.batches = [each for each in self._partition.batches if each[0] >= offset]

    def end(self) -> None:
        if self.is_open:
            self.is_open = False
            asyncio.get_running_loop().call_soon(self._closed)

    def _check(self) -> None:
        if not self.is_open:
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "a later owner has it")


class MemoryLogs:
    def __init__(self, partitions: int = 1) -> None:
        self.partitions = [MemoryPartition() for _ in range(partitions)]
        self.fail_opens = 0

    async def open(self, shard: ShardId, ownership: int, timeout_s: float, closed: Callable[[], None]) -> MemoryLog:
        if self.fail_opens:
            self.fail_opens -= 1
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "moving")
        stored = self.partitions[shard.number]
        if stored.open_log is not None:
            stored.open_log.end()
        stored.epoch += 1
        stored.open_log = MemoryLog(stored, closed)
        return stored.open_log


class MemoryCatalog:
    """Topics by name; ``delete`` and ``create`` notify the subscribers."""

    cluster_id = "cluster"
    version = 1

    def __init__(self, *topics: Topic) -> None:
        self.topics = {topic.name: topic for topic in topics}
        self.unseen: dict[str, Topic] = {}
        """Topics that the store has and the view does not show yet: ``refresh`` waits for them."""
        self.refresh_error: Exception | None = None
        self._calls: list[Callable[[TopicChange], None]] = []

    def by_id(self, topic_id: uuid.UUID) -> Topic | None:
        return next((each for each in self.topics.values() if each.topic_id == topic_id), None)

    def owned_by(self, principal: str) -> Owned:
        raise NotImplementedError

    def broker_configs(self, node_id: int | None) -> Mapping[str, str]:
        return {}

    def subscribe(self, call: Callable[[TopicChange], None]) -> None:
        self._calls.append(call)

    def subscribe_configs(self, call: Callable[[], None]) -> None:
        raise NotImplementedError

    async def wait_revision(self, revision: int) -> None:
        return

    async def refresh(self, name: str) -> Topic | None:
        if self.refresh_error is not None:
            raise self.refresh_error
        late = self.unseen.pop(name, None)
        if late is not None:
            self.topics[name] = late
        return self.topics.get(name)

    def delete(self, name: str) -> None:
        before = self.topics.pop(name)
        for call in list(self._calls):
            call(TopicChange(before, None))

    def create(self, created: Topic) -> None:
        self.topics[created.name] = created
        for call in list(self._calls):
            call(TopicChange(None, created))


def topic(name: str, partitions: int = 200, *, incarnation: int = 0) -> Topic:
    """Return a topic.  ``incarnation`` distinguishes topics of one name that were created one after the other."""
    unique = f"{name} {incarnation}" if incarnation else name
    return Topic(name=name, topic_id=uuid.uuid5(uuid.NAMESPACE_DNS, unique), partitions=partitions)


def settings(**changes: Any) -> CoordinatorSettings:
    config = NodeConfig(group_initial_rebalance_delay_ms=0, group_min_session_timeout_ms=1)
    return replace(CoordinatorSettings.of(config), **changes)


def context_of(
    chosen: CoordinatorSettings, logs: ShardLogs, catalog: Catalog, view: ClusterView, bounds: Bounds | None = None
) -> CoordinatorContext:
    """Return the context of a process's coordinators, with the ``chosen`` settings."""
    return CoordinatorContext(
        settings=chosen, clock=LoopClock(), logs=logs, catalog=catalog, view=view, bounds=bounds or NoBounds()
    )


class FakeTransactions:
    """The coordinators of transactions: the answer to each question is by ``respond``; ``asked`` has the questions."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, int, tuple[PartitionKey, ...], bool]] = []
        self.respond: Callable[[], tuple[ErrorCode, int]] = lambda: (ErrorCode.NONE, 1 << 30)
        self.may_respond = asyncio.Event()
        self.may_respond.set()

    async def __call__(
        self, transactional_id: str, producer_id: int, producer_epoch: int, keys: Sequence[PartitionKey], add: bool
    ) -> Mapping[PartitionKey, tuple[ErrorCode, int]]:
        self.asked.append((transactional_id, producer_id, producer_epoch, tuple(keys), add))
        found = self.respond()
        await self.may_respond.wait()
        return dict.fromkeys(keys, found)


class World:
    """One process with a coordinator; ``start`` after a crash makes the next."""

    def __init__(self, logs: MemoryLogs | None = None, bounds: Bounds | None = None, **changes: Any) -> None:
        self.logs = logs or MemoryLogs()
        self.bounds = bounds
        self.settings = settings(**changes)
        self.offsets_topic = topic(OFFSETS_TOPIC, len(self.logs.partitions))
        self.catalog = MemoryCatalog(topic("orders"), topic("events"))
        self.transactions = FakeTransactions()
        self.coordinator = self._make()

    @property
    def log(self) -> MemoryPartition:
        return self.logs.partitions[0]

    @property
    def membership_budget(self) -> ByteBudget:
        """The memory of the members of all groups."""
        return self.coordinator.shards.parts.budget

    @property
    def verifier(self) -> CommitVerifier:
        """The way of questions to transactions' coordinators."""
        return self.coordinator.shards.parts.verifier

    def _make(self) -> Coordinator:
        context = context_of(self.settings, self.logs, self.catalog, OneView("n"), self.bounds)
        return Coordinator(context, self._topic, self.transactions)

    async def _topic(self) -> Topic:
        return self.catalog.topics.setdefault(OFFSETS_TOPIC, self.offsets_topic)

    async def crash(self) -> None:
        """Another process takes over."""
        self.coordinator.abandon()
        self.coordinator = self._make()
        await self.coordinator.start()

    def isolate(self) -> None:
        """Give the coordinator empty logs: a shard that it loses stays lost, or two coordinators would take turns."""
        self.logs = MemoryLogs(len(self.logs.partitions))
        for shard in self.coordinator.shards._shards.values():
            shard.context = replace(shard.context, logs=self.logs)

    def facts(self, partition: int = 0) -> dict[tuple[object, ...], object]:
        serving = self.coordinator.shards._shards[partition].serving
        assert serving is not None
        return serving.state.facts()

    def offsets(self) -> dict[tuple[object, ...], object]:
        """Return the facts of partition 0 without the barriers."""
        return {key: value for key, value in self.facts().items() if key[0] != ""}

    async def commit(
        self, group: str, offset: int, *, topic: str = "orders", partition: int = 0, client: ClientInfo = CLIENT,
        **fields: Any,
    ) -> int:  # fmt: skip
        request = commit_request(group, [(topic, partition, offset)], **fields)
        response = await self.coordinator.offset_commit(request, client)
        return int(response.topics[0].partitions[0].error_code)

    async def heartbeat(self, request: m.HeartbeatRequest) -> int:
        response = self.coordinator.heartbeat(request, CLIENT)
        if isinstance(response, Awaitable):
            response = await response
        return int(response.error_code)

    async def fetch(self, group: str, *, topic: str = "orders", partition: int = 0) -> int:
        topics = [m.OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=[partition])]
        request = m.OffsetFetchRequest(version=7, group_id=group, topics=topics, require_stable=False)
        response = await self.coordinator.offset_fetch(request, CLIENT)
        assert response.error_code == 0, ErrorCode(response.error_code)
        return int(response.topics[0].partitions[0].committed_offset)


@asynccontextmanager
async def running(world: World) -> AsyncIterator[World]:
    await world.coordinator.start()
    try:
        yield world
    finally:
        await world.coordinator.close()


def commit_request(group: str, offsets: list[tuple[str, int, int]], **fields: Any) -> Any:
    version = fields.pop("version", 9)
    topic_class = m.OffsetCommitRequest.OffsetCommitRequestTopic
    topics = [
        topic_class(
            name=name,
            partitions=[
                topic_class.OffsetCommitRequestPartition(
                    partition_index=partition,
                    committed_offset=offset,
                    committed_leader_epoch=fields.get("leader_epoch", -1),
                    committed_metadata=fields.get("metadata", ""),
                )
            ],
        )
        for name, partition, offset in offsets
    ]
    return m.OffsetCommitRequest(
        version=version,
        group_id=group,
        generation_id_or_member_epoch=fields.get("generation", -1),
        member_id=fields.get("member_id", ""),
        group_instance_id=fields.get("instance_id"),
        retention_time_ms=fields.get("retention_ms", -1),
        topics=topics,
    )


def join_request(group: str, member_id: str = "", *, version: int = 9, **fields: Any) -> Any:
    protocols = [
        m.JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=data)
        for name, data in fields.pop(
            "protocols", [("range", b"\x00\x01\x00\x00\x00\x01\x00\x06orders\x00\x00\x00\x00")]
        )
    ]
    defaults = {
        "group_id": group,
        "member_id": member_id,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 60_000,
        "group_instance_id": None,
        "protocol_type": "consumer",
    }
    return m.JoinGroupRequest(version=version, protocols=protocols, **{**defaults, **fields})


def sync_request(group: str, member_id: str, generation: int, assignments: Mapping[str, bytes] | None = None) -> Any:
    return m.SyncGroupRequest(
        version=5,
        group_id=group,
        member_id=member_id,
        generation_id=generation,
        group_instance_id=None,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[
            m.SyncGroupRequest.SyncGroupRequestAssignment(member_id=each, assignment=data)
            for each, data in (assignments or {}).items()
        ],
    )


async def join_alone(world: World, group: str, **fields: Any) -> tuple[str, int]:
    """Form a Stable group of one member and return its member id and generation."""
    first = await world.coordinator.join_group(join_request(group, **fields), CLIENT)
    member_id = first.member_id
    if first.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        first = await world.coordinator.join_group(join_request(group, member_id, **fields), CLIENT)
    assert first.error_code == 0, ErrorCode(first.error_code)
    synced = await world.coordinator.sync_group(
        sync_request(group, first.member_id, first.generation_id, {first.member_id: b"all"}), CLIENT
    )
    assert synced.error_code == 0, ErrorCode(synced.error_code)
    return first.member_id, first.generation_id


def protocols(size: int, name: str = "range") -> list[tuple[str, bytes]]:
    """Return one protocol whose name and metadata are so long together."""
    return [(name, b"x" * (size - len(name)))]


async def join_code(world: World, group: str, member_id: str = "", **fields: object) -> int:
    """Join without waiting for an id first, and return the error code."""
    request = join_request(group, member_id, version=3, **fields)
    return int((await world.coordinator.join_group(request, CLIENT)).error_code)


AGAIN = topic("orders", incarnation=1)
"""The topic that is created after its namesake was deleted."""
