"""DescribeTopicPartitions, version 0 (KIP-966): topics in the order of their names, some partitions at a time.

Behaviour: the response comes from the views, like that of Metadata, with the same leaders and replicas
(``proxy.metadata_cache``).  It has at most ``response_partition_limit`` partitions, never more than ``PARTITIONS_MAX``;
``next_cursor`` says where the next one begins.  A request without topics means all topics.  No topic is created.

Version notes: there is one version.

Not implemented: nothing.  Eligible leader replicas are always empty, as no record depends on a replica's election.
Leader epochs are -1, as in Metadata.
"""

from __future__ import annotations

import uuid
from typing import Any

from bmq.core.aio.turns import Turns, map_in_turns, next_turn
from bmq.core.errors import ErrorCode
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import DescribeTopicPartitionsResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need, Rights
from bmq.endpoint.leader_epochs import METADATA_EPOCH
from bmq.meta.catalog import INTERNAL_TOPICS, Topic
from bmq.meta.topic_rules import name_error
from bmq.proxy.scopes import ProxyScopes

PARTITIONS_MAX = 2_000
"""Kafka's max.request.partition.size.limit."""
NO_ID = uuid.UUID(int=0)
NO_OPERATIONS = -(1 << 31)
"""Kafka's value of a topic whose operations are not told."""

Response = DescribeTopicPartitionsResponse
ResponseTopic = Response.DescribeTopicPartitionsResponseTopic
ResponsePartition = ResponseTopic.DescribeTopicPartitionsResponsePartition


async def handle(scopes: ProxyScopes, request: Request, message: Any) -> Any:
    rights = scopes.caller.rights(request)
    asked = [topic.name for topic in message.topics]
    cursor = message.cursor
    names = sorted(set(asked or scopes.process.catalog.topics))
    if cursor is not None:
        if cursor.partition_index < 0 or (asked and cursor.topic_name not in names):
            refused = await map_in_turns(lambda name: _error(name, ErrorCode.INVALID_REQUEST, None), asked)
            return Response(throttle_time_ms=0, topics=refused, next_cursor=None)
        names = [name for name in names if name >= cursor.topic_name]
    start = cursor.partition_index if cursor is not None and names[:1] == [cursor.topic_name] else 0
    limit = max(1, min(PARTITIONS_MAX, message.response_partition_limit))
    hidden: list[str] = []
    if rights.is_checked:
        allowed = await map_in_turns(
            lambda name: rights.allow_on_topic(AclOperation.DESCRIBE, name, is_required=bool(asked)), names
        )
        hidden = [name for name, is_shown in zip(names, allowed, strict=True) if asked and not is_shown]
        if cursor is not None and names and names[0] == cursor.topic_name and not allowed[0]:
            start = 0
        names = [name for name, is_shown in zip(names, allowed, strict=True) if is_shown]
    response = await _page(scopes, rights, names, start, limit, is_all=not asked)
    response.topics += await map_in_turns(
        lambda name: _error(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED, None, is_internal=False), hidden
    )
    return response


async def _page(scopes: ProxyScopes, rights: Rights, names: list[str], start: int, limit: int, *, is_all: bool) -> Any:
    """Return a response with ``limit`` partitions at most, from partition ``start`` of the first topic on.

    A topic that has only an error is listed, too, and counts no partition.
    """
    topics: list[Any] = []
    turns = Turns()
    for name in names:
        if turns.is_over():
            await next_turn()
        if limit == 0:
            return _response(topics, Response.Cursor(topic_name=name, partition_index=0))
        topic = scopes.process.catalog.topics.get(name)
        if topic is None and not is_all:
            error = name_error(name) or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            topics.append(_error(name, error, rights.operations(ResourceType.TOPIC, name)))
        if topic is not None:
            stop = min(topic.partitions, start + limit)
            topics.append(await _topic(scopes, rights, topic, start, stop))
            if stop < topic.partitions:
                return _response(topics, Response.Cursor(topic_name=name, partition_index=stop))
            limit -= max(0, stop - start)
        start = 0
    return _response(topics, None)


def _response(topics: list[Any], cursor: Any) -> Any:
    return Response(throttle_time_ms=0, topics=topics, next_cursor=cursor)


async def _topic(scopes: ProxyScopes, rights: Rights, topic: Topic, start: int, stop: int) -> Any:
    places = await scopes.view.metadata.places(topic, start, stop, scopes.view.proxies)
    return ResponseTopic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=[
            ResponsePartition(
                error_code=ErrorCode.NONE,
                partition_index=index,
                leader_id=place.leader,
                leader_epoch=METADATA_EPOCH,
                replica_nodes=place.replicas,
                isr_nodes=place.replicas,
                eligible_leader_replicas=[],
                last_known_elr=[],
                offline_replicas=[],
            )
            for index, place in enumerate(places, start)
        ],
        topic_authorized_operations=_bits(rights.operations(ResourceType.TOPIC, topic.name)),
    )


def _error(name: str, code: ErrorCode, operations: frozenset[int] | None, *, is_internal: bool | None = None) -> Any:
    return ResponseTopic(
        error_code=code,
        name=name,
        topic_id=NO_ID,
        is_internal=name in INTERNAL_TOPICS if is_internal is None else is_internal,
        partitions=[],
        topic_authorized_operations=NO_OPERATIONS if operations is None else _bits(operations),
    )


def _bits(operations: frozenset[int]) -> int:
    """Return the operations as Kafka's 32-bit field."""
    return sum(1 << operation for operation in operations)


NEEDS = (Need(AclOperation.DESCRIBE, ResourceType.TOPIC, "each; of all topics the others are left out"),)
APIS = (Api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0, handle, needs=NEEDS),)
