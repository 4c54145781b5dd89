"""AlterPartitionReassignments, versions 0 to 1.

Kafka's replicas are proxies here, which store nothing: they follow from the set of live proxies.  The copies of a
segment are kept by datanodes, and the controller chooses the broker that owns a partition.  So nothing can be
reassigned by this API:

========================== ===============================================================
request for a partition    response
========================== ===============================================================
the replicas that it has   no error
other replicas             POLICY_VIOLATION, with the command that moves an owner
null: cancel               NO_REASSIGNMENT_IN_PROGRESS
========================== ===============================================================
"""

from __future__ import annotations

from functools import partial
from typing import Any

from bmq.core.aio.turns import Turns, next_turn
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import AlterPartitionReassignmentsResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need, not_authorized
from bmq.meta.catalog import Topic
from bmq.proxy.scopes import ProxyScopes

TopicResult = AlterPartitionReassignmentsResponse.ReassignableTopicResponse
PartitionResult = TopicResult.ReassignablePartitionResponse
JUDGED_A_TURN = 200
"""Partitions that are checked in a turn of the loop, at 20 us each."""
NAMED_MAX = 20
"""Nodes that an error message names."""


async def handle(scopes: ProxyScopes, request: Request, message: Any) -> Any:
    error = None
    if not scopes.caller.rights(request).allow_on_cluster(AclOperation.ALTER):
        error = not_authorized(ResourceType.CLUSTER)
    responses = []
    turns = Turns(JUDGED_A_TURN)
    for asked in message.topics:
        if turns.is_over():
            await next_turn()
        judge = partial(_result, scopes, scopes.process.catalog.topics.get(asked.name), error)
        results = await turns.map(judge, asked.partitions)
        responses.append(TopicResult(name=asked.name, partitions=results))
    return AlterPartitionReassignmentsResponse(
        throttle_time_ms=0,
        allow_replication_factor_change=getattr(message, "allow_replication_factor_change", True),
        error_code=error.code if error else ErrorCode.NONE,
        error_message=error.message if error else None,
        responses=responses,
    )


def _result(scopes: ProxyScopes, topic: Topic | None, error: RequestError | None, asked: Any) -> Any:
    code, text = (
        _judge(scopes, topic, asked.partition_index, asked.replicas) if error is None else (error.code, error.message)
    )
    return PartitionResult(partition_index=asked.partition_index, error_code=code, error_message=text)


def _judge(
    scopes: ProxyScopes, topic: Topic | None, index: int, replicas: list[int] | None
) -> tuple[ErrorCode, str | None]:
    if topic is None or not 0 <= index < topic.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."
    if replicas is None:
        return ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress."
    nodes = {proxy.node_id for proxy in scopes.view.proxies.addresses}
    if not replicas or len(set(replicas)) != len(replicas) or not nodes.issuperset(replicas):
        named = f"{replicas[:NAMED_MAX]}{'...' if len(replicas) > NAMED_MAX else ''}"
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"replicas {named}: name nodes of this cluster, each once"
    if set(replicas) == set(scopes.view.metadata.replicas(topic, index, scopes.view.proxies)):
        return ErrorCode.NONE, None
    return (
        ErrorCode.POLICY_VIOLATION,
        "Copies are kept by storage and owners are chosen by the controller: use `bmq cluster move`",
    )


NEEDS = (Need(AclOperation.ALTER, ResourceType.CLUSTER),)
APIS = (Api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1, handle, needs=NEEDS),)
