"""The list of brokers that a proxy does not reach: what it tells the others, and what it reads of theirs."""

from __future__ import annotations

import asyncio
from random import Random
from typing import cast

import pytest

from bmq.core.rpc.peers import Peers
from bmq.meta.cluster.unreachable import encode_unreachable, unreachable_key
from bmq.meta.kv import Put
from bmq.meta.kv_memory import KvFaults, MemoryKeyValue, MemoryStore
from bmq.proxy.reachability.unreachable_brokers import DOWN_S, UP_S, UnreachableBrokers, read_unreachable
from bmq.proxy.routing.broker_link import RETURN_S
from tests.unit.proxy.cluster import CLUSTER, answers, plain
from tests.unit.proxy.relay.relayed import relayed, relays_of

pytestmark = pytest.mark.slow


async def test_a_broker_that_is_reached_by_relay_only_stays_listed() -> None:
    """The broker stays listed as long as this process does not reach it itself, and its connection is still tried."""

    async with relayed() as world:
        kv = MemoryKeyValue(MemoryStore(), random=Random(0), faults=KvFaults())
        lease = await kv.grant(1000)
        unreachable = UnreachableBrokers(
            kv, CLUSTER, world.view, cast(Peers, world.network), is_up=world.remote_owners.is_up, lease=lambda: lease
        )
        unreachable.start()
        broken: list[str] = []
        world.network.subscribe_broken(lambda incarnation, why: broken.append(incarnation))
        await answers([world.send(plain())])
        world.isolate("b1")
        await asyncio.sleep(DOWN_S + 2)
        await answers([world.send(plain())])
        assert len(relays_of(world)) > 0
        assert not world.remote_owners.is_up("b1")
        assert await read_unreachable(kv, CLUSTER) == {"proxy": frozenset({"b1"})}
        assert broken.count("b1") > 3
        world.network.unreachable.clear()
        await asyncio.sleep(RETURN_S + UP_S + 2)
        assert world.remote_owners.is_up("b1")
        assert await read_unreachable(kv, CLUSTER) == {}
        await unreachable.close()


async def test_lists_that_cannot_be_read_are_ignored() -> None:
    kv = MemoryKeyValue(MemoryStore(), random=Random(0), faults=KvFaults())
    await kv.commit([], [Put(unreachable_key(CLUSTER, "p2"), encode_unreachable({"b1"}))])
    await kv.commit([], [Put(unreachable_key(CLUSTER, "p3"), b'{"format": 2}')])
    await kv.commit([], [Put(unreachable_key("other", "p4"), encode_unreachable({"b1"}))])
    assert await read_unreachable(kv, CLUSTER) == {"p2": frozenset({"b1"})}
