"""Metadata: the assembled bytes are the schema encoder's, kept as long as they are true, with Kafka's errors."""

from __future__ import annotations

import asyncio
import struct
import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bmq.core.aio.turns import run_in_turns
from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode
from bmq.core.model import PartitionKey
from bmq.core.net.request import CloseConnection
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.codec import encode_response
from bmq.core.wire.messages import MetadataRequest, MetadataResponse
from bmq.endpoint.dispatch import Endpoint
from bmq.meta.catalog import Topic
from bmq.meta.proxy_addresses import ProxyAddress
from bmq.proxy.acl_operations import CLUSTER_OPERATIONS, TOPIC_OPERATIONS, bits
from bmq.proxy.handlers import metadata
from bmq.proxy.metadata_cache import COST_PER_STEP, MetadataCache, encode_error
from tests.harness.fakes import FakeClient
from tests.harness.loop import run
from tests.unit.proxy.handlers.admin_serving import AdminServing, Spread, decode, serving

pytestmark = pytest.mark.slow

API = metadata.APIS[0]
VERSIONS = range(API.min_version, API.max_version + 1)
ZONES = [ProxyAddress(1, "a", 1, "x"), ProxyAddress(2, "b", 2, "y"), ProxyAddress(3, "c", 3, "x")]
NO_ID = uuid.UUID(int=0)


def asks(*names: str | None, ids: tuple[uuid.UUID, ...] = (), **fields: Any) -> Any:
    topics = [MetadataRequest.MetadataRequestTopic(name=name, topic_id=NO_ID) for name in names]
    topics += [MetadataRequest.MetadataRequestTopic(name=None, topic_id=each) for each in ids]
    return MetadataRequest(
        topics=topics,
        **{
            "allow_auto_topic_creation": False,
            "include_cluster_authorized_operations": False,
            "include_topic_authorized_operations": False,
            **fields,
        },
    )


async def ask(w: AdminServing, version: int, message: Any) -> Any:
    data = await w.ask_raw(API, version, message)
    assert data[:4] == (77).to_bytes(4, "big")
    return decode(MetadataResponse, version, data)


# ---------------------------------------------------------------------------------------------------- golden bytes


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
def test_the_bytes_are_the_schema_encoders(
    topics: list[Topic], proxies: list[ProxyAddress], version: int, asked: bool
) -> None:
    spread, catalog = Spread(proxies), StillCatalog(topics)
    operations, cluster = (TOPIC_OPERATIONS, CLUSTER_OPERATIONS) if asked else (None, None)
    cache = MetadataCache()

    async def assemble() -> list[bytes]:
        views: Any = (catalog, spread)
        assert cache.all_topics(version, operations, *views) is None
        count, joined = await cache.encode_all(version, operations, *views)
        assert cache.all_topics(version, operations, *views) == (count, joined)
        error = encode_error(version, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "none", NO_ID, is_internal=False)
        answer = cache.answer(version, -5, count + 1, [joined, error], catalog, spread, cluster)  # type: ignore[arg-type]
        again = cache.answer(version, 6, count + 1, [joined, error], catalog, spread, cluster)  # type: ignore[arg-type]
        assert answer.size == again.size
        return [b"".join(answer.buffers), b"".join(again.buffers)]

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
def test_a_client_is_sent_to_a_replica_of_its_zone(zones: list[str], partition: int, rack: str) -> None:
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


# --------------------------------------------------------------------------------------------------------- keeping


async def test_ten_thousand_partitions_are_encoded_once() -> None:
    async with serving() as w:
        topic = await w.admin.create_topic("big", 10_000)
        first = await w.ask_raw(API, 12, asks("big"))
        cache = w.services.metadata
        for _ in range(100):
            assert await w.ask_raw(API, 12, asks("big")) == first
        assert cache.encoded_topics == 1
        await w.ask_raw(API, 12, MetadataRequest(topics=None))
        assert cache.encoded_topics == 1, "one topic's bytes serve both ways of asking"
        await w.ask_raw(API, 9, asks("big"))
        assert cache.encoded_topics == 2
        await asyncio.sleep(3600)
        for partition in range(topic.partitions):
            w.owners.epochs[PartitionKey(topic.topic_id, partition)] = 1
        assert await w.ask_raw(API, 12, asks("big")) == first
        assert cache.encoded_topics == 2, "neither time nor owners are in it"


