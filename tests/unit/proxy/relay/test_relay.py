"""A broker that this proxy does not reach and another one does: everything goes on through the other."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import Any, cast

import pytest

from bmq.core.errors import ErrorCode
from bmq.core.net.request import Buffer, Client, Response
from bmq.core.rpc.api_keys import InternalKey
from bmq.core.rpc.messages.broker import AskRequest, Question
from bmq.core.rpc.messages.member import LeaveRequest, PingRequest, PingResponse
from bmq.core.rpc.messages.proxy import RelayRequest, RelayResponse
from bmq.core.rpc.peers import Peers
from bmq.core.rpc.server import InternalCall
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.produce_client import PRODUCE_VERSION
from bmq.meta.cluster.unreachable import encode_unreachable, unreachable_key
from bmq.meta.kv import KvUnavailable, Put
from bmq.meta.kv_memory import KvFaults, MemoryKeyValue, MemoryStore
from bmq.proxy.reachability.unreachable_brokers import DOWN_S, UP_S, UnreachableBrokers, read_unreachable
from bmq.proxy.relay import server as relay_module
from bmq.proxy.relay.pool import CONNECTIONS_MAX as OWN_CONNECTIONS_MAX
from bmq.proxy.relay.pool import RELAY_AFTER_S, RelayPool
from bmq.proxy.relay.server import CONNECTIONS_MAX
from bmq.proxy.routing.broker_link import RETURN_S
from bmq.proxy.routing.produce_route import RouteState
from tests.harness.fakes import FakeClient, member
from tests.unit.proxy.cluster import CLUSTER, Cluster, cluster, idempotent, plain
from tests.unit.proxy.routing.test_owners import answers, errors_of, values

pytestmark = pytest.mark.slow

LATER_S = RELAY_AFTER_S + 0.5
"""A link that is lost has a way through another process."""


def relayed(**options: Any) -> AbstractAsyncContextManager[Cluster]:
    """Return a cluster with another proxy, through which a lost link is relayed."""
    return cluster(**{"proxies": ("p2",)} | options)


def relays_of(world: Cluster) -> RelayPool:
    assert world.relays is not None
    return world.relays


# ------------------------------------------------------------------------------------------------------ from outside


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
    """Without an error, and with nothing out of order: what went round is answered before anything goes straight."""

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


async def test_a_way_that_nobody_wants_for_a_while_is_given_up_and_the_next_is_direct() -> None:
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


async def test_who_says_that_it_does_not_reach_the_broker_is_not_asked() -> None:
    async with relayed(proxies=("p2", "p3", "p4")) as world:
        for name in ("p2", "p3", "p4"):
            if name != "p3":
                world.listed[name] = {"b1"}
        world.isolate("b1")
        await answers([world.send(idempotent(0))])
        assert {way.via for way in relays_of(world)._relayed} == {"p3"}


@pytest.mark.parametrize("is_silent", [True, False])
async def test_without_the_store_whoever_is_asked_says_whether_he_reaches_it(is_silent: bool) -> None:
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


async def test_a_relay_is_no_proof_of_reach() -> None:
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


async def test_a_broker_that_is_dead_is_reached_through_nobody() -> None:
    """Kill a broker: until its partitions have another owner their produces wait, as without relays."""

    async with relayed() as world:
        await answers([world.send(plain())])
        world.kill("b1")
        kept = world.send(idempotent(0))
        await asyncio.sleep(2)
        assert len(relays_of(world)) == 0
        world.bury("b1", "b2")
        assert (await kept).error_code == ErrorCode.NONE


async def test_a_broker_that_goes_takes_its_ways_along() -> None:
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


async def test_ways_are_bounded_and_end_with_the_process() -> None:
    async with relayed() as world:
        relays = relays_of(world)
        world.isolate("b1")
        found = await asyncio.gather(*(relays.open(member("b1")) for _ in range(OWN_CONNECTIONS_MAX + 5)))
        assert sum(way is not None for way in found) == min(CONNECTIONS_MAX, OWN_CONNECTIONS_MAX)
        await world.remote_owners.close()
        assert len(relays) == 0
        await asyncio.sleep(1)
        assert len(world.proxies["p2"].relay) == 0


@pytest.mark.parametrize("seed", range(8))
async def test_of_any_history_nothing_acked_is_lost_or_doubled(seed: int) -> None:
    """Producers that send again what was not acked, while this proxy and others come to reach the brokers, and cease
    to, and partitions move."""

    async with relayed(seed=seed, proxies=("p2", "p3")) as world:
        rng, acked = world.rng, {7: 0, 8: 0}
        until = asyncio.get_running_loop().time() + 20

        async def write(producer: int) -> None:
            sequence = 0
            while asyncio.get_running_loop().time() < until:
                answer = await world.send(idempotent(sequence, producer), timeout_ms=rng.choice([500, 5000]))
                code = ErrorCode(answer.error_code)
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


async def test_what_cannot_be_read_of_others_is_passed_over() -> None:
    kv = MemoryKeyValue(MemoryStore(), random=Random(0), faults=KvFaults())
    await kv.commit([], [Put(unreachable_key(CLUSTER, "p2"), encode_unreachable({"b1"}))])
    await kv.commit([], [Put(unreachable_key(CLUSTER, "p3"), b'{"format": 2}')])
    await kv.commit([], [Put(unreachable_key("other", "p4"), encode_unreachable({"b1"}))])
    assert await read_unreachable(kv, CLUSTER) == {"p2": frozenset({"b1"})}


# ---------------------------------------------------------------------------------------------------- the one between


class Caller:
    """A connection to ``p2`` that sends what it likes."""

    def __init__(self, world: Cluster) -> None:
        self.relay = world.proxies["p2"].relay
        self.client = FakeClient()

    def send(self, to: str, api_key: int, version: int, body: list[Buffer]) -> asyncio.Future[RelayResponse]:
        """Send a request through the relay, which has it on return."""
        frame = memoryview(bytearray(b"".join(RelayRequest(to, api_key, version, body).encode())))
        call = InternalCall(0, cast(Client, self.client), "me", 1, 0.0, "proxy")
        return asyncio.ensure_future(_response(self.relay.handle(frame, call)))

    async def ping(self, to: str = "b1") -> RelayResponse:
        return await self.send(to, InternalKey.PING, 0, PingRequest().encode())


async def _response(answer: Any) -> RelayResponse:
    body = answer if isinstance(answer, list) else await answer
    assert not isinstance(body, Response)
    return RelayResponse.decode(memoryview(b"".join(body)))


async def test_a_way_begins_with_a_ping() -> None:
    async with relayed() as world:
        caller = Caller(world)
        question = AskRequest(world.key().topic_id, 0, Question.ENDS).encode()
        early = await caller.send("b1", InternalKey.ASK, 0, question)
        assert (early.error, early.was_sent) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, False)
        assert (await caller.ping()).error is ErrorCode.NOT_LEADER_OR_FOLLOWER, "it is over"
        caller = Caller(world)
        pong = await caller.ping()
        assert pong.error is ErrorCode.NONE
        assert PingResponse.decode(memoryview(pong.body)).is_serving
        assert (await caller.send("b1", InternalKey.ASK, 0, question)).error is ErrorCode.NONE


async def test_a_broker_that_does_not_respond_there_is_said_to_be_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def time_out(*_: object) -> None:
        raise TimeoutError

    async with relayed() as world:
        caller = Caller(world)
        monkeypatch.setattr(caller.relay._peers, "open", time_out)
        response = await caller.ping()
        assert response.message == "b1 is not reached from here either: no response"


@pytest.mark.parametrize("to", ["p2", "p3", "nobody", ""])
async def test_only_brokers_are_relayed_to(to: str) -> None:
    """Relay to this process or to another proxy: refused, so that no request takes two steps."""

    async with relayed(proxies=("p2", "p3")) as world:
        response = await Caller(world).ping(to)
        assert (response.error, response.was_sent) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, False)


async def test_a_broker_that_is_not_reached_from_there_either() -> None:
    async with relayed() as world:
        world.proxies["p2"].network.unreachable.add("b1")
        response = await Caller(world).ping()
        assert response.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert "b1 is not reached from here" in response.message


@pytest.mark.parametrize(
    ("to", "api_key", "version"),
    [
        ("b1", InternalKey.LEAVE, 0),
        ("b1", InternalKey.SHARD_APPEND, 0),
        ("b1", InternalKey.RELAY, 0),
        ("b1", InternalKey.HELLO, 0),
        ("b1", ApiKey.METADATA, 12),
        ("b1", ApiKey.PRODUCE, PRODUCE_VERSION - 1),
        ("b2", InternalKey.ASK, 0),
    ],
)
async def test_what_is_not_passed_on_ends_the_way(to: str, api_key: int, version: int) -> None:
    async with relayed() as world:
        caller = Caller(world)
        await caller.ping()
        refused = caller.send(to, api_key, version, LeaveRequest().encode())
        behind = caller.send("b1", InternalKey.PING, 0, PingRequest().encode())
        for each in (refused, behind):
            assert ((await each).error, (await each).was_sent) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, False)


async def test_the_bytes_under_way_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "BYTES_MAX", 5_000)

    async with relayed() as world:
        caller = Caller(world)
        await caller.ping()
        world.broker("b1").stopped = []
        held = caller.send("b1", InternalKey.PING, 0, [bytes(4_000)])
        beyond = caller.send("b1", InternalKey.PING, 0, [bytes(4_000)])
        assert (await beyond).was_sent is False
        assert (await held).error is ErrorCode.NOT_LEADER_OR_FOLLOWER, "the way is over"
        world.broker("b1").resume()
        assert (await Caller(world).ping()).error is ErrorCode.NONE
        assert caller.relay._bytes == 0


async def test_the_end_of_one_connection_is_the_end_of_the_other() -> None:
    """The broker drops what it holds for a client that has gone (rule 9)."""

    async with relayed() as world:
        caller = Caller(world)
        await caller.ping()
        network = world.proxies["p2"].network
        (connection,) = network.apart
        caller.client.close()
        assert not connection.is_up
        assert len(caller.relay) == 0
        hasty = Caller(world)
        opening = asyncio.ensure_future(hasty.ping())
        await asyncio.sleep(0)
        hasty.client.close()
        assert (await opening).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert not any(each.is_up for each in network.apart)
