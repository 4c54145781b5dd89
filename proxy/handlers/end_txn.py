"""EndTxn, versions 0 to 5: commits or aborts a transaction.

Behaviour: the response is sent when the decision is durable; the markers follow (``KafkaApis.handleEndTxnRequest``).

Version notes: 2 adds PRODUCER_FENCED, before it INVALID_PRODUCER_EPOCH; 4 adds TRANSACTION_ABORTABLE; with 5 the
response has the producer's id and epoch for its next transaction (KIP-890).
"""

from __future__ import annotations

from bmq.coordinator.api import ClientInfo
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import EndTxnRequest, EndTxnResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need
from bmq.proxy.handlers._transactions import in_version, refusal
from bmq.proxy.scopes import ProxyScopes


async def handle(scopes: ProxyScopes, request: Request, message: EndTxnRequest) -> EndTxnResponse:
    refused = refusal(scopes, request, message.transactional_id)
    if refused:
        return EndTxnResponse(throttle_time_ms=0, error_code=refused, producer_id=-1, producer_epoch=-1)
    response = await scopes.process.transactions.end_txn(message, ClientInfo.of(request))
    return in_version(response, request.api_version)


NEEDS = (Need(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID),)
APIS = (Api(ApiKey.END_TXN, 0, 5, handle, needs=NEEDS),)
