"""TxnOffsetCommit 0-5: offsets that a producer's transaction commits, from Kafka's messages to the shards and back.

The offsets are pending until the transaction's marker (``group_shard.pending``).  The group's shard verifies the commit
with the transaction's coordinator (``group_shard.verification``).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from bmq.coordinator.group_shard.manager import GroupShards
from bmq.coordinator.group_shard.verification import CommitTransaction
from bmq.coordinator.records import NO_LEADER_EPOCH, Offset
from bmq.coordinator.shard.log_records import BatchProducer
from bmq.core.aio.turns import Turns, next_turn
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.wire import messages as m
from bmq.meta.catalog import Catalog

_MEMBER_SINCE = 3
_LOADING_SINCE = 2
_Response = m.TxnOffsetCommitResponse
_NO_CODES: Mapping[tuple[int, int], ErrorCode] = MappingProxyType({})


async def txn_offset_commit(
    shards: GroupShards, catalog: Catalog, request: m.TxnOffsetCommitRequest, principal: str = ""
) -> m.TxnOffsetCommitResponse:
    """Serve a TxnOffsetCommit.  The response comes once the offsets are durable, with an error code a partition.

    A group that it creates counts for ``principal``.
    """
    codes: dict[tuple[int, int], ErrorCode] = {}  # by place in the request: names may repeat
    places: list[tuple[int, int]] = []
    offsets: list[tuple[str, int, Offset]] = []
    has_member = request.API_VERSION >= _MEMBER_SINCE
    try:
        if not request.group_id:
            raise RequestError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
        transaction = _transaction(request)
        serving = await shards.serving(request.group_id)
        wall_ms, turns = serving.now().wall_ms, Turns()
        for at, topic in enumerate(request.topics):
            found = catalog.topics.get(topic.name)
            if turns.is_over():
                await next_turn()
            for number, each in enumerate(topic.partitions):
                if turns.is_over():
                    await next_turn()
                if found is None or not 0 <= each.partition_index < found.partitions:
                    codes[at, number] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    continue
                places.append((at, number))
                leader_epoch = each.committed_leader_epoch if request.API_VERSION >= 2 else NO_LEADER_EPOCH
                metadata = each.committed_metadata or ""
                value = Offset(each.committed_offset, leader_epoch, metadata, wall_ms, topic_id=found.topic_id)
                offsets.append((found.name, each.partition_index, value))
        if places or not codes:
            answers = await serving.commit(
                request.group_id,
                request.member_id if has_member else "",
                request.group_instance_id if has_member else None,
                request.generation_id if has_member else -1,
                offsets,
                principal,
                says_group_not_found=False,
                transaction=transaction,
            )
            codes.update(zip(places, answers, strict=True))
        error = ErrorCode.NONE
    except RequestError as refused:
        error = refused.code
    return await txn_commit_response(request, codes, error)


async def txn_commit_response(
    request: m.TxnOffsetCommitRequest,
    codes: Mapping[tuple[int, int], ErrorCode] = _NO_CODES,
    error: ErrorCode = ErrorCode.NONE,
) -> m.TxnOffsetCommitResponse:
    """Return the response to ``request``.

    ``codes`` are by position of topic and of partition in the request; ``error`` is for partitions without a code.
    Producers from before version 2 may crash on COORDINATOR_LOAD_IN_PROGRESS (KAFKA-7296), and get
    COORDINATOR_NOT_AVAILABLE.
    """
    if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and request.API_VERSION < _LOADING_SINCE:
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    topic_class = _Response.TxnOffsetCommitResponseTopic
    turns, topics = Turns(), []
    for at, topic in enumerate(request.topics):
        if turns.is_over():
            await next_turn()
        partitions = []
        for number, each in enumerate(topic.partitions):
            if turns.is_over():
                await next_turn()
            part_class = topic_class.TxnOffsetCommitResponsePartition
            code = codes.get((at, number), error)
            partitions.append(part_class(partition_index=each.partition_index, error_code=code))
        topics.append(topic_class(name=topic.name, partitions=partitions))
    return _Response(topics=topics)


def _transaction(request: m.TxnOffsetCommitRequest) -> CommitTransaction:
    """Return the transaction of the commit.

    Raises RequestError INVALID_PRODUCER_ID_MAPPING or INVALID_PRODUCER_EPOCH if the request names no producer.
    """
    if request.producer_id < 0:
        raise RequestError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"no producer has the id {request.producer_id}")
    if request.producer_epoch < 0:
        raise RequestError(ErrorCode.INVALID_PRODUCER_EPOCH, f"producer {request.producer_id} sent no epoch")
    producer = BatchProducer(request.producer_id, request.producer_epoch)
    return CommitTransaction(request.transactional_id, producer, request.API_VERSION)
