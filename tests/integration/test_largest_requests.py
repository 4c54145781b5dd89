"""No request that the limits allow stops the event loop: the largest of each API, in its oldest and newest version.

A whole server in this process, on memory, with two thousand open partitions.  A stop is the loop thread's own processor
time in one turn (``tests.harness.loop_stops``).
"""

from __future__ import annotations

import asyncio
import gc
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from random import Random
from typing import cast

import pytest

from bmq.core.config import NodeConfig
from bmq.core.model import PartitionKey
from bmq.core.net.listener_config import PLAINTEXT
from bmq.core.net.request import Client, CloseConnection, Response
from bmq.core.security.settings import STANDARD_AUTHORIZER
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.limits import elements_max
from bmq.endpoint.large_requests import FULL_COLLECTION_AFTER
from bmq.meta.cluster.member import Address
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.proxy.apis import ALL_APIS
from bmq.server.node import Node
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.harness.fakes import FakeClient
from tests.harness.loop_stops import forget_stops, is_short, run_measured
from tests.harness.single_node import single_node
from tests.integration.largest_requests import TOPIC, largest, largest_fetches, largest_produces

PARTITIONS = 2_000
PATIENCE_S = 120.0
WARM = PARTITIONS / elements_max(ApiKey.PRODUCE)
OLDER = 0.2
"""Share of the limit for versions before the newest: only the reading of bytes differs, a whole one takes seconds."""
GROUPS = {
    ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.FIND_COORDINATOR, ApiKey.JOIN_GROUP, ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP, ApiKey.SYNC_GROUP, ApiKey.DESCRIBE_GROUPS, ApiKey.LIST_GROUPS, ApiKey.DELETE_GROUPS,
    ApiKey.OFFSET_DELETE,
}  # fmt: skip
"""The coordinator's, which has tests of its own."""
APIS = [
    (api.key, version)
    for api in ALL_APIS
    if api.parse is None and api.key not in GROUPS
    for version in range(api.min_version, api.max_version + 1)
]


NEWEST = [(api.key, api.max_version) for api in ALL_APIS if api.parse is None]
OPEN = NodeConfig(auto_create_topics_enable=False)
SECURE = NodeConfig(
    auto_create_topics_enable=False, authorizer_class_name=STANDARD_AUTHORIZER, super_users="User:admin"
)


@asynccontextmanager
async def _node(config: NodeConfig) -> AsyncIterator[Node]:
    fs, kv = MemoryFileSystem(MemoryStorage(Random(0)), "n"), MemoryKeyValue(MemoryStore())
    async with single_node(config, fs, kv) as node:
        node.is_at({PLAINTEXT: Address(host="h", port=9092)})
        await node.start()
        await node.admin.create_topic(TOPIC, PARTITIONS, 1, {})
        topic = node.catalog.topics[TOPIC]
        for partition in range(PARTITIONS):
            await node.proxy.owners.wait(PartitionKey(topic.topic_id, partition), PATIENCE_S)
        yield node


async def _ask(node: Node, frame: bytes) -> int:
    """Return the size of the response, or of the text for which the connection is closed."""
    try:
        response = node.proxy.endpoint(memoryview(bytearray(frame)), cast(Client, FakeClient()))
        if not isinstance(response, Response):
            response = await asyncio.wait_for(response, PATIENCE_S)
        return response.size
    except CloseConnection as refused:
        return len(str(refused)) if "more than" in str(refused) else 0


@pytest.mark.parametrize(("api_key", "version"), APIS, ids=lambda value: getattr(value, "name", str(value)))
def test_the_largest_request_stops_nobody(api_key: ApiKey, version: int) -> None:
    is_newest = (api_key, version + 1) not in APIS
    _check(lambda topic_id: largest(api_key, version, 1.0 if is_newest else OLDER))


@pytest.mark.parametrize(("api_key", "version"), NEWEST, ids=lambda value: getattr(value, "name", str(value)))
def test_the_largest_refused_request_stops_nobody(api_key: ApiKey, version: int) -> None:
    """Send it as a client without rights."""
    _check(lambda topic_id: largest(api_key, version), config=SECURE)


@pytest.mark.parametrize("version", [4, 9, 11, 12, 13, 18])
def test_the_largest_fetch_stops_nobody(version: int) -> None:
    _check(lambda topic_id: largest_fetches(version, topic_id, 1.0 if version == 18 else OLDER))


@pytest.mark.parametrize("version", [3, 8, 9, 13])
def test_the_largest_produce_stops_nobody(version: int) -> None:
    """A batch for each of the partitions has been written before: to open a segment takes longer than to write."""

    def frames(topic_id: uuid.UUID) -> Iterator[tuple[str, bytes]]:
        return largest_produces(version, topic_id, PARTITIONS, 1.0 if version == 13 else OLDER)

    _check(frames, warm_up=lambda topic_id: next(largest_produces(version, topic_id, PARTITIONS, WARM))[1])


def _check(
    make: Callable[[uuid.UUID], Iterator[tuple[str, bytes]]],
    warm_up: Callable[[uuid.UUID], bytes] | None = None,
    config: NodeConfig = OPEN,
) -> None:
    """Send each of the frames to a server, and measure the stops of its loop."""
    stops: dict[str, float] = {}

    async def main() -> None:
        async with _node(config) as node:
            topic_id = node.catalog.topics[TOPIC].topic_id
            if warm_up is not None:
                await _ask(node, warm_up(topic_id))
            for shape, frame in make(topic_id):
                gc.collect()
                gc.freeze()  # as ``bmq serve`` does with what lives as long as the process
                await asyncio.sleep(0)
                forget_stops()
                assert await _ask(node, frame)
                await asyncio.sleep(0)
                stops[shape] = max(asyncio.get_running_loop().stops, default=0.0)  # type: ignore[attr-defined]

    try:
        run_measured(main())
    finally:
        gc.unfreeze()
    assert is_short(max(stops.values(), default=0.0)), stops


def test_the_collector_is_as_it_was() -> None:
    """Full collections are made again after large requests, and between them if they do not end."""
    before = gc.get_threshold()

    async def main() -> None:
        async with _node(OPEN) as node:
            ((_, frame), *_) = largest(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0.1)
            during = 0

            async def ask() -> None:
                nonlocal during
                waiting = node.proxy.endpoint(memoryview(bytearray(frame)), cast(Client, FakeClient()))
                assert not isinstance(waiting, Response)
                task = asyncio.ensure_future(waiting)
                await asyncio.sleep(0)
                during += gc.get_threshold() != before
                await task

            for _ in range(3):
                await asyncio.gather(*(ask() for _ in range(10)))
                assert gc.get_threshold() == before
            assert 0 < during < FULL_COLLECTION_AFTER

    asyncio.run(main())
