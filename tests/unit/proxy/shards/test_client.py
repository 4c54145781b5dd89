"""Requests to a group's coordinator: within this process or forwarded, and what is known when there is no response."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bmq.coordinator.api import ClientInfo
from bmq.core.errors import ErrorCode
from bmq.core.net.request import Buffer
from bmq.core.rpc.messages.coordinator import ForwardRequest, ForwardResponse
from bmq.core.rpc.peers import PeerLost
from bmq.core.wire import messages as m
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.codec import encode_response
from bmq.meta.cluster.member import Member
from bmq.meta.cluster.view import ShardOwner
from bmq.meta.shard_kinds import GROUPS, ShardId
from bmq.proxy.shards.client import CALL_TIMEOUT_S, EntryRefused, Forwards, NoResponse
from tests.harness.fakes import FakeView
from tests.harness.waiting import now

CLIENT = ClientInfo("client-1", "/10.0.0.1")


def shards(*numbers: int) -> list[ShardId]:
    return [ShardId(GROUPS, number) for number in numbers]


HERE, THERE = ShardOwner("here", 4), ShardOwner("there", 9)
REQUEST: Any = m.HeartbeatRequest(version=4, group_id="g", generation_id=1, member_id="m", group_instance_id=None)
Reply = Callable[[], Any]


def api(*, may_park: bool = False, is_repeatable: bool = False) -> Any:
    return SimpleNamespace(
        key=ApiKey.HEARTBEAT,
        may_park=may_park,
        is_repeatable=is_repeatable,
        call=lambda coordinator, request, client: coordinator(request),
    )


def served(code: int = 0) -> bytes:
    """Return a forwarded response to the heartbeat."""
    response = m.HeartbeatResponse(throttle_time_ms=0, error_code=code)
    body = b"".join(map(bytes, encode_response(ApiKey.HEARTBEAT, 4, 0, response)))[5:]
    return forwarded(ErrorCode.NONE, body=body)


def forwarded(error: ErrorCode, message: str = "", body: bytes = b"") -> bytes:
    return b"".join(map(bytes, ForwardResponse(error, message, body).encode()))


class FakePeers:
    """A connection to ``there`` that responds by ``reply``."""

    def __init__(self, reply: Reply) -> None:
        self.sent: list[ForwardRequest] = []
        self._reply = reply

    def get(self, member: Member, kind: object) -> Any:
        return self

    async def call(self, key: int, version: int, body: Sequence[Buffer]) -> memoryview:
        self.sent.append(ForwardRequest.decode(memoryview(b"".join(map(bytes, body)))))
        reply = self._reply()
        if isinstance(reply, Exception):
            raise reply
        return memoryview(await reply if asyncio.isfuture(reply) else reply)


def forwards(peers: FakePeers, local: Any = None) -> Forwards:
    view = FakeView("here")
    view.join("there")
    view.shards.update({ShardId(GROUPS, 1): THERE, ShardId(GROUPS, 2): HERE})
    return Forwards(view, cast(Any, peers), local)


async def refused(of: Forwards, asked: Any, owner: ShardOwner = THERE) -> EntryRefused:
    with pytest.raises(NoResponse) as caught:
        await of.ask(asked, REQUEST, CLIENT, owner, shards(1))
    return caught.value.refused


async def test_a_request_for_a_group_of_this_process_is_a_call() -> None:
    peers = FakePeers(served)
    of = forwards(peers, local=lambda request: "response")
    assert await of.ask(api(), REQUEST, CLIENT, HERE, shards(2)) == "response"
    assert peers.sent == []


async def test_a_forwarded_request_carries_the_client_and_the_expected_ownerships() -> None:
    peers = FakePeers(lambda: served(25))
    response = await forwards(peers).ask(api(), REQUEST, CLIENT, THERE, shards(1, 2, 1, 7))
    assert response.error_code == 25
    (sent,) = peers.sent
    assert (sent.client_host, sent.client_id) == (CLIENT.host, CLIENT.client_id)
    assert (sent.api_key, sent.api_version) == (ApiKey.HEARTBEAT, 4)
    assert tuple(map(tuple, sent.ownerships)) == ((1, 9), (2, 4)), "each shard once, without those that nobody owns"


async def test_the_principal_goes_along_with_a_request_that_may_create_a_group() -> None:
    peers = FakePeers(lambda: served(25))
    await forwards(peers).ask(api(), REQUEST, CLIENT._replace(principal="User:alice"), THERE, shards(1))
    await forwards(peers).ask(api(), REQUEST, CLIENT, THERE, shards(1))
    assert [each.principal for each in peers.sent] == ["User:alice", ""]


async def test_a_request_to_a_process_that_is_not_a_member_was_not_done() -> None:
    peers = FakePeers(served)
    assert await refused(forwards(peers), api(), ShardOwner("gone", 1)) is EntryRefused.ELSEWHERE
    assert peers.sent == []


@pytest.mark.parametrize(
    ("was_sent", "is_repeatable", "verdict"),
    [
        (False, False, EntryRefused.ELSEWHERE),
        (True, False, EntryRefused.UNKNOWN),
        (True, True, EntryRefused.ELSEWHERE),
    ],
)
async def test_a_request_on_a_lost_connection_is_sent_again_only_if_that_is_safe(
    was_sent: bool, is_repeatable: bool, verdict: EntryRefused
) -> None:
    peers = FakePeers(lambda: PeerLost("cut", was_sent=was_sent))
    assert await refused(forwards(peers), api(is_repeatable=is_repeatable)) is verdict


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        (forwarded(ErrorCode.NOT_COORDINATOR, "moved"), EntryRefused.ELSEWHERE),
        (forwarded(ErrorCode.UNKNOWN_SERVER_ERROR, "a bug"), EntryRefused.UNKNOWN),
        (b"\x7f\xff\xff", EntryRefused.UNKNOWN),
    ],
    ids=["not the coordinator", "another error", "not a response"],
)
async def test_an_error_of_the_other_process_leaves_the_request_undone_or_unknown(
    reply: bytes, verdict: EntryRefused
) -> None:
    assert await refused(forwards(FakePeers(lambda: reply)), api()) is verdict


async def test_a_request_that_does_not_park_has_a_time_out() -> None:
    peers = FakePeers(lambda: asyncio.get_running_loop().create_future())
    assert await refused(forwards(peers), api()) is EntryRefused.UNKNOWN
    assert now() == CALL_TIMEOUT_S


async def test_a_request_that_parks_waits_without_a_time_out() -> None:
    future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    asking = asyncio.ensure_future(
        forwards(FakePeers(lambda: future)).ask(api(may_park=True), REQUEST, CLIENT, THERE, shards(1))
    )
    await asyncio.sleep(100 * CALL_TIMEOUT_S)
    assert not asking.done()
    future.set_result(served())
    assert (await asking).error_code == 0


async def test_a_request_that_parks_is_sent_in_the_step_that_asks() -> None:
    """So a caller that is cancelled before this step sends nothing, and none later: its client may have gone."""
    peers = FakePeers(lambda: asyncio.get_running_loop().create_future())
    asking = asyncio.ensure_future(forwards(peers).ask(api(may_park=True), REQUEST, CLIENT, THERE, shards(1)))
    await asyncio.sleep(0)
    assert len(peers.sent) == 1
    asking.cancel()
    await asyncio.wait((asking,))
    assert asking.cancelled()


async def test_a_drain_ends_the_requests_that_park_and_refuses_further_ones() -> None:
    peers = FakePeers(lambda: asyncio.get_running_loop().create_future())
    of = forwards(peers)
    parked = asyncio.ensure_future(refused(of, api(may_park=True)))
    await asyncio.sleep(1)
    of.drain()
    of.drain()
    assert await parked is EntryRefused.UNKNOWN
    assert await refused(of, api(may_park=True)) is EntryRefused.UNKNOWN
    assert (len(peers.sent), now()) == (1, 1)
    still = FakePeers(served)
    of = forwards(still)
    of.drain()
    assert (await of.ask(api(), REQUEST, CLIENT, THERE, shards(1))).error_code == 0, "others are served to the end"


async def test_waits_that_end_in_the_turn_of_a_response_leave_it_alone() -> None:
    response: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def park(request: Any) -> str:
        return await response

    of = forwards(FakePeers(lambda: b""), park)
    asked = asyncio.ensure_future(of.ask(api(may_park=True), REQUEST, CLIENT, HERE, shards(2)))
    await asyncio.sleep(1)
    response.set_result("answered")
    of.end_waits()
    assert await asked == "answered"
    await asyncio.sleep(1)
