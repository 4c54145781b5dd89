"""The controller role of one process: the candidate for leadership, and all that a leader's term is made of."""

from __future__ import annotations

import asyncio
import logging

from bmq.controller.admin.cluster import LeaderAdmin
from bmq.controller.admin.server import AdminService
from bmq.controller.feature_finalizer import FeatureFinalizer
from bmq.controller.kv_commit import Guard
from bmq.controller.leader_parts import LeaderParts
from bmq.controller.levels_filing import file_levels
from bmq.controller.member_client import PeerMemberClient
from bmq.controller.quota_shares_api import QuotaSharesApi
from bmq.controller.service import Controller
from bmq.controller.store_age import StoreAge
from bmq.controller.store_upkeep import StoreUpkeep, maintained
from bmq.controller.topics.access_walks import AccessWalks
from bmq.controller.topics.deletion import TopicCleaner
from bmq.controller.topics.topics import REPLICAS_MAX, TopicAdmin
from bmq.core.config import NodeConfig
from bmq.core.logging.fields import fields
from bmq.core.rpc.messages.controller import QuotaSharesRequest
from bmq.meta.cluster.levels import FeatureLevels
from bmq.meta.cluster.member import PROXY
from bmq.meta.open import is_shared
from bmq.meta.proxy_addresses import Proxies
from bmq.server.roles.parts import Parts
from bmq.storage.access_files import AccessFiles
from bmq.storage.feature_levels import StoredLevels
from bmq.storage.filesystem import StorageError

_log = logging.getLogger(__name__)
REPLICAS_WAIT_S = 5.0
"""Time-out of storage's number of datanodes."""


class ControllerRole:
    """The controller role of one process.  ``start`` it once catalog and view are loaded."""

    def __init__(self, parts: Parts, proxies: Proxies) -> None:
        """Make the role; ``proxies`` lists the node ids that clients may name."""
        self._parts = parts
        self._config = parts.config
        self._proxies = proxies
        self._access_files = AccessFiles(parts.fs)
        joined, members = parts.joined, PeerMemberClient(parts.joined.peers)
        self.controller = Controller(
            parts.config, parts.kv, joined.view, parts.catalog, members, parts.clock,
            make_parts=self._make_parts, on_failed=joined.on_failed,
            since_outage_s=lambda: joined.membership.since_outage_s, rebuild_count=parts.files.rebuild_count,
        )  # fmt: skip
        self.service = AdminService(self.controller, joined.view, LeaderAdmin(self.controller, parts.catalog, members))
        """Administration of topics, configs and the cluster, for this process and for others."""
        self.service.register(joined.endpoint)
        shares = QuotaSharesApi(self.controller, joined.view, parts.clock)
        joined.endpoint.register(QuotaSharesRequest, shares.handle, role=PROXY)

    @property
    def is_leader(self) -> bool:
        return self.controller.leading is not None

    @property
    def cleaner(self) -> TopicCleaner | None:
        """The topic cleaner that runs here; None unless this process leads."""
        parts = self.controller.parts
        return parts.cleaner if parts is not None else None

    @property
    def access_walks(self) -> AccessWalks | None:
        """The walks that run here; None unless this process leads."""
        parts = self.controller.parts
        return parts.access if parts is not None else None

    @property
    def store_upkeep(self) -> StoreUpkeep | None:
        """The upkeep of etcd that runs here; None unless this process leads, and for every other store."""
        parts = self.controller.parts
        return parts.upkeep if parts is not None else None

    async def start(self) -> None:
        """Begin to stand for leadership.  Raises KvError if the store refuses."""
        await self.controller.start()

    def drain(self) -> None:
        """Keep all: no request of a client waits here."""

    async def close(self) -> None:
        """Resign, and end all work of a leader.  May be called after a ``start`` that failed."""
        await self.controller.close()

    def renumber(self, config: NodeConfig) -> None:
        """Apply the settings of a process whose node id has changed, in this term and in later terms."""
        self._config = config
        if self.controller.parts is not None:
            self.controller.parts.topics.renumber(config)

    def report(self, incarnation: str, _why: str) -> None:
        """Handle a report of this process itself: it cannot reach the member ``incarnation``."""
        self.controller.report(self._parts.joined.view.own, incarnation)

    # ---------------------------------------------------------------------------------------------- parts of a term

    def _make_parts(self, guard: Guard) -> LeaderParts:
        parts = self._parts
        kv, config, clock = parts.kv, parts.config, parts.clock
        return LeaderParts(
            topics=self._make_topics(guard),
            cleaner=TopicCleaner(kv, config.cluster, parts.files, clock, guard=guard),
            access=AccessWalks(
                kv, config.cluster, parts.catalog, config, self._access_files, clock,
                guard=guard, shared=config.shared_access(),
            ),
            upkeep=self._make_upkeep(guard),
            age=StoreAge(kv, parts.fs, config.cluster, parts.files.rebuild_count, guard=guard),
            features=self._make_features(guard),
        )  # fmt: skip

    def _make_topics(self, guard: Guard) -> TopicAdmin:
        parts = self._parts
        return TopicAdmin(
            parts.kv, parts.config.cluster, parts.catalog, self._config, parts.files, parts.clock,
            replicas_max=self._replicas_max, nodes=lambda: [proxy.node_id for proxy in self._proxies.addresses],
            guard=guard, has_node_configs=not is_shared(parts.config.meta), access_files=self._access_files,
            bounds=parts.security.client_quotas,
        )  # fmt: skip

    def _make_upkeep(self, guard: Guard) -> StoreUpkeep | None:
        parts = self._parts
        store = maintained(parts.kv)
        if store is None:
            return None
        config = parts.config
        return StoreUpkeep(parts.kv, store, config.cluster, parts.clock, config.etcd_history_ms, guard=guard)

    def _make_features(self, guard: Guard) -> FeatureFinalizer:
        parts, fs, rebuild_count = self._parts, self._parts.fs, self._parts.files.rebuild_count

        async def file(revision: int, record: FeatureLevels) -> None:
            levels = StoredLevels(
                rebuild_count=rebuild_count, revision=revision, levels=record.highest, held=record.held
            )
            await file_levels(parts.kv, parts.config.cluster, fs, levels, guard)

        view, table = parts.joined.view, parts.joined.features
        return FeatureFinalizer(parts.kv, parts.config.cluster, view, table, file, guard=guard)

    async def _replicas_max(self) -> int:
        """Return the number of live datanodes; ``REPLICAS_MAX`` if storage does not report it.

        So topics can be created while storage does not respond: HDFS adds missing replicas once there are more nodes.
        """
        try:
            async with asyncio.timeout(REPLICAS_WAIT_S):
                return await self._parts.fs.replicas_max()
        except (StorageError, TimeoutError) as error:
            _log.info(
                "storage does not report its number of datanodes, so any replication factor is accepted",
                extra=fields(error=error),
            )
            return REPLICAS_MAX
