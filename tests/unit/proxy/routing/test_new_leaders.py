"""KIP-951 at a proxy that owned a partition: the first misdirected request of each connection gets the new leader.

``proxy`` owned all partitions of ``orders`` before the test moves some to ``b1`` and ``b2``, which are proxies, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import pytest
from kafka.protocol.consumer import FetchRequest, FetchResponse
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from bmq.core.errors import ErrorCode
from bmq.core.model import PartitionKey
from bmq.core.net.request import Client, Request, Response
from bmq.core.rpc.peers import ConnectionKind
from bmq.core.wire.api_keys import ApiKey
from bmq.endpoint.api import Api
from bmq.endpoint.fetch import handler as fetch
from bmq.endpoint.produce import handler as produce
from bmq.meta.proxy_addresses import ProxyAddress
from bmq.proxy.routing.moved_partitions import LASTS_S
from bmq.proxy.routing.new_leaders import NewLeaders
from tests.harness.fakes import FakeClient, member
from tests.harness.scopes import change, serve
from tests.unit.proxy.cluster import Cluster, cluster, idempotent, plain

OWN = 9
NODES = {"proxy": OWN, "b1": 1, "b2": 2}
JAVA = ("apache-kafka-java", "4.3.1")
NEW, MOVED = "NONE", "NOT_LEADER_OR_FOLLOWER"
KNOWN_S = 0.2
"""Longer than a query for the new owner's epoch takes."""


class Listed:
    """The proxies that clients see: the owner leads, if it is listed; else ``stands_in``."""

    version = 0

    def __init__(self, world: Cluster) -> None:
        self._world = world
        self.zones = dict.fromkeys(NODES, "")
        self.listed = set(NODES)
        self.stands_in = OWN

    @property
    def own(self) -> ProxyAddress:
        return self._address("proxy")

    @property
    def addresses(self) -> Sequence[ProxyAddress]:
        return [self._address(name) for name in sorted(self.listed)]

    def _address(self, name: str) -> ProxyAddress:
        return ProxyAddress(NODES[name], f"host-{name}", 9092, self.zones[name])

    def leader_of(self, key: PartitionKey) -> int:
        owner = self._world.view.owner_of(key)
        return NODES[owner] if owner in self.listed else self.stands_in


class Told:
    """A partition's part of a response."""

    def __init__(self, part: Any, endpoints: Sequence[Any], offset: int) -> None:
        leader = part.current_leader
        self.error = ErrorCode(part.error_code).name
        self.leader = (leader.leader_id, leader.leader_epoch) if leader is not None else None
        if self.leader == (-1, -1):
            self.leader = None
        self.hosts = [node.host for node in endpoints or ()]
        self.offset = offset

    def __repr__(self) -> str:
        return f"<{self.error} {self.leader} {self.hosts} {self.offset}>"


