"""ElectLeaders, versions 0 to 2.

Behaviour: a partition has one owner at a time, which the controller chooses, and every proxy serves the partition.  So
there is no preferred replica to return to, and no unclean replica to fall back on.  Every existing partition gets
ELECTION_NOT_NEEDED, as in Kafka while the preferred leader leads.

Version notes: 1 adds the kind of election, and an error code for the whole response.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from bmq.core.aio.turns import Turns, next_turn
from bmq.core.errors import ErrorCode
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import ElectLeadersResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need, not_authorized
from bmq.proxy.scopes import ProxyScopes

Topic = ElectLeadersResponse.ReplicaElectionResult
Partition = Topic.PartitionResult

ALL_BYTES = 16 << 20
"""Estimate of the bytes of a response about all partitions, 100,000 of them; corrected once it is encoded."""


async def handle(scopes: ProxyScopes, request: Request, message: Any) -> Any:
    if not scopes.caller.rights(request).allow_on_cluster(AclOperation.ALTER):
        return await _refuse(message)
    topics = scopes.process.catalog.topics
    if message.topic_partitions is None:
        wanted = [(name, range(topic.partitions)) for name, topic in sorted(topics.items())]
    else:
        wanted = [(each.topic, each.partitions) for each in message.topic_partitions]
    results = []
    turns = Turns()
    for name, indexes in wanted:
        topic = topics.get(name)
        count = topic.partitions if topic is not None else 0
        if turns.is_over():
            await next_turn()
        found = await turns.map(partial(_result, count), indexes)
        results.append(Topic(topic=name, partition_result=found))
    return ElectLeadersResponse(throttle_time_ms=0, error_code=ErrorCode.NONE, replica_election_results=results)


async def _refuse(message: Any) -> Any:
    error = not_authorized(ResourceType.CLUSTER)

    def refused(index: int) -> Any:
        return Partition(partition_id=index, error_code=error.code, error_message=error.message)

    results = []
    turns = Turns()
    for each in message.topic_partitions or ():
        if turns.is_over():
            await next_turn()
        results.append(Topic(topic=each.topic, partition_result=await turns.map(refused, each.partitions)))
    return ElectLeadersResponse(throttle_time_ms=0, error_code=error.code, replica_election_results=results)


def _result(count: int, index: int) -> Any:
    if not 0 <= index < count:
        code, text = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."
    else:
        code, text = ErrorCode.ELECTION_NOT_NEEDED, "The controller chooses the owner, and every node serves it."
    return Partition(partition_id=index, error_code=code, error_message=text)


def _response_bytes(scopes: ProxyScopes, message: Any) -> int:
    return ALL_BYTES if message.topic_partitions is None else 0


NEEDS = (Need(AclOperation.ALTER, ResourceType.CLUSTER),)
APIS = (Api(ApiKey.ELECT_LEADERS, 0, 2, handle, response_bytes=_response_bytes, needs=NEEDS),)
