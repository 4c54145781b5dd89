"""A process's connections to others: how they are made, kept, refused and lost, and requests over them."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from uuid import UUID

import pytest

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.logging.fields import fields_of
from bmq.core.net.request import Buffer
from bmq.core.rpc.api_keys import InternalKey
from bmq.core.rpc.message import InternalRequest
from bmq.core.rpc.messages.broker import AskRequest, Question
from bmq.core.rpc.messages.controller import ReportRequest
from bmq.core.rpc.messages.member import HelloRequest, HelloResponse, PingResponse, Unregistered
from bmq.core.rpc.peer import PeerSettings
from bmq.core.rpc.peers import PAUSE_S, WANTED_S, ConnectionKind, Evidence, Peer, PeerLost, Peers, ask_peer
from bmq.core.rpc.server import Admission
from tests.harness.waiting import now
from tests.unit.core.rpc.world import (
    ECHO,
    B,
    EchoResponse,
    FakeMember,
    World,
    ask,
    echo,
    lost,
    result,
    up,
)


async def test_three_connections_to_a_member_each_made_once() -> None:
    async with World(PeerSettings()) as world:
        assert [world.peers.get(B, kind) for kind in ConnectionKind] == [None] * 3
        assert world.peers.connected == 0
        peers = await asyncio.gather(*(up(world, kind) for kind in [*ConnectionKind, *ConnectionKind]))
        assert [world.peers.get(B, kind) for kind in ConnectionKind] == peers[:3] == peers[3:]
        assert [peer.kind for peer in peers[:3]] == list(ConnectionKind)
        assert {peer.protocol for peer in peers} == {1}
        assert len(world.network.attempts) == 3
        assert world.peers.connected == 1  # member
        world.peers.forget("b-1")
        assert world.peers.connected == 0


@pytest.mark.parametrize("seed", range(5))
async def test_pauses_between_attempts_double_and_end(seed: int) -> None:
    async with World(PeerSettings()) as world:
        world.listener.close()
        world.peers.get(B, ConnectionKind.TAIL)
        await asyncio.sleep(2 * WANTED_S)
        attempts = world.network.attempts
        pauses = [after - before for before, after in pairwise(attempts)]
        for number, pause in enumerate(pauses):
            most = PAUSE_S.pause(number + 1)
            assert most / 2 <= pause <= most + 0.01
        assert WANTED_S - PAUSE_S.most < attempts[-1] <= WANTED_S + PAUSE_S.most
        tries = len(attempts)
        assert len(world.broken) == tries
        await world.listen()
        await asyncio.sleep(1)
        assert len(world.network.attempts) == tries
        assert world.peers.get(B, ConnectionKind.TAIL) is None
        await asyncio.sleep(PAUSE_S.most)
        assert world.peers.get(B, ConnectionKind.TAIL) is not None


async def test_a_connection_that_breaks_at_once_is_not_made_without_end() -> None:
    async with World(PeerSettings()) as world:
        for _ in range(1_000):
            world.peers.get(B, ConnectionKind.TAIL)
            await asyncio.sleep(0.01)
            world.network.cut()
        assert len(world.network.attempts) < 20


async def test_a_connection_that_was_up_for_long_is_made_again_at_once() -> None:
    async with World(PeerSettings()) as world:
        first = await up(world)
        await asyncio.sleep(60)
        world.network.cut()
        await asyncio.sleep(1)
        began = now()
        second = await up(world)
        assert second is not first
        assert now() - began < 0.02


async def test_reach_waits_for_the_connection_until_its_time_out() -> None:
    async with World(PeerSettings()) as world:
        world.listener.stop_accepting()
        with pytest.raises(PeerLost, match="nobody listens") as caught:
            await world.peers.reach(B, ConnectionKind.CONTROL, 3)
        assert (now(), caught.value.was_sent) == (3, False)

        async def come() -> None:
            await asyncio.sleep(1)
            await world.listen()

        coming = asyncio.create_task(come())
        assert (await up(world)).is_up
        await coming


async def test_a_stopped_process_does_not_answer_hello() -> None:
    async with World(PeerSettings()) as world:
        world.network.stop("b")
        with pytest.raises(PeerLost, match="does not answer in 3 s"):
            await world.peers.reach(B, ConnectionKind.CONTROL, 3.5)
        assert "does not answer in 3 s" in world.broken[0][1]


@pytest.mark.parametrize("step", ["getaddrinfo", "create_connection"])
@pytest.mark.parametrize(
    ("error", "own_steps"),
    [
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), {"getaddrinfo", "create_connection"}),
        (OSError(errno.EBUSY, os.strerror(errno.EBUSY)), {"getaddrinfo"}),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), {"getaddrinfo"}),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), set()),
        (ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED)), {"getaddrinfo"}),
        (None, {"getaddrinfo"}),  # no answer in time
    ],
)
async def test_an_error_of_this_process_is_not_evidence_against_the_peer(
    monkeypatch: pytest.MonkeyPatch, step: str, error: OSError | None, own_steps: set[str]
) -> None:
    """A process without a free descriptor, or whose resolver is away, has no evidence about the peer."""

    async with World(PeerSettings()) as world:

        async def fail(*_: object, **__: object) -> None:
            if error is not None:
                raise error
            await asyncio.get_running_loop().create_future()

        monkeypatch.setattr(asyncio.get_running_loop(), step, fail)
        with pytest.raises(PeerLost) as caught:
            await world.peers.probe(B, 1)
        refuses = isinstance(error, ConnectionRefusedError)
        else_ = Evidence.REFUSED if refuses else Evidence.SILENCE
        assert caught.value.evidence is (Evidence.NONE if step in own_steps else else_)


async def test_a_peer_is_reached_at_another_of_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    async with World(PeerSettings()) as world:

        async def look_up(host: str, port: int, **_: object) -> object:
            return [(None, None, None, "", (name, port)) for name in addresses]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up)
        addresses = ["nowhere", "b"]
        await world.peers.probe(B, 1)
        addresses = ["nowhere", "nor there"]
        with pytest.raises(PeerLost, match="nobody listens at nor there") as caught:
            await world.peers.probe(B, 1)
        assert caught.value.evidence is Evidence.REFUSED


@pytest.mark.parametrize(
    ("cluster", "incarnation", "protocols", "why"),
    [
        ("other", "b-1", (1, 1), "INCONSISTENT_CLUSTER_ID: this process does not belong to cluster other"),
        ("test", "b-0", (1, 1), "NOT_LEADER_OR_FOLLOWER: b-0 is not here any more: this is b-1"),
        (
            "test", "b-1", (2, 4),
            "UNSUPPORTED_VERSION: this process speaks internal protocol 1, its caller 2 to 4",
        ),
    ],
)  # fmt: skip
async def test_hello_to_another_cluster_process_or_protocol_is_refused(
    cluster: str, incarnation: str, protocols: tuple[int, int], why: str
) -> None:
    async with World(PeerSettings()) as world:
        peers = Peers("a-1", cluster, protocols=protocols)
        with pytest.raises(PeerLost) as caught:
            await peers.reach(FakeMember(incarnation), ConnectionKind.CONTROL, 1)
        assert why in str(caught.value)
        assert world.metrics.connections == 0
        await peers.close()


@pytest.mark.parametrize(
    ("cluster", "incarnation", "protocols", "evidence"),
    [
        ("other", "b-1", (1, 1), Evidence.REPLACED),
        ("test", "b-0", (1, 1), Evidence.REPLACED),
        ("test", "b-1", (2, 4), Evidence.LIFE),
        ("test", "b-1", (1, 1), Evidence.LIFE),  # which finds that the caller is not registered
    ],
)
async def test_a_refusal_is_a_sign_of_life_of_the_process_that_refuses(
    cluster: str, incarnation: str, protocols: tuple[int, int], evidence: Evidence
) -> None:
    async with World(PeerSettings()) as world:
        world.endpoint._admit = lambda caller: Admission(refusal="gone", unregistered=Unregistered(7, frozenset()))
        peers = Peers("a-1", cluster, protocols=protocols)
        with pytest.raises(PeerLost, match="refuses") as caught:
            await peers.probe(FakeMember(incarnation), 1)
        assert caught.value.evidence is evidence
        await peers.close()


async def test_a_process_that_does_not_know_the_version_of_hello_is_not_taken_for_another_one() -> None:
    """A later caller may say Hello in another version: without a name in the refusal it would presume the process
    dead."""

    async with World(PeerSettings()) as world:
        peer = await world.peers.open(B, 1)
        hello = HelloRequest((1, 1), "test", "a-1", B.incarnation)
        response = HelloResponse.decode(await peer.call(InternalKey.HELLO, 1, hello.encode()))
        assert (response.error, response.incarnation) == (ErrorCode.UNSUPPORTED_VERSION, B.incarnation)


@pytest.mark.parametrize("asks", [False, True])
async def test_a_refusal_says_that_the_caller_is_not_registered(asks: bool) -> None:
    """Ask or open: both are refused; a refusal for another reason does not notify that the caller is unregistered."""

    async with World(PeerSettings()) as world:
        found = Unregistered(7, frozenset({"broker"}))
        notified: list[Unregistered] = []
        forget = world.peers.subscribe_unregistered(notified.append)
        for admission in (Admission(refusal="no"), Admission(refusal="gone", unregistered=found)):
            world.endpoint._admit = {"a-1": admission}.__getitem__
            with pytest.raises(PeerLost, match="refuses: CLUSTER_AUTHORIZATION_FAILED"):
                await (world.peers.greet(B, 1) if asks else world.peers.open(B, 1))
        assert notified == [found]
        forget()
        world.endpoint._admit = lambda incarnation: Admission()
        await world.peers.greet(B, 1)
        await asyncio.sleep(1)
        assert world.metrics.connections == 0
        assert notified == [found]


async def test_a_connection_speaks_the_highest_protocol_of_both_sides() -> None:
    async with World(PeerSettings()):
        peers = Peers("a-1", "test", protocols=(0, 7))
        assert (await peers.reach(B, ConnectionKind.CONTROL, 1)).protocol == 1
        await peers.close()


async def test_forgotten_members_are_never_reached_again() -> None:
    async with World(PeerSettings()) as world:
        peer = await up(world)
        world.later("1")
        call = peer.call(ECHO, 0, echo("1"))
        world.network.stop("b")
        waiting = asyncio.create_task(world.peers.reach(B, ConnectionKind.TAIL, 60))
        await asyncio.sleep(0.1)
        world.peers.forget("b-1")
        await lost(call)
        with pytest.raises(PeerLost, match="not a member any more"):
            await waiting
        with pytest.raises(PeerLost, match="not a member any more"):
            await up(world)
        attempts = len(world.network.attempts)
        assert world.peers.get(B, ConnectionKind.PRODUCE) is None
        await asyncio.sleep(60)
        assert len(world.network.attempts) == attempts
        assert world.broken == []  # this side has closed it


async def test_close_fails_the_calls_under_way() -> None:
    async with World(PeerSettings()) as world:
        peer = await up(world)
        world.later("1")
        call = peer.call(ECHO, 0, echo("1"))
        world.network.stop("b")
        world.peers.get(B, ConnectionKind.TAIL)
        await asyncio.sleep(0.1)
        await world.peers.close()
        await lost(call)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert world.peers.get(B, ConnectionKind.TAIL) is None
        assert world.broken == []


# ------------------------------------------------------------------------------------------------------------ asking


async def test_a_request_returns_its_response_or_raises_its_error() -> None:
    async with World(PeerSettings()) as world:
        assert await ask(world, "1") == "1"
        world.answers["2"] = RequestError(ErrorCode.NOT_CONTROLLER, "not me")
        world.later("3")
        with pytest.raises(RequestError) as caught:
            await ask(world, "2")
        assert (caught.value.code, caught.value.message) == (ErrorCode.NOT_CONTROLLER, "not me")
        with pytest.raises(TimeoutError):
            await ask(world, "3")
        world.listener.close()
        await asyncio.sleep(1)
        with pytest.raises(PeerLost, match="nobody listens") as failed:
            await ask(world, "4")
        assert not failed.value.was_sent


async def test_an_error_of_a_handler_that_waited_is_raised_at_the_caller() -> None:
    async with World(PeerSettings()) as world:
        world.later("1")
        asking = asyncio.create_task(ask(world, "1"))
        await asyncio.sleep(1)
        world.answers["1"].set_exception(RequestError(ErrorCode.POLICY_VIOLATION, "later"))
        with pytest.raises(RequestError, match="POLICY_VIOLATION: later"):
            await asking


async def test_a_response_that_cannot_be_decoded_is_an_error() -> None:
    async with World(PeerSettings()) as world:
        world.answers["1"] = asyncio.get_running_loop().create_future()
        world.answers["1"].set_result([b"\x7f\xff\1\0"])
        with pytest.raises(PeerLost, match="not a valid ErrorCode") as caught:
            await ask(world, "1")
        assert caught.value.was_sent


@dataclass(frozen=True, slots=True)
class EmptyEchoRequest(InternalRequest[EchoResponse]):
    """An Echo without its fields."""

    KEY = ECHO


async def test_a_request_that_the_process_does_not_serve_is_refused() -> None:
    async with World(PeerSettings()) as world:
        with pytest.raises(RequestError, match="UNSUPPORTED_VERSION: b-1 does not serve API 10009"):
            await world.peers.ask(B, ReportRequest("c", "why"), 5)
        with pytest.raises(RequestError, match="INVALID_REQUEST: EchoRequest"):
            await world.peers.ask(B, EmptyEchoRequest(), 5)
        assert await ask(world, "1") == "1"


async def test_a_probe_needs_no_other_connection() -> None:
    async with World(PeerSettings()) as world:
        await up(world)
        assert await world.peers.probe(B, 2) == PingResponse(is_serving=True)
        world.is_serving = False
        assert await world.peers.probe(B, 2) == PingResponse(is_serving=False)
        with pytest.raises(PeerLost, match="b-0 is not here any more"):
            await world.peers.probe(FakeMember("b-0"), 2)
        world.network.stop("b")
        began = now()
        with pytest.raises(PeerLost, match="does not answer in 2 s"):
            await world.peers.probe(B, 2)
        assert now() - began == 2
        world.network.resume("b")
        world.listener.stop_accepting()
        with pytest.raises(PeerLost, match="nobody listens"):
            await world.peers.probe(B, 2)


async def test_a_probe_without_a_response_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(*_: object) -> None:
        await asyncio.get_running_loop().create_future()

    async with World(PeerSettings()) as world:
        await up(world)
        monkeypatch.setattr(Peer, "call", hang)
        with pytest.raises(PeerLost, match="no response to a ping"):
            await world.peers.probe(B, 2)


async def test_a_caller_may_open_a_connection_of_its_own() -> None:
    """A caller's own connection stands beside the shared ones, is watched as they are, made once, and closed with the
    member or with this process."""

    async with World(PeerSettings()) as world:
        peer = await world.peers.open(B, 2)
        assert peer is not await up(world)
        assert peer is not await world.peers.open(B, 2)
        assert result(await peer.call(ECHO, 0, echo("1"))) == "1"
        world.network.stop("b")
        began, gone = now(), asyncio.Event()
        peer.on_lost(gone.set)
        await gone.wait()
        assert 2 <= now() - began <= 3.25
        world.network.resume("b")
        await asyncio.sleep(10)
        assert not world.peers._apart, "nobody makes them again"
        peer = await world.peers.open(B, 2)
        peer.close()
        assert not world.peers._apart
        peer = await world.peers.open(B, 2)
        world.peers.forget(B.incarnation)
        assert not peer.is_up
        with pytest.raises(PeerLost, match="not a member any more") as error:
            await world.peers.open(B, 2)
        assert not error.value.was_sent
        world.peers.welcome(B)
        peer = await world.peers.open(B, 2)
        await world.peers.close()
        assert not peer.is_up


# -------------------------------------------------------------------------------------------------- the other side


async def test_a_response_that_cannot_be_decoded_is_logged_with_its_peer_and_api(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Garbled:
        incarnation = "b-1"

        async def call(self, api_key: int, api_version: int, body: Sequence[Buffer]) -> memoryview:
            return memoryview(b"\0\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")

    caplog.set_level(logging.WARNING)
    with pytest.raises(PeerLost):
        await ask_peer(Garbled(), AskRequest(UUID(int=1), 0, Question.DELETE_BEFORE, 0))
    (line,) = caplog.records
    assert f"API {AskRequest.KEY:d}" in line.getMessage()
    assert "counts as lost" in line.getMessage()
    assert fields_of(line)["member"] == "b-1"