class Proxy:
    """The proxy, and its clients on the wire."""

    def __init__(self, world: Cluster) -> None:
        self.world = world
        self.proxies = cast(Any, Listed(world))
        self.leaders = NewLeaders(world.view, self._ask_epoch, world.fetch_service.context.changed)
        self.queries = 0
        world.scopes = change(world.scopes, proxies=self.proxies, new_leaders=self.leaders)
        for name in ("b1", "b2"):
            world.view.members[name] = replace(member(name), node_id=NODES[name])

    async def _ask_epoch(self, key: PartitionKey) -> int:
        self.queries += 1
        return await self.world.remote_owners.ask_epoch(key)

    def client(self, software: tuple[str, str] = JAVA) -> FakeClient:
        client = FakeClient()
        client.client_software = software
        return client

    async def moves(self, name: str = "b2", *partitions: int) -> None:
        """Move partitions from ``proxy``, as far as its view shows, to a broker."""
        keys = [self.world.key(partition) for partition in partitions or (0,)]
        self.world.view.assign("proxy", *keys)
        for key in keys:
            self.world.move(key.partition, name)

    async def knows(self, client: FakeClient | None = None) -> None:
        """Let a first request, which is forwarded, ask for the epochs."""
        found = await self.produce(client or self.client(), *range(self.world.topic.partitions), sequence=0, producer=1)
        assert {each.error for each in found} == {NEW}
        await asyncio.sleep(KNOWN_S)

    def epoch(self, partition: int = 0, name: str = "b2") -> int:
        owner = self.world.broker(name).assigned.get(self.world.key(partition))
        assert owner is not None
        return int(cast(Any, owner).epoch)

    async def produce(
        self, client: FakeClient, *partitions: int, sequence: int = 0, version: int = 12, producer: int = 7,
        acks: int = -1, records: bytearray | None = None,
    ) -> list[Told]:  # fmt: skip
        Topic = ProduceRequest.TopicProduceData
        message = ProduceRequest(
            version=version,
            transactional_id=None,
            acks=acks,
            timeout_ms=30_000,
            topic_data=[
                Topic(
                    name="orders",
                    topic_id=self.world.topic.topic_id,
                    partition_data=[
                        Topic.PartitionProduceData(
                            index=partition, records=bytes(records or idempotent(sequence, producer))
                        )
                        for partition in partitions
                    ],
                )
            ],
        )
        found = await self._ask(produce.APIS[0], version, message, ProduceResponse, client)
        endpoints = found.node_endpoints if version >= 10 else ()
        return [Told(each, endpoints, each.base_offset) for each in found.responses[0].partition_responses]

    async def fetch(
        self, client: FakeClient, *partitions: int, version: int = 17, epoch: int = -1, rack: str = "",
        offset: int = 0, max_wait_ms: int = 500, session: tuple[int, int] = (0, -1),
    ) -> list[Told]:  # fmt: skip
        return (await self.fetch_session(
            client, *partitions, version=version, epoch=epoch, rack=rack, offset=offset, max_wait_ms=max_wait_ms,
            session=session,
        ))[1]  # fmt: skip

    async def fetch_session(
        self, client: FakeClient, *partitions: int, version: int, epoch: int, rack: str, offset: int, max_wait_ms: int,
        session: tuple[int, int],
    ) -> tuple[int, list[Told]]:  # fmt: skip
        Topic = FetchRequest.FetchTopic
        wanted = [
            Topic.FetchPartition(
                partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20, current_leader_epoch=epoch
            )
            for partition in partitions
        ]
        message = FetchRequest(
            version=version, max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=2 << 20, isolation_level=0,
            session_id=session[0], session_epoch=session[1], forgotten_topics_data=[], rack_id=rack,
            topics=[Topic(topic="orders", topic_id=self.world.topic.topic_id, partitions=wanted)] if wanted else [],
        )  # fmt: skip
        found = await self._ask(fetch.APIS[0], version, message, FetchResponse, client)
        endpoints = found.node_endpoints if version >= 16 else ()
        seen = [Told(each, endpoints, each.high_watermark) for topic in found.responses for each in topic.partitions]
        return found.session_id, seen

    async def _ask(self, api: Api[Any], version: int, message: Any, kind: Any, client: FakeClient) -> Any:
        body = memoryview(bytearray(message.encode(version=version)))
        response = serve(self.world.scopes, api, Request(api.key, version, 1, "me", body, cast(Client, client), 0.0))
        if isinstance(response, Awaitable):
            response = await response
        assert isinstance(response, Response)
        data = b"".join(response.buffers)
        if response.release is not None:
            response.release()
        return kind.decode(data[5 if version >= (9 if api.key == ApiKey.PRODUCE else 12) else 4 :], version=version)


@asynccontextmanager
async def proxy(**options: Any) -> AsyncIterator[Proxy]:
    async with cluster(**options) as world:
        it = Proxy(world)
        try:
            yield it
        finally:
            await it.leaders.close()


def hint(it: Proxy, partition: int = 0, name: str = "b2") -> tuple[str, tuple[int, int], list[str]]:
    return MOVED, (NODES[name], it.epoch(partition, name)), [f"host-{name}"]


def seen(expected: Told) -> tuple[str, tuple[int, int] | None, list[str]]:
    return expected.error, expected.leader, expected.hosts


SERVED: tuple[str, None, list[str]] = (NEW, None, [])


@pytest.mark.parametrize("version", range(9, 14))
async def test_a_produce_gets_the_new_leader_once_from_version_10_on(version: int) -> None:
    async with proxy() as it:
        await it.moves()
        await it.knows()
        client = it.client()
        (first,) = await it.produce(client, 0, version=version)
        assert seen(first) == (hint(it) if version >= 10 else SERVED)
        (again,) = await it.produce(client, 0, version=version, sequence=0 if version >= 10 else 1)
        assert seen(again) == SERVED, "a client that does not follow is served"
        assert (await it.produce(client, 0, version=version, sequence=2 - (version >= 10)))[0].error == NEW


@pytest.mark.parametrize("version", range(12, 19))
async def test_a_fetch_gets_the_new_leader_once_from_version_16_on(version: int) -> None:
    async with proxy() as it:
        await it.moves()
        await it.knows()
        client = it.client()
        (first,) = await it.fetch(client, 0, version=version)
        assert seen(first) == (hint(it) if version >= 16 else SERVED)
        (again,) = await it.fetch(client, 0, version=version)
        assert seen(again) == SERVED
        assert again.offset == 1


async def test_the_first_request_asks_for_the_epoch_and_is_forwarded() -> None:
    async with proxy() as it:
        await it.moves()
        client = it.client()
        assert seen((await it.produce(client, 0))[0]) == SERVED
        await asyncio.sleep(KNOWN_S)
        assert seen((await it.produce(client, 0, sequence=1))[0]) == hint(it)
        assert it.queries == 1


