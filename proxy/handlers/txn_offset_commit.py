"""TxnOffsetCommit, versions 0 to 5: offsets of a group that a producer commits inside its transaction.

Behaviour: the response is sent when the offsets are durable; they are pending until the transaction ends.  As in Kafka
4 (``KafkaApis.handleTxnOffsetCommitRequest``), a partition that does not exist gets UNKNOWN_TOPIC_OR_PARTITION, and the
other offsets are stored.  A group that the commit creates counts for the client's principal.  The group's shard takes
the offsets once the transaction's coordinator knows of the shard (``coordinator.group_shard.verification``, KIP-890).

Version notes: 2 leader epoch; 3 member and generation, checked as those of an OffsetCommit; 4 and 5 as 3: the error
TRANSACTION_ABORTABLE and the implicit AddOffsetsToTxn belong to KIP-890.
"""

from __future__ import annotations

from bmq.coordinator.api import ClientInfo
from bmq.coordinator.routing import TXN_COMMIT
from bmq.core.errors import ErrorCode
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need
from bmq.proxy.handlers._group_rights import (
    is_group_refused,
    refusal,
    split_topics,
    with_topics,
    write_group_past_bound,
)
from bmq.proxy.handlers._transactions import refusal as refusal_of_transaction
from bmq.proxy.scopes import ProxyScopes


async def handle(scopes: ProxyScopes, request: Request, message: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse:
    refused_id = refusal_of_transaction(scopes, request, message.transactional_id)
    if refused_id:
        return await refusal(TXN_COMMIT, message, refused_id)
    rights = scopes.caller.rights(request)
    if is_group_refused(scopes, request, message.group_id):
        return await refusal(TXN_COMMIT, message)
    allowed, refused = await split_topics(rights, AclOperation.READ, message.topics, lambda topic: topic.name)
    if not refused:
        return await _commit(scopes, request, message)
    response = await refusal(TXN_COMMIT, with_topics(message, refused), ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if allowed:
        served = await _commit(scopes, request, with_topics(message, allowed))
        response.topics += served.topics
    return response


async def _commit(scopes: ProxyScopes, request: Request, message: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse:
    response = await scopes.process.coordinator.txn_offset_commit(message, ClientInfo.of_creator(request))
    if any(part.error_code == ErrorCode.POLICY_VIOLATION for topic in response.topics for part in topic.partitions):
        write_group_past_bound(scopes, request, message.group_id)
    return response


NEEDS = (
    Need(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID),
    Need(AclOperation.READ, ResourceType.GROUP),
    Need(AclOperation.READ, ResourceType.TOPIC, "each"),
)
APIS = (Api(ApiKey.TXN_OFFSET_COMMIT, 0, 5, handle, needs=NEEDS),)
