"""The fetch session with one broker: who is in it, how often it asks, and how it goes on after faults."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from bmq.core.net.request import Buffer
from bmq.core.rpc.api_keys import InternalKey
from bmq.core.rpc.peers import ConnectionKind
from bmq.core.wire.api_keys import ApiKey
from tests.unit.proxy.cluster import Connection, answers, batches_of, cluster, plain, values
from tests.unit.proxy.routing.link_faults import answering, refusing

pytestmark = pytest.mark.slow


async def test_a_partition_without_readers_leaves_the_session() -> None:
    """A parked fetch keeps its partition; when there is none left, nothing more is asked."""

    async with cluster() as world:
        await world.fetch(world.want(0), world.want(0, 1))
        parked = asyncio.ensure_future(world.fetch(world.want(0, 1), max_wait_s=100))
        assert world.remote_owners.followed == 2
        await asyncio.sleep(60)
        assert world.key(0) not in world.remote_owners._tails
        assert world.key(1) in world.remote_owners._tails
        await world.send(plain(), 1)
        assert len(batches_of(await parked)) == 1
        await asyncio.sleep(60)
        assert world.remote_owners.followed == 0
        before = world.network.links["b1", ConnectionKind.TAIL].requests[ApiKey.FETCH]
        await asyncio.sleep(60)
        assert world.network.links["b1", ConnectionKind.TAIL].requests[ApiKey.FETCH] == before
        await world.send(plain(b"y"), 0)
        assert await values(world) == ["y"]


async def test_an_idle_session_asks_twice_a_second() -> None:
    async with cluster() as world:
        await world.fetch(world.want(0), world.want(0, 1))
        link = world.network.links["b1", ConnectionKind.TAIL]
        parked = asyncio.ensure_future(world.fetch(world.want(0), max_wait_s=100))
        before = link.requests[ApiKey.FETCH]
        await asyncio.sleep(20)
        assert 30 <= link.requests[ApiKey.FETCH] - before <= 42
        parked.cancel()


async def test_a_session_that_the_broker_has_forgotten_begins_again() -> None:
    async with cluster() as world:
        await world.fetch(world.want(0))
        sessions = world.broker("b1").scopes.process.fetch_service.sessions
        link = world.remote_owners._tail_links["b1"]
        await asyncio.sleep(0.1)
        session = sessions.get(link._session.id)
        assert session is not None
        world.broker("b1").scopes.process.fetch_service.end_session(session)
        await asyncio.sleep(1)
        parked = asyncio.ensure_future(world.fetch(world.want(0), max_wait_s=30))
        await world.send(plain())
        assert len(batches_of(await parked)) == 1
        assert world.owners.follow(world.key()) is not None


async def test_many_partitions_follow_at_once() -> None:
    async with cluster(partitions=300) as world:
        await world.fetch(*[world.want(0, partition) for partition in range(300)])
        assert all(world.owners.follow(world.key(partition)) is not None for partition in range(300))
        assert not world.network.asked[InternalKey.ASK]
        assert world.network.asked[InternalKey.ASK_PARTITIONS] <= 3
        await answers([world.send(plain(), partition) for partition in range(300)])
        await asyncio.sleep(0.1)
        marks = {world.owners.follow(world.key(number)).high_watermark for number in range(300)}  # type: ignore[union-attr]
        assert marks == {1}


@pytest.mark.parametrize("body", [b"", b"garbage", b"\0\0\0\0\0\x01\0\0\0\0\x01\0"])
async def test_a_malformed_response_to_a_fetch_ends_the_connection(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last is a proper one, that the whole request failed."""

    async with cluster() as world:
        await world.fetch(world.want(0))
        link = world.network.links["b1", ConnectionKind.TAIL]
        monkeypatch.setattr(link, "call", answering(body))
        parked = asyncio.ensure_future(world.fetch(world.want(0), max_wait_s=30))
        await asyncio.sleep(2)
        assert not link.is_up
        await world.send(plain())
        assert sum(look.size for look in (await parked).results) > 0


async def test_a_partition_is_asked_for_until_its_owner_answers() -> None:
    """Less and less often, and others are followed meanwhile."""

    async with cluster() as world:
        world.broker("b1").assigned.withdraw(world.key(0))
        await world.fetch(world.want(0, 0), world.want(0, 1))
        await asyncio.sleep(20)
        assert world.owners.follow(world.key(0)) is None
        assert world.owners.follow(world.key(1)) is not None
        assert 15 <= world.network.asked[InternalKey.ASK] <= 30
        world.open(0, "b1")
        await asyncio.sleep(1.2)
        assert world.owners.follow(world.key(0)) is not None


async def test_a_tail_goes_on_after_its_connection_was_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse a tail's fetches before they are sent: the session begins again, and the connection stays."""

    async with cluster() as world:
        await world.send(plain())
        await world.fetch(world.want(1))
        link = world.network.links["b1", ConnectionKind.TAIL]
        refused: list[int] = []
        monkeypatch.setattr(link, "call", refusing(link, {ApiKey.FETCH}, refused, lambda: len(refused) >= 3))
        parked = asyncio.ensure_future(world.fetch(world.want(1), max_wait_s=30))
        await asyncio.sleep(2)
        assert len(refused) == 3
        await world.send(plain())
        assert sum(look.size for look in (await parked).results) > 0
        assert link.is_up


async def test_a_broker_that_never_speaks_our_protocol_is_connected_to_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with cluster() as world:
        await world.send(plain())
        made: list[Connection] = []
        real = Connection.call

        def call(self: Connection, key: int, version: int, body: Sequence[Buffer]) -> asyncio.Future[memoryview]:
            if self.kind is ConnectionKind.CONTROL:
                return real(self, key, version, body)
            made.append(self)
            return answering(b"garbage")(key, version, body)

        monkeypatch.setattr(Connection, "call", call)
        await world.fetch(world.want(1), max_wait_s=0)
        await asyncio.sleep(60)
        assert 10 <= len(set(made)) <= 25


async def test_a_partition_whose_fetches_fail_is_asked_for_less_and_less_often() -> None:
    """Fail fetches again and again, while the owner responds to other requests."""

    async with cluster() as world:
        await world.send(plain())
        await world.fetch(world.want(1))
        (link,) = world.remote_owners._tail_links.values()
        (tail,) = link.tails.values()
        asked = world.network.asked[InternalKey.ASK]
        for _ in range(10):
            await world.fetch(world.want(1), max_wait_s=5)  # until it is followed again
            link._refused(tail)
            assert not tail.is_open
        assert world.network.asked[InternalKey.ASK] - asked <= 10
        assert asyncio.get_running_loop().time() > 4
        await world.fetch(world.want(1), max_wait_s=5)
        link._refused(tail)
        assert tail.failures == 1, "it was followed for a while"
