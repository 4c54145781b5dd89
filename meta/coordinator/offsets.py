"""Committed offsets of one shard, and when they expire (KIP-211).  Pure.

An offset is kept as a ``records.Offset``.  ``require_stable`` (OffsetFetch 7+) asks to wait for offsets of
transactions that are still open: there are no transactions yet, so every offset here is stable.  Whoever adds
them must answer UNSTABLE_OFFSET_COMMIT where one is pending, with the flag set (Redpanda #28554 forgot to).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from bmq.meta.coordinator.records import NO_EXPIRY, Offset, OffsetRecord

_NO_TOPICS: Mapping[str, Mapping[int, Offset]] = MappingProxyType({})
_NO_PARTITIONS: Mapping[int, Offset] = MappingProxyType({})


class Offsets:
    """By group, topic and partition.  Groups and topics without an offset are not kept."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, dict[int, Offset]]] = {}

    def apply(self, record: OffsetRecord) -> None:
        if record.value is not None:
            topics = self._groups.setdefault(record.group_id, {})
            topics.setdefault(record.topic, {})[record.partition] = record.value
            return
        topics = self._groups.get(record.group_id, {})
        partitions = topics.get(record.topic)
        if partitions is None or partitions.pop(record.partition, None) is None:
            return
        if not partitions:
            del topics[record.topic]
        if not topics:
            del self._groups[record.group_id]

    def of_group(self, group_id: str) -> Mapping[str, Mapping[int, Offset]]:
        return self._groups.get(group_id, _NO_TOPICS)

    def get(self, group_id: str, topic: str, partition: int) -> Offset | None:
        return self.of_group(group_id).get(topic, _NO_PARTITIONS).get(partition)

    def has_group(self, group_id: str) -> bool:
        return group_id in self._groups

    @property
    def group_ids(self) -> list[str]:
        return list(self._groups)

    def tombstones(self, group_id: str, topic: str | None = None) -> list[OffsetRecord]:
        """What deletes all offsets of the group, or those of one topic."""
        return [
            OffsetRecord(group_id, name, partition, None)
            for name, partitions in self.of_group(group_id).items()
            if topic is None or name == topic
            for partition in partitions
        ]

    def __iter__(self) -> Iterator[OffsetRecord]:
        for group_id, topics in self._groups.items():
            for topic, partitions in topics.items():
                for partition, value in partitions.items():
                    yield OffsetRecord(group_id, topic, partition, value)


def is_expired(value: Offset, since_ms: int, now_ms: int, retention_ms: int) -> bool:
    """Whether an offset has outlived ``retention_ms`` since ``since_ms``; wall times.

    One with an expiry of its own (OffsetCommit 2-4) goes by that alone, as in ``OffsetExpirationConditionImpl``.
    """
    if value.expire_timestamp != NO_EXPIRY:
        return now_ms >= value.expire_timestamp
    return now_ms - since_ms >= retention_ms
