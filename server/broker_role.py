"""The broker role of one process: the broker, the partitions assigned to it, and the follower of assignments."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from bmq.broker.assignment.assigned_partitions import AssignedPartitions
from bmq.broker.assignment.follower import AssignmentFollower
from bmq.broker.assignment.handover import HandoverNotifier
from bmq.broker.broker import Broker
from bmq.broker.cleanup.janitor import JanitorConfig
from bmq.broker.config import BrokerConfig
from bmq.broker.shard_log_fence import ShardFence
from bmq.core.clock import Clock
from bmq.core.config import NodeConfig
from bmq.meta.catalog import Catalog
from bmq.meta.kv import KeyValue
from bmq.server.cluster_member import ClusterMember
from bmq.storage.block_cache import BlockCache
from bmq.storage.filesystem import FileSystem

log = logging.getLogger(__name__)


class BrokerRole:
    """The broker role of one process.  `start` it once catalog and view are loaded."""

    def __init__(
        self,
        config: NodeConfig,
        fs: FileSystem,
        kv: KeyValue,
        clock: Clock,
        catalog: Catalog,
        joined: ClusterMember,
        pool: BlockCache,
        *,
        broker_config: BrokerConfig | None = None,
        janitor_config: JanitorConfig | None = None,
    ) -> None:
        settings = broker_config or BrokerConfig(
            block_bytes=config.block_bytes,
            open_pipelines_max=config.open_pipelines_max,
            producer_expiration_ms=config.producer_id_expiration_ms,
            journal_access=config.shared_access().readable(),
        )
        self.broker = Broker(
            fs,
            kv,
            incarnation=joined.view.own,
            membership=joined.membership,
            is_alive=joined.view.members.__contains__,
            cluster=config.cluster,
            clock=clock,
            config=settings,
            janitor_config=janitor_config,
            reads=pool.progress,
            standstill=joined.standstill,
        )
        self.fence = ShardFence()
        self.assigned = AssignedPartitions(self.broker, pool, offload=asyncio.to_thread)
        self._hand_overs = HandoverNotifier(joined.view, joined.peers, timeout_s=settings.handover_wait_ms / 1000)
        self._follower = AssignmentFollower(self.assigned, catalog, joined.view, config, self._hand_overs)

    @property
    def refused_topics(self) -> Mapping[str, str]:
        """The topics whose partitions are not opened, each with the reason."""
        return self._follower.refused

    @property
    def has_partitions(self) -> bool:
        """True if partitions of existing topics, other than `refused_topics`, are assigned to this process."""
        return self._follower.has_partitions

    async def start(self) -> None:
        """Start the broker, and open the partitions that are assigned to it from now on."""
        await self.broker.start()
        await self._follower.start()

    def reconfigure(self, config: NodeConfig) -> None:
        """Apply the settings of a node whose id has changed: other configs may be set for that id."""
        self._follower.reconfigure(config)

    async def wait_moved(self, timeout_s: float) -> None:
        """Wait until partitions that moved to others are released, and their new owners have the release notes.

        If this takes longer than ``timeout_s``, that is logged: without the note, a new owner waits until this process
        is no longer a member, ``handover_wait_ms`` at most.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self.assigned.wait_left()
                await self._hand_overs.wait_notified()
        except TimeoutError:
            log.warning("some partitions are not handed over in %g s, their new owners open them later", timeout_s)

    async def close(self, deadline: float | None = None) -> None:
        """Hand over or close all partitions, until ``deadline`` on the event loop's clock at most.

        May be called after a `start` that failed.
        """
        self._follower.close()
        await self.assigned.close()
        await self.broker.close(deadline)
        await self._hand_overs.close()
