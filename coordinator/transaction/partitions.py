"""Sets of partitions in a transaction: tuples of ``TopicPartitions``, ordered by name, topic id and number.  Pure."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from bmq.coordinator.transaction.records import TopicPartitions

Partitions = tuple[TopicPartitions, ...]
_NO_ID = uuid.UUID(int=0)


def merged(present: Partitions, added: Partitions) -> Partitions:
    """Return the partitions of both."""
    found: dict[tuple[str, uuid.UUID | None], set[int]] = {}
    for topic, topic_id, partitions in (*present, *added):
        found.setdefault((topic, topic_id), set()).update(partitions)
    return ordered(TopicPartitions(*key, tuple(sorted(partitions))) for key, partitions in found.items())


def ordered(topics: Iterable[TopicPartitions]) -> Partitions:
    """Return the topics in the order of records: equal sets have equal bytes."""
    return tuple(sorted(topics, key=lambda each: (each.topic, (each.topic_id or _NO_ID).int)))


def contains(present: Partitions, asked: Partitions) -> bool:
    """Return True if all partitions of ``asked`` are in ``present``."""
    found = {(each.topic, each.topic_id): each.partitions for each in present}
    return all(set(each.partitions) <= set(found.get((each.topic, each.topic_id), ())) for each in asked)
