"""WriteTxnMarkers, versions 1 and 2 (KIP-98, KIP-1228): the ends of transactions, by partition.

Behaviour: each partition's owner appends the marker, and the response is sent when it is flushed there
(``endpoint.partitions.Owner.end_transaction``).  Kafka's coordinators send this request to brokers; here they use a
request of their own (``core.rpc.messages.markers``).  Clients send it to end a hanging transaction
(``kafka-transactions.sh abort``).  It needs ALTER or CLUSTER_ACTION on the cluster, and the errors are by partition, as
in Kafka's ``handleWriteTxnMarkersRequest``; without the right, every partition has CLUSTER_AUTHORIZATION_FAILED.

Version notes: both flexible; 2 has the transaction's version, which is 0 in a request of version 1.

A marker for ``__consumer_offsets`` goes to the coordinator of its groups (``ProxyServices.end_group_transaction``). If
the coordinator cannot take it now, the error is NOT_LEADER_OR_FOLLOWER: after a coordinator's own errors Java's admin
client gives up (``AbortTransactionHandler``).

Departures: a repeated or late marker of version 2 is not written, and has no error.  Partitions of
``__transaction_state`` have NOT_LEADER_OR_FOLLOWER always.  At level 0 of ``transaction.version`` no log has a
transaction, and a member may be of a version that cannot read markers: every partition has UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from bmq.core.aio.turns import Turns, next_turn
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.net.request import Request
from bmq.core.records.control import Marker, TransactionMarker
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import WriteTxnMarkersResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need
from bmq.meta.catalog import OFFSETS_TOPIC
from bmq.proxy.handlers._transactions import are_served
from bmq.proxy.partition_queries import ask_all, owner_of
from bmq.proxy.scopes import ProxyScopes

Result = WriteTxnMarkersResponse.WritableTxnMarkerResult
Topic = Result.WritableTxnMarkerTopicResult
Partition = Topic.WritableTxnMarkerPartitionResult
WITH_VERSION_SINCE = 2
_MOVING = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
)
"""A coordinator's errors after which a client is to try again."""


class Ended(NamedTuple):
    """One partition of a request, with its marker."""

    marker: TransactionMarker
    topic: str
    partition: int


async def handle(scopes: ProxyScopes, request: Request, message: Any) -> Any:
    ends = await _list(message, has_version=request.api_version >= WITH_VERSION_SINCE)
    rights = scopes.caller.rights(request)
    is_allowed = rights.allow_on_cluster(AclOperation.ALTER, is_required=False) or rights.allow_on_cluster(
        AclOperation.CLUSTER_ACTION
    )

    async def end(one: Ended) -> Any:
        code = await _end(scopes, one) if is_allowed else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return Partition(partition_index=one.partition, error_code=code)

    results = iter(await ask_all(ends, end))
    turns, markers = Turns(), []
    for asked in message.markers:
        if turns.is_over():
            await next_turn()
        topics = []
        for topic in asked.topics:
            if turns.is_over(1 + len(topic.partition_indexes)):
                await next_turn()
            topics.append(Topic(name=topic.name, partitions=[next(results) for _ in topic.partition_indexes]))
        markers.append(Result(producer_id=asked.producer_id, topics=topics))
    return WriteTxnMarkersResponse(markers=markers)


async def _list(message: Any, *, has_version: bool) -> list[Ended]:
    """Return all partitions of a request, each with its marker, in their order."""

    def marker_of(asked: Any) -> TransactionMarker:
        kind = Marker.COMMIT if asked.transaction_result else Marker.ABORT
        version = asked.transaction_version if has_version else 0
        return TransactionMarker(asked.producer_id, asked.producer_epoch, asked.coordinator_epoch, kind, version)

    turns = Turns()
    ends = []
    for asked in message.markers:
        if turns.is_over():
            await next_turn()
        marker = marker_of(asked)
        for topic in asked.topics:
            if turns.is_over():
                await next_turn()
            for partition in topic.partition_indexes:
                if turns.is_over():
                    await next_turn()
                ends.append(Ended(marker, topic.name, partition))
    return ends


async def _end(scopes: ProxyScopes, one: Ended) -> ErrorCode:
    if not are_served(scopes):
        return ErrorCode.UNSUPPORTED_VERSION
    topic = scopes.process.catalog.topics.get(one.topic)
    try:
        if topic is not None and topic.is_internal and 0 <= one.partition < topic.partitions:
            if one.topic != OFFSETS_TOPIC:
                return ErrorCode.NOT_LEADER_OR_FOLLOWER
            code = await scopes.process.end_group_transaction(one.partition, one.marker)
            return ErrorCode.NOT_LEADER_OR_FOLLOWER if code in _MOVING else code
        await (await owner_of(scopes, one.topic, one.partition)).end_transaction(one.marker)
    except RequestError as error:
        return error.code
    return ErrorCode.NONE


NEEDS = (
    Need(AclOperation.ALTER, ResourceType.CLUSTER),
    Need(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, "instead"),
)
APIS = (Api(ApiKey.WRITE_TXN_MARKERS, 1, 2, handle, needs=NEEDS),)
