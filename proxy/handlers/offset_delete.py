"""OffsetDelete, version 0: removes a group's offsets of topics that it is not subscribed to."""

from __future__ import annotations

from typing import Any

from bmq.coordinator.api import ClientInfo
from bmq.coordinator.routing import DELETE_OFFSETS
from bmq.core.aio.turns import Turns, next_turn
from bmq.core.errors import ErrorCode
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import OffsetDeleteRequest, OffsetDeleteResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need
from bmq.proxy.handlers._group_rights import refusal, split_topics, with_topics
from bmq.proxy.scopes import ProxyScopes

Topic = OffsetDeleteResponse.OffsetDeleteResponseTopic


async def handle(scopes: ProxyScopes, request: Request, message: OffsetDeleteRequest) -> OffsetDeleteResponse:
    rights = scopes.caller.rights(request)
    if not rights.allow_on_group(AclOperation.DELETE, message.group_id):
        return await refusal(DELETE_OFFSETS, message)
    allowed, refused = await split_topics(rights, AclOperation.READ, message.topics, lambda topic: topic.name)
    if not refused:
        return await scopes.process.coordinator.offset_delete(message, ClientInfo.of(request))
    response = await scopes.process.coordinator.offset_delete(with_topics(message, allowed), ClientInfo.of(request))
    if response.error_code == ErrorCode.NONE:
        turns = Turns()
        for topic in refused:
            if turns.is_over():
                await next_turn()
            partitions = await turns.map(_refused, topic.partitions)
            response.topics.append(Topic(name=topic.name, partitions=partitions))
    return response


def _refused(partition: Any) -> Any:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return Topic.OffsetDeleteResponsePartition(partition_index=partition.partition_index, error_code=code)


NEEDS = (
    Need(AclOperation.DELETE, ResourceType.GROUP),
    Need(AclOperation.READ, ResourceType.TOPIC, "each"),
)
APIS = (Api(ApiKey.OFFSET_DELETE, 0, 0, handle, needs=NEEDS),)
