"""OffsetCommit, versions 2 to 10: stores offsets of a group.

Behaviour: the response is sent when the offsets are durable.  As in Kafka 4 (``KafkaApis.handleOffsetCommitRequest``),
a partition that does not exist gets UNKNOWN_TOPIC_OR_PARTITION, and the other offsets are stored.  A group that the
commit creates counts for the client's principal: past ``max_groups`` of it the error is POLICY_VIOLATION.

Version notes: 2 to 4 retention time, as an expiry of each offset; 6 leader epoch; 7 static members (KIP-345); 9 a group
that does not exist is GROUP_ID_NOT_FOUND instead of ILLEGAL_GENERATION; 10 topics by id.
"""

from __future__ import annotations

from bmq.coordinator.api import ClientInfo
from bmq.coordinator.routing import COMMIT
from bmq.core.aio.turns import Turns, next_turn
from bmq.core.errors import ErrorCode
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import OffsetCommitRequest, OffsetCommitResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need
from bmq.proxy.handlers._group_rights import (
    is_group_refused,
    name_of,
    refusal,
    split_topics,
    with_topics,
    write_group_past_bound,
)
from bmq.proxy.scopes import ProxyScopes


async def handle(scopes: ProxyScopes, request: Request, message: OffsetCommitRequest) -> OffsetCommitResponse:
    if is_group_refused(scopes, request, message.group_id):
        return await refusal(COMMIT, message)
    by_id, rights = request.api_version >= 10, scopes.caller.rights(request)
    allowed, refused = await split_topics(
        rights, AclOperation.READ, message.topics, lambda topic: name_of(scopes, topic, by_id=by_id)
    )
    if not refused:
        return await _commit(scopes, request, message)
    response = await refusal(COMMIT, with_topics(message, refused), ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if allowed:
        served = await _commit(scopes, request, with_topics(message, allowed))
        response.topics += served.topics
    return response


async def _commit(scopes: ProxyScopes, request: Request, message: OffsetCommitRequest) -> OffsetCommitResponse:
    if message.generation_id_or_member_epoch >= 0:  # of a member: its group exists
        return await scopes.process.coordinator.offset_commit(message, ClientInfo.of(request))
    response = await scopes.process.coordinator.offset_commit(message, ClientInfo.of_creator(request))
    if scopes.caller.audit.is_on and await _has_error(response, ErrorCode.POLICY_VIOLATION):
        write_group_past_bound(scopes, request, message.group_id)
    return response


async def _has_error(response: OffsetCommitResponse, code: ErrorCode) -> bool:
    """Return whether a partition has the error."""
    turns = Turns()
    for topic in response.topics:
        for partition in topic.partitions:
            if partition.error_code == code:
                return True
            if turns.is_over():
                await next_turn()
    return False


NEEDS = (
    Need(AclOperation.READ, ResourceType.GROUP),
    Need(AclOperation.READ, ResourceType.TOPIC, "each"),
)
APIS = (Api(ApiKey.OFFSET_COMMIT, 2, 10, handle, needs=NEEDS),)
