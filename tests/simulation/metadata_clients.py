"""A consumer that goes where Metadata sends it, as real clients do, and asks the worst-placed proxy for Metadata."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

from kafka.protocol.consumer import FetchRequest, FetchResponse
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from bmq.core.records import Batch, split_batches
from tests.simulation.cluster_world import ClusterClient, ClusterWorld
from tests.simulation.kafka_clients import BYTES_MAX
from tests.simulation.network import Disconnected

FETCH, METADATA = 11, 9
MAX_WAIT_MS = 500
PAUSE_S = 0.1
"""Java's retry.backoff.ms."""


class _Session:
    """A fetch session with one proxy, as Java's ``FetchSessionHandler`` keeps it."""

    def __init__(self) -> None:
        self.id, self.epoch = 0, 0
        self.told: dict[int, int] = {}


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
                self._host = self._world.rng.choice(self._world.with_role("proxy")).host  # bootstrap.servers
            if self._is_due:
                await asyncio.sleep(PAUSE_S)
        for client in self._clients.values():
            client.close()

    async def refresh(self) -> None:
        """Take leaders from Metadata."""
        wanted = MetadataRequest.MetadataRequestTopic(name=self._topic)
        request = MetadataRequest(
            topics=[wanted],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        answer = await self._client(self._host).call(request, MetadataResponse, METADATA)
        nodes = {node.node_id: node.host for node in answer.brokers}
        found = {part.partition_index: nodes[part.leader_id] for part in answer.topics[0].partitions}
        if not self.offsets.keys() <= found.keys():
            return
        self.leaders = found
        if self._host not in nodes.values():
            self._host = min(nodes.values())
        self._is_due = False

    def _client(self, host: str) -> ClusterClient:
        if host not in self._clients:
            self._clients[host] = ClusterClient(self._world, host)
        return self._clients[host]

    async def _fetch(self, host: str) -> None:
        session = self._sessions[host]
        own = {partition: at for partition, at in self.offsets.items() if self.leaders[partition] == host}
        changed = {partition: at for partition, at in own.items() if session.told.get(partition) != at}
        gone = [partition for partition in session.told if partition not in own]
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
            answer = await self._client(host).call(request, FetchResponse, FETCH)
        except Disconnected:
            self._sessions[host] = _Session()
            raise
        if answer.error_code:
            self._sessions[host] = _Session()
            return
        session.id, session.epoch, session.told = answer.session_id, session.epoch + 1, dict(own)
        for topic in answer.responses:
            for part in topic.partitions:
                self._take(session, part)

    def _take(self, session: _Session, part: Any) -> None:
        partition = part.partition_index
        if part.error_code:
            self._is_due = True
            session.told.pop(partition, None)
            return
        for view in split_batches(memoryview(bytes(part.records or b""))):
            self.offsets[partition] = max(self.offsets[partition], Batch(view).next_offset)
            self.progress_at[partition] = asyncio.get_running_loop().time()
