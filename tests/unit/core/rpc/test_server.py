"""The internal endpoint: which callers and APIs it serves, over a connection and within its own process."""

from __future__ import annotations

import asyncio

import pytest

from bmq.core.clock import LoopClock
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.rpc.messages.member import PingRequest
from bmq.core.rpc.peer import PeerSettings
from bmq.core.rpc.peers import ConnectionKind, PeerLost, Peers, ask_peer
from bmq.core.rpc.server import Handler, InternalCall, InternalEndpoint, MessageHandler
from tests.unit.core.rpc.world import (
    ECHO,
    B,
    EchoRequest,
    EchoResponse,
    FakeMember,
    Kafka,
    LaterRequest,
    World,
    ask,
    echo,
    lost,
    up,
)

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


async def test_errors_of_own_requests_are_those_of_a_connection() -> None:
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


async def test_a_bug_in_a_handler_of_an_own_request_is_reported_and_costs_the_caller_a_lost_peer() -> None:
    reported = list[BaseException]()

    def fail(body: memoryview, call: object) -> object:
        raise ValueError("a bug")

    async def fail_later(body: memoryview, call: object) -> object:
        raise ValueError("a bug")

    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context["exception"]))
    endpoints = (endpoint_with(fail), endpoint_with(fail_later), endpoint_of_messages(fail_later))  # type: ignore[arg-type]
    for endpoint in endpoints:
        peers = peers_of(endpoint)
        with pytest.raises(PeerLost, match="a bug") as lost_peer:
            await peers.ask(OWN, EchoRequest("x"), 1)
        assert lost_peer.value.was_sent
        await peers.close()
    whose = f"answering API {EchoRequest.KEY} of {OWN.incarnation} (this process)"
    assert [(str(each), each.__notes__) for each in reported] == [("a bug", [whose])] * 3


def endpoint_of_messages(handler: MessageHandler) -> InternalEndpoint:
    endpoint = endpoint_with()
    endpoint.register_messages(EchoRequest, handler, role="controller")
    return endpoint


async def test_a_message_to_the_own_process_is_not_encoded() -> None:
    seen: list[object] = []
    response = EchoResponse(result="y")

    async def echo(request: EchoRequest, call: InternalCall) -> EchoResponse:
        seen.append(request)
        assert (call.version, call.caller, call.client.is_closed) == (0, OWN.incarnation, False)
        return response

    endpoint = endpoint_of_messages(echo)
    peers, request = peers_of(endpoint), EchoRequest("x")
    assert await peers.ask(OWN, request, 1) is response
    assert seen == [request]
    assert seen[0] is request
    assert await ask_peer(endpoint, request) == response, "as another process sends it"
    assert seen[1] is not request
    assert seen[1] == request
    await peers.close()


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (RequestError(ErrorCode.NOT_CONTROLLER, "another leads"), ErrorCode.NOT_CONTROLLER),
        (FormatError("counts"), ErrorCode.INVALID_REQUEST),
        (None, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
async def test_errors_of_own_messages_are_those_of_a_connection(failure: Exception | None, code: ErrorCode) -> None:
    async def refuse(request: EchoRequest, call: InternalCall) -> EchoResponse:
        if failure is not None:
            raise failure
        return EchoResponse(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)

    endpoint = endpoint_of_messages(refuse)
    peers = peers_of(endpoint)
    for asked in (peers.ask(OWN, EchoRequest("x"), 1), ask_peer(endpoint, EchoRequest("x"))):
        with pytest.raises(RequestError) as refused:
            await asked
        assert refused.value.code is code
    await peers.close()


async def test_a_handler_of_own_messages_has_the_callers_time() -> None:
    async def hang(request: EchoRequest, call: InternalCall) -> EchoResponse:
        await asyncio.Event().wait()
        raise AssertionError

    peers = peers_of(endpoint_of_messages(hang))
    with pytest.raises(TimeoutError):
        await peers.ask(OWN, EchoRequest("x"), 1)
    await peers.close()


async def test_another_process_is_not_served_here() -> None:
    peers = peers_of(endpoint_with())
    with pytest.raises(PeerLost):
        await peers.ask(FakeMember("b-1"), PingRequest(), 0.1)
    await peers.close()


async def test_a_handler_has_the_callers_name() -> None:
    async with World(PeerSettings()) as world:
        await ask(world, "1")
        (call,) = world.calls
        assert (call.version, call.client_id, call.caller, call.client.host) == (0, "a-1", "a-1", "a")
        assert call.arrived > 0


async def test_an_api_of_a_later_version_is_refused_and_costs_no_connection() -> None:
    async with World(PeerSettings()) as world:
        peer = await up(world, ConnectionKind.CONTROL)
        with pytest.raises(RequestError) as refused:
            await world.peers.ask(B, LaterRequest(), 2)
        assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
        assert peer.is_up
        await ask(world, "1")


async def test_kafkas_apis_go_to_their_own_dispatch() -> None:
    async with World(PeerSettings()) as world:
        kafka = Kafka()
        world.endpoint.register_kafka(kafka)
        peer = await up(world, ConnectionKind.PRODUCE)
        assert bytes(await peer.call(0, 13, [b"body"])) == b"kafka"
        assert kafka.frames[0][:4] == b"\0\0\0\x0d"
        assert kafka.frames[0].endswith(b"\0\x03a-1\0body")


@pytest.mark.parametrize(
    "frame",
    [
        b"\0\0\0\x0d\0\0\0\1\xff\xff\0",
        b"\x27\x11\0\0\0\0\0\1\xff\xff\0\0",
        b"\x27\x10\0\0\0\0\0\1\xff\xff\0\0",
        b"\x27\x10\0\0\0\0\0\1\0\x09ab",
        b"\x7f\xff\0\0\0\0\0\1\xff\xff\0\0",
    ],
    ids=["Produce", "Ping", "unreadable Hello", "unreadable header", "unknown"],
)
async def test_nothing_is_answered_before_hello(frame: bytes) -> None:
    async with World(PeerSettings()) as world:
        world.endpoint.register_kafka(Kafka())
        received = bytearray()

        class Stranger(asyncio.Protocol):
            def get_buffer(self, sizehint: int) -> memoryview:
                return memoryview(bytearray(100))

            def buffer_updated(self, nbytes: int) -> None:
                received.extend(bytes(nbytes))

        transport, _ = await asyncio.get_running_loop().create_connection(Stranger, "b", 9093)
        transport.write(len(frame).to_bytes(4, "big") + frame)
        await asyncio.sleep(1)
        assert transport.is_closing()
        assert not received
        assert world.metrics.connections_malformed == 1


async def test_a_bug_ends_the_connection_and_is_logged() -> None:
    async with World(PeerSettings()) as world:
        peer = await up(world)
        world.answers["1"] = ZeroDivisionError("a bug")
        assert (await lost(peer.call(ECHO, 0, echo("1")))).was_sent
        world.later("2")
        call = (await up(world)).call(ECHO, 0, echo("2"))
        await asyncio.sleep(1)
        world.answers["2"].set_exception(ZeroDivisionError("another"))
        assert (await lost(call)).was_sent
