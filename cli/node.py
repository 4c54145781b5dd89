"""All roles in one process, wired: everything of a server but its sockets, signals and files of settings.

The simulation runs this same object on storage in memory and a virtual clock.
"""

from __future__ import annotations

import asyncio
import logging

from bmq.broker.assigned import Assigned
from bmq.broker.config import BrokerConfig
from bmq.broker.janitor import JanitorConfig
from bmq.broker.log_config import log_config
from bmq.broker.manager import Broker
from bmq.cli.shard_logs import OFFSETS_TOPIC, LocalShardLogs
from bmq.core.clock import Clock
from bmq.core.config import NodeConfig
from bmq.core.metrics import Metrics
from bmq.core.model import PartitionKey
from bmq.meta.catalog import KvCatalog, Topic, TopicChange
from bmq.meta.controller.deletion import TopicCleaner
from bmq.meta.controller.topics import REPLICAS_MAX, TopicAdmin
from bmq.meta.coordinator.service import Coordinator
from bmq.meta.kv import KeyValue
from bmq.meta.members import OneNode, ProxyAddress
from bmq.meta.producer_ids import ProducerIds
from bmq.meta.topic_configs import effective
from bmq.proxy.apis import ALL_APIS
from bmq.proxy.endpoint import Endpoint
from bmq.proxy.reading import Reading
from bmq.proxy.services import Services
from bmq.storage.filesystem import FileSystem, StorageError
from bmq.storage.layout import PartitionPath
from bmq.storage.readpool import ReadConfig, ReadPool
from bmq.storage.topics import StoredTopics, check_cluster

log = logging.getLogger(__name__)
REPLICAS_WAIT_S = 5.0


class Node:
    """``start``; then ``endpoint`` answers Kafka frames; ``close`` hands everything over."""

    def __init__(
        self,
        config: NodeConfig,
        fs: FileSystem,
        kv: KeyValue,
        clock: Clock,
        *,
        incarnation: str,
        broker_config: BrokerConfig | None = None,
        upkeep: JanitorConfig | None = None,
    ) -> None:
        self.config = config
        self.metrics = Metrics()
        self.is_serving = False
        self._fs = fs
        self.members = OneNode(ProxyAddress(config.node_id, "", 0, config.zone))
        self.catalog = KvCatalog(kv, config.cluster)
        self.broker = Broker(
            fs,
            kv,
            incarnation=incarnation,
            cluster=config.cluster,
            clock=clock,
            config=broker_config or BrokerConfig(producer_expiration_ms=config.producer_id_expiration_ms),
            upkeep=upkeep,
        )
        self.pool = ReadPool(fs, ReadConfig(cache_bytes=config.cache_bytes))
        self.assigned = Assigned(self.broker, self.pool, offload=asyncio.to_thread)
        self.reading = Reading(config, self.catalog, self.assigned, self.pool, clock, self.metrics)
        self._logs = LocalShardLogs(self.assigned, self.catalog, self.pool)
        self.broker.shared.tails = _Listeners(self.reading, self._logs)
        files = StoredTopics(fs)
        self.admin = TopicAdmin(kv, config.cluster, self.catalog, config, files, clock, replicas_max=self._replicas_max)
        self._cleaner = TopicCleaner(kv, config.cluster, files, clock)
        self.coordinator = Coordinator(config, clock, self._logs, self._offsets_topic, self.catalog)
        self.producer_ids = ProducerIds(kv, config.cluster)
        self.endpoint = Endpoint(
            Services(
                config=config,
                clock=clock,
                metrics=self.metrics,
                catalog=self.catalog,
                members=self.members,
                owners=self.assigned,
                admin=self.admin,
                coordinator=self.coordinator,
                producer_ids=self.producer_ids,
                reading=self.reading,
            ),
            ALL_APIS,
        )

    def is_at(self, host: str, port: int) -> None:
        """What clients are told to connect to."""
        self.members.move(ProxyAddress(self.config.node_id, host, port, self.config.zone))

    async def start(self) -> None:
        """StorageError, KvError, BmqError when storage or store refuse; then ``close``."""
        await self.catalog.start()
        cluster = await check_cluster(self._fs, self.catalog.cluster_id)
        self.producer_ids.incarnation = cluster.incarnation
        await self.broker.start()
        self.catalog.subscribe(self._topic_changed)
        self.catalog.subscribe_configs(self._configs_changed)
        for topic in list(self.catalog.topics.values()):
            self._assign(topic)
        await self.admin.start()
        await self._cleaner.start()
        await self.coordinator.start()

    def drain(self) -> None:
        """Clients are about to be sent away: answer those that wait for something to happen."""
        self.reading.drain()
        self.coordinator.drain()

    async def close(self) -> None:
        """Hand everything over.  Also after a ``start`` that failed."""
        await self.coordinator.close()
        await self.reading.close()
        await self._cleaner.close()
        await self.admin.close()
        await self.producer_ids.close()
        await self.assigned.close()
        await self.broker.close()
        await self.pool.close()
        await self.catalog.close()

    # ----------------------------------------------------------------------------------------- topics to partitions

    async def _offsets_topic(self) -> Topic:
        return await self.admin.ensure_topic(OFFSETS_TOPIC)

    async def _replicas_max(self) -> int:
        """Live datanodes.  A topic can be made while storage does not answer, or does not tell: HDFS replicates what
        it got too few nodes for when there are more."""
        try:
            async with asyncio.timeout(REPLICAS_WAIT_S):
                return await self._fs.replicas_max()
        except (StorageError, TimeoutError) as error:
            log.info("storage does not tell how many nodes it has, so any replication factor is taken: %s", error)
            return REPLICAS_MAX

    def _topic_changed(self, change: TopicChange) -> None:
        before, after = change.before, change.after
        if before is not None and (after is None or after.topic_id != before.topic_id):
            for partition in range(before.partitions):
                self.assigned.withdraw(PartitionKey(before.topic_id, partition), is_deleted=True)
        if after is not None:
            self._assign(after)

    def _configs_changed(self) -> None:
        """The cluster's defaults reach every topic that does not override them."""
        for topic in self.catalog.topics.values():
            self._assign(topic)

    def _assign(self, topic: Topic) -> None:
        """All of it: this process owns every partition."""
        node = self.config.node_id
        layers = self.catalog.broker_configs(None), self.catalog.broker_configs(node)
        config = log_config(effective(topic.configs, self.config, *layers), topic.replication_factor)
        for partition in range(topic.partitions):
            path = PartitionPath(topic.name, str(topic.topic_id), partition)
            self.assigned.assign(path, PartitionKey(topic.topic_id, partition), config)


class _Listeners:
    """Who hears of what this process's partitions do: its readers, and the logs of its coordinator."""

    def __init__(self, reading: Reading, logs: LocalShardLogs) -> None:
        self._reading = reading
        self._logs = logs
        self.flushed = reading.flushed  # the hot one: no call between
        self.log_start_moved = reading.log_start_moved

    def opened(self, key: PartitionKey, epoch: int, log_start: int, high_watermark: int) -> None:
        self._reading.opened(key, epoch, log_start, high_watermark)

    def closed(self, key: PartitionKey) -> None:
        self._reading.closed(key)
        self._logs.ended(key)
