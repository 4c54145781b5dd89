"""The transaction coordinator of one process, wired to the process's parts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from bmq.controller.admin.client import RemoteAdmin
from bmq.coordinator.partition_markers import GoneTopics, PartitionMarkers
from bmq.coordinator.routed_markers import RoutedMarkers
from bmq.coordinator.settings import CoordinatorSettings
from bmq.coordinator.shard.log import ShardLogs
from bmq.coordinator.transaction_shard.manager import TransactionShards
from bmq.coordinator.transaction_shard.transactions import TransactionApis
from bmq.meta.catalog import TRANSACTIONS_TOPIC, Topic
from bmq.meta.producer_ids import ProducerIds
from bmq.server.roles.coordinator import TransactionParts
from bmq.server.roles.parts import Parts


def make_transactions(
    parts: Parts,
    admin: RemoteAdmin,
    offsets_topic: Callable[[], Awaitable[Topic]],
    producer_ids: ProducerIds,
    logs: ShardLogs,
) -> TransactionParts:
    """Return the transaction coordinator over the shards' ``logs``.

    ``offsets_topic`` returns ``__consumer_offsets``, and creates it if it is missing.
    """
    config, joined, catalog = parts.config, parts.joined, parts.catalog
    owners = PartitionMarkers(joined.view, catalog, joined.peers, GoneTopics(parts.kv, config.cluster))
    shards = TransactionShards(
        CoordinatorSettings.of(config), parts.clock, logs, partial(admin.ensure_topic, TRANSACTIONS_TOPIC), catalog,
        joined.view,
        producer_ids=producer_ids.next,
        write_markers=RoutedMarkers(catalog, parts.group_markers, owners),
        bounds=parts.security.client_quotas,
    )  # fmt: skip

    return TransactionParts(shards, TransactionApis(shards, catalog, parts.clock, offsets_topic), owners.close)
