"""AddPartitionsToTxn, versions 0 to 5: makes partitions a part of a transaction, before data is written to them.

Behaviour, as in ``KafkaApis.handleAddPartitionsToTxnRequest``: a transaction gets all of its partitions or none.  If
the client may not write to a partition's topic, the topic is internal, or the partition does not exist, the partition
has this error, and all others have OPERATION_NOT_ATTEMPTED.

Version notes: 2 adds PRODUCER_FENCED, before it INVALID_PRODUCER_EPOCH.  4 and 5 are for brokers (KIP-890): they need
the right of brokers instead of rights on ids and topics.  A request has several transactions, and may only ask whether
partitions are a part of them.  Partitions of ``__consumer_offsets`` are allowed: a TxnOffsetCommit is verified so.
Kafka's clients use 3 at most.  5 adds TRANSACTION_ABORTABLE.

Departure: 4 and 5 refuse ``__transaction_state``.  Kafka takes any internal topic, and writes the marker between the
records of transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bmq.coordinator.api import ClientInfo
from bmq.coordinator.transaction_routing import (
    ADD_PARTITIONS,
    ADD_PARTITIONS_TO_SEVERAL,
    SEVERAL_SINCE,
    partition_errors,
)
from bmq.core.aio.turns import Turns, next_turn
from bmq.core.errors import ErrorCode
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need
from bmq.meta.catalog import INTERNAL_TOPICS, Catalog
from bmq.meta.shard_kinds import may_be_in_transactions
from bmq.proxy.handlers._transactions import FENCED_SINCE, NOT_YET, are_served, code_for, refusal
from bmq.proxy.scopes import ProxyScopes

_Failures = dict[tuple[str, int], ErrorCode]
_Result = AddPartitionsToTxnResponse.AddPartitionsToTxnResult


async def handle(
    scopes: ProxyScopes, request: Request, message: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    if request.api_version >= SEVERAL_SINCE:
        if not scopes.caller.rights(request).allow_on_cluster(AclOperation.CLUSTER_ACTION):
            return AddPartitionsToTxnResponse(
                error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, results_by_transaction=[]
            )
        return await _add_to_several(scopes, request, message)
    refused = refusal(scopes, request, message.v3_and_below_transactional_id)
    if refused:
        return await ADD_PARTITIONS.refusal(message, 0, refused)
    rights = scopes.caller.rights(request)
    failures = await _failures(
        scopes.process.catalog,
        message.v3_and_below_topics,
        lambda name: name not in INTERNAL_TOPICS and rights.allow_on_topic(AclOperation.WRITE, name),
    )
    if failures:
        results = await _not_attempted(message.v3_and_below_topics, failures)
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)
    response = await scopes.process.transactions.add_partitions(message, ClientInfo.of(request))
    if request.api_version < FENCED_SINCE:
        await _translate(response.results_by_topic_v3_and_below, request.api_version)
    return response


async def _add_to_several(
    scopes: ProxyScopes, request: Request, message: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    """Serve the versions of brokers."""
    api, results, sent, turns = ADD_PARTITIONS_TO_SEVERAL, [], [], Turns()
    is_served = are_served(scopes)
    for number, transaction in enumerate(message.transactions):
        if turns.is_over(1 + sum(1 + len(topic.partitions) for topic in transaction.topics)):
            await next_turn()
        failures = await _failures(scopes.process.catalog, transaction.topics, may_be_in_transactions)
        if not is_served:
            results.append(await api.refusal(message, number, NOT_YET))
        elif failures:
            topics = await _not_attempted(transaction.topics, failures)
            results.append(_Result(transactional_id=transaction.transactional_id, topic_results=topics))
        else:
            results.append(None)
            sent.append(number)
    if sent:
        part = message if len(sent) == len(results) else api.part(message, sent)
        response = await scopes.process.transactions.add_partitions(part, ClientInfo.of(request))
        for number, result in zip(sent, api.answers(response), strict=True):
            if turns.is_over():
                await next_turn()
            results[number] = result
    return api.join(message, results)


async def _failures(catalog: Catalog, topics: Sequence[Any], may_use: Callable[[str], bool]) -> _Failures:
    """Return the errors of the partitions that cannot become a part of a transaction; ``may_use`` a topic's name."""
    turns, allowed, failures = Turns(), {}, _Failures()
    for topic in topics:
        name = topic.name
        if name not in allowed:
            allowed[name] = may_use(name)
        found = catalog.topics.get(name)
        count = 0 if found is None else found.partitions
        for index in topic.partitions:
            if turns.is_over():
                await next_turn()
            if not allowed[name]:
                failures[name, index] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif not 0 <= index < count:
                failures[name, index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if turns.is_over():
            await next_turn()
    return failures


async def _not_attempted(topics: Sequence[Any], failures: _Failures) -> list[Any]:
    """Return the results of a transaction to which nothing is added: ``failures`` are the reason."""
    return await partition_errors(
        topics, lambda name, index: failures.get((name, index), ErrorCode.OPERATION_NOT_ATTEMPTED)
    )


async def _translate(topics: Sequence[Any], version: int) -> None:
    turns = Turns()
    for topic in topics:
        for partition in topic.results_by_partition:
            if turns.is_over():
                await next_turn()
            partition.partition_error_code = code_for(partition.partition_error_code, version)


NEEDS = (
    Need(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, "up to version 3"),
    Need(AclOperation.WRITE, ResourceType.TOPIC, "each, up to version 3"),
    Need(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, "from version 4 on"),
)
APIS = (Api(ApiKey.ADD_PARTITIONS_TO_TXN, 0, 5, handle, needs=NEEDS),)
