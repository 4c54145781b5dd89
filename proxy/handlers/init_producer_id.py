"""InitProducerId, versions 0 to 5: the id and epoch of a producer.

Behaviour: a producer without a transactional id gets a new id with epoch 0, even if it sends an old one (KIP-360), as
from Kafka's TransactionCoordinator.  For a producer with a transactional id the coordinator responds.  A new
transactional id counts for the client's principal: past ``max_transactional_ids`` of it the error is POLICY_VIOLATION.

Version notes: 3 adds the producer's id and epoch; one without the other is INVALID_REQUEST.  4 adds PRODUCER_FENCED,
before it INVALID_PRODUCER_EPOCH; 5 adds TRANSACTION_ABORTABLE.

While the cluster has no transactions yet, transactional ids get COORDINATOR_NOT_AVAILABLE: clients look for the
coordinator again until their time-out (Java's ``max.block.ms``, librdkafka's argument of ``init_transactions``).
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from bmq.coordinator.api import ClientInfo
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import InitProducerIdResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need
from bmq.meta.security.client_quotas import MAX_TRANSACTIONAL_IDS
from bmq.proxy.handlers._past_bound import write_past_bound
from bmq.proxy.handlers._transactions import in_version, refusal
from bmq.proxy.scopes import ProxyScopes

FENCED_SINCE = 4
"""First version with PRODUCER_FENCED."""


def handle(scopes: ProxyScopes, request: Request, message: Any) -> Any | Awaitable[Any]:
    if message.transactional_id is not None:
        return _init(scopes, request, message)
    rights = scopes.caller.rights(request)
    if not rights.allow_on_cluster(AclOperation.IDEMPOTENT_WRITE, is_required=False) and not rights.allow_on_some(
        AclOperation.WRITE, ResourceType.TOPIC
    ):
        rights.allow_on_cluster(AclOperation.IDEMPOTENT_WRITE)  # which is logged now that nothing else allows it
        return _response(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if _is_half(message):
        return _response(ErrorCode.INVALID_REQUEST)
    return _give(scopes)


async def _init(scopes: ProxyScopes, request: Request, message: Any) -> Any:
    """Have the coordinator begin a producer's session, which fences earlier producers with its transactional id."""
    refused = refusal(scopes, request, message.transactional_id)
    if refused:
        return _response(refused)
    if _is_half(message):
        return _response(ErrorCode.INVALID_REQUEST)
    response = await scopes.process.transactions.init_producer_id(message, ClientInfo.of_creator(request))
    if response.error_code == ErrorCode.POLICY_VIOLATION:
        write_past_bound(
            scopes, request, MAX_TRANSACTIONAL_IDS, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID,
            message.transactional_id,
        )  # fmt: skip
    return in_version(response, request.api_version, FENCED_SINCE)


def _is_half(message: Any) -> bool:
    """Return whether the request has a producer id without an epoch, or an epoch without an id."""
    return bool((message.producer_id == -1) != (message.producer_epoch == -1))


async def _give(scopes: ProxyScopes) -> Any:
    try:
        return _response(ErrorCode.NONE, await scopes.process.producer_ids.next(), 0)
    except RequestError as error:
        return _response(error.code)


def _response(code: ErrorCode, producer_id: int = -1, epoch: int = -1) -> Any:
    return InitProducerIdResponse(throttle_time_ms=0, error_code=code, producer_id=producer_id, producer_epoch=epoch)


NEEDS = (
    Need(AclOperation.WRITE, ResourceType.TOPIC, "any"),
    Need(AclOperation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, "instead"),
    Need(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, "instead, for a transactional id"),
)
APIS = (Api(ApiKey.INIT_PRODUCER_ID, 0, 5, handle, needs=NEEDS),)
