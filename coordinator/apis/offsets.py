"""OffsetCommit 2-10, OffsetFetch 1-10, OffsetDelete 0: from Kafka's messages to the shards and back.

Offsets are kept by topic name, with the topic's id beside them, as in Kafka's records.  The catalog has the id of each
name, and the name of each id (version 10).  An offset whose id is not its topic's any more is shown as none.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from bmq.coordinator.apis.group_admin import SHARD_LOST
from bmq.coordinator.group.group import Group
from bmq.coordinator.group.states import GroupState
from bmq.coordinator.group.subscription import CONSUMER
from bmq.coordinator.group_shard.active import ActiveGroups
from bmq.coordinator.group_shard.manager import GroupShards
from bmq.coordinator.records import (
    NO_EXPIRY,
    NO_LEADER_EPOCH,
    CoordinatorRecord,
    Offset,
    OffsetRecord,
)
from bmq.core.aio.turns import ELEMENTS_A_TURN, Turns, map_in_turns, next_turn
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.wire import messages as m
from bmq.endpoint.response_room import ResponseRoom
from bmq.meta.catalog import Catalog, Topic

NO_OFFSET = -1
PARTITION_BYTES = 20
"""About the bytes of a partition in a response, without its metadata."""
FAST_ELEMENTS = 50
"""Partition numbers that a built-in such as ``dict.fromkeys`` handles in the time of a single element."""
_NO_OFFSETS: Mapping[int, Offset] = MappingProxyType({})
_UNSTABLE = Offset(NO_OFFSET)
"""In place of an offset with a pending successor, for a client that asks for stable offsets."""
_NIL = uuid.UUID(int=0)
_INT64_MAX = (1 << 63) - 1
_Commit = m.OffsetCommitResponse
_Fetch = m.OffsetFetchResponse
_Delete = m.OffsetDeleteResponse


# ------------------------------------------------------------------------------------------------------- commit


async def offset_commit(
    shards: GroupShards, catalog: Catalog, request: m.OffsetCommitRequest, principal: str = ""
) -> m.OffsetCommitResponse:
    """Serve an OffsetCommit.  The response comes once the offsets are durable, with an error code a partition.

    A group that it creates counts for ``principal``.

    The empty group id is a group like others here, as in OffsetFetch, DescribeGroups and DeleteGroups, for old clients
    (KIP-289).  OffsetDelete and the requests of members refuse it.
    """
    codes: dict[tuple[int, int], ErrorCode] = {}  # by place in the request: names may repeat
    places: list[tuple[int, int]] = []
    offsets: list[tuple[str, int, Offset]] = []
    try:
        retention_ms = request.retention_time_ms if request.API_VERSION <= 4 else -1
        serving = await shards.serving(request.group_id)
        wall_ms = serving.now().wall_ms
        expiry = NO_EXPIRY if retention_ms == -1 else min(wall_ms + retention_ms, _INT64_MAX)
        turns = Turns()
        for at, topic in enumerate(request.topics):
            by_id = request.API_VERSION >= 10
            found, unknown = _topic_of(catalog, topic.topic_id if by_id else topic.name, by_id=by_id)
            if turns.is_over():
                await next_turn()
            for number, each in enumerate(topic.partitions):
                if turns.is_over():
                    await next_turn()
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
                principal,
                says_group_not_found=request.API_VERSION >= 9,
            )
            codes.update(zip(places, answers, strict=True))
        error = ErrorCode.NONE
    except RequestError as refused:
        error = refused.code
    return await commit_response(request, codes, error)


async def commit_response(
    request: m.OffsetCommitRequest, codes: dict[tuple[int, int], ErrorCode], error: ErrorCode
) -> m.OffsetCommitResponse:
    """Return the response to ``request``.

    ``codes`` are by position of topic and of partition in the request; ``error`` is for partitions without a code.
    """
    topic_class = _Commit.OffsetCommitResponseTopic
    turns, topics = Turns(), []
    for at, topic in enumerate(request.topics):
        partitions = []
        for number, each in enumerate(topic.partitions):
            if turns.is_over():
                await next_turn()
            code = codes.get((at, number), error)
            part_class = topic_class.OffsetCommitResponsePartition
            partitions.append(part_class(partition_index=each.partition_index, error_code=code))
        if turns.is_over():
            await next_turn()
        topics.append(
            topic_class(
                name=topic.name if request.API_VERSION < 10 else "",
                topic_id=topic.topic_id if request.API_VERSION >= 10 else _NIL,
                partitions=partitions,
            )
        )
    return _Commit(topics=topics)


def _topic_of(catalog: Catalog, key: Any, *, by_id: bool) -> tuple[Topic | None, ErrorCode]:
    """Return the topic of this id or name; None and the error code if there is none."""
    if by_id:
        return catalog.by_id(key), ErrorCode.UNKNOWN_TOPIC_ID
    return catalog.topics.get(key), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# -------------------------------------------------------------------------------------------------------- fetch


class _Wanted(NamedTuple):
    """One group of a fetch."""

    group_id: str
    topics: Mapping[Any, Mapping[int, None]] | None
    """The partitions of each topic by its name or id, without repeats; None for all offsets of the group."""


class _Shown(NamedTuple):
    """A topic of the response.  ``offsets`` are by partition, None where nothing is committed."""

    name: str
    topic_id: uuid.UUID
    offsets: Sequence[tuple[int, Offset | None]]
    error: ErrorCode = ErrorCode.NONE


async def offset_fetch(shards: GroupShards, catalog: Catalog, request: m.OffsetFetchRequest) -> m.OffsetFetchResponse:
    """Serve an OffsetFetch.  Only durable offsets are returned, each once even if it is asked for twice.

    With ``require_stable`` (version 7) a partition with a pending offset gets UNSTABLE_OFFSET_COMMIT (KIP-447).
    """
    turns, room, by_id = Turns(), ResponseRoom(), request.API_VERSION >= 10
    is_stable = request.API_VERSION >= 7 and bool(request.require_stable)
    if request.API_VERSION < 8:
        (wanted,) = await _merged([request], turns, by_id=False)
        (serving,) = await shards.serving_each([request.group_id])
        error, shown = await _fetch_group(serving, catalog, wanted, turns, room, by_id=False, is_stable=is_stable)
        return await single_response(request, error, shown)
    asked = await _merged(request.groups, turns, by_id=by_id)
    found = await shards.serving_each([each.group_id for each in asked])
    groups = []
    for wanted, serving in zip(asked, found, strict=True):
        if turns.is_over():
            await next_turn()
        if room.is_full:
            error, shown = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, []
        else:
            error, shown = await _fetch_group(serving, catalog, wanted, turns, room, by_id=by_id, is_stable=is_stable)
        topics = [await _group_topic(topic, turns) for topic in shown]
        group_class = _Fetch.OffsetFetchResponseGroup
        groups.append(group_class(group_id=wanted.group_id, topics=topics, error_code=error))
    return _Fetch(groups=groups)


async def _merged(groups: Sequence[Any], turns: Turns, *, by_id: bool) -> list[_Wanted]:
    """Return every group once, with every topic and partition once; all topics if any entry of the group wants all."""
    merged: dict[str, dict[Any, dict[int, None]] | None] = {}
    for group in groups:
        if turns.is_over():
            await next_turn()
        if group.topics is None:
            merged[group.group_id] = None
            continue
        topics = merged.setdefault(group.group_id, {})
        for topic in group.topics:
            if turns.is_over(1 + len(topic.partition_indexes) // FAST_ELEMENTS):
                await next_turn()
            if topics is not None:
                key = topic.topic_id if by_id else topic.name
                topics.setdefault(key, {}).update(dict.fromkeys(topic.partition_indexes))
    return await map_in_turns(_Wanted._make, merged.items())


async def _fetch_group(
    serving: ActiveGroups | RequestError,
    catalog: Catalog,
    wanted: _Wanted,
    turns: Turns,
    room: ResponseRoom,
    *,
    by_id: bool,
    is_stable: bool,
) -> tuple[ErrorCode, list[_Shown]]:
    try:
        if isinstance(serving, RequestError):
            raise serving
        if serving.is_closed:
            raise RequestError(ErrorCode.NOT_COORDINATOR, SHARD_LOST)
        await serving.offsets_durable(wanted.group_id)
    except RequestError as error:
        # Consumers before 3.9 handle COORDINATOR_NOT_AVAILABLE in commits only (Kafka: handleOffsetFetchException).
        is_unavailable = error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        return (ErrorCode.NOT_COORDINATOR if is_unavailable else error.code), []
    kept = serving.state.offsets.of_group(wanted.group_id)
    pending = serving.state.pending if is_stable and serving.state.pending.has_group(wanted.group_id) else None
    shown = []
    topics: Iterable[tuple[Any, Iterable[int] | None]]
    topics = [(name, None) for name in kept] if wanted.topics is None else wanted.topics.items()
    for key, partitions in topics:
        if turns.is_over():  # a topic without partitions costs time, too
            await next_turn()
        topic, unknown = _topic_of(catalog, key, by_id=by_id and wanted.topics is not None)
        offsets = kept.get(topic.name, _NO_OFFSETS) if topic is not None else _NO_OFFSETS
        listed: list[tuple[int, Offset | None]] = []
        for partition in list(offsets) if partitions is None else partitions:
            if turns.is_over():
                await next_turn()
            value = offsets.get(partition)
            if (
                pending is not None
                and topic is not None
                and pending.has_of((wanted.group_id, topic.name, partition), topic.topic_id)
            ):
                listed.append((partition, _UNSTABLE))
                room.take(PARTITION_BYTES)
                continue
            if value is None or topic is None or not value.is_of(topic.topic_id):
                if partitions is not None:
                    listed.append((partition, None))
                    room.take(PARTITION_BYTES)
                continue
            listed.append((partition, value))
            room.take(PARTITION_BYTES + len(value.metadata))
        if topic is not None:
            if listed or partitions is not None:
                shown.append(_Shown(topic.name, topic.topic_id, listed))
        elif partitions is not None:
            shown.append(_Shown("", key, listed, unknown) if by_id else _Shown(key, _NIL, listed))
    return ErrorCode.NONE, shown


async def single_response(
    request: m.OffsetFetchRequest, error: ErrorCode, shown: Sequence[_Shown]
) -> m.OffsetFetchResponse:
    """Return the response to an OffsetFetch before version 8, which is about one group."""
    turns = Turns()
    if error is not ErrorCode.NONE and request.API_VERSION < 2:  # these versions have an error a partition only
        (wanted,) = await _merged([request], turns, by_id=False)
        topics = (wanted.topics or {}).items()
        shown = await map_in_turns(lambda each: _Shown(each[0], _NIL, [(n, None) for n in each[1]], error), topics)
    topic_class = _Fetch.OffsetFetchResponseTopic
    part_class = topic_class.OffsetFetchResponsePartition
    made = [topic_class(name=each.name, partitions=await _partitions(part_class, each, turns)) for each in shown]
    return _Fetch(error_code=error, topics=made)


async def _group_topic(shown: _Shown, turns: Turns) -> Any:
    topic_class = _Fetch.OffsetFetchResponseGroup.OffsetFetchResponseTopics
    partitions = await _partitions(topic_class.OffsetFetchResponsePartitions, shown, turns)
    return topic_class(name=shown.name, topic_id=shown.topic_id, partitions=partitions)


async def _partitions(partition_class: Any, shown: _Shown, turns: Turns) -> list[Any]:
    made = []
    if turns.is_over():
        await next_turn()
    for partition, value in shown.offsets:
        if turns.is_over():
            await next_turn()
        made.append(
            partition_class(
                partition_index=partition,
                committed_offset=NO_OFFSET if value is None else value.offset,
                committed_leader_epoch=NO_LEADER_EPOCH if value is None else value.leader_epoch,
                metadata="" if value is None else value.metadata,
                error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT if value is _UNSTABLE else shown.error,
            )
        )
    return made


# ------------------------------------------------------------------------------------------------------- delete


async def offset_delete(
    shards: GroupShards, catalog: Catalog, request: m.OffsetDeleteRequest
) -> m.OffsetDeleteResponse:
    """Serve an OffsetDelete.  A topic that is named twice is in the response twice, a partition within it once.

    Many partitions are deleted in several turns of the event loop; each turn checks again that the group allows it.
    """
    turns, topics = Turns(), []
    try:
        if not request.group_id:
            raise RequestError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
        serving = await shards.serving(request.group_id)
        _deletable(serving, request.group_id)
        for topic in request.topics:
            partitions = list(dict.fromkeys(each.partition_index for each in topic.partitions))
            parts: list[Any] = []
            for at in range(0, len(partitions), ELEMENTS_A_TURN) or (0,):
                part = partitions[at : at + ELEMENTS_A_TURN]
                if turns.is_over(1 + len(part)):
                    await next_turn()
                await serving.room()
                parts += _delete_offsets(serving, catalog, request.group_id, topic.name, part)
            topics.append(_Delete.OffsetDeleteResponseTopic(name=topic.name, partitions=parts))
        await serving.durable()
    except RequestError as error:
        return _Delete(error_code=error.code, topics=[])
    return _Delete(error_code=ErrorCode.NONE, topics=topics)


def _deletable(serving: ActiveGroups, group_id: str) -> Group:
    """Return the group.  Raises RequestError if it does not exist, or has members whose topics cannot be known."""
    group = serving.state.groups.get(group_id)
    if group is None:
        raise RequestError(ErrorCode.GROUP_ID_NOT_FOUND, f"no group {group_id}")
    if group.state is not GroupState.EMPTY and group.protocol_type != CONSUMER:
        raise RequestError(ErrorCode.NON_EMPTY_GROUP, f"group {group_id} has members that are not consumers")
    return group


def _delete_offsets(
    serving: ActiveGroups, catalog: Catalog, group_id: str, topic: str, partitions: Sequence[int]
) -> list[Any]:
    """Write the tombstones and return the partitions of the response.  Raises RequestError as ``_deletable`` does."""
    group = _deletable(serving, group_id)
    found, is_subscribed = catalog.topics.get(topic), group.is_subscribed(topic)
    answers: list[Any] = []
    records: list[CoordinatorRecord] = []
    for partition in partitions:
        code = ErrorCode.NONE
        if found is None or not 0 <= partition < found.partitions:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif is_subscribed:
            code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        elif serving.state.has_offset((group_id, topic, partition)):
            records.append(OffsetRecord(group_id, topic, partition, None))
        topic_class = _Delete.OffsetDeleteResponseTopic
        answers.append(topic_class.OffsetDeleteResponsePartition(partition_index=partition, error_code=code))
    serving.delete(group_id, records)
    return answers