async def test_another_topics_change_does_not_encode_this_one_again() -> None:
    async with serving() as w:
        for n in range(50):
            await w.admin.create_topic(f"t{n}", 3)
        everything = MetadataRequest(topics=None)
        assert len((await ask(w, 12, everything)).topics) == 50
        assert w.services.metadata.encoded_topics == 50
        await w.admin.create_topic("new")
        await w.admin.delete_topic("t7")
        found = (await ask(w, 12, everything)).topics
        assert {topic.name for topic in found} == set(w.catalog.topics)
        assert w.services.metadata.encoded_topics == 51
        await w.admin.add_partitions("new", 4)
        assert len((await ask(w, 12, asks("new"))).topics[0].partitions) == 4
        assert repr(w.services.metadata) == "MetadataCache(topics=50, encoded=52)"


async def test_a_leader_is_given_at_all_times_and_an_epoch_at_none() -> None:
    """Ask with and without a known owner: a client that got an epoch once takes -1 as no leader at all (franz-go)."""

    async with serving() as w:
        topic = await w.admin.create_topic("t", 2)
        for epoch in (None, 0, 5):
            if epoch is not None:
                w.owners.epochs[PartitionKey(topic.topic_id, 0)] = epoch
            for asked in (asks("t"), MetadataRequest(topics=None)):
                partitions = (await ask(w, 12, asked)).topics[0].partitions
                assert [(p.error_code, p.leader_id, p.leader_epoch) for p in partitions] == [(0, 0, -1)] * 2


async def test_members_that_change_are_shown() -> None:
    spread = Spread(ZONES)
    async with serving(proxies=spread) as w:
        await w.admin.create_topic("t", 3)
        found = await ask(w, 12, asks("t"))
        assert [p.leader_id for p in found.topics[0].partitions] == [1, 2, 3]
        assert [p.replica_nodes for p in found.topics[0].partitions] == [[1, 2], [2, 3], [3, 2]]
        assert [(b.node_id, b.host, b.port, b.rack) for b in found.brokers] == [
            (1, "a", 1, "x"), (2, "b", 2, "y"), (3, "c", 3, "x"),
        ]  # fmt: skip
        assert found.controller_id == 1
        del spread.addresses[0]
        spread.version += 1
        found = await ask(w, 12, asks("t"))
        assert [p.leader_id for p in found.topics[0].partitions] == [2, 3, 2]
        assert [b.node_id for b in found.brokers] == [2, 3]


# ----------------------------------------------------------------------------------------------------- what is said


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_version_answers_what_was_asked(version: int) -> None:
    async with serving(config=NodeConfig(auto_create_topics_enable=False)) as w:
        made = await w.admin.create_topic("t", 2)
        await w.admin.ensure_topic("__consumer_offsets")
        found = await ask(w, version, asks("t", "t", "none", "a b", "__consumer_offsets"))
        codes = [(topic.name, topic.error_code, len(topic.partitions)) for topic in found.topics]
        assert codes == [("t", 0, 2), ("none", 3, 0), ("a b", 17, 0), ("__consumer_offsets", 0, 50)]
        if version >= 1:
            assert [topic.is_internal for topic in found.topics] == [False, False, False, True]
            assert found.controller_id == 0
        if version >= 2:
            assert found.cluster_id == w.catalog.cluster_id
        if version >= 10:
            assert found.topics[0].topic_id == made.topic_id
        nothing = asks()
        assert len((await ask(w, version, nothing)).topics) == (2 if version == 0 else 0)
        if version >= 1:
            assert len((await ask(w, version, MetadataRequest(topics=None))).topics) == 2


async def test_topics_by_id() -> None:
    async with serving() as w:
        made = await w.admin.create_topic("t", 1)
        other = uuid.uuid4()
        found = (await ask(w, 12, asks(ids=(made.topic_id, other)))).topics
        assert [(t.name, t.topic_id, t.error_code) for t in found] == [
            ("t", made.topic_id, 0), (None, other, ErrorCode.UNKNOWN_TOPIC_ID),
        ]  # fmt: skip
        found = (await ask(w, 12, asks(None, "t"))).topics
        assert [(t.name, t.error_code) for t in found] == [("", ErrorCode.INVALID_REQUEST), ("t", 0)]
        for version in (10, 11):
            found = (await ask(w, version, asks("t", ids=(made.topic_id,)))).topics
            assert [(t.name, t.error_code) for t in found] == [
                ("t", ErrorCode.INVALID_REQUEST), ("", ErrorCode.INVALID_REQUEST),
            ]  # fmt: skip


