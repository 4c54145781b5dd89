"""Coordinators in processes of their own: one serves a shard at a time, whatever each believes.

A name with ``kafscale_N`` is of a fault that KafScale had, by the number of its issue.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from bmq.coordinator.routed_api import READY_VERSION, ready_request
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.rpc.messages.coordinator import ForwardRequest
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.codec_client import encode_request
from bmq.meta.cluster.view import ShardOwner
from bmq.meta.shard_kinds import TRANSACTIONS, ShardId
from tests.harness.seeds import amount, seeds
from tests.unit.coordinator.cluster_world import (
    GROUP,
    LATENCY_S,
    SHARDS,
    ClusterWorld,
    ProxyProcess,
    cluster,
    group_of,
    join_alone,
    serves,
)
from tests.unit.coordinator.fakes import CLIENT

pytestmark = pytest.mark.slow


async def test_kafscale_121_two_coordinators_for_one_group() -> None:
    """The shard moves from a to b while a, and one proxy, still believe that it is a's."""

    async with cluster() as world:
        behind, ahead = world.proxies
        member, generation = await join_alone(behind, GROUP)
        fields = {"member_id": member, "generation": generation}
        assert await behind.commit(GROUP, 5, **fields) == 0

        world.give(0, "b")
        world.tell(ahead.view, world.coordinators["b"].view)
        await world.coordinators["b"].coordinator.ready(GROUP)
        assert serves(world.coordinators["a"], 0)  # as far as it knows

        assert await behind.commit(GROUP, 9, **fields) == ErrorCode.NOT_COORDINATOR
        assert world.coordinators["a"].coordinator.shards._shards[0].is_closed  # refused by the log, it gives up
        assert serves(world.coordinators["b"], 0)
        assert await ahead.fetch(GROUP) == (0, 5)
        assert await ahead.heartbeat(GROUP, member, generation) == 0  # no need to join again
        assert await ahead.commit(GROUP, 7, **fields) == 0
        assert await behind.commit(GROUP, 9, **fields) == ErrorCode.NOT_COORDINATOR
        assert await ahead.fetch(GROUP) == (0, 7)

        world.tell()
        assert not serves(world.coordinators["a"], 0)
        assert await behind.fetch(GROUP) == (0, 7)
        assert await behind.heartbeat(GROUP, member, generation) == 0


async def test_a_principals_groups_count_where_their_shard_is_served() -> None:
    """Kept in records from the proxy's message to the next coordinator of the shard."""
    alice = CLIENT._replace(principal="User:alice")

    def owned() -> list[int]:
        shards = [each.coordinator.shards for each in world.coordinators.values()]
        return [sum(loaded.state.owned_by(alice.principal) for loaded in each._loaded()) for each in shards]

    async with cluster() as world:
        proxy = world.proxies[0]
        world.max_groups = 1
        assert await proxy.commit(GROUP, 5, client=alice) == 0
        assert await proxy.commit(group_of(1), 5, client=alice) == ErrorCode.POLICY_VIOLATION
        assert owned() == [1, 0]
        world.give(0, "b")
        world.tell()
        await world.coordinators["b"].coordinator.ready(GROUP)
        assert owned() == [0, 1]
        assert await proxy.commit(group_of(1), 5, client=alice) == 0, "the bound is of each process"
        assert await proxy.commit(GROUP, 6, client=alice) == 0
        world.kill("b")
        world.give(0, "a")
        world.tell()
        await world.coordinators["a"].coordinator.ready(GROUP)
        assert owned() == [2], "more than the bound, and nothing is taken away"
        assert await proxy.commit(group_of(2), 5, client=alice) == ErrorCode.POLICY_VIOLATION


async def test_kafscale_121_a_commit_acknowledged_to_the_earlier_coordinator_is_replayed() -> None:
    """Let the earlier coordinator's append reach the broker just before the later one opens the log.

    The append's response arrives just after.
    """

    async with cluster() as world:
        behind, ahead = world.proxies
        assert await behind.commit(GROUP, 5) == 0
        late = asyncio.ensure_future(behind.commit(GROUP, 6))
        await asyncio.sleep(3 * LATENCY_S)
        world.give(0, "b")
        world.tell(ahead.view, world.coordinators["b"].view)
        code = await late
        await world.coordinators["b"].coordinator.ready(GROUP)
        assert await ahead.fetch(GROUP) == (0, 6 if code == 0 else 5)


async def test_a_coordinator_whose_view_is_behind_waits_for_it() -> None:
    async with cluster() as world:
        proxy = world.proxies[0]
        assert await proxy.commit(GROUP, 5) == 0
        world.give(0, "b")
        world.tell(proxy.view)
        commit = asyncio.ensure_future(proxy.commit(GROUP, 6))
        await asyncio.sleep(0.1)
        assert not commit.done()
        world.tell()
        assert await commit == 0
        assert await proxy.fetch(GROUP) == (0, 6)


