"""Clients that go where Metadata sends them, as real clients do."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from typing import Any

from kafka.protocol.consumer import FetchRequest, FetchResponse, OffsetCommitRequest, OffsetCommitResponse
from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse, MetadataRequest, MetadataResponse
from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse, ProduceResponse

from bmq.core.errors import ErrorCode
from bmq.core.records.batch import Record, build_batch
from bmq.core.records.cursor import read_batches
from tests.harness.network import Disconnected
from tests.simulation.cluster_world import ClusterClient, ClusterWorld
from tests.simulation.kafka_clients import BYTES_MAX, Refused, check, note_acked, produce_request

FETCH, METADATA, PRODUCE = 11, 9, 9
MAX_WAIT_MS = 500
PAUSE_S = 0.1
"""Java's retry.backoff.ms."""
REQUEST_S = 10.0
"""librdkafka's socket.timeout.ms, as the tests of real clusters set it: the connection is given up after that."""
WINDOW = 5
"""max.in.flight.requests.per.connection of an idempotent producer."""
BATCH_S = 0.5
"""Between two batches of a partition."""


async def find_leaders(client: ClusterClient, topic: str) -> tuple[dict[int, str], list[str]]:
    """Return the host of each partition's leader, and all proxies' hosts, as Metadata has them."""
    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=topic)],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    response = await client.call(request, MetadataResponse, METADATA, REQUEST_S)
    nodes = {node.node_id: node.host for node in response.brokers}
    return {part.partition_index: nodes[part.leader_id] for part in response.topics[0].partitions}, list(nodes.values())


class _Session:
    """A fetch session with one proxy, as Java's ``FetchSessionHandler`` keeps it."""

    def __init__(self) -> None:
        self.id, self.epoch = 0, 0
        self.learned: dict[int, int] = {}


class MetadataConsumer:
    """Reads partitions of one topic, each at the proxy that Metadata names as its leader, in incremental sessions.

    It asks for Metadata after an error only, of a proxy that it talks to already (Java's ``leastLoadedNode``): ``host``
    as long as Metadata names that.  So nothing but the cluster takes it away from ``host``.
    """

    def __init__(self, world: ClusterWorld, host: str, topic: str, partitions: set[int]) -> None:
        self.offsets = dict.fromkeys(partitions, 0)
        self.is_over = False
        self.progress_at: dict[int, float] = {}
        """When each partition gave records last."""
        self.leaders: dict[int, str] = {}
        """The host of each partition's leader."""
        self._world = world
        self._topic = topic
        self._host = host
        self._clients: dict[str, ClusterClient] = {}
        self._sessions: dict[str, _Session] = defaultdict(_Session)
        self._is_due = True

    async def run(self) -> None:
        while not self.is_over:
            try:
                if self._is_due:
                    await self.refresh()
                hosts = sorted({self.leaders[partition] for partition in self.offsets})
                for refused in await asyncio.gather(*map(self._fetch, hosts), return_exceptions=True):
                    if isinstance(refused, Disconnected):
                        self._is_due = True
                    elif refused is not None:
                        raise refused
            except Disconnected:
                others = [place.host for place in self._world.with_role("proxy") if place.host != self._host]
                self._host = self._world.rng.choice(others or [self._host])  # of bootstrap.servers
            if self._is_due:
                await asyncio.sleep(PAUSE_S)
        for client in self._clients.values():
            client.close()

    async def refresh(self) -> None:
        """Take leaders from Metadata."""
        found, hosts = await find_leaders(self._client(self._host), self._topic)
        if not self.offsets.keys() <= found.keys():
            return
        self.leaders = found
        if self._host not in hosts:
            self._host = min(hosts)
        self._is_due = False

    def _client(self, host: str) -> ClusterClient:
        if host not in self._clients:
            self._clients[host] = ClusterClient(self._world, host)
        return self._clients[host]

    async def _fetch(self, host: str) -> None:
        session = self._sessions[host]
        own = {partition: at for partition, at in self.offsets.items() if self.leaders[partition] == host}
        changed = {partition: at for partition, at in own.items() if session.learned.get(partition) != at}
        gone = [partition for partition in session.learned if partition not in own]
        Topic = FetchRequest.FetchTopic
        listed = [
            Topic.FetchPartition(
                partition=partition, current_leader_epoch=-1, fetch_offset=at, partition_max_bytes=BYTES_MAX
            )
            for partition, at in changed.items()
        ]
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=BYTES_MAX,
            isolation_level=0,
            session_id=session.id,
            session_epoch=session.epoch,
            topics=[Topic(topic=self._topic, partitions=listed)] if listed else [],
            forgotten_topics_data=[FetchRequest.ForgottenTopic(topic=self._topic, partitions=gone)] if gone else [],
            rack_id="",
        )
        try:
            response = await self._client(host).call(request, FetchResponse, FETCH, REQUEST_S)
        except Disconnected:
            self._sessions[host] = _Session()
            raise
        if response.error_code:
            self._sessions[host] = _Session()
            return
        session.id, session.epoch, session.learned = response.session_id, session.epoch + 1, dict(own)
        for topic in response.responses:
            for part in topic.partitions:
                self._take(session, part)

    def _take(self, session: _Session, part: Any) -> None:
        partition = part.partition_index
        if part.error_code:
            self._is_due = True
            session.learned.pop(partition, None)
            return
        for batch in read_batches(memoryview(bytes(part.records or b""))):
            self.offsets[partition] = max(self.offsets[partition], batch.next_offset)
            self.progress_at[partition] = asyncio.get_running_loop().time()