async def test_operations_when_asked() -> None:
    async with serving() as w:
        await w.admin.create_topic("t", 1)
        asked = asks("t", include_topic_authorized_operations=True, include_cluster_authorized_operations=True)
        found = await ask(w, 8, asked)
        assert found.topics[0].authorized_operations == set(TOPIC_OPERATIONS)
        assert found.authorized_operations == set(CLUSTER_OPERATIONS)
        found = await ask(w, 8, asks("t"))
        assert found.topics[0].authorized_operations is None
        assert found.authorized_operations is None
        assert bits(TOPIC_OPERATIONS) == 3576
        assert bits(CLUSTER_OPERATIONS) == 8096


async def test_a_topic_is_created_when_both_sides_allow_it() -> None:
    async with serving(config=NodeConfig(num_partitions=3)) as w:
        asked = asks("new", "new", "b/d", allow_auto_topic_creation=True)
        found = (await ask(w, 12, asked)).topics
        assert [(t.name, t.error_code, len(t.partitions)) for t in found] == [("new", 0, 3), ("b/d", 17, 0)]
        assert (await ask(w, 12, asks("other"))).topics[0].error_code == 3
        assert set(w.catalog.topics) == {"new"}
        assert len((await ask(w, 3, asks("old.client"))).topics[0].partitions) == 3, "before 4 nobody may forbid it"
        found = (await ask(w, 12, asks("old_client", allow_auto_topic_creation=True))).topics
        assert found[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    async with serving(config=NodeConfig(auto_create_topics_enable=False)) as w:
        assert (await ask(w, 12, asks("new", allow_auto_topic_creation=True))).topics[0].error_code == 3
        assert w.catalog.topics == {}


async def test_a_topic_that_cannot_be_created_now_is_asked_for_again() -> None:
    async with serving() as w:
        w.store.stop()
        found = (await ask(w, 12, asks("new", allow_auto_topic_creation=True))).topics
        assert [(t.name, t.error_code) for t in found] == [("new", ErrorCode.LEADER_NOT_AVAILABLE)]
        w.store.start(asyncio.get_running_loop().time())


@pytest.mark.parametrize("version", VERSIONS)
async def test_what_is_no_metadata_request_closes_the_connection(version: int) -> None:
    """Send a malformed request: it is counted and logged as such, in one line, and not as a bug of the server."""

    async with serving() as w:
        head = struct.pack(">hhih", ApiKey.METADATA, version, 1, -1) + b"\0" * (version >= 9)
        with pytest.raises(CloseConnection, match=f"METADATA version {version}"):
            Endpoint(w.services, metadata.APIS)(memoryview(bytearray(head + b"\x7f\xff\xff\xff")), FakeClient())


async def test_asking_writes_nothing() -> None:
    """KafScale #151."""

    async with serving() as w:
        await w.admin.create_topic("t", 1)
        before = w.store.revision
        for _ in range(100):
            await ask(w, 12, asks("t", allow_auto_topic_creation=True))
        assert w.store.revision == before


async def test_topics_that_are_gone_are_forgotten() -> None:
    """Delete topics while no client ever asks for all of them: the cache drops them nevertheless."""

    async with serving() as w:
        await w.admin.create_topic("kept")
        for n in range(20):
            await w.admin.create_topic(f"t{n}")
            await ask(w, 12, asks(f"t{n}", "kept"))
            await w.admin.delete_topic(f"t{n}")
        await ask(w, 12, asks("kept"))
        assert repr(w.services.metadata) == "MetadataCache(topics=1, encoded=21)"


# ----------------------------------------------------------------------------------------------------- many topics


def many_topics(count: int) -> list[Topic]:
    return [Topic(name=f"t{n}", topic_id=uuid.UUID(int=n + 1), partitions=1 + n % 3) for n in range(count)]


def proxies(*node_ids: int) -> list[ProxyAddress]:
    return [ProxyAddress(node_id, f"h{node_id}", 1, "") for node_id in node_ids]


class Turns:
    """A count of the loop's turns that other tasks get meanwhile."""

    def __init__(self) -> None:
        self.count = 0
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.count += 1

    async def end(self) -> int:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        return self.count


async def test_all_of_many_topics_are_encoded_in_steps_and_once_for_all_who_ask() -> None:
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

    partitions = 3 * COST_PER_STEP + 1
    catalog = StillCatalog([Topic(name="large", topic_id=uuid.UUID(int=1), partitions=partitions)])
    spread: Any = Spread(ZONES)
    cache = MetadataCache()
    steps = list(cache.topic(catalog.topics["large"], version, None, spread))
    assert len(steps) == 2 * 3, "three pauses each for the leaders and the bytes"

    turns = Turns()
    cache = MetadataCache()
    count, joined = await cache.encode_all(version, None, catalog, spread)  # type: ignore[arg-type]
    assert await turns.end() >= len(steps)
    error = encode_error(version, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "none", NO_ID, is_internal=False)
    answer = cache.answer(version, 1, count + 1, [joined, error], catalog, spread)  # type: ignore[arg-type]
    wanted = whole(catalog, spread, None, None)
    assert b"".join(answer.buffers) == b"".join(encode_response(ApiKey.METADATA, version, 1, wanted))
    assert await run_in_turns(cache.topic(catalog.topics["large"], version, None, spread)) == joined
    assert cache.encoded_topics == 1


async def test_what_changes_while_a_large_topic_is_encoded_is_not_kept() -> None:
    topic = Topic(name="large", topic_id=uuid.UUID(int=1), partitions=2 * COST_PER_STEP)
    cache = MetadataCache()
    spread: Any = Spread(ZONES)
    before = await run_in_turns(cache.topic(topic, 12, None, spread))
    spread.version += 1
    steps = cache.topic(topic, 12, None, spread)
    next(steps)  # half of the leaders are looked for
    spread.version += 1
    spread.addresses = ZONES[:2]
    assert await run_in_turns(steps) == before
    after = await run_in_turns(cache.topic(topic, 12, None, spread))
    fresh = await run_in_turns(MetadataCache().topic(topic, 12, None, spread))
    assert after == fresh != before


async def test_a_topic_made_again_under_its_name_has_bytes_of_its_own() -> None:
    cache = MetadataCache()
    spread: Any = Spread(ZONES)
    for topic_id, partitions in ((1, 3), (2, 1), (2, 2)):
        topic = Topic(name="t", topic_id=uuid.UUID(int=topic_id), partitions=partitions)
        found = await run_in_turns(cache.topic(topic, 12, None, spread))
        assert found == await run_in_turns(MetadataCache().topic(topic, 12, None, spread))
    assert cache.encoded_topics == 3


async def test_named_topics_are_encoded_in_turns_by_their_partitions() -> None:
    """A hundred topics of a thousand partitions are as much as one of a hundred thousand."""

    async with serving(config=NodeConfig()) as w:
        for number in range(10):
            await w.admin.create_topic(f"t{number}", COST_PER_STEP // 2)
        asking = asyncio.ensure_future(ask(w, 12, asks(*(f"t{number}" for number in range(10)))))
        turns = Turns()
        found = await asking
        assert await turns.end() >= 4
        assert [len(topic.partitions) for topic in found.topics] == 10 * [COST_PER_STEP // 2]


async def test_who_asks_after_a_change_is_told_of_it_and_who_asked_before_delays_nobody() -> None:
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


async def test_one_who_hangs_up_takes_the_work_from_nobody() -> None:
    cache, catalog = MetadataCache(), StillCatalog(many_topics(2_000))
    views: Any = (catalog, Spread(proxies(1, 2)))
    first = asyncio.ensure_future(cache.encode_all(12, None, *views))
    second = asyncio.ensure_future(cache.encode_all(12, None, *views))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second)[0] == 2_000
    assert cache.encoded_topics == 2_000


async def test_a_change_of_members_that_moves_no_leader_encodes_nothing_again() -> None:
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
