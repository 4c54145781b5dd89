"""A proxy that passes requests on: to whom, which ones, how many bytes, and until when."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from bmq.core.errors import ErrorCode
from bmq.core.net.request import Buffer, Client, Response
from bmq.core.rpc.api_keys import InternalKey
from bmq.core.rpc.messages.broker import AskRequest, Question
from bmq.core.rpc.messages.member import LeaveRequest, PingRequest, PingResponse
from bmq.core.rpc.messages.proxy import RelayRequest, RelayResponse
from bmq.core.rpc.server import InternalCall
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.produce_client import PRODUCE_VERSION
from bmq.proxy.relay import server
from tests.harness.fakes import FakeClient
from tests.unit.proxy.cluster import Cluster
from tests.unit.proxy.relay.relayed import relayed

pytestmark = pytest.mark.slow


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


async def _response(response: Any) -> RelayResponse:
    body = response if isinstance(response, list) else await response
    assert not isinstance(body, Response)
    return RelayResponse.decode(memoryview(b"".join(body)))


async def test_a_relayed_connection_begins_with_a_ping() -> None:
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


async def test_a_broker_that_does_not_respond_to_the_relay_is_reported_as_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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


async def test_a_broker_that_the_relay_does_not_reach_is_refused() -> None:
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
async def test_a_request_that_may_not_be_relayed_ends_the_connection(to: str, api_key: int, version: int) -> None:
    async with relayed() as world:
        caller = Caller(world)
        await caller.ping()
        refused = caller.send(to, api_key, version, LeaveRequest().encode())
        behind = caller.send("b1", InternalKey.PING, 0, PingRequest().encode())
        for each in (refused, behind):
            assert ((await each).error, (await each).was_sent) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, False)


async def test_relayed_bytes_in_flight_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "BYTES_MAX", 5_000)

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


async def test_the_brokers_connection_ends_with_the_callers() -> None:
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
