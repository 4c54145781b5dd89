"""AddOffsetsToTxn, versions 0 to 4: announces that a transaction will have offsets of a group.

Behaviour: the group's partition of ``__consumer_offsets`` becomes a part of the transaction
(``KafkaApis.handleAddOffsetsToTxnRequest``).  The response is sent when the coordinator has stored it.

Version notes: 2 adds PRODUCER_FENCED, before it INVALID_PRODUCER_EPOCH; 4 adds TRANSACTION_ABORTABLE.
"""

from __future__ import annotations

from bmq.coordinator.api import ClientInfo
from bmq.core.errors import ErrorCode
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need
from bmq.proxy.handlers._transactions import in_version, refusal
from bmq.proxy.scopes import ProxyScopes


async def handle(scopes: ProxyScopes, request: Request, message: AddOffsetsToTxnRequest) -> AddOffsetsToTxnResponse:
    refused = refusal(scopes, request, message.transactional_id)
    if refused:
        return _response(refused)
    if not scopes.caller.rights(request).allow_on_group(AclOperation.READ, message.group_id):
        return _response(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    response = await scopes.process.transactions.add_offsets(message, ClientInfo.of(request))
    return in_version(response, request.api_version)


def _response(code: ErrorCode) -> AddOffsetsToTxnResponse:
    return AddOffsetsToTxnResponse(throttle_time_ms=0, error_code=code)


NEEDS = (
    Need(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID),
    Need(AclOperation.READ, ResourceType.GROUP),
)
APIS = (Api(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, handle, needs=NEEDS),)
