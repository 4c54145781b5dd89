"""Parts of a process for all of its shards of transactions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from bmq.coordinator.shard.key_bounds import KeyBounds
from bmq.coordinator.transaction_shard.call_room import CallRoom
from bmq.core.errors import ErrorCode
from bmq.core.model import PartitionKey
from bmq.core.records.control import TransactionMarker

WriteMarkers = Callable[[TransactionMarker, Sequence[PartitionKey]], Awaitable[Mapping[PartitionKey, ErrorCode]]]
"""Sends a marker to partitions, and returns their results.  A partition without a result is tried again.

| result | meaning |
|---|---|
| NONE | the partition has the marker |
| UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION | the topic of this id is gone, and the marker needless |
| TRANSACTION_COORDINATOR_FENCED, INVALID_PRODUCER_EPOCH | a later coordinator has decided, or a later epoch is there |
| any other | to be tried again |
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionParts:
    """Bounds and ways to other processes, made once for all shards of transactions of one process."""

    bounds: KeyBounds
    producer_ids: Callable[[], Awaitable[int]]
    """Returns a new producer id.  Raises RequestError if there is none now."""
    write_markers: WriteMarkers
    room: CallRoom
    """Places for calls with markers."""