class MetadataProducer:
    """An idempotent producer of all partitions of one topic, each at the proxy that Metadata names as its leader.

    As librdkafka's: one producer id, one connection to each proxy, which all partitions share, one partition in a
    request, five requests of it under way.  After an error it waits for the answers to the others, asks for Metadata of
    any proxy that it talks to, and sends all that is open again, in order, to the leader of now.
    """

    def __init__(self, world: ClusterWorld, name: str, topic: str, partitions: int) -> None:
        self.is_over = False
        self.acked = [0] * partitions
        """Batches of each partition that were acknowledged."""
        self.leaders: dict[int, str] = {}
        self.refused: deque[str] = deque(maxlen=20)
        self._world = world
        self._name = name
        self._topic = topic
        self._clients: dict[str, ClusterClient] = {}
        self._producer_id = -1
        self._asked = self._silent = ""
        self._refreshing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<MetadataProducer {self._name} {self.acked} at {self.leaders}, refused: {list(self.refused)}>"

    async def run(self) -> None:
        await self.start()
        await asyncio.gather(*map(self._produce, range(len(self.acked))))
        self.close()

    async def start(self) -> None:
        """Ask for leaders and a producer id, until they are given."""
        while not self.is_over and self._producer_id < 0:
            try:
                await self._refresh()
                request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
                response = await self._client(self._any_host()).call(request, InitProducerIdResponse, 2, REQUEST_S)
                check(response.error_code)
                self._producer_id = response.producer_id
            except (Disconnected, Refused):
                await asyncio.sleep(PAUSE_S)

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    def _client(self, host: str) -> ClusterClient:
        if host not in self._clients:
            self._clients[host] = ClusterClient(self._world, host)
        return self._clients[host]

    def _any_host(self) -> str:
        """Return one of the leaders' hosts; of all proxies (bootstrap.servers) while no leader is known.  Not the one
        that gave no answer last, if there is another."""
        known = sorted(set(self.leaders.values())) or [place.host for place in self._world.with_role("proxy")]
        self._asked = self._world.rng.choice([host for host in known if host != self._silent] or known)
        return self._asked

    async def _refresh(self) -> None:
        """Ask for Metadata, once for all that ask meanwhile."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._ask_leaders())
        await asyncio.shield(self._refreshing)

    async def _ask_leaders(self) -> None:
        try:
            found, _ = await find_leaders(self._client(self._any_host()), self._topic)
        except Disconnected:
            self._silent, self.leaders = self._asked, {}
            raise
        if len(found) >= len(self.acked):
            self.leaders = found

    async def _produce(self, partition: int) -> None:
        while not self.is_over:
            await self.send_some(partition)
            await asyncio.sleep(BATCH_S)

    async def send_some(self, partition: int) -> None:
        """Send to the leader, or ask for metadata if it is not known."""
        try:
            if partition not in self.leaders:
                await self._refresh()
            else:
                await self._send_window(partition)
        except Disconnected as lost:
            self._note(partition, lost)
        except Refused as refused:
            self._note(partition, refused)
            if not refused.code.is_retriable:
                self._world.observed.errors.append(f"{self._name}: {refused} for partition {partition}")

    def _note(self, partition: int, error: Exception) -> None:
        now = asyncio.get_running_loop().time()
        self.refused.append(f"{now:.3f} {partition} at {self.leaders.get(partition, 'nobody')}: {error}")

    async def _send_window(self, partition: int) -> None:
        """Send up to five batches, and note what is acknowledged.  Leave the leader after the first that is not."""
        first = self.acked[partition]
        numbers = range(first, first + (self._world.rng.randint(1, WINDOW) if first else 1))
        client = self._client(self.leaders[partition])
        calls = []
        for number in numbers:
            record = Record(value=self._value(number))
            batch = build_batch([record], producer_id=self._producer_id, producer_epoch=0, base_sequence=number)
            request = produce_request(self._topic, partition, bytes(batch), -1)
            calls.append(client.call(request, ProduceResponse, PRODUCE, REQUEST_S))
        for number, outcome in zip(numbers, await asyncio.gather(*calls, return_exceptions=True), strict=True):
            if isinstance(outcome, BaseException):
                self.leaders.pop(partition, None)
                raise outcome
            part = outcome.responses[0].partition_responses[0]
            if part.error_code:
                self.leaders.pop(partition, None)
            if part.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and number > first:
                raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)  # an earlier one of this window was refused
            check(part.error_code)
            note_acked(self._world, self._topic, partition, part.base_offset, self._value(number))
            self.acked[partition] = number + 1

    def _value(self, number: int) -> bytes:
        return f"{self._name}:{number}".encode()


class Committer:
    """A consumer without a group's protocol, that commits an offset again and again where FindCoordinator says.

    Like Java's it stays with its coordinator until that is lost or says that it is none.  It asks ``host`` for another,
    as long as there is a connection to that.
    """

    def __init__(self, world: ClusterWorld, host: str, group: str, topic: str) -> None:
        self.is_over = False
        self.committed = 0
        self.coordinator = ""
        self.refused: deque[str] = deque(maxlen=20)
        self._host = host
        self._group = group
        self._topic = topic
        self._world = world
        self._clients: dict[str, ClusterClient] = {}

    def __repr__(self) -> str:
        return f"<Committer {self._group} {self.committed} at {self.coordinator}, refused: {list(self.refused)}>"

    async def run(self) -> None:
        while not self.is_over:
            try:
                if not self.coordinator:
                    self.coordinator = await self._find()
                await self._commit()
                self.committed += 1
            except Disconnected as lost:
                self._note(lost)
                self.coordinator = ""
                self._host = self._world.rng.choice([place.host for place in self._world.with_role("proxy")])
            except Refused as refused:
                self._note(refused)
                if refused.code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
                    self.coordinator = ""
            await asyncio.sleep(PAUSE_S)
        for client in self._clients.values():
            client.close()

    def _note(self, error: Exception) -> None:
        self.refused.append(f"{asyncio.get_running_loop().time():.3f} at {self.coordinator or 'nobody'}: {error}")

    def _client(self, host: str) -> ClusterClient:
        if host not in self._clients:
            self._clients[host] = ClusterClient(self._world, host)
        return self._clients[host]

    async def _find(self) -> str:
        request = FindCoordinatorRequest(key=self._group, key_type=0)
        response = await self._client(self._host).call(request, FindCoordinatorResponse, 3, REQUEST_S)
        check(response.error_code)
        return str(response.host)

    async def _commit(self) -> None:
        Topic = OffsetCommitRequest.OffsetCommitRequestTopic
        part = Topic.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=self.committed, committed_leader_epoch=-1, committed_metadata=""
        )
        request = OffsetCommitRequest(
            group_id=self._group,
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            topics=[Topic(name=self._topic, partitions=[part])],
        )
        response = await self._client(self.coordinator).call(request, OffsetCommitResponse, 7, REQUEST_S)
        check(response.topics[0].partitions[0].error_code)
