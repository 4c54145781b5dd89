"""Committed offsets of one shard, and when they expire (KIP-211).  Pure.

An offset is kept as a ``records.Offset``.  Pending offsets have a table of their own (``group_shard.pending``).
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from types import MappingProxyType

from bmq.coordinator.records import NO_EXPIRY, Offset, OffsetRecord

_NO_TOPICS: Mapping[str, Mapping[int, Offset]] = MappingProxyType({})
_NO_PARTITIONS: Mapping[int, Offset] = MappingProxyType({})


TopicRef = tuple[str, uuid.UUID | None]
"""Name and id of a topic that offsets were committed for; the id is None in records from before ids were kept."""


class Offsets:
    """Committed offsets by group, topic and partition.  Groups and topics without an offset are not kept."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, dict[int, Offset]]] = {}
        self._topics: Counter[TopicRef] = Counter()  # number of offsets of each

    def apply(self, record: OffsetRecord) -> None:
        """Set the record's offset, or delete it if the record is a tombstone."""
        value = record.value
        if value is not None:
            partitions = self._groups.setdefault(record.group_id, {}).setdefault(record.topic, {})
            before = partitions.get(record.partition)
            partitions[record.partition] = value
            if before is None or before.topic_id != value.topic_id:
                self._topics[record.topic, value.topic_id] += 1
                if before is not None:
                    self._uncount(record.topic, before)
            return
        topics = self._groups.get(record.group_id, {})
        partitions = topics.get(record.topic, {})
        removed = partitions.pop(record.partition, None)
        if removed is None:
            return
        self._uncount(record.topic, removed)
        if not partitions:
            del topics[record.topic]
        if not topics:
            del self._groups[record.group_id]

    def of_group(self, group_id: str) -> Mapping[str, Mapping[int, Offset]]:
        """Return the group's offsets by topic name and partition; empty if it has none."""
        return self._groups.get(group_id, _NO_TOPICS)

    def of_topic(self, group_id: str, topic: str) -> Mapping[int, Offset]:
        """Return the group's offsets by partition, of all topics that have or had this name."""
        return self.of_group(group_id).get(topic, _NO_PARTITIONS)

    def get(self, group_id: str, topic: str, partition: int) -> Offset | None:
        return self.of_topic(group_id, topic).get(partition)

    def count_of_group(self, group_id: str) -> int:
        return sum(map(len, self.of_group(group_id).values()))

    def has_group(self, group_id: str) -> bool:
        return group_id in self._groups

    @property
    def group_ids(self) -> list[str]:
        return list(self._groups)

    @property
    def topics(self) -> Set[TopicRef]:
        """The topics that have offsets."""
        return self._topics.keys()

    def tombstones(self, group_id: str) -> list[OffsetRecord]:
        """Return the records that delete all offsets of the group."""
        return [
            OffsetRecord(group_id, name, partition, None)
            for name, partitions in self.of_group(group_id).items()
            for partition in partitions
        ]

    def tombstones_of_topic(
        self, group_id: str, topic: str, topic_id: uuid.UUID | None, partitions: Iterable[int]
    ) -> list[OffsetRecord]:
        """Return the records that delete the offsets of these partitions that have this topic id; None: have no id."""
        kept = self.of_topic(group_id, topic)
        return [
            OffsetRecord(group_id, topic, each, None)
            for each in partitions
            if (value := kept.get(each)) is not None and value.topic_id == topic_id
        ]

    def parts(self) -> list[object]:
        """Return the objects that hold most of the memory, so that they can be freed in turns."""
        return [partitions for topics in self._groups.values() for partitions in topics.values()]

    def _uncount(self, topic: str, value: Offset) -> None:
        ref = topic, value.topic_id
        self._topics[ref] -= 1
        if not self._topics[ref]:
            del self._topics[ref]

    def __iter__(self) -> Iterator[OffsetRecord]:
        for group_id, topics in self._groups.items():
            for topic, partitions in topics.items():
                for partition, value in partitions.items():
                    yield OffsetRecord(group_id, topic, partition, value)


def is_expired(value: Offset, since_ms: int, now_ms: int, retention_ms: int) -> bool:
    """Return True if an offset is older than its retention, which counts from ``since_ms``.  All are wall times in ms.

    For an offset with an expiry of its own (OffsetCommit 2-4) only that counts, as in Kafka's
    ``OffsetExpirationConditionImpl``.
    """
    if value.expire_timestamp != NO_EXPIRY:
        return now_ms >= value.expire_timestamp
    return now_ms - since_ms >= retention_ms
