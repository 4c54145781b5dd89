"""A broker that this proxy does not reach and another one does: everything goes on through the other."""

from __future__ import annotations

import asyncio

import pytest

from bmq.core.errors import ErrorCode
from bmq.proxy.routing.broker_link import RETURN_S
from bmq.proxy.routing.produce_route import RouteState
from tests.harness.seeds import seeds
from tests.unit.proxy.cluster import answers, errors_of, idempotent, plain, values
from tests.unit.proxy.relay.relayed import LATER_S, relayed, relays_of

pytestmark = pytest.mark.slow


async def test_produces_go_on_in_order_through_another_proxy() -> None:
    """Cut the proxy off with batches in flight: they are kept, as on any broken connection, and none fails."""

    async with relayed() as world:
        sent = [world.send(idempotent(number)) for number in range(10)]
        await asyncio.sleep(0.0007)
        world.isolate("b1")
        sent += [world.send(idempotent(number)) for number in range(10, 20)]
        assert await answers(sent) == [("NONE", number) for number in range(20)]
        assert await answers([world.send(plain(), 1)]) == [("NONE", 0)]
        assert await values(world) == [f"7/{number}" for number in range(20)]
        assert [way.via for way in relays_of(world)._relayed] == ["p2"] * len(relays_of(world))


async def test_reading_and_questions_go_on_through_another_proxy() -> None:
    async with relayed() as world:
        await answers([world.send(plain(b"one"))])
        await world.fetch(world.want(1))
        world.isolate("b1")
        await asyncio.sleep(LATER_S)
        parked = asyncio.ensure_future(world.fetch(world.want(1), max_wait_s=30))
        await asyncio.sleep(LATER_S)
        await answers([world.send(plain(b"two"))])
        assert sum(look.size for look in (await parked).results) > 0
        owner = await world.owners.wait(world.key(), 1)
        assert (await owner.ends()).high_watermark == 2
        assert await owner.producers() == []
        assert errors_of(await world.fetch(world.want(9), max_wait_s=0.5)) == ["OFFSET_OUT_OF_RANGE"]


async def test_the_direct_connection_is_used_again_once_it_stands() -> None:
    """The change makes no error and keeps the order: relayed requests have responses before a request goes straight."""

    async with relayed() as world:
        await answers([world.send(plain())])
        await world.fetch(world.want(1))
        world.isolate("b1")
        sent = []
        unsure = []
        for number in range(400):
            if number == 200:
                world.network.unreachable.clear()
            sent.append(world.send(idempotent(number)))
            for _ in range(10):
                if number > 290:  # some are on their way whenever that changes: without a producer id none may be lost
                    unsure.append(world.send(plain(), 1))
                await asyncio.sleep(0.001)
        assert {code for code, _ in await answers(unsure)} == {"NONE"}
        assert await answers(sent) == [("NONE", 1 + number) for number in range(400)]
        assert (await values(world))[1:] == [f"7/{number}" for number in range(400)]
        await asyncio.sleep(RETURN_S)
        assert world.remote_owners.is_up("b1")
        relays_of(world).sweep()
        await asyncio.sleep(1)
        relays_of(world).sweep()
        assert len(relays_of(world)) == 0
        await asyncio.sleep(1)
        assert len(world.proxies["p2"].relay) == 0


async def test_rule_9_an_unknown_outcome_through_a_relay_is_one() -> None:
    """The process between loses the broker while it holds a batch: with a producer id it is sent again, and stands
    once; without one the client decides."""

    async with relayed() as world:
        world.isolate("b1")
        await answers([world.send(plain(b"first"))])
        world.broker("b1").stopped = []
        unsure, kept = world.send(plain(b"unsure")), world.send(idempotent(0), 1)
        await asyncio.sleep(0.1)
        world.proxies["p2"].network.cut("b1")
        world.broker("b1").resume()
        assert (await unsure).error_code == ErrorCode.REQUEST_TIMED_OUT
        assert await answers([kept]) == [("NONE", 0)]
        assert await values(world, 1) == ["7/0"]
        assert (await values(world)) in (["first"], ["first", "unsure"])


async def test_a_dead_broker_is_not_relayed_to() -> None:
    """Kill a broker: until its partitions have another owner their produces wait, as without relays."""

    async with relayed() as world:
        await answers([world.send(plain())])
        world.kill("b1")
        kept = world.send(idempotent(0))
        await asyncio.sleep(2)
        assert len(relays_of(world)) == 0
        world.bury("b1", "b2")
        assert (await kept).error_code == ErrorCode.NONE


@pytest.mark.parametrize("seed", seeds(4, 40))
async def test_of_any_history_nothing_acked_is_lost_or_doubled(seed: int) -> None:
    """Producers that send again what was not acked, while this proxy and others come to reach the brokers, and cease
    to, and partitions move."""

    async with relayed(seed=seed, proxies=("p2", "p3")) as world:
        rng, acked = world.rng, {7: 0, 8: 0}
        until = asyncio.get_running_loop().time() + 20

        async def write(producer: int) -> None:
            sequence = 0
            while asyncio.get_running_loop().time() < until:
                response = await world.send(idempotent(sequence, producer), timeout_ms=rng.choice([500, 5000]))
                code = ErrorCode(response.error_code)
                assert code is ErrorCode.NONE or code.is_retriable, code
                sequence += code is ErrorCode.NONE
                acked[producer] = sequence
                await asyncio.sleep(rng.uniform(0, 0.1))

        async def trouble() -> None:
            while asyncio.get_running_loop().time() < until - 4:
                await asyncio.sleep(rng.uniform(0.05, 2))
                others = [proxy.network for proxy in world.proxies.values()]
                network = world.network if rng.random() < 0.7 else rng.choice(others)
                name = rng.choice(["b1", "b2", "p2"])
                match rng.randrange(6):
                    case 0 | 1 | 5:
                        network.unreachable.add(name)
                        network.cut(name)
                    case 2:
                        network.unreachable.discard(name)
                    case 3:
                        network.cut(name)
                    case _:
                        world.move(0, rng.choice(["b1", "b2"]))
            for network in (world.network, *(proxy.network for proxy in world.proxies.values())):
                network.unreachable.clear()

        async with asyncio.TaskGroup() as group:
            group.create_task(trouble())
            for producer in acked:
                group.create_task(write(producer))
        found = await values(world)
        for producer, count in acked.items():
            own = [each for each in found if each.startswith(f"{producer}/")]
            assert own == [f"{producer}/{number}" for number in range(len(own))]
            assert len(own) >= count > 0
        assert world.remote_owners._owner(world.key()).route.state is RouteState.OPEN
