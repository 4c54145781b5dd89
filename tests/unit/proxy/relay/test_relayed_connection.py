"""A way through another process, as its callers see it: what becomes of each call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

import pytest

from bmq.core.errors import ErrorCode
from bmq.core.net.request import Buffer
from bmq.core.rpc.api_keys import InternalKey
from bmq.core.rpc.messages.member import ErrorResponse
from bmq.core.rpc.messages.proxy import RelayRequest, RelayResponse
from bmq.core.rpc.peers import Peer, PeerBusy, PeerLost
from bmq.proxy.relay.relayed_connection import BYTES_MAX, LAST_RESPONSES_S, RelayedConnection


class FakePeer:
    """The connection to the process between; a test answers."""

    incarnation = "p2"
    why = "cut"

    def __init__(self) -> None:
        self.is_closed = False
        self.is_busy = False
        self.asked: list[RelayRequest] = []
        self.answers: list[asyncio.Future[memoryview]] = []
        self._lost: list[Callable[[], None]] = []

    def call(self, api_key: int, api_version: int, body: Sequence[Buffer]) -> asyncio.Future[memoryview]:
        assert (api_key, api_version) == (InternalKey.RELAY, 0)
        future: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        if self.is_busy:
            future.set_exception(PeerBusy("busy", was_sent=False))
            return future
        self.asked.append(RelayRequest.decode(memoryview(b"".join(body))))
        self.answers.append(future)
        return future

    def on_lost(self, call: Callable[[], None]) -> Callable[[], None]:
        self._lost.append(call)
        return lambda: None

    def close(self) -> None:
        self.cut(was_sent=True)

    def cut(self, *, was_sent: bool) -> None:
        if not self.is_closed:
            self.is_closed = True
            for future in self.answers:
                if not future.done():
                    future.set_exception(PeerLost("cut", was_sent=was_sent))
            for each in self._lost:
                each()

    def respond(self, number: int, response: RelayResponse | ErrorResponse) -> None:
        self.answers[number].set_result(memoryview(b"".join(response.encode())))


def relayed() -> tuple[FakePeer, RelayedConnection]:
    peer = FakePeer()
    return peer, RelayedConnection("b1", cast(Peer, peer))


def lost(future: asyncio.Future[memoryview]) -> bool:
    """Return whether the lost request may have arrived."""
    error = future.exception()
    assert isinstance(error, PeerLost)
    return error.was_sent


OK = RelayResponse(ErrorCode.NONE, body=b"fine")


async def test_calls_are_wrapped_and_answers_unwrapped() -> None:
    (peer, way) = relayed()
    large = bytes(10_000)
    first, second = way.call(1, 13, [b"a", large, b"b"]), way.call(10002, 0, [b"c"])
    assert [(asked.to, asked.api_key, asked.api_version) for asked in peer.asked] == [
        ("b1", 1, 13),
        ("b1", 10002, 0),
    ]
    assert [b"".join(bytes(each) for each in asked.body) for asked in peer.asked] == [b"a" + large + b"b", b"c"]
    assert way.bytes_under_way == len(large) + 3
    peer.respond(1, OK)
    peer.respond(0, RelayResponse(ErrorCode.NONE, body=large))
    assert (bytes(await second), bytes(await first)) == (b"fine", large)
    assert way.bytes_under_way == 0


async def test_the_first_error_ends_it_and_each_call_hears_what_became_of_it() -> None:
    (peer, way) = relayed()
    notified: list[bool] = []
    way.on_lost(lambda: notified.append(way.is_up))
    calls = [way.call(0, 13, [b"x"]) for _ in range(4)]
    peer.respond(0, OK)
    peer.respond(1, RelayResponse(ErrorCode.NOT_LEADER_OR_FOLLOWER, "b1 is gone", was_sent=True))
    await asyncio.sleep(0)
    assert notified == [False]
    assert lost(way.call(0, 13, [b"late"])) is False
    assert len(peer.asked) == 4, "nothing more goes this way"
    peer.respond(2, RelayResponse(ErrorCode.NOT_LEADER_OR_FOLLOWER, "not passed on"))
    await asyncio.sleep(0)
    assert not peer.is_closed
    peer.respond(3, RelayResponse(ErrorCode.NOT_LEADER_OR_FOLLOWER, "not passed on"))
    await asyncio.wait(calls)
    assert [bytes(calls[0].result()), *map(lost, calls[1:])] == [b"fine", True, False, False]
    assert peer.is_closed
    assert notified == [False]


async def test_one_that_never_says_what_became_of_the_others_is_given_up() -> None:
    (peer, way) = relayed()
    calls = [way.call(0, 13, [b"x"]) for _ in range(2)]
    peer.respond(0, RelayResponse(ErrorCode.NOT_LEADER_OR_FOLLOWER, "", was_sent=False))
    await asyncio.sleep(LAST_RESPONSES_S / 2)
    assert not calls[1].done()
    await asyncio.sleep(LAST_RESPONSES_S)
    assert [lost(each) for each in calls] == [False, True]


@pytest.mark.parametrize("was_sent", [True, False])
async def test_a_broken_connection_to_the_process_between(was_sent: bool) -> None:
    (peer, way) = relayed()
    call = way.call(0, 13, [b"x"])
    notified: list[str] = []
    way.on_lost(lambda: notified.append(way.why))
    peer.cut(was_sent=was_sent)
    await asyncio.wait([call])
    assert (lost(call), notified, way.is_up, way.was_closed) == (was_sent, ["p2: cut"], False, False)
    way.on_lost(lambda: notified.append("at once"))
    assert notified[1:] == ["at once"]


async def test_busy_is_known_before_the_next_call_and_ends_nothing() -> None:
    (peer, way) = relayed()
    first = way.call(0, 13, [bytes(BYTES_MAX)])
    refused = way.call(0, 13, [b"x"])
    assert isinstance(refused.exception(), PeerBusy)
    peer.respond(0, OK)
    await first
    peer.is_busy = True
    assert isinstance(way.call(0, 13, [b"x"]).exception(), PeerBusy)
    peer.is_busy = False
    last = way.call(0, 13, [b"x"])
    peer.respond(1, OK)
    assert bytes(await last) == b"fine"
    assert way.is_up


async def test_retired_it_closes_with_its_last_answer_and_tells_nobody() -> None:
    (peer, way) = relayed()
    notified: list[str] = []
    way.on_lost(lambda: notified.append("lost"))
    call = way.call(0, 13, [b"x"])
    way.retire()
    assert lost(way.call(0, 13, [b"late"])) is False
    await asyncio.sleep(10 * LAST_RESPONSES_S)
    assert not peer.is_closed, "a slow flush takes its time"
    peer.respond(0, OK)
    assert bytes(await call) == b"fine"
    await asyncio.sleep(0)
    assert peer.is_closed
    assert notified == []


@pytest.mark.parametrize(
    ("response", "was_sent"),
    [
        (ErrorResponse(ErrorCode.UNSUPPORTED_VERSION, "no such API"), False),
        (ErrorResponse(ErrorCode.NONE, "garbage"), True),
    ],
)
async def test_a_process_that_cannot_relay(response: ErrorResponse, was_sent: bool) -> None:
    """One of an earlier version has passed nothing on; of what cannot be read nothing is known."""

    (peer, way) = relayed()
    call = way.call(0, 13, [b"x"])
    peer.respond(0, response)
    await asyncio.wait([call])
    assert lost(call) is was_sent
    assert not way.is_up


async def test_closed_by_its_owner() -> None:
    (peer, way) = relayed()
    call = way.call(0, 13, [b"x"])
    way.close()
    way.close()
    await asyncio.wait([call])
    assert (lost(call), way.was_closed, peer.is_closed) == (True, True, True)
