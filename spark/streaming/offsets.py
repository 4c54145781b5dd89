"""Offsets of a streaming query, as Spark's Kafka source writes them into its checkpoint.  Pure.

    {"topic": {"0": 123, "1": 45}}

Spark compares offsets by their text, so topics and partitions stand in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TopicPartition = tuple[str, int]
Offsets = dict[TopicPartition, int]
"""The offset of the next record to read, by partition."""


class OffsetError(ValueError):
    """A checkpoint that does not hold offsets."""


def to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Return the form that Spark writes down: topics and partitions in order."""
    by_topic: dict[str, dict[str, int]] = {}
    for topic, partition in sorted(offsets):
        by_topic.setdefault(topic, {})[str(partition)] = offsets[topic, partition]
    return by_topic


def from_json(raw: Any) -> Offsets:
    """Return the offsets of ``to_json``'s form.  Raises OffsetError if ``raw`` has another form."""
    try:
        offsets = {
            (str(topic), int(partition)): _offset(offset)
            for topic, partitions in raw.items()
            for partition, offset in partitions.items()
        }
    except (AttributeError, ValueError) as error:
        raise OffsetError(f'{raw!r} are not offsets, which have the form {{"topic": {{"0": 123}}}}') from error
    return offsets


def _offset(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not an offset")
    return value
