"""Offsets of a streaming query, as Spark's Kafka source writes them into its checkpoint.  Pure.

    {"topic": {"0": 123, "1": 45}}

Spark compares offsets by their text, so topics and partitions stand in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TopicPartition = tuple[str, int]
Offsets = dict[TopicPartition, int]
"""The next offset to be read of each partition."""


class OffsetError(ValueError):
    """A checkpoint that holds something else."""


def to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """What Spark writes down."""
    by_topic: dict[str, dict[str, int]] = {}
    for topic, partition in sorted(offsets):
        by_topic.setdefault(topic, {})[str(partition)] = offsets[topic, partition]
    return by_topic


def from_json(raw: Any) -> Offsets:
    """OffsetError."""
    try:
        offsets = {
            (str(topic), int(partition)): _offset(offset)
            for topic, partitions in raw.items()
            for partition, offset in partitions.items()
        }
    except (AttributeError, ValueError) as error:
        raise OffsetError(f'{raw!r} are no offsets, which look like {{"topic": {{"0": 123}}}}') from error
    return offsets


def _offset(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no offset")
    return value
