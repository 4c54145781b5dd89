"""DescribeLogDirs, versions 1 to 5: the partitions' bytes on storage.

Behaviour: there is one "log dir", the root of the cluster's storage, with the open partitions that this proxy leads;
tools query all proxies, and add up.  A partition that is not open is left out, after ``LOOK_S`` for all of them, as
Kafka leaves out partitions that a broker does not host.  Sizes count each segment once, not each of its copies.
``offset_lag`` is 0, as there is no replica that could lag.  If the size of a partition cannot be had, the dir has
KAFKA_STORAGE_ERROR and no topics.

Version notes: 2 flexible; 3 a top-level error; 4 total and usable bytes (unknown here: -1); 5 ``is_cordoned``.

Not implemented: nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from bmq.core.aio.turns import Turns, map_in_turns, next_turn
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.urls import without_userinfo
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import DescribeLogDirsResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need
from bmq.endpoint.partitions import Owner
from bmq.meta.catalog import Topic as CatalogTopic
from bmq.proxy.partition_queries import LOOK_S, TOGETHER, ask_all, open_owner
from bmq.proxy.scopes import ProxyScopes

Result = DescribeLogDirsResponse.DescribeLogDirsResult
Topic = Result.DescribeLogDirsTopic
Partition = Topic.DescribeLogDirsPartition

ALL_BYTES = 16 << 20
"""Estimate of the bytes of a response about all partitions, 100,000 of them; corrected once it is encoded."""


async def handle(scopes: ProxyScopes, request: Request, message: Any) -> Any:
    if not scopes.caller.rights(request).allow_on_cluster(AclOperation.DESCRIBE):
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return DescribeLogDirsResponse(throttle_time_ms=0, error_code=code, results=[])
    asked = await _asked_here(scopes, message.topics)
    deadline = asyncio.get_running_loop().time() + LOOK_S
    owners = await ask_all(asked, lambda one: open_owner(scopes.process.owners, one[1], deadline), TOGETHER)
    found = [(name, key, owner) for (name, key), owner in zip(asked, owners, strict=True) if owner is not None]
    sizes = await ask_all(found, _size, TOGETHER)
    topics: dict[str, list[Any]] = {}
    turns = Turns()
    for (name, key, _), size in zip(found, sizes, strict=True):
        if turns.is_over():
            await next_turn()
        if size is None:
            return _response(scopes, ErrorCode.KAFKA_STORAGE_ERROR, [])
        partition = Partition(partition_index=key.partition, partition_size=size, offset_lag=0, is_future_key=False)
        topics.setdefault(name, []).append(partition)
    described = [Topic(name=name, partitions=partitions) for name, partitions in topics.items()]
    return _response(scopes, ErrorCode.NONE, described)


async def _asked_here(scopes: ProxyScopes, asked: Any) -> list[tuple[str, PartitionKey]]:
    """Return the partitions that the request names and this proxy leads, each once.  ``asked`` None: all topics."""
    catalog, proxies = scopes.process.catalog, scopes.view.proxies
    if asked is None:
        wanted: list[tuple[CatalogTopic, Sequence[int]]]
        wanted = [(topic, range(topic.partitions)) for _, topic in sorted(catalog.topics.items())]
    else:
        once: dict[str, dict[int, None]] = {}
        turns = Turns()
        for each in asked:
            if turns.is_over():
                await next_turn()
            if each.topic in catalog.topics:
                once.setdefault(each.topic, {}).update(dict.fromkeys(each.partitions))
        wanted = [(catalog.topics[name], list(indexes)) for name, indexes in once.items() if name in catalog.topics]
    keys = (
        (topic.name, PartitionKey(topic.topic_id, index))
        for topic, indexes in wanted
        for index in indexes
        if 0 <= index < topic.partitions
    )
    # The other partitions are in the responses of the proxies that lead them.
    own = proxies.own.node_id
    ours = await map_in_turns(lambda one: one if proxies.leader_of(one[1]) == own else None, keys)
    return [one for one in ours if one is not None]


async def _size(one: tuple[str, PartitionKey, Owner]) -> int | None:
    """Return the partition's bytes on storage; None if its owner or storage does not respond."""
    try:
        return await one[2].log_bytes()
    except RequestError:
        return None


def _response(scopes: ProxyScopes, code: ErrorCode, topics: list[Any]) -> Any:
    result = Result(
        error_code=code,
        log_dir=without_userinfo(scopes.view.config.root) or "bmq-data",
        topics=topics,
        total_bytes=-1,
        usable_bytes=-1,
        is_cordoned=False,
    )
    return DescribeLogDirsResponse(throttle_time_ms=0, error_code=ErrorCode.NONE, results=[result])


def _response_bytes(scopes: ProxyScopes, message: Any) -> int:
    return ALL_BYTES if message.topics is None else 0


NEEDS = (Need(AclOperation.DESCRIBE, ResourceType.CLUSTER),)
APIS = (Api(ApiKey.DESCRIBE_LOG_DIRS, 1, 5, handle, response_bytes=_response_bytes, needs=NEEDS),)
