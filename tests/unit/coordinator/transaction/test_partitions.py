"""Sets of partitions in a transaction."""

from __future__ import annotations

import uuid

from bmq.coordinator.transaction.partitions import contains, merged
from bmq.coordinator.transaction.records import TopicPartitions

A, B = uuid.UUID(int=1), uuid.UUID(int=2)


def test_added_partitions_are_merged_in_order() -> None:
    present = merged((), (TopicPartitions("t", A, (5, 1)),))
    both = merged(
        present, (TopicPartitions("t", B, (1,)), TopicPartitions("a", A, (0,)), TopicPartitions("t", A, (1, 3)))
    )
    assert both == (TopicPartitions("a", A, (0,)), TopicPartitions("t", A, (1, 3, 5)), TopicPartitions("t", B, (1,)))


def test_partitions_of_another_topic_of_the_name_are_not_contained() -> None:
    present = (TopicPartitions("t", A, (1, 3)),)
    assert contains(present, (TopicPartitions("t", A, (3,)),))
    assert not contains(present, (TopicPartitions("t", A, (2, 3)),))
    assert not contains(present, (TopicPartitions("t", B, (3,)),))
    assert contains((), ())
