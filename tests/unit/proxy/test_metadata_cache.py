"""Cached Metadata: the assembled bytes are the schema encoder's, made in steps, and kept as long as they are true."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bmq.core.aio.turns import run_in_turns
from bmq.core.errors import ErrorCode
from bmq.core.model import PartitionKey
from bmq.core.security.acls import RESOURCE_OPERATIONS, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.codec import encode_response
from bmq.core.wire.messages import MetadataResponse
from bmq.meta.catalog import Topic
from bmq.meta.proxy_addresses import ProxyAddress
from bmq.proxy.handlers import metadata
from bmq.proxy.metadata_cache import COST_PER_STEP, ROWS_PER_STEP, MetadataCache, encode_error
from tests.harness.loop import run
from tests.unit.proxy.handlers.admin_serving import Spread
from tests.unit.proxy.turns import Turns

pytestmark = pytest.mark.slow

API = metadata.APIS[0]
VERSIONS = range(API.min_version, API.max_version + 1)
ZONES = [ProxyAddress(1, "a", 1, "x"), ProxyAddress(2, "b", 2, "y"), ProxyAddress(3, "c", 3, "x")]
NO_ID = uuid.UUID(int=0)


class StillCatalog:
    """Topics that do not change."""

    version = 1
    cluster_id = "id-of-the-cluster"

    def __init__(self, topics: list[Topic]) -> None:
        self.topics = {topic.name: topic for topic in topics}


TOPICS = st.lists(
    st.builds(
        Topic,
        name=st.text("ab._-", min_size=1, max_size=200),
        topic_id=st.uuids(),
        partitions=st.integers(1, 200),
    ),
    max_size=4,
    unique_by=lambda topic: topic.name,
)


PROXIES = st.lists(
    st.builds(
        ProxyAddress,
        node_id=st.integers(0, 1000),
        host=st.text(max_size=20),
        port=st.integers(0, 65535),
        zone=st.sampled_from(["", "x", "y", "zone"]),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda proxy: proxy.node_id,
)


@settings(max_examples=60, deadline=None)
@given(topics=TOPICS, proxies=PROXIES, version=st.sampled_from(VERSIONS), asked=st.booleans())
def test_the_assembled_bytes_are_those_of_the_schemas_encoder(
    topics: list[Topic], proxies: list[ProxyAddress], version: int, asked: bool
) -> None:
    spread, catalog = Spread(proxies), StillCatalog(topics)
    operations = RESOURCE_OPERATIONS[ResourceType.TOPIC] if asked else None
    cluster = RESOURCE_OPERATIONS[ResourceType.CLUSTER] if asked else None
    cache = MetadataCache()

    async def assemble() -> list[bytes]:
        views: Any = (catalog, spread)
        assert cache.all_topics(version, operations, *views) is None
        count, joined = await cache.encode_all(version, operations, *views)
        assert cache.all_topics(version, operations, *views) == (count, joined)
        error = encode_error(version, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "none", NO_ID, is_internal=False)
        response = cache.response(version, -5, count + 1, [joined, error], catalog, spread, cluster)  # type: ignore[arg-type]
        again = cache.response(version, 6, count + 1, [joined, error], catalog, spread, cluster)  # type: ignore[arg-type]
        assert response.size == again.size
        return [b"".join(response.buffers), b"".join(again.buffers)]

    for correlation_id, found in zip((-5, 6), run(assemble()), strict=True):
        wanted = whole(catalog, spread, operations, cluster)
        assert found == b"".join(encode_response(ApiKey.METADATA, version, correlation_id, wanted))


def whole(catalog: StillCatalog, spread: Spread, operations: Any, cluster: Any) -> Any:
    """Return the response as one generated message, to compare with the handler's."""
    Element = MetadataResponse.MetadataResponseTopic
    elements = []
    for topic in catalog.topics.values():
        partitions = []
        for index in range(topic.partitions):
            key = PartitionKey(topic.topic_id, index)
            replicas = replicas_of(spread, key)
            partitions.append(
                Element.MetadataResponsePartition(
                    error_code=0,
                    partition_index=index,
                    leader_id=spread.leader_of(key),
                    leader_epoch=-1,
                    replica_nodes=replicas,
                    isr_nodes=replicas,
                    offline_replicas=[],
                )
            )
        elements.append(
            Element(
                error_code=0,
                name=topic.name,
                topic_id=topic.topic_id,
                is_internal=topic.is_internal,
                partitions=partitions,
                authorized_operations=operations,
            )
        )
    elements.append(
        Element(error_code=3, name="none", topic_id=NO_ID, is_internal=False, partitions=[], authorized_operations=None)
    )
    return MetadataResponse(
        throttle_time_ms=0,
        brokers=[
            MetadataResponse.MetadataResponseBroker(
                node_id=proxy.node_id, host=proxy.host, port=proxy.port, rack=proxy.zone or None
            )
            for proxy in spread.addresses
        ],
        cluster_id=catalog.cluster_id,
        controller_id=spread.addresses[0].node_id,
        topics=elements,
        authorized_operations=cluster,
        error_code=0,
    )


