"""Requests of a process to itself: `Peers.ask` over `InternalEndpoint.call`, without a connection."""

from __future__ import annotations

import pytest

from bmq.core.clock import LoopClock
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.rpc.messages.member import PingRequest
from bmq.core.rpc.peers import PeerLost, Peers
from bmq.core.rpc.server import Handler, InternalEndpoint
from tests.unit.core.rpc.world import EchoRequest, EchoResponse, FakeMember

OWN = FakeMember("a-1")


def peers_of(endpoint: InternalEndpoint) -> Peers:
    return Peers(OWN.incarnation, "c", here=endpoint)


def endpoint_with(handler: Handler | None = None) -> InternalEndpoint:
    endpoint = InternalEndpoint(OWN.incarnation, "c", LoopClock(), is_serving=lambda: True)
    if handler is not None:
        endpoint.register(EchoRequest, handler, role="controller")
    return endpoint


async def test_a_process_serves_itself_without_a_connection() -> None:
    async def echo(body: memoryview, call: object) -> object:
        return EchoResponse(result=EchoRequest.decode(body).method).encode()

    peers = peers_of(endpoint_with(echo))  # type: ignore[arg-type]
    assert (await peers.ask(OWN, PingRequest(), 1)).is_serving
    assert (await peers.ask(OWN, EchoRequest("x"), 1)).result == "x", "an awaited response, of an API for one role"
    assert peers.connected == 0
    await peers.close()


async def test_its_errors_are_those_of_a_connection() -> None:
    def refuse(body: memoryview, call: object) -> object:
        raise RequestError(ErrorCode.NOT_CONTROLLER, "another leads")

    for endpoint, code in (
        (endpoint_with(refuse), ErrorCode.NOT_CONTROLLER),  # type: ignore[arg-type]
        (endpoint_with(), ErrorCode.UNSUPPORTED_VERSION),
    ):
        peers = peers_of(endpoint)
        with pytest.raises(RequestError) as refused:
            await peers.ask(OWN, EchoRequest("x"), 1)
        assert refused.value.code is code
        await peers.close()


async def test_another_process_is_not_served_here() -> None:
    peers = peers_of(endpoint_with())
    with pytest.raises(PeerLost):
        await peers.ask(FakeMember("b-1"), PingRequest(), 0.1)
    await peers.close()
