"""OffsetForLeaderEpoch, versions 2 to 4: the end of a leader epoch, by which a consumer detects a truncated log.

Behaviour: the response has the largest epoch at or below the requested epoch, and the offset at which the next epoch
begins.  For the owner's own epoch the offset is the high watermark.  For an epoch that the owner has not reached it is
(-1, -1), without an error.

Version notes: 2 the client's view of the leader is checked; 3 ``replica_id``, which is ignored, as there are no
followers; 4 flexible.

Not implemented: nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import OffsetForLeaderEpochResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need, not_authorized
from bmq.proxy.partition_queries import (
    TOGETHER,
    QueriedPartition,
    ask_all,
    by_topic,
    check_epoch,
    list_partitions,
    owner_of,
)
from bmq.proxy.scopes import ProxyScopes

Topic = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
Partition = Topic.EpochEndOffset


class EpochQuery(NamedTuple):
    """One partition of the request: the client's current leader epoch, and the epoch whose end it asks for."""

    topic: str
    partition: int
    current_epoch: int
    epoch: int


async def handle(scopes: ProxyScopes, request: Request, message: Any) -> Any:
    listed, rights = await list_partitions(message.topics, "topic", "partition"), scopes.caller.rights(request)
    may_ask_all = rights.allow_on_cluster(AclOperation.CLUSTER_ACTION, is_required=False)

    async def ask(listed: QueriedPartition) -> Any:
        each = listed.partition
        one = EpochQuery(listed.topic, each.partition, each.current_leader_epoch, each.leader_epoch)
        try:
            if not may_ask_all and not rights.allow_on_topic(AclOperation.DESCRIBE, one.topic):
                raise not_authorized(ResourceType.TOPIC)
            owner = await owner_of(scopes, one.topic, one.partition)
            if one.current_epoch >= 0:
                check_epoch((await owner.ends()).epoch, one.current_epoch)
            epoch, end = await owner.end_of_epoch(one.epoch)
        except RequestError as error:
            return Partition(error_code=error.code, partition=one.partition, leader_epoch=-1, end_offset=-1)
        return Partition(error_code=ErrorCode.NONE, partition=one.partition, leader_epoch=epoch, end_offset=end)

    answers = await ask_all(listed, ask, TOGETHER)
    topics = await by_topic(message.topics, answers, lambda topic, found: Topic(topic=topic.topic, partitions=found))
    return OffsetForLeaderEpochResponse(throttle_time_ms=0, topics=topics)


NEEDS = (
    Need(AclOperation.DESCRIBE, ResourceType.TOPIC, "each"),
    Need(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, "for all topics, instead"),
)
APIS = (Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4, handle, needs=NEEDS),)
