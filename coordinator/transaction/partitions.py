"""Sets of partitions in a transaction: tuples of ``TopicPartitions``, ordered by name, topic id and number.  Pure."""

from __future__ import annotations

import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from operator import eq, itemgetter

from bmq.coordinator.transaction.records import TopicPartitions

Partitions = tuple[TopicPartitions, ...]
_NO_ID = uuid.UUID(int=0)
_NAME, _NUMBERS = itemgetter(0), itemgetter(2)


def merged(present: Partitions, added: Partitions) -> Partitions:
    """Return the partitions of both.  Topics without an addition are not sorted again."""
    found = {each[:2]: each for each in present}
    for each in added:
        before = found.get(each[:2])
        numbers = each.partitions if before is None else (*before.partitions, *each.partitions)
        found[each[:2]] = TopicPartitions(*each[:2], tuple(sorted(set(numbers))))
    return ordered(found.values())


def ordered(topics: Iterable[TopicPartitions]) -> Partitions:
    """Return the topics in the order of records: equal sets have equal bytes."""
    found = sorted(topics, key=_NAME)
    if any(map(eq, map(_NAME, found), map(_NAME, found[1:]))):  # as a rule each name is there once
        found.sort(key=lambda each: (each.topic, (each.topic_id or _NO_ID).int))
    return tuple(found)


def contains(present: Partitions, asked: Partitions) -> bool:
    """Return True if all partitions of ``asked`` are in ``present``."""
    return all(_has_all(numbers_of(present, *each[:2]), each.partitions) for each in asked)


def numbers_of(present: Partitions, topic: str, topic_id: uuid.UUID | None) -> Sequence[int]:
    """Return the numbers of a topic's partitions, in ascending order."""
    for each in present[bisect_left(present, topic, key=_NAME) : bisect_right(present, topic, key=_NAME)]:
        if each.topic_id == topic_id:
            return each.partitions
    return ()


def has(partitions: Sequence[int], number: int) -> bool:
    """Return True if ``number`` is among ``partitions``, which are in ascending order."""
    at = bisect_left(partitions, number)
    return at < len(partitions) and partitions[at] == number


def work_of(partitions: Partitions) -> int:
    """Return the work with a record of these partitions, in elements of a turn (``core.aio.turns``)."""
    return 1 + len(partitions) // 2 + sum(map(len, map(_NUMBERS, partitions))) // 100


def _has_all(present: Sequence[int], asked: Sequence[int]) -> bool:
    if len(asked) < len(present) // 100:
        return all(has(present, each) for each in asked)
    return set(present).issuperset(asked)