def replicas_of(spread: Spread, key: PartitionKey) -> list[int]:
    """Return the leader, then a proxy of each other zone, in the zones' order."""
    zone_of = {proxy.node_id: proxy.zone for proxy in spread.addresses}
    replicas = [spread.leader_of(key)]
    for zone in dict.fromkeys(proxy.zone for proxy in spread.addresses):
        nodes = [proxy.node_id for proxy in spread.addresses if proxy.zone == zone]
        if zone != zone_of[replicas[0]]:
            replicas.append(nodes[key.partition % len(nodes)])
    return replicas


@given(
    zones=st.lists(st.sampled_from(["", "x", "y"]), min_size=1, max_size=6),
    partition=st.integers(0, 20),
    rack=st.sampled_from(["x", "y", "z"]),
)
def test_a_client_is_sent_to_a_replica_in_its_zone_by_the_leader_alone(
    zones: list[str], partition: int, rack: str
) -> None:
    """Java's clients go to no other proxy than one that Metadata names as a replica; only the leader sends them."""
    spread = Spread([ProxyAddress(number, "h", 1, zone) for number, zone in enumerate(zones)])
    topic = Topic(name="t", topic_id=uuid.UUID(int=1), partitions=21)
    key = PartitionKey(topic.topic_id, partition)
    found = MetadataCache().nearer(rack, spread, topic, partition)
    if spread.leader_of(key) != spread.own.node_id or rack not in zones:
        assert found == -1
    elif spread.own.zone != rack:
        assert zones[found] == rack
        assert found in replicas_of(spread, key)


def many_topics(count: int) -> list[Topic]:
    return [Topic(name=f"t{n}", topic_id=uuid.UUID(int=n + 1), partitions=1 + n % 3) for n in range(count)]


def proxies(*node_ids: int) -> list[ProxyAddress]:
    return [ProxyAddress(node_id, f"h{node_id}", 1, "") for node_id in node_ids]


async def test_all_of_many_topics_are_encoded_in_steps_and_once_for_all_callers() -> None:
    cache, catalog = MetadataCache(), StillCatalog(many_topics(5_000))
    views: Any = (catalog, Spread(proxies(1, 2)))
    turns = Turns()
    found = await asyncio.gather(*(cache.encode_all(12, None, *views) for _ in range(50)))
    assert await turns.end() >= 5_000 * 25 / COST_PER_STEP
    assert cache.encoded_topics == 5_000
    assert {count for count, _ in found} == {5_000}
    assert all(joined is found[0][1] for _, joined in found)


@pytest.mark.parametrize("version", [4, 12])
async def test_a_large_topic_is_encoded_in_steps(version: int) -> None:
    """Ask for a large topic, alone or among all: each step has a turn of the loop, the bytes are those of one step."""

    partitions = ROWS_PER_STEP + 1
    catalog = StillCatalog([Topic(name="large", topic_id=uuid.UUID(int=1), partitions=partitions)])
    spread: Any = Spread(ZONES)
    cache = MetadataCache()
    steps = list(cache.topic(catalog.topics["large"], version, None, spread))
    assert len(steps) == ROWS_PER_STEP // COST_PER_STEP + 1, "pauses for the leaders, and one for the bytes"

    turns = Turns()
    cache = MetadataCache()
    count, joined = await cache.encode_all(version, None, catalog, spread)  # type: ignore[arg-type]
    assert await turns.end() >= len(steps)
    error = encode_error(version, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "none", NO_ID, is_internal=False)
    response = cache.response(version, 1, count + 1, [joined, error], catalog, spread)  # type: ignore[arg-type]
    wanted = whole(catalog, spread, None, None)
    assert b"".join(response.buffers) == b"".join(encode_response(ApiKey.METADATA, version, 1, wanted))
    assert await run_in_turns(cache.topic(catalog.topics["large"], version, None, spread)) == joined
    assert cache.encoded_topics == 1


class Moving(Spread):
    """Proxies whose leaderships move, with a count of the questions for a leader."""

    moves = asked = 0

    def move(self) -> None:
        self.moves += 1
        self.version += 1

    def leader_of(self, key: PartitionKey) -> int:
        self.asked += 1
        return self.addresses[(key.partition + self.moves) % len(self.addresses)].node_id


async def test_a_topic_whose_proxies_change_while_its_leaders_are_looked_up_is_of_the_new_ones() -> None:
    topic = Topic(name="large", topic_id=uuid.UUID(int=1), partitions=2 * COST_PER_STEP)
    cache = MetadataCache()
    spread: Any = Spread(ZONES)
    before = await run_in_turns(cache.topic(topic, 12, None, spread))
    spread.version += 1
    steps = cache.topic(topic, 12, None, spread)
    next(steps)  # half of the leaders are looked for
    spread.version += 1
    spread.addresses = ZONES[:2]
    after = await run_in_turns(steps)
    fresh = await run_in_turns(MetadataCache().topic(topic, 12, None, spread))
    assert after == fresh != before