async def test_state_of_an_earlier_ownership_is_not_served() -> None:
    """Move a shard from a to b and back to a, which sees no move: a proxy that sees both must not get a's old state."""

    async with cluster() as world:
        (first, second), (a, b) = world.proxies, world.coordinators.values()
        assert await first.commit(GROUP, 5) == 0
        world.give(0, "b")
        world.tell(b.view, second.view)
        assert await second.commit(GROUP, 7) == 0
        world.give(0, "a")
        world.tell(second.view)
        fetch = asyncio.ensure_future(second.fetch(GROUP))
        await asyncio.sleep(0.1)
        assert serves(a, 0)
        assert not fetch.done()
        world.tell()
        assert await fetch == (0, 7)


async def test_a_shard_given_to_the_same_process_again_is_loaded_again() -> None:
    """Give the shard to the same process again: it loads again, and a proxy that is behind is served."""

    async with cluster() as world:
        proxy, process = world.proxies[0], world.coordinators["a"]
        assert await proxy.commit(GROUP, 5) == 0
        before = process.coordinator.shards._shards[0]
        world.give(0, "a")
        world.tell(process.view)
        after = process.coordinator.shards._shards[0]
        assert after is not before
        assert before.is_closed
        assert after.context.ownership == 2
        assert await proxy.fetch(GROUP) == (0, 5)


# ------------------------------------------------------------------------------------------------- random histories


@dataclass
class Writer:
    """Commits 1, 2, 3, … of one group, each until it is answered as done."""

    group: str
    acked: int = 0

    async def commit(self, world: ClusterWorld, rng: Random, until: float) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < until:
            code = await rng.choice(world.proxies).commit(self.group, self.acked + 1)
            assert code in (0, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), ErrorCode(code)
            if code == 0:
                self.acked += 1
            await asyncio.sleep(rng.random() * 0.02)


async def disturb(world: ClusterWorld, rng: Random, until: float) -> None:
    loop = asyncio.get_running_loop()
    while loop.time() < until:
        await asyncio.sleep(rng.random() * 0.1)
        match rng.randrange(5):
            case 0:
                world.give(rng.randrange(SHARDS), rng.choice("ab"))
            case 1:
                world.own(rng.randrange(SHARDS), rng.choice(["b1", "b2"]))
            case 2:
                world.tell(rng.choice(world.views))
            case 3:
                links = [each for process in world.coordinators.values() for each in process.peers.links.values()]
                for link in links:
                    link.lag_s = rng.choice((LATENCY_S, 0.05))
                if links:
                    rng.choice(links).cut(lingers=rng.random() < 0.5)
            case _:
                for view in world.views:
                    if rng.random() < 0.5:
                        view.show(world.truth)


async def fetch_until_served(proxy: ProxyProcess, group: str) -> int:
    """Return a committed offset once all views agree; requests that backed off are repeated after a while."""
    for _ in range(100):
        code, offset = await proxy.fetch(group)
        if code == 0:
            return offset
    raise AssertionError(f"{group} is not served")


@pytest.mark.parametrize("seed", seeds(3, 100))
async def test_no_commit_that_was_answered_is_lost(seed: int) -> None:
    """Rounds of disorder, each followed by a look at what the coordinators remember, and one at what they replay."""

    rng = Random(seed)
    async with cluster(seed) as world:
        drivers = [Writer(group_of(shard)) for shard in range(SHARDS)]
        for _ in range(amount(3, 6)):
            until = asyncio.get_running_loop().time() + 1.0
            await asyncio.gather(disturb(world, rng, until), *(each.commit(world, rng, until) for each in drivers))
            for is_replayed in (False, True):
                for shard in range(SHARDS if is_replayed else 0):
                    world.give(shard, rng.choice("ab"))
                world.tell()
                for driver in drivers:
                    offset = await fetch_until_served(rng.choice(world.proxies), driver.group)
                    assert driver.acked <= max(0, offset) <= driver.acked + 1, (driver, is_replayed)
        assert all(driver.acked for driver in drivers)


async def test_a_shard_of_another_kind_is_not_served_as_the_groups_shard_of_its_number() -> None:
    """The process has both shards, and serves groups only; a code of a later version's kind names no shard here."""
    async with cluster() as world:
        process = world.coordinators["a"]
        process.view.shards[ShardId(TRANSACTIONS, 0)] = ShardOwner("a", 1)
        body = encode_request(ApiKey.FIND_COORDINATOR, READY_VERSION, ready_request(GROUP, 0))
        call: Any = None  # it is not read
        for code in (ShardId(TRANSACTIONS, 0).code, 99 << 24):
            asked = ForwardRequest("/h", "c", ApiKey.FIND_COORDINATOR, READY_VERSION, ((code, 1),), body)
            with pytest.raises(RequestError) as refused:
                await process.forwarding.handle(asked, call)
            assert refused.value.code is ErrorCode.NOT_COORDINATOR
