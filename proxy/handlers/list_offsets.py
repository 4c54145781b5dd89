"""ListOffsets, versions 1 to 11.

Behaviour: each partition's owner answers, never a cache (rule 2).  ``timestamp`` is a time in milliseconds or one of:
-1 latest (the high watermark, or the last stable offset for read_committed), -2 earliest, -3 the record with the
largest timestamp, -4 earliest on local storage (the same as earliest: there is one storage), -5 latest in tiered
storage and -6 earliest that waits for upload (there is no tier: offset -1, as Kafka answers without one).  No record at
or after a time: offset -1 without error.  A partition that is moving is waited for, and so is the flush of what was
acknowledged before: a producer with acks=1 that asks for the end finds its record below it.

Version notes: 2 isolation level; 4 the client's leader epoch is checked, the leader's is told; 6 flexible; 7 -3
(KIP-734); 8 -4 (KIP-405); 9 -5 (KIP-1005); 10 ``timeout_ms`` (KIP-1075); 11 -6 (KIP-1023).  An older version that asks
for a newer special is answered UNSUPPORTED_VERSION.

Not implemented: the epoch of a record found by time (-1 is told: the consumer then does not check it).
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.net.request import Request
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import ListOffsetsResponse
from bmq.endpoint.api import Api
from bmq.proxy.partition_queries import TOGETHER, Listed, ask_all, by_topic, check_epoch, list_partitions, owner_of
from bmq.proxy.services import ProxyServices

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
"""Of a search, for those who do not say: Kafka's request.timeout.ms.  kafka-python sends 0, which Kafka, where the time
is only for remote storage, does not look at."""

Topic = ListOffsetsResponse.ListOffsetsTopicResponse
Partition = Topic.ListOffsetsPartitionResponse


class Wanted(NamedTuple):
    topic: str
    partition: int
    epoch: int
    timestamp: int
    is_repeated: bool


class Found(NamedTuple):
    offset: int = -1
    timestamp: int = -1
    epoch: int = -1


async def handle(services: ProxyServices, request: Request, message: Any) -> Any:
    version = message.API_VERSION
    is_told = version >= TIMEOUT_SINCE and message.timeout_ms > 0
    timeout_s = message.timeout_ms / 1000 if is_told else TIMEOUT_S
    committed = version >= 2 and message.isolation_level == READ_COMMITTED
    listed = await list_partitions(message.topics, "name", "partition_index")

    async def ask(listed: Listed) -> Any:
        each = listed.partition
        epoch = each.current_leader_epoch if version >= 4 else -1
        one = Wanted(listed.topic, each.partition_index, epoch, each.timestamp, listed.times > 1)
        try:
            async with asyncio.timeout(timeout_s):
                found = await _find(services, one, version, committed=committed)
        except RequestError as error:
            return _answer(one, error.code, Found())
        except TimeoutError:
            return _answer(one, ErrorCode.REQUEST_TIMED_OUT, Found())
        return _answer(one, ErrorCode.NONE, found)

    answers = await ask_all(listed, ask, TOGETHER)
    topics = await by_topic(message.topics, answers, lambda topic, found: Topic(name=topic.name, partitions=found))
    return ListOffsetsResponse(throttle_time_ms=0, topics=topics)


async def _find(services: ProxyServices, wanted: Wanted, version: int, *, committed: bool) -> Found:
    """RequestError with what Kafka answers."""
    timestamp = wanted.timestamp
    if wanted.is_repeated:
        raise RequestError(ErrorCode.INVALID_REQUEST, "the same partition twice")
    if timestamp < 0 and version < KNOWN_SINCE.get(timestamp, version + 1):
        raise RequestError(ErrorCode.UNSUPPORTED_VERSION, f"timestamp {timestamp} in version {version}")
    owner = await owner_of(services, wanted.topic, wanted.partition)
    is_start = timestamp in (EARLIEST, EARLIEST_LOCAL)
    ends = await (owner.ends() if is_start else owner.settled_ends())
    check_epoch(ends.epoch, wanted.epoch)
    match timestamp:
        case -1:
            return Found(ends.last_stable_offset if committed else ends.high_watermark, -1, ends.epoch)
        case -2 | -4:
            return Found(ends.log_start, -1, ends.epoch if ends.log_start == ends.high_watermark else -1)
        case -3:
            return Found(*await owner.offset_of_max_timestamp())
        case -5 | -6:
            return Found()
    found = await owner.offset_for_timestamp(timestamp)
    if found is None or (committed and found[0] >= ends.last_stable_offset):
        return Found()
    return Found(*found)


def _answer(wanted: Wanted, code: ErrorCode, found: Found) -> Any:
    return Partition(
        partition_index=wanted.partition,
        error_code=code,
        timestamp=found.timestamp,
        offset=found.offset,
        leader_epoch=found.epoch,
    )


APIS = (Api(ApiKey.LIST_OFFSETS, 1, 11, handle),)
