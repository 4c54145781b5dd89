"""The proxies that clients are sent to: members with their listener, without those that drain; owners lead."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from bmq.core.config import NodeConfig
from bmq.core.features import LevelRange
from bmq.core.model import PartitionKey
from bmq.meta.catalog import KvCatalog, Topic, encode_topic, topic_key
from bmq.meta.cluster.assignment import AssignmentChunk, encode_chunk, encode_shards
from bmq.meta.cluster.keys import assignment_key, features_key, member_key, shards_key
from bmq.meta.cluster.kv_view import KvClusterView
from bmq.meta.cluster.levels import FeatureLevels, encode_record
from bmq.meta.cluster.member import Address, Member, encode_member
from bmq.meta.cluster.proxies import ClusterProxies
from bmq.meta.cluster.view import ShardOwner
from bmq.meta.kv import Delete, Put
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.meta.proxy_addresses import ProxyAddress
from bmq.meta.shard_kinds import GROUPS, ShardId
from tests.harness.waiting import until


def proxy(number: int) -> Member:
    return Member(
        incarnation=f"p{number}",
        roles=frozenset({"proxy"}),
        node_id=number,
        kafka=Address(host=f"h{number}", port=9092),
        zone=f"z{number % 2}",
    )


def put(member: Member) -> Put:
    return Put(member_key("c", member.incarnation), encode_member(member))


async def test_clients_are_not_sent_to_a_draining_proxy_unless_it_is_alone() -> None:
    kv = MemoryKeyValue(MemoryStore())
    topic = Topic(name="t", topic_id=uuid.UUID(int=1), partitions=6)
    offsets = Topic(name="__consumer_offsets", topic_id=uuid.UUID(int=2), partitions=50)
    await kv.commit([], [Put(topic_key("c", each.name), encode_topic(each)) for each in (topic, offsets)])
    view, catalog = KvClusterView(kv, "c", "p0"), KvCatalog(kv, "c")
    proxies = ClusterProxies(
        ProxyAddress(0, "h0", 9092, "z0"), view, catalog, NodeConfig(offsets_topic_num_partitions=50)
    )
    await view.start()
    await catalog.start()
    assert [each.node_id for each in proxies.addresses] == [0]

    done = await kv.commit([], [put(proxy(number)) for number in range(3)])
    await view.wait_revision(done.revision)
    assert [(each.node_id, each.host, each.zone) for each in proxies.addresses] == [
        (0, "h0", "z0"), (1, "h1", "z1"), (2, "h2", "z0"),
    ]  # fmt: skip
    for absent in (-1, 6, 2**31 - 1):  # a client's number
        assert proxies.leader_of(PartitionKey(topic.topic_id, absent)) == proxies.own.node_id
    assert not proxies._places
    leaders = [proxies.leader_of(PartitionKey(topic.topic_id, number)) for number in range(6)]
    assert sorted(leaders) == [0, 0, 1, 1, 2, 2]
    shards = [proxies.coordinator_of(ShardId(GROUPS, number)) for number in range(50)]
    assert sorted(shards.count(node) for node in range(3)) == [16, 17, 17]

    version = proxies.version
    done = await kv.commit([], [put(replace(proxy(1), is_draining=True)), Delete(member_key("c", "p2"))])
    await view.wait_revision(done.revision)
    assert proxies.version > version
    assert [each.node_id for each in proxies.addresses] == [0]
    assert {proxies.leader_of(PartitionKey(topic.topic_id, number)) for number in range(6)} == {0}
    await view.close()
    await catalog.close()


async def test_clients_are_not_sent_to_a_proxy_without_support_of_a_level_in_force() -> None:
    """All other members refuse its connections, so it reaches no owner."""
    kv = MemoryKeyValue(MemoryStore())
    view, catalog = KvClusterView(kv, "c", "p0"), KvCatalog(kv, "c")
    proxies = ClusterProxies(
        ProxyAddress(0, "h0", 9092, "z0"), view, catalog, NodeConfig(offsets_topic_num_partitions=50)
    )
    await view.start()
    await catalog.start()
    able = [replace(proxy(number), features=(("f", LevelRange(0, 1)),)) for number in range(2)]
    done = await kv.commit([], [put(each) for each in (*able, proxy(2))])
    await view.wait_revision(done.revision)
    assert [each.node_id for each in proxies.addresses] == [0, 1, 2]
    record = encode_record(FeatureLevels(epoch=1, levels={"f": 1}))
    done = await kv.commit([], [Put(features_key("c"), record)])
    await view.wait_revision(done.revision)
    assert [each.node_id for each in proxies.addresses] == [0, 1]
    await view.close()
    await catalog.close()


async def test_a_proxy_that_is_not_a_member_names_the_others_while_there_are_any() -> None:
    """The view may still show it: it is cut off from the store."""

    kv = MemoryKeyValue(MemoryStore())
    topic = Topic(name="t", topic_id=uuid.UUID(int=1), partitions=6)
    await kv.commit([], [Put(topic_key("c", topic.name), encode_topic(topic)), put(proxy(0)), put(proxy(1))])
    view, catalog = KvClusterView(kv, "c", "p0"), KvCatalog(kv, "c")
    proxies = ClusterProxies(
        ProxyAddress(0, "h0", 9092, "z0"), view, catalog, NodeConfig(offsets_topic_num_partitions=50)
    )
    await view.start()
    await catalog.start()
    assert not proxies.sends_away
    version = proxies.version
    proxies.set_member(False)
    assert proxies.sends_away
    assert proxies.version > version
    assert [each.node_id for each in proxies.addresses] == [1]
    assert {proxies.leader_of(PartitionKey(topic.topic_id, number)) for number in range(6)} == {1}
    assert {proxies.coordinator_of(ShardId(GROUPS, number)) for number in range(50)} == {1}
    done = await kv.commit([], [Delete(member_key("c", "p1"))])
    await view.wait_revision(done.revision)
    assert not proxies.sends_away
    assert [each.node_id for each in proxies.addresses] == [0], "who asks it has reached it"
    await kv.commit([], [put(proxy(2))])
    proxies.set_member(True)
    done = await kv.commit([], [put(proxy(1))])
    await view.wait_revision(done.revision)
    assert not proxies.sends_away
    assert [each.node_id for each in proxies.addresses] == [0, 1, 2]
    await view.close()
    await catalog.close()


def listening(number: int, **ports: int) -> Member:
    """Return a proxy with listeners of these names."""
    named = tuple((name, Address(host=f"{name.lower()}{number}", port=port)) for name, port in ports.items())
    return replace(proxy(number), kafka=named[0][1], listeners=named)


@pytest.mark.parametrize(
    ("listener", "expected"),
    [
        ("INSIDE", [(0, "inside0", 1), (1, "inside1", 1), (3, "h3", 9092)]),
        ("OUTSIDE", [(0, "outside0", 2), (2, "outside2", 2), (3, "h3", 9092)]),
        ("OTHER", [(3, "h3", 9092)]),
    ],
)
async def test_clients_get_the_addresses_of_their_listener(listener: str, expected: list[tuple[int, str, int]]) -> None:
    """A proxy without it is left out, with its partitions; one of an older version has one address for all."""

    kv = MemoryKeyValue(MemoryStore())
    topic = Topic(name="t", topic_id=uuid.UUID(int=1), partitions=6)
    await kv.commit([], [Put(topic_key("c", topic.name), encode_topic(topic))])
    view, catalog = KvClusterView(kv, "c", "p0"), KvCatalog(kv, "c")
    proxies = ClusterProxies(
        ProxyAddress(0, "own", 1), view, catalog, NodeConfig(offsets_topic_num_partitions=50), listener
    )
    await view.start()
    await catalog.start()
    members = [
        listening(0, INSIDE=1, OUTSIDE=2), listening(1, INSIDE=1), listening(2, OUTSIDE=2), proxy(3),
    ]  # fmt: skip
    done = await kv.commit([], [put(each) for each in members])
    await view.wait_revision(done.revision)
    assert [(each.node_id, each.host, each.port) for each in proxies.addresses] == expected
    leaders = {proxies.leader_of(PartitionKey(topic.topic_id, number)) for number in range(6)}
    assert leaders == {node_id for node_id, _, _ in expected}
    assert {proxies.coordinator_of(ShardId(GROUPS, number)) for number in range(50)} == leaders
    await view.close()
    await catalog.close()


async def test_an_unknown_partition_is_the_own_proxys_and_is_not_kept() -> None:
    kv = MemoryKeyValue(MemoryStore())
    view, catalog = KvClusterView(kv, "c", "p0"), KvCatalog(kv, "c")
    proxies = ClusterProxies(ProxyAddress(0, "h0", 9092), view, catalog, NodeConfig(offsets_topic_num_partitions=50))
    assert proxies.leader_of(PartitionKey(uuid.UUID(int=9), 4)) == 0
    assert proxies.coordinator_of(ShardId(GROUPS, 77)) == 0


T, U = (Topic(name=name, topic_id=uuid.UUID(int=number), partitions=6) for number, name in enumerate("tu", 1))
BROKER = replace(proxy(3), roles=frozenset({"broker"}))


def whole(number: int) -> Member:
    """Return a proxy that owns partitions and shards, too."""
    return replace(proxy(number), roles=frozenset({"proxy", "broker", "coordinator"}))


def assign(topic: Topic, *owners: str) -> Put:
    return Put(assignment_key("c", topic.topic_id, 0), encode_chunk(AssignmentChunk(owners)))


def leaders(proxies: ClusterProxies, topic: Topic = T) -> list[int]:
    return [proxies.leader_of(PartitionKey(topic.topic_id, number)) for number in range(6)]


@asynccontextmanager
async def three_proxies() -> AsyncIterator[tuple[MemoryKeyValue, KvClusterView, ClusterProxies]]:
    """Three proxies and a broker that is none; two topics that nobody owns yet."""
    kv = MemoryKeyValue(MemoryStore())
    await kv.commit([], [Put(topic_key("c", each.name), encode_topic(each)) for each in (T, U)])
    await kv.commit([], [put(each) for each in (*map(whole, range(3)), BROKER)])
    view, catalog = KvClusterView(kv, "c", "p0"), KvCatalog(kv, "c")
    proxies = ClusterProxies(
        ProxyAddress(0, "h0", 9092, "z0"), view, catalog, NodeConfig(offsets_topic_num_partitions=50)
    )
    await view.start()
    await catalog.start()
    try:
        yield kv, view, proxies
    finally:
        await view.close()
        await catalog.close()


async def test_the_owner_leads_where_it_is_a_proxy() -> None:
    async with three_proxies() as (kv, view, proxies):
        placed = leaders(proxies)
        done = await kv.commit([], [assign(T, "p2", "p2", "p1", "p3", "gone", "")])
        await view.wait_revision(done.revision)
        assert leaders(proxies) == [2, 2, 1, *placed[3:]]  # a broker that is no proxy, one that is gone, none


async def test_the_leader_moves_with_the_owner() -> None:
    async with three_proxies() as (kv, view, proxies):
        await kv.commit([], [assign(T, *["p1"] * 6)])
        done = await kv.commit([], [assign(T, "p2", *["p1"] * 5)])
        await view.wait_revision(done.revision)
        assert leaders(proxies) == [2, 1, 1, 1, 1, 1]


async def test_a_draining_owner_does_not_lead() -> None:
    async with three_proxies() as (kv, view, proxies):
        placed = set(leaders(proxies))
        assert placed == {0, 1, 2}
        await kv.commit([], [assign(T, *["p1"] * 6)])
        done = await kv.commit([], [put(replace(whole(1), is_draining=True))])
        await view.wait_revision(done.revision)
        assert set(leaders(proxies)) == {0, 2}


async def test_an_owner_without_the_clients_listener_does_not_lead() -> None:
    async with three_proxies() as (kv, view, proxies):
        inside = replace(listening(1, INSIDE=1), roles=whole(1).roles)
        await kv.commit([], [assign(T, *["p1"] * 6), put(inside), put(listening(2, PLAINTEXT=1))])
        done = await kv.commit([], [put(listening(0, PLAINTEXT=1))])
        await view.wait_revision(done.revision)
        assert set(leaders(proxies)) == {0, 2}


async def test_a_process_that_started_again_leads_what_its_new_life_owns() -> None:
    async with three_proxies() as (kv, view, proxies):
        await kv.commit([], [assign(T, *["p1"] * 6)])
        again = replace(whole(1), incarnation="p1-again")
        done = await kv.commit([], [Delete(member_key("c", "p1")), put(again), assign(T, *["p1-again"] * 6)])
        await view.wait_revision(done.revision)
        assert leaders(proxies) == [1] * 6


async def test_a_move_changes_the_version_of_its_topic_alone() -> None:
    async with three_proxies() as (kv, view, proxies):
        done = await kv.commit([], [assign(T, *["p1"] * 6), assign(U, *["p1"] * 6)])
        await view.wait_revision(done.revision)
        before, of_t, of_u = proxies.version, proxies.version_of(T.topic_id), proxies.version_of(U.topic_id)
        done = await kv.commit([], [assign(T, *["p2"] * 6)])
        await view.wait_revision(done.revision)
        assert proxies.version > before
        assert proxies.version_of(T.topic_id) > of_t
        assert proxies.version_of(U.topic_id) == of_u
        done = await kv.commit([], [Delete(member_key("c", "p2"))])
        await view.wait_revision(done.revision)
        assert proxies.version_of(U.topic_id) > of_u


async def test_a_topic_that_is_gone_leaves_nothing() -> None:
    async with three_proxies() as (kv, view, proxies):
        await kv.commit([], [assign(T, *["p1"] * 6)])
        await kv.commit([], [Delete(topic_key("c", T.name))])
        done = await kv.commit([], [Delete(assignment_key("c", T.topic_id, 0))])
        await view.wait_revision(done.revision)
        await until(lambda: not proxies._moves)


async def test_the_coordinator_of_a_shard_is_named_where_it_is_a_proxy() -> None:
    async with three_proxies() as (kv, view, proxies):
        placed = [proxies.coordinator_of(ShardId(GROUPS, number)) for number in range(50)]
        owners = {0: ShardOwner("p2", 1), 1: ShardOwner("p3", 1), 2: ShardOwner("gone", 1)}
        done = await kv.commit([], [Put(shards_key("c", GROUPS), encode_shards(owners))])
        await view.wait_revision(done.revision)
        assert [proxies.coordinator_of(ShardId(GROUPS, number)) for number in range(50)] == [2, *placed[1:]]


async def test_moves_among_brokers_that_are_no_proxies_change_no_version() -> None:
    async with three_proxies() as (kv, view, proxies):
        await kv.commit([], [put(proxy(number)) for number in range(3)])
        done = await kv.commit([], [assign(T, *["p3"] * 6)])
        await view.wait_revision(done.revision)
        before = proxies.version, proxies.version_of(T.topic_id)
        done = await kv.commit([], [assign(T, *["gone"] * 6)])
        await view.wait_revision(done.revision)
        assert (proxies.version, proxies.version_of(T.topic_id)) == before
