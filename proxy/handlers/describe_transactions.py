"""DescribeTransactions, version 0 (KIP-664): state, producer and partitions of transactions.

Behaviour: an id that is named twice is described once.  An id that has no producer is TRANSACTIONAL_ID_NOT_FOUND.  An
id without room in the response (16 MB) gets COORDINATOR_LOAD_IN_PROGRESS.  Partitions of topics that the client may not
describe are left out.

Version notes: there is one version.
"""

from __future__ import annotations

from typing import Any

from bmq.coordinator.api import ClientInfo
from bmq.coordinator.transaction_routing import DESCRIBE
from bmq.core.aio.turns import Turns, map_in_turns, next_turn
from bmq.core.errors import ErrorCode
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.describe_transactions_message import forget_errors
from bmq.core.wire.messages import DescribeTransactionsRequest, DescribeTransactionsResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need, Rights
from bmq.proxy.handlers._several_keys import ask_about_allowed
from bmq.proxy.handlers._transactions import REFUSED, are_served
from bmq.proxy.scopes import ProxyScopes

RESPONSE_BYTES = 1_000
"""Estimate of the bytes of one transaction, before its partitions are known: some tens of topics."""


async def handle(
    scopes: ProxyScopes, request: Request, message: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    rights, client = scopes.caller.rights(request), ClientInfo.of(request)

    async def ask(part: DescribeTransactionsRequest) -> DescribeTransactionsResponse:
        if are_served(scopes):
            return await scopes.process.transactions.describe_transactions(part, client)
        states = await map_in_turns(
            lambda number: DESCRIBE.refusal(part, number, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND),
            range(len(part.transactional_ids)),
        )
        return DescribeTransactionsResponse(transaction_states=states)

    response: DescribeTransactionsResponse = await ask_about_allowed(
        DESCRIBE,
        ask,
        message,
        lambda each: rights.allow(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, each),
        REFUSED,
    )
    if rights.is_checked:
        await _hide_topics(response.transaction_states, rights)
    return response


async def _hide_topics(states: list[Any], rights: Rights) -> None:
    turns, shown = Turns(), dict[str, bool]()
    for state in states:
        for topic in state.topics:
            if turns.is_over():
                await next_turn()
            if topic.topic not in shown:
                shown[topic.topic] = rights.allow_on_topic(AclOperation.DESCRIBE, topic.topic, is_required=False)
        visible = [topic for topic in state.topics if shown[topic.topic]]
        if len(visible) < len(state.topics):
            if turns.is_over(sum(len(topic.marker_error_of) for topic in visible)):
                await next_turn()
            state.topics = visible
            forget_errors(state)  # the reasons of hidden topics may name them


def _response_bytes(scopes: ProxyScopes, message: DescribeTransactionsRequest) -> int:
    return RESPONSE_BYTES * len(message.transactional_ids)


NEEDS = (
    Need(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, "each"),
    Need(AclOperation.DESCRIBE, ResourceType.TOPIC, "each; the others are left out"),
)
APIS = (Api(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, handle, response_bytes=_response_bytes, needs=NEEDS),)