async def test_a_topic_whose_leaders_move_all_the_time_names_no_proxy_that_is_gone() -> None:
    """Move some in the middle of each request; a client may get each leader of before or after the move."""

    partitions = 2 * COST_PER_STEP
    topic = Topic(name="large", topic_id=uuid.UUID(int=1), partitions=partitions)
    cache, moving = MetadataCache(), Moving(ZONES)
    await cache.places(topic, 0, partitions, moving)
    moving.addresses = ZONES[:2]
    for _ in range(3):
        moving.move()
        steps = cache.topic(topic, 12, None, moving)
        next(steps)
        moving.move()
        await run_in_turns(steps)
        assert {place.leader for place in cache._topics["large"].places(0, partitions)} == {1, 2}
    for each in await cache.places(topic, 0, partitions, moving), await cache.places(topic, 0, partitions, moving):
        leaders = [place.leader for place in each]
        assert leaders == [moving.leader_of(PartitionKey(topic.topic_id, index)) for index in range(partitions)]


async def test_requests_after_a_move_share_one_search_and_one_encoding() -> None:
    partitions = 3 * COST_PER_STEP
    topic = Topic(name="large", topic_id=uuid.UUID(int=1), partitions=partitions)
    cache, moving = MetadataCache(), Moving(ZONES)
    before = await run_in_turns(cache.topic(topic, 12, None, moving))
    moving.move()
    moving.asked = cache.encoded_topics = 0
    found = await asyncio.gather(*(run_in_turns(cache.topic(topic, 12, None, moving)) for _ in range(100)))
    assert (moving.asked, cache.encoded_topics) == (partitions, 1)
    assert len(set(found)) == 1
    assert found[0] != before


async def test_a_request_that_is_given_up_leaves_its_search_to_the_next() -> None:
    topic = Topic(name="large", topic_id=uuid.UUID(int=1), partitions=3 * COST_PER_STEP)
    cache, moving = MetadataCache(), Moving(ZONES)
    given_up = cache.topic(topic, 12, None, moving)
    next(given_up)
    given_up.close()
    moving.move()
    found = await run_in_turns(cache.topic(topic, 12, None, moving))
    assert found == await run_in_turns(MetadataCache().topic(topic, 12, None, moving))


async def test_a_topic_made_again_under_its_name_has_bytes_of_its_own() -> None:
    cache = MetadataCache()
    spread: Any = Spread(ZONES)
    for topic_id, partitions in ((1, 3), (2, 1), (2, 2)):
        topic = Topic(name="t", topic_id=uuid.UUID(int=topic_id), partitions=partitions)
        found = await run_in_turns(cache.topic(topic, 12, None, spread))
        assert found == await run_in_turns(MetadataCache().topic(topic, 12, None, spread))
    assert cache.encoded_topics == 3


async def test_a_caller_after_a_change_gets_the_new_topics_and_shares_the_next_run() -> None:
    cache, catalog = MetadataCache(), StillCatalog(many_topics(2_000))
    views: Any = (catalog, Spread(proxies(1, 2)))
    before = asyncio.ensure_future(cache.encode_all(12, None, *views))
    while not cache.encoded_topics:  # noqa: ASYNC110 - one turn after another
        await asyncio.sleep(0)
    catalog.topics["new"] = Topic(name="new", topic_id=uuid.uuid4(), partitions=1)
    catalog.version = 2
    after = [asyncio.ensure_future(cache.encode_all(12, None, *views)) for _ in range(10)]
    assert (await before)[0] == 2_000
    for each in after:
        assert (await each)[0] == 2_001
    assert cache.encoded_topics == 2_001
    assert cache.all_topics(12, None, *views) is not None


async def test_a_cancelled_caller_does_not_cancel_the_run_that_others_share() -> None:
    cache, catalog = MetadataCache(), StillCatalog(many_topics(2_000))
    views: Any = (catalog, Spread(proxies(1, 2)))
    first = asyncio.ensure_future(cache.encode_all(12, None, *views))
    second = asyncio.ensure_future(cache.encode_all(12, None, *views))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second)[0] == 2_000
    assert cache.encoded_topics == 2_000


async def test_a_change_of_proxies_that_moves_no_leader_encodes_nothing_again() -> None:
    cache, catalog, spread = MetadataCache(), StillCatalog(many_topics(500)), Spread(proxies(1, 2))
    views: Any = (catalog, spread)
    _, before = await cache.encode_all(12, None, *views)
    spread.version += 1
    assert cache.all_topics(12, None, *views) is None
    _, after = await cache.encode_all(12, None, *views)
    assert (cache.encoded_topics, after) == (500, before)
    spread.addresses = proxies(1, 2, 3)
    spread.version += 1
    _, after = await cache.encode_all(12, None, *views)
    moved = cache.encoded_topics - 500
    assert moved > 0
    assert after != before
