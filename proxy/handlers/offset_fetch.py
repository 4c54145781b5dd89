"""OffsetFetch, versions 1 to 10: the committed offsets of groups.

Behaviour: only durable offsets are returned.  An offset that was committed for a deleted topic does not count for a
later topic of the same name, which has none.  Groups, topics and partitions that are named twice are returned once; a
group without room in the response (16 MB) gets COORDINATOR_LOAD_IN_PROGRESS.

Version notes: in 1 errors belong to partitions. In 2 null topics mean all, and the whole group may have an error. 5 has
the leader epoch. 7 has ``require_stable``: if an open transaction commits an offset of a partition, the partition gets
UNSTABLE_OFFSET_COMMIT (KIP-447). 8 has several groups. 9 has member id and epoch of the newer consumer protocol, which
are ignored. 10 has topics by id.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from bmq.coordinator.api import ClientInfo
from bmq.coordinator.routing import FETCH, FETCH_GROUPS
from bmq.core.aio.turns import Turns, next_turn
from bmq.core.errors import ErrorCode
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import OffsetFetchRequest, OffsetFetchResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need, Rights
from bmq.proxy.handlers._group_rights import ask_about_allowed, name_of, refusal, split_topics, with_topics
from bmq.proxy.scopes import ProxyScopes

Single = OffsetFetchResponse.OffsetFetchResponseTopic
OfGroup = OffsetFetchResponse.OffsetFetchResponseGroup.OffsetFetchResponseTopics


async def handle(scopes: ProxyScopes, request: Request, message: OffsetFetchRequest) -> OffsetFetchResponse:
    rights, client = scopes.caller.rights(request), ClientInfo.of(request)
    if not rights.is_checked:
        return await scopes.process.coordinator.offset_fetch(message, client)
    if request.api_version >= 8:
        return await _fetch_groups(scopes, request, message, rights)
    if not rights.allow_on_group(AclOperation.DESCRIBE, message.group_id):
        return await refusal(FETCH, message)
    turns = Turns()
    asked, hidden = await _without_hidden(scopes, rights, message, turns, by_id=False)
    response = await scopes.process.coordinator.offset_fetch(asked, client)
    await _hide(scopes, rights, response, hidden, turns, Single, Single.OffsetFetchResponsePartition)
    return response


async def _fetch_groups(
    scopes: ProxyScopes, request: Request, message: OffsetFetchRequest, rights: Rights
) -> OffsetFetchResponse:
    """Serve versions from 8 on, which may name several groups."""
    groups: list[Any] = []
    hidden: dict[str, list[Any] | None] = {}
    by_id, turns = request.api_version >= 10, Turns()
    for group in (await FETCH_GROUPS.distinct(message)).groups:
        if turns.is_over():
            await next_turn()
        asked, hidden[group.group_id] = await _without_hidden(scopes, rights, group, turns, by_id=by_id)
        groups.append(asked)
    message = OffsetFetchRequest(version=request.api_version, groups=groups, require_stable=message.require_stable)
    response: OffsetFetchResponse = await ask_about_allowed(
        scopes, request, message, FETCH_GROUPS, AclOperation.DESCRIBE
    )
    for group in response.groups:
        if turns.is_over():
            await next_turn()
        partition_class = OfGroup.OffsetFetchResponsePartitions
        await _hide(scopes, rights, group, hidden[group.group_id], turns, OfGroup, partition_class)
    return response


async def _without_hidden(
    scopes: ProxyScopes, rights: Rights, group: Any, turns: Turns, *, by_id: bool
) -> tuple[Any, list[Any] | None]:
    """Return a group of a request without the topics that the client may not see, and those.

    None in their place if the request is for all offsets of the group.
    """
    if group.topics is None:
        return group, None
    allowed, hidden = await split_topics(
        rights, AclOperation.DESCRIBE, group.topics, lambda topic: name_of(scopes, topic, by_id=by_id), turns
    )
    return with_topics(group, allowed), hidden


async def _hide(
    scopes: ProxyScopes,
    rights: Rights,
    group: Any,
    hidden: list[Any] | None,
    turns: Turns,
    topic_class: Any,
    partition_class: Any,
) -> None:
    """Leave topics that the client may not see out of a group's response; if it asked for them, add their errors."""
    if group.error_code != ErrorCode.NONE:
        return
    if hidden is None:
        shown = await turns.map(lambda topic: _may_see(scopes, rights, topic), group.topics)
        group.topics = [topic for topic, is_shown in zip(group.topics, shown, strict=True) if is_shown]
        return
    for topic in hidden:
        if turns.is_over():
            await next_turn()
        partitions = await turns.map(partial(_refused, partition_class), topic.partition_indexes)
        group.topics.append(_topic(topic_class, topic, partitions))


def _may_see(scopes: ProxyScopes, rights: Rights, topic: Any) -> bool:
    """Return whether the client may describe a response's topic.

    From another proxy's coordinator it has no name, but an id, from version 10 on.
    """
    name = topic.name or name_of(scopes, topic, by_id=True)
    return name is not None and rights.allow_on_topic(AclOperation.DESCRIBE, name, is_required=False)


def _topic(topic_class: Any, topic: Any, partitions: list[Any]) -> Any:
    if topic_class is Single:
        return topic_class(name=topic.name, partitions=partitions)
    return topic_class(name=topic.name, topic_id=topic.topic_id, partitions=partitions)


def _refused(partition_class: Any, index: int) -> Any:
    return partition_class(
        partition_index=index,
        committed_offset=-1,
        committed_leader_epoch=-1,
        metadata="",
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    )


NEEDS = (
    Need(AclOperation.DESCRIBE, ResourceType.GROUP, "each"),
    Need(AclOperation.DESCRIBE, ResourceType.TOPIC, "each; of all topics the others are left out"),
)
APIS = (Api(ApiKey.OFFSET_FETCH, 1, 10, handle, needs=NEEDS),)
