"""DeleteTopics, versions 1 to 6, by name or id.

Behaviour: the controller deletes each topic by itself; its records are deleted after ``file.delete.delay.ms``
(``controller.topics.deletion``).  Internal topics are refused (INVALID_REQUEST); Kafka deletes them.

Version notes: before 3 clients do not know TOPIC_DELETION_DISABLED, and get INVALID_REQUEST, as from Kafka.  5 adds
messages and the error THROTTLING_QUOTA_EXCEEDED, 6 ids.
"""

from __future__ import annotations

import uuid
from collections import Counter
from typing import Any, NamedTuple

from bmq.core.aio.turns import map_in_turns
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import DeleteTopicsResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need, Rights, not_authorized
from bmq.proxy.handlers._mutations import count_mutations
from bmq.proxy.handlers._parallel import each
from bmq.proxy.scopes import ProxyScopes

STRICT_SINCE = 5
"""Version whose clients know THROTTLING_QUOTA_EXCEEDED."""


class TopicRights:
    """The rights of one client to delete topics."""

    def __init__(self, rights: Rights) -> None:
        self._rights = rights
        self._may_all = rights.allow_on_cluster(AclOperation.DELETE, is_required=False)

    def show(self, name: str, *, is_required: bool = False) -> bool:
        """Return whether the client may know if the topic exists; ``is_required`` if it is refused otherwise."""
        return self._may_all or self._rights.allow_on_topic(AclOperation.DESCRIBE, name, is_required=is_required)

    def check(self, name: str) -> None:
        """Raise RequestError unless the client may delete the topic."""
        if not self._may_all and not self._rights.allow_on_topic(AclOperation.DELETE, name):
            raise not_authorized(ResourceType.TOPIC)


class RequestedTopic(NamedTuple):
    """One topic of the request, by name or by id."""

    name: str | None
    topic_id: uuid.UUID | None


async def handle(scopes: ProxyScopes, request: Request, message: Any) -> Any:
    if request.api_version >= 6:
        asked = [RequestedTopic(topic.name, topic.topic_id) for topic in message.topics]
    else:
        asked = [RequestedTopic(name, None) for name in message.topic_names]
    counts, rights = Counter(asked), TopicRights(scopes.caller.rights(request))
    doubly = _named_twice(scopes, asked)

    async def delete(one: RequestedTopic) -> RequestedTopic:
        if counts[one] > 1:
            raise RequestError(ErrorCode.INVALID_REQUEST, "Duplicate topic name or id.")
        return await _delete(scopes, request, rights, one, doubly)

    results = await each(list(counts), delete, message.timeout_ms)
    pairs = zip(counts, results, strict=True)
    responses = await map_in_turns(lambda pair: _result(scopes, rights, request.api_version, *pair), pairs)
    return DeleteTopicsResponse(throttle_time_ms=0, responses=responses)


def _named_twice(scopes: ProxyScopes, asked: list[RequestedTopic]) -> set[uuid.UUID]:
    """Return the ids of topics that the request names twice: by name and by id."""
    names = {one.name for one in asked if one.topic_id is None}
    ids = (one.topic_id for one in asked if one.topic_id is not None)
    found = map(scopes.process.catalog.by_id, ids)
    return {topic.topic_id for topic in found if topic is not None and topic.name in names}


async def _delete(
    scopes: ProxyScopes, request: Request, rights: TopicRights, one: RequestedTopic, doubly: set[uuid.UUID]
) -> RequestedTopic:
    """Delete one topic, and return its name and its id (None if unknown).  Raises RequestError if that fails."""
    if one.name is not None and one.topic_id is not None:
        raise RequestError(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
    if one.topic_id is not None:
        topic = scopes.process.catalog.by_id(one.topic_id)
        if topic is None:
            raise RequestError(ErrorCode.UNKNOWN_TOPIC_ID, f"There is no topic with the id {one.topic_id}.")
        rights.check(topic.name)
        count_mutations(request, topic.partitions, strict_since=STRICT_SINCE)
        await scopes.process.admin.delete_topic(topic.name, one.topic_id)
        return RequestedTopic(topic.name, one.topic_id)
    if one.name is None:
        raise RequestError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
    if not rights.show(one.name, is_required=True):
        raise not_authorized(ResourceType.TOPIC)
    topic = scopes.process.catalog.topics.get(one.name)
    if topic is not None:  # that a topic does not exist is told to those who may describe it
        rights.check(one.name)
    topic_id = topic.topic_id if topic else None
    if topic_id in doubly:
        raise RequestError(
            ErrorCode.INVALID_REQUEST, "The provided topic name maps to an ID that was already supplied."
        )
    if topic is not None:
        count_mutations(request, topic.partitions, strict_since=STRICT_SINCE)
    await scopes.process.admin.delete_topic(one.name)
    return RequestedTopic(one.name, topic_id)


def _result(
    scopes: ProxyScopes,
    rights: TopicRights,
    version: int,
    one: RequestedTopic,
    result: RequestedTopic | RequestError,
) -> Any:
    code, text = ErrorCode.NONE, None
    if isinstance(result, RequestError):
        code, text = result.code, result.message
        if code is ErrorCode.TOPIC_DELETION_DISABLED and version < 3:
            code = ErrorCode.INVALID_REQUEST
        result = one
        if code is ErrorCode.TOPIC_AUTHORIZATION_FAILED and one.topic_id is not None:
            topic = scopes.process.catalog.by_id(one.topic_id)
            if topic is not None and rights.show(topic.name):
                result = RequestedTopic(topic.name, one.topic_id)
    return DeleteTopicsResponse.DeletableTopicResult(
        name=result.name, topic_id=result.topic_id, error_code=code, error_message=text
    )


NEEDS = (
    Need(AclOperation.DELETE, ResourceType.TOPIC, "each"),
    Need(AclOperation.DELETE, ResourceType.CLUSTER, "for all topics, instead"),
    Need(AclOperation.DESCRIBE, ResourceType.TOPIC, "to be told whether it exists"),
)
APIS = (Api(ApiKey.DELETE_TOPICS, 1, 6, handle, needs=NEEDS),)
