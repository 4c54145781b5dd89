"""Transactions' ends by the topic of their partitions: to groups' shards, or to partition owners."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from bmq.coordinator.group_markers import GroupMarkers
from bmq.coordinator.transaction_shard.parts import WriteMarkers
from bmq.core.aio.tasks import gathered
from bmq.core.errors import ErrorCode, FormatError
from bmq.core.model import PartitionKey
from bmq.core.records.control import TransactionMarker
from bmq.meta.catalog import OFFSETS_TOPIC, Catalog
from bmq.meta.kv import KvError
from bmq.meta.shard_kinds import may_be_in_transactions


class RoutedMarkers:
    """A ``WriteMarkers`` over both ways.

    Partitions of ``__consumer_offsets`` go to ``groups``, all others to ``partitions``. A partition of
    ``__consumer_offsets`` must never get its marker from ``partitions``: the group's shard would not hear of the end.
    The catalog may be behind, so the store is asked about ``__consumer_offsets`` if a topic is unknown.
    A partition of ``__transaction_state`` needs no marker: no producer writes to it, and its owner takes no marker.  A
    transaction has such a partition if an earlier version has let it in.
    """

    def __init__(self, catalog: Catalog, groups: GroupMarkers, partitions: WriteMarkers) -> None:
        self._catalog = catalog
        self._groups = groups
        self._partitions = partitions

    async def __call__(
        self, marker: TransactionMarker, keys: Sequence[PartitionKey]
    ) -> Mapping[PartitionKey, ErrorCode]:
        """Send a marker to ``keys``; return the code of each.

        COORDINATOR_NOT_AVAILABLE: the topic is unknown, and the store does not say whether it has the groups.
        """
        codes: dict[PartitionKey, ErrorCode] = {}
        wanted = dict.fromkeys(keys)
        hidden = [key for key in wanted if self._catalog.by_id(key.topic_id) is None]
        if hidden and not await self._refresh():
            codes = dict.fromkeys(hidden, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        offsets = self._catalog.topics.get(OFFSETS_TOPIC)
        of_groups: dict[int, PartitionKey] = {}
        others: list[PartitionKey] = []
        for key in wanted:
            if key in codes:
                continue
            topic = self._catalog.by_id(key.topic_id)
            if topic is not None and not may_be_in_transactions(topic.name):
                codes[key] = ErrorCode.NONE
                continue
            if offsets is not None and key.topic_id == offsets.topic_id:
                of_groups[key.partition] = key
            else:
                others.append(key)
        sent: list[Coroutine[Any, Any, None]] = []
        if of_groups:
            sent.append(self._end_groups(marker, of_groups, codes))
        if others:
            sent.append(self._end_partitions(marker, others, codes))
        await gathered(sent)
        return codes

    async def _end_groups(
        self, marker: TransactionMarker, keys: Mapping[int, PartitionKey], codes: dict[PartitionKey, ErrorCode]
    ) -> None:
        """Add the codes of partitions of ``__consumer_offsets``."""
        ended = await self._groups(marker, keys)
        codes.update((keys[partition], code) for partition, code in ended.items())

    async def _end_partitions(
        self, marker: TransactionMarker, keys: Sequence[PartitionKey], codes: dict[PartitionKey, ErrorCode]
    ) -> None:
        """Add the codes of partitions with records."""
        codes.update(await self._partitions(marker, keys))

    async def _refresh(self) -> bool:
        """Have the catalog show ``__consumer_offsets`` as the store has it.  Return False if the store does not say."""
        try:
            await self._catalog.refresh(OFFSETS_TOPIC)
        except (KvError, FormatError):
            return False
        return True
