"""The ends of partitions, for commands that compare other offsets with them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from kafka import TopicPartition
from kafka.protocol.consumer import IsolationLevel, OffsetSpec

from bmq.cli.admin_client import DENIED, AdminClient, describe_code
from bmq.core.http_call import RequestRefused


class PartitionEnds(NamedTuple):
    """A partition's first offset and its end; ``leader_epoch`` is -1 if its leader sent none with the end."""

    earliest: int
    latest: int
    leader_epoch: int


def ends_of(
    admin: AdminClient, keys: Collection[TopicPartition], *, is_committed: bool = False
) -> dict[TopicPartition, PartitionEnds]:
    """Return the ends of those partitions that exist and have a leader.

    With ``is_committed`` the latest offset is the last stable one: readers of committed records come no further.  A
    group may have offsets of a topic that was deleted.
    """
    led = led_partitions(admin, {key.topic for key in keys})
    wanted = [key for key in keys if led.get(key)]
    if not wanted:
        return {}
    earliest = admin.list_partition_offsets(dict.fromkeys(wanted, OffsetSpec.EARLIEST))
    level = IsolationLevel.READ_COMMITTED if is_committed else IsolationLevel.READ_UNCOMMITTED
    latest = admin.list_partition_offsets(dict.fromkeys(wanted, OffsetSpec.LATEST), isolation_level=level)
    return {key: PartitionEnds(earliest[key].offset, latest[key].offset, latest[key].leader_epoch) for key in wanted}


def led_partitions(admin: AdminClient, topics: Collection[str]) -> Mapping[TopicPartition, bool]:
    """Return the partitions of the existing topics, and for each partition whether it has a leader.

    Raises RequestRefused for a topic that this user may not describe.
    """
    return {key: leader >= 0 for key, leader in leaders_of(admin, topics).items()}


def leaders_of(admin: AdminClient, topics: Collection[str]) -> Mapping[TopicPartition, int]:
    """Return the leaders' node ids by partition of the existing topics, -1 for a partition without a leader.

    Raises RequestRefused for a topic that this user may not describe.
    """
    if not topics:
        return {}
    found: list[dict[str, Any]] = admin.describe_topics(sorted(topics))
    for topic in found:
        if topic["error_code"] in DENIED:
            right = f"Describe on topic {topic['name']}"
            raise RequestRefused(f"topic {topic['name']}: {describe_code(topic['error_code'], right=right)}")
    return {
        TopicPartition(topic["name"], partition["partition_index"]): partition["leader_id"]
        for topic in found
        if topic["error_code"] == 0
        for partition in topic["partitions"]
    }
