"""Relayed connections of a proxy: through whom, for how long, and how many."""

from __future__ import annotations

import asyncio

import pytest

from bmq.core.errors import ErrorCode
from bmq.meta.kv import KvUnavailable
from bmq.proxy.relay import pool, server
from tests.harness.fakes import member
from tests.unit.proxy.cluster import answers, idempotent, plain
from tests.unit.proxy.relay.relayed import relayed, relays_of

pytestmark = pytest.mark.slow


async def test_a_relayed_connection_without_use_is_closed_and_the_next_is_direct() -> None:
    """Leave a relay unused for a minute: later requests try the broker directly, which may be reachable again."""

    async with relayed() as world:
        await answers([world.send(plain())])
        world.isolate("b1")
        assert await answers([world.send(plain())]) == [("NONE", 1)]
        assert len(relays_of(world)) > 0
        await asyncio.sleep(60)  # long past the sweep that forgets unused relays
        assert len(relays_of(world)) == 0
        assert len(world.proxies["p2"].relay) == 0
        world.network.unreachable.clear()
        await asyncio.sleep(10)
        assert await answers([world.send(plain())]) == [("NONE", 2)]
        assert len(relays_of(world)) == 0
        assert world.remote_owners.is_up("b1")


async def test_a_relay_that_breaks_is_followed_by_another() -> None:
    async with relayed(proxies=("p2", "p3")) as world:
        world.isolate("b1")
        await answers([world.send(idempotent(0))])
        (via,) = {way.via for way in relays_of(world)._relayed}
        other = {"p2": "p3", "p3": "p2"}[via]
        world.isolate(via)
        assert await answers([world.send(idempotent(1))]) == [("NONE", 1)]
        assert {way.via for way in relays_of(world)._relayed} == {other}
        world.proxies[other].network.unreachable.add("b1")
        world.proxies[other].network.cut("b1")
        ((code, _),) = await answers([world.send(idempotent(2))])
        assert ErrorCode[code].is_retriable, "nobody is left"


async def test_a_proxy_that_lists_the_broker_as_unreachable_is_not_asked() -> None:
    async with relayed(proxies=("p2", "p3", "p4")) as world:
        for name in ("p2", "p3", "p4"):
            if name != "p3":
                world.listed[name] = {"b1"}
        world.isolate("b1")
        await answers([world.send(idempotent(0))])
        assert {way.via for way in relays_of(world)._relayed} == {"p3"}


@pytest.mark.parametrize("is_silent", [True, False])
async def test_without_the_store_the_asked_proxy_says_whether_it_reaches_the_broker(is_silent: bool) -> None:
    async with relayed(proxies=("p2", "p3")) as world:

        async def read() -> dict[str, set[str]]:
            if is_silent:
                await asyncio.sleep(3600)
            raise KvUnavailable("it is away")

        relays_of(world)._read_unreachable = read
        world.proxies["p2"].network.unreachable.add("b1")
        world.isolate("b1")
        assert await answers([world.send(idempotent(0))]) == [("NONE", 0)]
        assert {way.via for way in relays_of(world)._relayed} == {"p3"}


async def test_relayed_connections_end_with_their_broker() -> None:
    async with relayed() as world:
        world.isolate("b1")
        await answers([world.send(idempotent(0))])
        await world.fetch(world.want(1))
        assert len(relays_of(world)) > 0
        world.bury("b1", "b2")
        assert len(relays_of(world)) == 0
        assert await answers([world.send(idempotent(1))]) == [("NONE", 1)]
        await asyncio.sleep(1)
        assert len(world.proxies["p2"].relay) == 0


async def test_relayed_connections_are_bounded_and_end_with_the_process() -> None:
    async with relayed() as world:
        relays = relays_of(world)
        world.isolate("b1")
        found = await asyncio.gather(*(relays.open(member("b1")) for _ in range(pool.CONNECTIONS_MAX + 5)))
        assert sum(way is not None for way in found) == min(server.CONNECTIONS_MAX, pool.CONNECTIONS_MAX)
        await world.remote_owners.close()
        assert len(relays) == 0
        await asyncio.sleep(1)
        assert len(world.proxies["p2"].relay) == 0
