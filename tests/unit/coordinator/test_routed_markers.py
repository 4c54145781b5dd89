"""Markers by topic: to groups' shards or to partition owners, also while the catalog is behind."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import pytest

from bmq.coordinator.routed_markers import RoutedMarkers
from bmq.core.errors import ErrorCode, FormatError
from bmq.core.model import PartitionKey
from bmq.core.records.control import TransactionMarker
from bmq.meta.catalog import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from bmq.meta.kv import KvUnknown
from tests.unit.coordinator.fakes import MemoryCatalog, topic
from tests.unit.coordinator.txn_requests import marker_of

ORDERS, OFFSETS, GONE = topic("orders"), topic(OFFSETS_TOPIC, 4), topic("gone")
OF_GROUP, OTHER, DELETED = (PartitionKey(each.topic_id, 3) for each in (OFFSETS, ORDERS, GONE))


class World:
    """Both ways: each answers with a code of its own."""

    def __init__(self, catalog: MemoryCatalog) -> None:
        self.catalog = catalog
        self.given: list[Any] = []
        self.routed = RoutedMarkers(catalog, cast(Any, self.to_groups), self.to_partitions)

    async def to_groups(self, marker: TransactionMarker, partitions: Collection[int]) -> Mapping[int, ErrorCode]:
        self.given += [(marker.producer_id, each) for each in partitions]
        return dict.fromkeys(partitions, ErrorCode.NOT_COORDINATOR)

    async def to_partitions(
        self, marker: TransactionMarker, keys: Sequence[PartitionKey]
    ) -> Mapping[PartitionKey, ErrorCode]:
        self.given += [(marker.producer_id, each) for each in keys]
        return {key: ErrorCode.UNKNOWN_TOPIC_ID if key == DELETED else ErrorCode.NONE for key in keys}

    async def write(self, *keys: PartitionKey) -> list[str]:
        codes = await self.routed(marker_of(), keys)
        return [codes[key].name for key in keys]


async def test_partitions_of_the_groups_topic_go_to_the_groups_shards() -> None:
    w = World(MemoryCatalog(ORDERS, OFFSETS))
    assert await w.write(OTHER, OF_GROUP, DELETED) == ["NONE", "NOT_COORDINATOR", "UNKNOWN_TOPIC_ID"]
    assert w.given == [(1, 3), (1, OTHER), (1, DELETED)]


async def test_a_shard_of_transactions_needs_no_marker_and_gets_none() -> None:
    own = topic(TRANSACTIONS_TOPIC, 4)
    w = World(MemoryCatalog(ORDERS, OFFSETS, own))
    assert await w.write(OTHER, PartitionKey(own.topic_id, 3)) == ["NONE", "NONE"]
    assert w.given == [(1, OTHER)]


async def test_a_groups_topic_that_the_catalog_does_not_show_yet_is_none_of_the_owners() -> None:
    """Never give its marker to the partition's owner: it counts as done, and the group's offsets stay undecided."""
    w = World(MemoryCatalog(ORDERS))
    w.catalog.unseen[OFFSETS_TOPIC] = OFFSETS
    assert await w.write(OF_GROUP, OTHER) == ["NOT_COORDINATOR", "NONE"]
    assert w.given == [(1, 3), (1, OTHER)]


@pytest.mark.parametrize("error", [KvUnknown("no answer"), FormatError("not a topic")])
async def test_an_unknown_topic_fails_for_now_while_the_store_does_not_say_whose_it_is(error: Exception) -> None:
    w = World(MemoryCatalog(ORDERS))
    w.catalog.refresh_error = error
    assert await w.write(OF_GROUP, OTHER) == ["COORDINATOR_NOT_AVAILABLE", "NONE"]
    assert w.given == [(1, OTHER)]
