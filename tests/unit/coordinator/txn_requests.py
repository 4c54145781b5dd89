"""Requests and markers of transactions, for tests of the group's shard."""

from __future__ import annotations

from typing import Any

from bmq.core.errors import ErrorCode
from bmq.core.records.control import Marker, TransactionMarker
from bmq.core.wire import messages as m
from tests.unit.coordinator.fakes import CLIENT, World


def txn_request(group: str, offsets: list[tuple[str, int, int]], **fields: Any) -> Any:
    """Return a TxnOffsetCommit of (topic, partition, offset)."""
    topic_class = m.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    topics = [
        topic_class(
            name=name,
            partitions=[
                topic_class.TxnOffsetCommitRequestPartition(
                    partition_index=partition, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=""
                )
            ],
        )
        for name, partition, offset in offsets
    ]
    return m.TxnOffsetCommitRequest(
        version=fields.pop("version", 3),
        transactional_id="t",
        group_id=group,
        producer_id=fields.get("producer", 1),
        producer_epoch=fields.get("epoch", 0),
        generation_id=fields.get("generation", -1),
        member_id=fields.get("member_id", ""),
        group_instance_id=fields.get("instance_id"),
        topics=topics,
    )


async def txn_commit(
    world: World, group: str, offset: int, *, topic: str = "orders", partition: int = 0, **fields: Any
) -> ErrorCode:
    request = txn_request(group, [(topic, partition, offset)], **fields)
    response = await world.coordinator.txn_offset_commit(request, CLIENT)
    return ErrorCode(response.topics[0].partitions[0].error_code)


def marker_of(
    producer: int = 1, *, epoch: int = 0, commits: bool = True, coordinator: int = 1, version: int = 1
) -> TransactionMarker:
    return TransactionMarker(producer, epoch, coordinator, Marker.COMMIT if commits else Marker.ABORT, version)


async def end(world: World, producer: int = 1, **fields: Any) -> ErrorCode:
    """End a producer's transaction in the only shard."""
    return await world.coordinator.end_transaction(0, marker_of(producer, **fields))


async def stable(world: World, group: str, partition: int = 0, *, version: int = 7) -> tuple[ErrorCode, int]:
    """Return error and offset of an OffsetFetch with ``require_stable``."""
    if version < 8:
        topics = [m.OffsetFetchRequest.OffsetFetchRequestTopic(name="orders", partition_indexes=[partition])]
        request = m.OffsetFetchRequest(version=version, group_id=group, topics=topics, require_stable=True)
        response = await world.coordinator.offset_fetch(request, CLIENT)
        part = response.topics[0].partitions[0]
    else:
        group_class = m.OffsetFetchRequest.OffsetFetchRequestGroup
        topic_id = world.catalog.topics["orders"].topic_id
        topics = [group_class.OffsetFetchRequestTopics(name="orders", topic_id=topic_id, partition_indexes=[partition])]
        asked = group_class(group_id=group, member_id=None, member_epoch=-1, topics=topics)
        request = m.OffsetFetchRequest(version=version, groups=[asked], require_stable=True)
        response = await world.coordinator.offset_fetch(request, CLIENT)
        part = response.groups[0].topics[0].partitions[0]
    return ErrorCode(part.error_code), int(part.committed_offset)