async def test_a_refused_batch_is_in_the_log_once_when_it_comes_to_the_new_leader() -> None:
    """Batches behind it that were under way are refused, too, in their order; none is lost, none is doubled."""
    async with proxy() as it:
        await it.moves()
        await it.knows()
        client = it.client()
        sent = [asyncio.ensure_future(it.produce(client, 0, sequence=number)) for number in range(4)]
        refused = [(await each)[0] for each in sent]
        assert [each.error for each in refused] == [MOVED] * 4
        assert refused[0].leader is not None
        there = it.client()
        it.world.scopes = change(
            it.world.scopes, new_leaders=None
        )  # as the new leader's own process, which has nothing to say
        for number in range(4):
            assert (await it.produce(there, 0, sequence=number))[0].offset == 1 + number


async def test_a_client_that_does_not_follow_keeps_its_order() -> None:
    async with proxy() as it:
        await it.moves()
        await it.knows()
        client = it.client()
        sent = [asyncio.ensure_future(it.produce(client, 0, sequence=number)) for number in range(4)]
        await asyncio.gather(*sent)
        assert [(await it.produce(client, 0, sequence=number))[0].offset for number in range(4)] == [1, 2, 3, 4]


async def test_many_partitions_in_one_request() -> None:
    """Moved to two brokers, moved with an epoch that is not known, and never owned here: each gets its own."""
    async with proxy(partitions=6) as it:
        await it.moves("b2", 0, 1)
        await it.moves("b1", 2)
        await it.knows()
        await it.moves("b2", 3)
        response = await it.produce(it.client(), *range(6))
        assert [each.error for each in response] == [MOVED, MOVED, MOVED, NEW, NEW, NEW]
        assert [each.leader and each.leader[0] for each in response] == [2, 2, 1, None, None, None]
        assert sorted(response[0].hosts) == ["host-b1", "host-b2"]
        await asyncio.sleep(KNOWN_S)
        read = await it.fetch(it.client(), *range(6))
        assert {each.leader and each.leader[0] for each in read} == {1, 2, None}
        assert [each.error for each in read].count(MOVED) == 4


@pytest.mark.parametrize("software", [("", ""), ("librdkafka", "2.6.1"), ("franz-go", "v1.20.0")])
async def test_other_clients_are_forwarded(software: tuple[str, str]) -> None:
    async with proxy() as it:
        await it.moves()
        await it.knows()
        client = it.client(software)
        assert seen((await it.produce(client, 0))[0]) == SERVED
        assert seen((await it.fetch(client, 0))[0]) == SERVED


@pytest.mark.slow
async def test_a_batch_without_a_producer_id_is_forwarded() -> None:
    async with proxy() as it:
        await it.moves()
        await it.knows()
        assert seen((await it.produce(it.client(), 0, records=plain()))[0]) == SERVED


async def test_each_connection_is_told_and_each_move() -> None:
    async with proxy() as it:
        await it.moves()
        await it.knows()
        one, two = it.client(), it.client()
        assert seen((await it.fetch(one, 0))[0]) == hint(it)
        assert seen((await it.fetch(two, 0))[0]) == hint(it)
        former = it.epoch()
        it.world.move(0, "b1")
        await it.knows()
        assert seen((await it.fetch(one, 0))[0]) == hint(it, name="b1")
        assert it.epoch(name="b1") > former


async def test_a_client_that_knows_this_epoch_or_a_later_one_gets_no_hint() -> None:
    async with proxy() as it:
        await it.moves()
        await it.knows()
        epoch = it.epoch()
        assert seen((await it.fetch(it.client(), 0, epoch=epoch))[0]) == SERVED
        (newer,) = await it.fetch(it.client(), 0, epoch=epoch + 1)
        assert (newer.error, newer.leader) == ("UNKNOWN_LEADER_EPOCH", None)
        (older,) = await it.fetch(it.client(), 0, epoch=epoch - 1)
        assert (older.error, older.leader) == ("FENCED_LEADER_EPOCH", (2, epoch))


async def test_a_process_that_is_not_a_member_gives_no_hints() -> None:
    async with proxy() as it:
        await it.moves()
        await it.knows()
        it.leaders.send_away(True)
        assert seen((await it.produce(it.client(), 0))[0]) == SERVED
        it.leaders.send_away(False)
        assert seen((await it.produce(it.client(), 0, sequence=1))[0]) == hint(it)


async def test_a_partition_that_this_process_never_owned_is_served() -> None:
    """Metadata may have named this process all the same, and may name it now."""
    async with proxy() as it:
        it.world.move(0, "b2")
        await it.knows()
        assert seen((await it.produce(it.client(), 0))[0]) == SERVED


