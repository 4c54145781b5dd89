"""Metadata: responses of each version with Kafka's errors, and what makes the handler encode a topic again."""

from __future__ import annotations

import asyncio
import struct
import uuid
from typing import Any

import pytest

from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode
from bmq.core.model import PartitionKey
from bmq.core.net.request import CloseConnection
from bmq.core.security.acls import RESOURCE_OPERATIONS, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import MetadataRequest, MetadataResponse
from bmq.meta.proxy_addresses import ProxyAddress
from bmq.proxy.handlers import metadata
from bmq.proxy.metadata_cache import COST_PER_STEP
from tests.harness.fakes import FakeClient
from tests.harness.scopes import make_endpoint
from tests.unit.proxy.handlers.admin_serving import AdminServing, Spread, decode, serving
from tests.unit.proxy.turns import Turns

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


# --------------------------------------------------------------------------------------------------------- keeping


async def test_ten_thousand_partitions_are_encoded_once() -> None:
    async with serving() as w:
        topic = await w.admin.create_topic("big", 10_000)
        first = await w.ask_raw(API, 12, asks("big"))
        cache = w.scopes.view.metadata
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
        assert w.scopes.view.metadata.encoded_topics == 50
        await w.admin.create_topic("new")
        await w.admin.delete_topic("t7")
        found = (await ask(w, 12, everything)).topics
        assert {topic.name for topic in found} == set(w.catalog.topics)
        assert w.scopes.view.metadata.encoded_topics == 51
        await w.admin.add_partitions("new", 4)
        assert len((await ask(w, 12, asks("new"))).topics[0].partitions) == 4
        assert repr(w.scopes.view.metadata) == "MetadataCache(topics=50, encoded=52)"


async def test_a_partition_always_has_a_leader_and_never_an_epoch() -> None:
    """Ask with and without a known owner: a client that got an epoch once takes -1 as no leader at all (franz-go)."""

    async with serving() as w:
        topic = await w.admin.create_topic("t", 2)
        for epoch in (None, 0, 5):
            if epoch is not None:
                w.owners.epochs[PartitionKey(topic.topic_id, 0)] = epoch
            for asked in (asks("t"), MetadataRequest(topics=None)):
                partitions = (await ask(w, 12, asked)).topics[0].partitions
                assert [(p.error_code, p.leader_id, p.leader_epoch) for p in partitions] == [(0, 0, -1)] * 2


async def test_leaders_follow_the_proxies() -> None:
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
async def test_each_version_returns_the_topics_that_were_asked_for(version: int) -> None:
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


async def test_a_topic_is_found_by_its_id_from_version_12_on() -> None:
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


async def test_authorized_operations_are_returned_if_asked_for() -> None:
    async with serving() as w:
        await w.admin.create_topic("t", 1)
        asked = asks("t", include_topic_authorized_operations=True, include_cluster_authorized_operations=True)
        found = await ask(w, 8, asked)
        assert found.topics[0].authorized_operations == set(RESOURCE_OPERATIONS[ResourceType.TOPIC])
        assert found.authorized_operations == set(RESOURCE_OPERATIONS[ResourceType.CLUSTER])
        found = await ask(w, 8, asks("t"))
        assert found.topics[0].authorized_operations is None
        assert found.authorized_operations is None
        assert sum(1 << each for each in RESOURCE_OPERATIONS[ResourceType.TOPIC]) == 3576
        assert sum(1 << each for each in RESOURCE_OPERATIONS[ResourceType.CLUSTER]) == 8096


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


async def test_a_topic_that_cannot_be_created_now_has_a_retriable_error() -> None:
    async with serving() as w:
        w.store.stop()
        found = (await ask(w, 12, asks("new", allow_auto_topic_creation=True))).topics
        assert [(t.name, t.error_code) for t in found] == [("new", ErrorCode.LEADER_NOT_AVAILABLE)]
        w.store.start(asyncio.get_running_loop().time())


@pytest.mark.parametrize("version", VERSIONS)
async def test_bytes_that_are_not_a_metadata_request_close_the_connection(version: int) -> None:
    """Send a malformed request: it is counted and logged as such, in one line, and not as a bug of the server."""

    async with serving() as w:
        head = struct.pack(">hhih", ApiKey.METADATA, version, 1, -1) + b"\0" * (version >= 9)
        with pytest.raises(CloseConnection, match=f"METADATA version {version}"):
            make_endpoint(w.scopes, metadata.APIS)(memoryview(bytearray(head + b"\x7f\xff\xff\xff")), FakeClient())


async def test_a_metadata_request_for_an_existing_topic_writes_nothing() -> None:
    """KafScale #151."""

    async with serving() as w:
        await w.admin.create_topic("t", 1)
        before = w.store.revision
        for _ in range(100):
            await ask(w, 12, asks("t", allow_auto_topic_creation=True))
        assert w.store.revision == before


async def test_deleted_topics_leave_the_cache() -> None:
    """Delete topics while no client ever asks for all of them: the cache drops them nevertheless."""

    async with serving() as w:
        await w.admin.create_topic("kept")
        for n in range(20):
            await w.admin.create_topic(f"t{n}")
            await ask(w, 12, asks(f"t{n}", "kept"))
            await w.admin.delete_topic(f"t{n}")
        await ask(w, 12, asks("kept"))
        assert repr(w.scopes.view.metadata) == "MetadataCache(topics=1, encoded=21)"


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
