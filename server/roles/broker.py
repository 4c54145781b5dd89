"""The broker role of one process: the broker, the partitions assigned to it, and the follower of assignments."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from dataclasses import replace

from bmq.broker.assignment.assigned_partitions import AssignedPartitions
from bmq.broker.assignment.follower import AssignmentFollower
from bmq.broker.assignment.handover import HandoverNotifier
from bmq.broker.broker import Broker
from bmq.broker.cleanup.config import JanitorConfig
from bmq.broker.config import BrokerConfig
from bmq.broker.context import BrokerWiring
from bmq.broker.job_rounds_api import JobRoundsApi
from bmq.broker.log_cleaning_api import LogCleaningApi
from bmq.broker.not_served_api import NotServedApi
from bmq.broker.shard_log_fence import ShardFence
from bmq.core.aio.pace import Pace
from bmq.core.config import NodeConfig
from bmq.core.features import COMPACTION_VERSION, TRANSACTION_VERSION
from bmq.core.rpc.messages.broker import (
    BeginCleaningRequest,
    LogCleaningRequest,
    PartitionsNotServedRequest,
    SwapCleanedRequest,
)
from bmq.endpoint.dispatch import Endpoint
from bmq.endpoint.scopes import ListenerView
from bmq.meta.cluster.admission import ShardOwnership
from bmq.server.roles.broker_endpoint import internal_endpoint, register_broker
from bmq.server.roles.flush_listeners import FetchAndShardListener
from bmq.server.roles.local_shard_log import LocalShardLogs
from bmq.server.roles.parts import Parts
from bmq.storage.cleaning.compiled_filter import COMPILED_FILTERS
from bmq.storage.cleaning.filters import RecordFilters

_log = logging.getLogger(__name__)


class BrokerRole:
    """The broker role of one process.  ``start`` it once catalog and view are loaded."""

    def __init__(
        self, parts: Parts, *, broker_config: BrokerConfig | None = None, janitor_config: JanitorConfig | None = None
    ) -> None:
        config, joined, catalog, pool = parts.config, parts.joined, parts.catalog, parts.pool
        settings = broker_config or BrokerConfig(
            block_bytes=config.block_bytes,
            open_pipelines_max=config.open_pipelines_max,
            producer_expiration_ms=config.producer_id_expiration_ms,
            journal_access=config.shared_access().readable(),
        )
        self.fence = ShardFence()
        transactions = joined.features.ranges.get(TRANSACTION_VERSION)
        self.broker = Broker(
            parts.fs,
            parts.kv,
            incarnation=joined.view.own,
            is_member=lambda: joined.membership.is_member,
            is_alive=joined.view.members.__contains__,
            wiring=BrokerWiring(
                flush_listener=FetchAndShardListener(parts.fetches, self.fence),
                verifier=parts.verifier if transactions is not None and transactions.highest > 0 else None,
                may_clean=lambda: joined.view.levels.of(COMPACTION_VERSION) > 0,
                filters=RecordFilters(COMPILED_FILTERS),
                offload=asyncio.to_thread,
                pace=Pace(),
                on_failed=joined.on_failed,
            ),
            cluster=config.cluster,
            clock=parts.clock,
            config=settings,
            janitor_config=janitor_config or _janitor_config(config),
            reads=pool.progress,
            standstill=joined.standstill,
        )
        self.assigned = AssignedPartitions(self.broker, pool, offload=asyncio.to_thread)
        self.shard_logs = LocalShardLogs(self.assigned, catalog, pool, self.fence)
        """Logs of shards whose partition this process owns; each ends when the process loses its partition."""
        self._parts = parts
        self._close_by = math.inf
        """On the event loop's clock: partitions not handed over by then are left as they are."""
        self._view = ListenerView(config=config)
        self._hand_overs = HandoverNotifier(joined.view, joined.peers, timeout_s=settings.handover_wait_ms / 1000)
        self._follower = AssignmentFollower(self.assigned, catalog, joined.view, config, self._hand_overs)
        self.endpoint = self._serve_inside()
        """Dispatch of other processes' Produce and Fetch."""

    @property
    def refused_topics(self) -> Mapping[str, str]:
        """The topics whose partitions are not opened, each with the reason."""
        return self._follower.refused

    @property
    def has_partitions(self) -> bool:
        """True if partitions of existing topics, other than ``refused_topics``, are assigned to this process."""
        return self._follower.has_partitions

    def _serve_inside(self) -> Endpoint:
        """Register the broker's internal APIs, and return the endpoint of other processes' Produce and Fetch."""
        parts, context = self._parts, self.broker.context
        joined = parts.joined
        ownership = ShardOwnership(parts.kv, parts.config.cluster, joined.view, parts.catalog)
        register_broker(joined.endpoint, self.assigned, context.load, context.open_files, self.fence, ownership.check)
        inside = internal_endpoint(self._view, parts.clock, parts.catalog, self.assigned, context.load, parts.fetches)
        joined.endpoint.register_kafka(inside if parts.tracing is None else parts.tracing.of_processes(inside))
        joined.endpoint.register(PartitionsNotServedRequest, NotServedApi(self.broker, self.assigned).handle)
        joined.endpoint.register(LogCleaningRequest, LogCleaningApi(self.broker.janitor.cleaning).handle)
        jobs = JobRoundsApi(self.broker.janitor.job_rounds, context.wiring.offload)
        joined.endpoint.register(BeginCleaningRequest, jobs.begin)
        joined.endpoint.register(SwapCleanedRequest, jobs.swap)
        return inside

    async def start(self) -> None:
        """Start the broker, and open the partitions that are assigned to it from now on."""
        await self.broker.start()
        await self._follower.start()

    def renumber(self, config: NodeConfig) -> None:
        """Apply the settings of a process whose node id has changed: other configs may be set for that id."""
        self._view.renumber(config)
        self._follower.reconfigure(config)

    def drain(self) -> None:
        """Keep all: partitions are handed over while clients are still served."""

    async def wait_moved(self, timeout_s: float, close_by: float) -> None:
        """Wait until partitions that moved to others are released, and their new owners have the release notes.

        A later ``close`` leaves partitions as they are that are not handed over by ``close_by``, on the loop's clock.
        If this takes longer than ``timeout_s``, that is logged: without the note, a new owner waits until this process
        is no longer a member, ``handover_wait_ms`` at most.
        """
        self._close_by = close_by
        try:
            async with asyncio.timeout(timeout_s):
                await self.assigned.wait_left()
                await self._hand_overs.wait_notified()
        except TimeoutError:
            _log.warning("some partitions are not handed over in %g s, their new owners open them later", timeout_s)

    async def close(self) -> None:
        """Hand over or close all partitions, until the ``close_by`` of ``wait_moved`` at most.

        May be called after a ``start`` that failed.
        """
        self._follower.close()
        await self.assigned.close()
        await self.broker.close(self._close_by)
        await self._hand_overs.close()


def _janitor_config(config: NodeConfig) -> JanitorConfig:
    """Return the settings of upkeep, with Kafka's ``log.cleaner.*``."""
    default = JanitorConfig()
    backoff_ms = config.log_cleaner_backoff_ms
    interval_ms = default.interval_ms if backoff_ms >= default.clean_ms else max(1_000, backoff_ms)
    return replace(
        default,
        clean_enabled=config.log_cleaner_enable,
        clean_ms=backoff_ms,
        interval_ms=interval_ms,
        clean_threads=config.log_cleaner_threads,
        clean_buffer_bytes=config.log_cleaner_dedupe_buffer_size,
        clean_bytes_s=config.log_cleaner_io_max_bytes_per_second,
    )
