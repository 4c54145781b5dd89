"""The transaction coordinator of one process, wired to the process's parts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from bmq.controller.admin.client import RemoteAdmin
from bmq.coordinator.partition_markers import GoneTopics, PartitionMarkers
from bmq.coordinator.routed_markers import RoutedMarkers
from bmq.coordinator.shard.context import CoordinatorContext
from bmq.coordinator.transaction_shard.manager import TransactionShards
from bmq.coordinator.transaction_shard.transactions import TransactionApis
from bmq.meta.catalog import TRANSACTIONS_TOPIC, Topic
from bmq.meta.producer_ids import ProducerIds
from bmq.server.roles.parts import Parts


def make_transactions(
    parts: Parts,
    admin: RemoteAdmin,
    offsets_topic: Callable[[], Awaitable[Topic]],
    producer_ids: ProducerIds,
    context: CoordinatorContext,
) -> TransactionApis:
    """Return the transaction coordinator of the process.

    ``offsets_topic`` returns ``__consumer_offsets``, and creates it if it is missing.
    """
    catalog = context.catalog
    owners = PartitionMarkers(context.view, catalog, parts.joined.peers, GoneTopics(parts.kv, parts.config.cluster))
    shards = TransactionShards(
        context, partial(admin.ensure_topic, TRANSACTIONS_TOPIC),
        producer_ids=producer_ids.next,
        write_markers=RoutedMarkers(catalog, parts.group_markers, owners),
    )  # fmt: skip
    return TransactionApis(context, shards, offsets_topic, owners.close)
