"""OffsetCommit 2-10, OffsetFetch 1-10, OffsetDelete 0: from Kafka's messages to the shards and back.

Offsets are kept by topic name with the topic's id beside them, as in Kafka's records; the catalog says which id a name
has, and which name an id (version 10).  An offset whose id is not its topic's any more is as good as none.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.wire import messages as m
from bmq.meta.catalog import Catalog, Topic
from bmq.meta.coordinator.group import Group
from bmq.meta.coordinator.records import (
    NO_EXPIRY,
    NO_LEADER_EPOCH,
    CoordinatorRecord,
    Offset,
    OffsetRecord,
)
from bmq.meta.coordinator.serving import Serving
from bmq.meta.coordinator.shards import Shards
from bmq.meta.coordinator.states import State
from bmq.meta.coordinator.subscription import CONSUMER

NO_OFFSET = -1
_NIL = uuid.UUID(int=0)
_INT64_MAX = (1 << 63) - 1
_Commit = m.OffsetCommitResponse
_Fetch = m.OffsetFetchResponse
_Delete = m.OffsetDeleteResponse


# ------------------------------------------------------------------------------------------------------- commit


async def offset_commit(shards: Shards, catalog: Catalog, request: m.OffsetCommitRequest) -> m.OffsetCommitResponse:
    codes: dict[tuple[int, int], ErrorCode] = {}  # by place in the request: names may repeat
    places: list[tuple[int, int]] = []
    offsets: list[tuple[str, int, Offset]] = []
    try:
        if not request.group_id:
            raise RequestError(ErrorCode.INVALID_GROUP_ID, "it is empty")
        retention_ms = request.retention_time_ms if request.API_VERSION <= 4 else -1
        serving = await shards.serving(request.group_id)
        wall_ms = serving.now().wall_ms
        expiry = NO_EXPIRY if retention_ms == -1 else min(wall_ms + retention_ms, _INT64_MAX)
        for at, topic in enumerate(request.topics):
            found, unknown = _topic_of(catalog, topic, by_id=request.API_VERSION >= 10)
            for number, each in enumerate(topic.partitions):
                if found is None:
                    codes[at, number] = unknown
                    continue
                if not 0 <= each.partition_index < found.partitions:
                    codes[at, number] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    continue
                places.append((at, number))
                leader_epoch = each.committed_leader_epoch if request.API_VERSION >= 6 else NO_LEADER_EPOCH
                metadata = each.committed_metadata or ""
                value = Offset(each.committed_offset, leader_epoch, metadata, wall_ms, expiry, found.topic_id)
                offsets.append((found.name, each.partition_index, value))
        if places or not codes:
            answers = await serving.commit(
                request.group_id,
                request.member_id,
                request.group_instance_id,
                request.generation_id_or_member_epoch,
                offsets,
                says_group_not_found=request.API_VERSION >= 9,
            )
            codes.update(zip(places, answers, strict=True))
        error = ErrorCode.NONE
    except RequestError as refused:
        error = refused.code
    return commit_response(request, codes, error)


def commit_response(
    request: m.OffsetCommitRequest, codes: dict[tuple[int, int], ErrorCode], error: ErrorCode
) -> m.OffsetCommitResponse:
    """``error`` is for whatever has no code of its own."""
    return _Commit(
        topics=[
            _Commit.OffsetCommitResponseTopic(
                name=topic.name if request.API_VERSION < 10 else "",
                topic_id=topic.topic_id if request.API_VERSION >= 10 else _NIL,
                partitions=[
                    _Commit.OffsetCommitResponseTopic.OffsetCommitResponsePartition(
                        partition_index=each.partition_index, error_code=codes.get((at, number), error)
                    )
                    for number, each in enumerate(topic.partitions)
                ],
            )
            for at, topic in enumerate(request.topics)
        ]
    )


def _topic_of(catalog: Catalog, topic: Any, *, by_id: bool) -> tuple[Topic | None, ErrorCode]:
    """The topic that the request names, or None and why not."""
    if by_id:
        return catalog.by_id(topic.topic_id), ErrorCode.UNKNOWN_TOPIC_ID
    return catalog.topics.get(topic.name), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# -------------------------------------------------------------------------------------------------------- fetch


class _Wanted(NamedTuple):
    """One group of a fetch.  ``topics`` None asks for all offsets."""

    group_id: str
    topics: Any


class _Shown(NamedTuple):
    """A topic of the answer.  ``offsets`` by partition; None: nothing is committed."""

    name: str
    topic_id: uuid.UUID
    offsets: Sequence[tuple[int, Offset | None]]
    error: ErrorCode = ErrorCode.NONE


async def offset_fetch(shards: Shards, catalog: Catalog, request: m.OffsetFetchRequest) -> m.OffsetFetchResponse:
    """Only durable offsets are shown.  ``require_stable`` asks for no more while there are no transactions."""
    if request.API_VERSION < 8:
        wanted = _Wanted(request.group_id, request.topics)
        error, shown = await _fetch_group(shards, catalog, wanted, by_id=False)
        return single_response(request, error, shown)
    by_id = request.API_VERSION >= 10
    groups = [_Wanted(each.group_id, each.topics) for each in request.groups]
    answers = await asyncio.gather(*(_fetch_group(shards, catalog, each, by_id=by_id) for each in groups))
    return _Fetch(
        groups=[
            _Fetch.OffsetFetchResponseGroup(
                group_id=each.group_id, topics=[_group_topic(topic) for topic in shown], error_code=error
            )
            for each, (error, shown) in zip(groups, answers, strict=True)
        ]
    )


async def _fetch_group(
    shards: Shards, catalog: Catalog, wanted: _Wanted, *, by_id: bool
) -> tuple[ErrorCode, list[_Shown]]:
    try:
        serving = await shards.serving(wanted.group_id)
        await serving.settled(wanted.group_id)
    except RequestError as error:
        # Consumers before 3.9 know of COORDINATOR_NOT_AVAILABLE in commits only (Kafka: handleOffsetFetchException).
        is_unavailable = error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        return (ErrorCode.NOT_COORDINATOR if is_unavailable else error.code), []
    kept = serving.state.offsets.of_group(wanted.group_id)
    if wanted.topics is None:
        return ErrorCode.NONE, [
            _Shown(name, topic.topic_id, shown)
            for name, offsets in kept.items()
            if (topic := catalog.topics.get(name)) is not None
            and (shown := [each for each in offsets.items() if each[1].is_of(topic.topic_id)])
        ]
    return ErrorCode.NONE, [_show(kept, catalog, topic, by_id=by_id) for topic in wanted.topics]


def _show(kept: Mapping[str, Mapping[int, Offset]], catalog: Catalog, asked: Any, *, by_id: bool) -> _Shown:
    topic, unknown = _topic_of(catalog, asked, by_id=by_id)
    if topic is None:
        nothing: list[tuple[int, Offset | None]] = [(each, None) for each in asked.partition_indexes]
        return _Shown("", asked.topic_id, nothing, unknown) if by_id else _Shown(asked.name, _NIL, nothing)
    offsets = kept.get(topic.name, {})
    shown: list[tuple[int, Offset | None]] = []
    for each in asked.partition_indexes:
        value = offsets.get(each)
        shown.append((each, value if value is not None and value.is_of(topic.topic_id) else None))
    return _Shown(topic.name, topic.topic_id, shown)


def single_response(request: m.OffsetFetchRequest, error: ErrorCode, shown: list[_Shown]) -> m.OffsetFetchResponse:
    if error is not ErrorCode.NONE and request.API_VERSION < 2:  # there the partitions carry the error
        shown = [_Shown(t.name, _NIL, [(each, None) for each in t.partition_indexes], error) for t in request.topics]
    topic_class = _Fetch.OffsetFetchResponseTopic
    return _Fetch(
        error_code=error,
        topics=[
            topic_class(name=each.name, partitions=_partitions(topic_class.OffsetFetchResponsePartition, each))
            for each in shown
        ],
    )


def _group_topic(shown: _Shown) -> Any:
    topic_class = _Fetch.OffsetFetchResponseGroup.OffsetFetchResponseTopics
    return topic_class(
        name=shown.name,
        topic_id=shown.topic_id,
        partitions=_partitions(topic_class.OffsetFetchResponsePartitions, shown),
    )


def _partitions(partition_class: Any, shown: _Shown) -> list[Any]:
    return [
        partition_class(
            partition_index=partition,
            committed_offset=NO_OFFSET if value is None else value.offset,
            committed_leader_epoch=NO_LEADER_EPOCH if value is None else value.leader_epoch,
            metadata="" if value is None else value.metadata,
            error_code=shown.error,
        )
        for partition, value in shown.offsets
    ]


# ------------------------------------------------------------------------------------------------------- delete


async def offset_delete(shards: Shards, catalog: Catalog, request: m.OffsetDeleteRequest) -> m.OffsetDeleteResponse:
    try:
        if not request.group_id:
            raise RequestError(ErrorCode.INVALID_GROUP_ID, "it is empty")
        serving = await shards.serving(request.group_id)
        await serving.room()
        group = serving.state.groups.get(request.group_id)
        if group is None:
            raise RequestError(ErrorCode.GROUP_ID_NOT_FOUND, f"no group {request.group_id}")
        if group.state is not State.EMPTY and group.protocol_type != CONSUMER:
            raise RequestError(ErrorCode.NON_EMPTY_GROUP, "what its members use is not known")
        records: list[CoordinatorRecord] = []
        topics = [_delete_topic(serving, catalog, group, topic, records) for topic in request.topics]
        await serving.delete(request.group_id, records)
    except RequestError as error:
        return _Delete(error_code=error.code, topics=[])
    return _Delete(error_code=ErrorCode.NONE, topics=topics)


def _delete_topic(
    serving: Serving, catalog: Catalog, group: Group, topic: Any, records: list[CoordinatorRecord]
) -> Any:
    """One topic of the answer; what must be written is added to ``records``."""
    found = catalog.topics.get(topic.name)
    answers = []
    for partition in _unique(each.partition_index for each in topic.partitions):
        code = ErrorCode.NONE
        if found is None or not 0 <= partition < found.partitions:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif group.is_subscribed(topic.name):
            code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        elif serving.state.offsets.get(group.group_id, topic.name, partition) is not None:
            records.append(OffsetRecord(group.group_id, topic.name, partition, None))
        topic_class = _Delete.OffsetDeleteResponseTopic
        answers.append(topic_class.OffsetDeleteResponsePartition(partition_index=partition, error_code=code))
    return _Delete.OffsetDeleteResponseTopic(name=topic.name, partitions=answers)


def _unique(numbers: Iterable[int]) -> list[int]:
    return list(dict.fromkeys(numbers))