@pytest.mark.parametrize("leads", [OWN, 1])
async def test_a_partition_whose_owner_does_not_lead_is_served(leads: int) -> None:
    """The new owner is no proxy, drains, or lacks the client's listener: another proxy would forward, too."""
    async with proxy() as it:
        it.proxies.listed.discard("b2")
        it.proxies.stands_in = leads
        await it.moves()
        await it.knows()
        assert seen((await it.produce(it.client(), 0))[0]) == SERVED
        assert seen((await it.fetch(it.client(), 0))[0]) == SERVED


async def test_a_partition_that_has_come_back_is_not_sent_away() -> None:
    async with proxy() as it:
        await it.moves()
        await it.knows()
        it.world.view.assign("proxy", it.world.key())
        assert it.leaders.find(it.world.key(), it.proxies) is None
        it.world.view.assign("b1", it.world.key(1))


async def test_an_owner_that_is_gone_is_not_named() -> None:
    async with proxy() as it:
        await it.moves()
        await it.knows()
        it.world.kill("b2")
        it.world.view.leave("b2")
        assert it.leaders.find(it.world.key(), it.proxies) is None


@pytest.mark.parametrize(("rack", "leader_zone", "is_sent"), [
    ("here", "there", False),  # the new leader would send it back
    ("here", "here", True),
    ("there", "there", True),
    ("", "there", True),
])  # fmt: skip
async def test_a_consumer_that_reads_in_its_own_zone_stays(rack: str, leader_zone: str, is_sent: bool) -> None:
    async with proxy() as it:
        it.proxies.zones |= {"proxy": "here", "b2": leader_zone}
        await it.moves()
        await it.knows()
        assert seen((await it.fetch(it.client(), 0, rack=rack))[0]) == (hint(it) if is_sent else SERVED)


async def test_a_fetch_that_waits_at_the_end_of_the_log_goes_to_the_new_leader_at_once() -> None:
    async with proxy() as it:
        it.world.view.assign("proxy", it.world.key(1))
        it.world.view.assign("b1", it.world.key(1))
        client = it.client()
        await it.produce(client, 0, producer=3)
        loop = asyncio.get_running_loop()
        began = loop.time()
        waiting = asyncio.ensure_future(it.fetch(client, 0, offset=1, max_wait_ms=20_000))
        await asyncio.sleep(0.1)
        await it.moves()
        assert seen((await waiting)[0]) == hint(it)
        assert loop.time() - began < 2


@pytest.mark.slow
async def test_a_session_names_the_new_leader_once() -> None:
    async with proxy() as it:
        await it.moves()
        await it.knows()
        client = it.client()
        options: dict[str, Any] = {"version": 17, "epoch": -1, "rack": "", "offset": 0, "max_wait_ms": 200}
        number, (first,) = await it.fetch_session(client, 0, session=(0, 0), **options)
        assert seen(first) == hint(it)
        _, (again,) = await it.fetch_session(client, session=(number, 1), **options)
        assert (again.error, again.offset) == (NEW, 1)


@pytest.mark.slow
async def test_large_requests_get_hints_too() -> None:
    count = produce.PARTITIONS_AT_ONCE + 1
    async with proxy(partitions=count) as it:
        await it.moves("b2", 0)
        await it.moves("b1", count - 1)
        await it.knows()
        response = await it.produce(it.client(), *range(count))
        assert [number for number, each in enumerate(response) if each.leader] == [0, count - 1]
        assert sorted(response[0].hosts) == ["host-b1", "host-b2"]


@pytest.mark.slow
async def test_old_moves_are_forgotten() -> None:
    async with proxy() as it:
        await it.moves()
        await it.knows()
        client = it.client()
        assert (await it.fetch(client, 0))[0].error == MOVED
        await asyncio.sleep(LASTS_S + 1)
        assert seen((await it.produce(it.client(), 0))[0]) == SERVED
        assert repr(it.leaders) == "<NewLeaders 0 moved, 0 connections know, 1 sent>"


@pytest.mark.slow
async def test_old_moves_are_forgotten_without_a_request_of_a_client_that_follows() -> None:
    async with proxy() as it:
        await it.moves()
        await it.knows()
        assert (await it.fetch(it.client(), 0))[0].error == MOVED
        await asyncio.sleep(LASTS_S + 1)
        await it.moves("b1", 1)
        assert repr(it.leaders) == "<NewLeaders 1 moved, 0 connections know, 1 sent>"


async def test_no_forwarded_request_comes_to_the_broker_once_the_client_has_gone_there() -> None:
    async with proxy() as it:
        await it.moves()
        await it.knows()
        link = it.world.network.links["b2", ConnectionKind.PRODUCE]
        before = link.requests[ApiKey.PRODUCE]
        assert (await it.produce(it.client(), 0))[0].error == MOVED
        assert link.requests[ApiKey.PRODUCE] == before
