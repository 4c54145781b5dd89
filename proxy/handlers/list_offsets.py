"""ListOffsets, versions 1 to 11.

Behaviour: each partition's owner responds, never a cache (rule 2).  ``timestamp`` is a time in milliseconds, or one of

====== ===== =================================================================================================
number since offset in the response
====== ===== =================================================================================================
-1     1     latest: the high watermark, or the last stable offset for read_committed
-2     1     earliest
-3     7     of the record with the largest timestamp (KIP-734)
-4     8     earliest on local storage (KIP-405): the same as earliest, as there is one storage
-5     9     latest in tiered storage (KIP-1005): -1, as in Kafka without a tier
-6     11    earliest that waits for upload (KIP-1023): -1, as in Kafka without a tier
====== ===== =================================================================================================

A number in a version before ``since`` is UNSUPPORTED_VERSION.  If there is no record at or after a time, the offset is
-1, without an error.  For read_committed it is -1, too, if the record is not below the last stable offset.  The handler
waits for a partition that is moving, and for the flush of what was acknowledged before.  So a producer with acks=1
finds its record below the end.

Version notes: 2 isolation level; 4 the client's leader epoch is checked, and the leader's is in the response; 6
flexible; 10 ``timeout_ms`` (KIP-1075).

Not implemented: the epoch of a record found by time.  It is -1, and the consumer then does not check it.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import ListOffsetsResponse
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

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
KNOWN_SINCE = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
READ_COMMITTED = 1
TIMEOUT_SINCE = 10
TIMEOUT_S = 30.0
"""Time-out of a search for a client that sends none: Kafka's request.timeout.ms.  kafka-python sends 0, which Kafka,
where the time is only for remote storage, ignores."""

Topic = ListOffsetsResponse.ListOffsetsTopicResponse
Partition = Topic.ListOffsetsPartitionResponse


class OffsetQuery(NamedTuple):
    """One partition of the request; ``is_repeated``: the request names it more than once."""

    topic: str
    partition: int
    epoch: int
    timestamp: int
    is_repeated: bool


class FoundOffset(NamedTuple):
    """The result of a search; -1 stands for none."""

    offset: int = -1
    timestamp: int = -1
    epoch: int = -1


async def handle(scopes: ProxyScopes, request: Request, message: Any) -> Any:
    version = message.API_VERSION
    is_told = version >= TIMEOUT_SINCE and message.timeout_ms > 0
    timeout_s = message.timeout_ms / 1000 if is_told else TIMEOUT_S
    committed = version >= 2 and message.isolation_level == READ_COMMITTED
    listed, rights = await list_partitions(message.topics, "name", "partition_index"), scopes.caller.rights(request)

    async def ask(listed: QueriedPartition) -> Any:
        each = listed.partition
        epoch = each.current_leader_epoch if version >= 4 else -1
        one = OffsetQuery(listed.topic, each.partition_index, epoch, each.timestamp, listed.times > 1)
        try:
            if not rights.allow_on_topic(AclOperation.DESCRIBE, one.topic):
                raise not_authorized(ResourceType.TOPIC)
            async with asyncio.timeout(timeout_s):
                found = await _find(scopes, one, version, committed=committed)
        except RequestError as error:
            return _partition_response(one, error.code, FoundOffset())
        except TimeoutError:
            return _partition_response(one, ErrorCode.REQUEST_TIMED_OUT, FoundOffset())
        return _partition_response(one, ErrorCode.NONE, found)

    answers = await ask_all(listed, ask, TOGETHER)
    topics = await by_topic(message.topics, answers, lambda topic, found: Topic(name=topic.name, partitions=found))
    return ListOffsetsResponse(throttle_time_ms=0, topics=topics)


async def _find(scopes: ProxyScopes, wanted: OffsetQuery, version: int, *, committed: bool) -> FoundOffset:
    """Return the offset that the client asks for.  Raises RequestError with the code that Kafka would send."""
    timestamp = wanted.timestamp
    if wanted.is_repeated:
        raise RequestError(ErrorCode.INVALID_REQUEST, "the request names the partition twice")
    if timestamp < 0 and version < KNOWN_SINCE.get(timestamp, version + 1):
        raise RequestError(ErrorCode.UNSUPPORTED_VERSION, f"version {version} does not have timestamp {timestamp}")
    owner = await owner_of(scopes, wanted.topic, wanted.partition)
    is_start = timestamp in (EARLIEST, EARLIEST_LOCAL)
    ends = await (owner.ends() if is_start else owner.flushed_ends())
    check_epoch(ends.epoch, wanted.epoch)
    match timestamp:
        case -1:
            return FoundOffset(ends.last_stable_offset if committed else ends.high_watermark, -1, ends.epoch)
        case -2 | -4:
            return FoundOffset(ends.log_start, -1, ends.epoch if ends.log_start == ends.high_watermark else -1)
        case -3:
            found: tuple[int, int] | None = await owner.offset_of_max_timestamp()
        case -5 | -6:
            return FoundOffset()
        case _:
            found = await owner.offset_for_timestamp(timestamp)
    if found is None or (committed and found[0] >= ends.last_stable_offset):
        return FoundOffset()
    return FoundOffset(*found)


def _partition_response(wanted: OffsetQuery, code: ErrorCode, found: FoundOffset) -> Any:
    return Partition(
        partition_index=wanted.partition,
        error_code=code,
        timestamp=found.timestamp,
        offset=found.offset,
        leader_epoch=found.epoch,
    )


NEEDS = (Need(AclOperation.DESCRIBE, ResourceType.TOPIC, "each"),)
APIS = (Api(ApiKey.LIST_OFFSETS, 1, 11, handle, needs=NEEDS),)
