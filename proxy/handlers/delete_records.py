"""DeleteRecords, versions 0 to 2: deletes all records before an offset.

Behaviour: before the response is sent, the log start moves durably, and the owner then confirms its ownership; files
are deleted after ``file.delete.delay.ms`` (rule 10).  Offset -1 is the high watermark; an offset past it is
OFFSET_OUT_OF_RANGE, once everything that was acknowledged before (acks=1) is flushed.  Internal topics are refused with
INVALID_TOPIC_EXCEPTION, topics whose cleanup.policy lacks "delete" with POLICY_VIOLATION
(``Partition.deleteRecordsOnLeader``).  After ``timeout_ms``, and ``TRIED_S`` at least, the response is
REQUEST_TIMED_OUT; the deletion may still happen.

Version notes: 2 flexible.

Not implemented: nothing.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import DeleteRecordsResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need
from bmq.meta.topic_configs import effective
from bmq.proxy.partition_queries import QueriedPartition, ask_all, by_topic, list_partitions, owner_of
from bmq.proxy.scopes import ProxyScopes

Topic = DeleteRecordsResponse.DeleteRecordsTopicResult
Partition = Topic.DeleteRecordsPartitionResult
NO_WATERMARK = -1
TRIED_S = 2.0
"""Seconds that a deletion has whatever the request's time-out.  Kafka's leader deletes before it looks at the time;
here the deletion takes calls to storage and to the metadata store, usually some milliseconds."""


class RequestedDelete(NamedTuple):
    """One partition of the request, and the offset to delete up to."""

    topic: str
    partition: int
    offset: int


async def handle(scopes: ProxyScopes, request: Request, message: Any) -> Any:
    timeout_s = max(message.timeout_ms / 1000, TRIED_S)
    refusals: dict[str, ErrorCode] = {}
    listed, rights = await list_partitions(message.topics, "name", "partition_index"), scopes.caller.rights(request)

    async def ask(listed: QueriedPartition) -> Any:
        one = RequestedDelete(listed.topic, listed.partition.partition_index, listed.partition.offset)
        if one.topic not in refusals:
            is_allowed = rights.allow_on_topic(AclOperation.DELETE, one.topic)
            refusals[one.topic] = _refusal(scopes, one.topic) if is_allowed else ErrorCode.TOPIC_AUTHORIZATION_FAILED
        code = refusals[one.topic]
        watermark = NO_WATERMARK
        if not code:
            try:
                async with asyncio.timeout(timeout_s):
                    owner = await owner_of(scopes, one.topic, one.partition, timeout_s)
                    watermark = await owner.delete_before(one.offset)
            except RequestError as error:
                code = error.code
            except TimeoutError:
                code = ErrorCode.REQUEST_TIMED_OUT
        return Partition(partition_index=one.partition, low_watermark=watermark, error_code=code)

    answers = await ask_all(listed, ask)
    topics = await by_topic(message.topics, answers, lambda topic, found: Topic(name=topic.name, partitions=found))
    return DeleteRecordsResponse(throttle_time_ms=0, topics=topics)


def _refusal(scopes: ProxyScopes, name: str) -> ErrorCode:
    """Return the error if no record of the topic may be deleted; NONE if some may, or if the topic does not exist."""
    topic = scopes.process.catalog.topics.get(name)
    if topic is None:
        return ErrorCode.NONE
    if topic.is_internal:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    config, catalog = scopes.view.config, scopes.process.catalog
    values = effective(topic.configs, config, catalog.broker_configs(None), catalog.broker_configs(config.node_id))
    if "delete" not in [policy.strip() for policy in values["cleanup.policy"].split(",")]:
        return ErrorCode.POLICY_VIOLATION
    return ErrorCode.NONE


NEEDS = (Need(AclOperation.DELETE, ResourceType.TOPIC, "each"),)
APIS = (Api(ApiKey.DELETE_RECORDS, 0, 2, handle, needs=NEEDS),)
