"""ListTransactions, versions 0 to 2 (KIP-664): the transactions for which clients are sent to this proxy.

Behaviour: while a shard of this proxy's is not served, the response is COORDINATOR_LOAD_IN_PROGRESS without
transactions.  Java's client retries after no other error.  The proxy checks the pattern itself, so
INVALID_REGULAR_EXPRESSION needs no loaded shard.

Version notes: 1 filter by duration (KIP-994); 2 filter by a pattern of ids (KIP-1152).
"""

from __future__ import annotations

from bmq.coordinator.api import ClientInfo
from bmq.coordinator.transaction_routing import pattern_error
from bmq.core.aio.turns import map_in_turns
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import ListTransactionsRequest, ListTransactionsResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need
from bmq.proxy.handlers._transactions import are_served
from bmq.proxy.scopes import ProxyScopes

RESPONSE_BYTES = 1 << 20
"""Estimate of a response's bytes, before its transactions are known."""


async def handle(scopes: ProxyScopes, request: Request, message: ListTransactionsRequest) -> ListTransactionsResponse:
    rights = scopes.caller.rights(request)
    if not are_served(scopes):
        return ListTransactionsResponse(
            error_code=pattern_error(message), unknown_state_filters=[], transaction_states=[]
        )
    transactions = scopes.process.transactions
    response = await transactions.list_transactions(message, ClientInfo.of(request), scopes.view.proxies)
    if rights.is_checked:
        states = response.transaction_states
        shown = await map_in_turns(
            lambda each: rights.allow(
                AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, each.transactional_id, is_required=False
            ),
            states,
        )
        response.transaction_states = [each for each, is_in in zip(states, shown, strict=True) if is_in]
    return response


def _response_bytes(scopes: ProxyScopes, message: ListTransactionsRequest) -> int:
    return RESPONSE_BYTES


NEEDS = (Need(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, "each; the others are left out"),)
APIS = (Api(ApiKey.LIST_TRANSACTIONS, 0, 2, handle, response_bytes=_response_bytes, needs=NEEDS),)
