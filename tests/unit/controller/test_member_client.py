"""The leader's reading of members' responses, and of missing ones."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any, TypeVar, cast

import pytest

from bmq.controller.file_shares import OpenFileReport
from bmq.controller.member_client import PINGS, PINGS_MAX, SHARE_S, PeerMemberClient
from bmq.controller.planning.partition_load import Measured
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.rpc.api_keys import InternalKey
from bmq.core.rpc.messages.broker import LoadResponse, OpenFilesRequest, OpenFilesResponse, PartitionLoad
from bmq.core.rpc.messages.member import LeaveResponse, PingResponse
from bmq.core.rpc.peers import Evidence, PeerLost, Peers
from bmq.meta.cluster.member import Member

pytestmark = pytest.mark.slow

T = TypeVar("T")
MEMBER = Member(incarnation="a", roles=frozenset({"broker"}))
LOST = PeerLost("refused", was_sent=False)


class FakePeers:
    """Gives or raises one of ``answers`` a call."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.keys: list[int] = []
        self.messages: list[object] = []

    async def probe(self, member: Member, timeout_s: float) -> object:
        return self._next(InternalKey.PING)

    async def ask(self, member: Member, message: Any, timeout_s: float) -> object:
        self.messages.append(message)
        return self._next(message.KEY)

    def _next(self, api_key: int) -> object:
        self.keys.append(api_key)
        response = self.answers.pop(0)
        if isinstance(response, Exception):
            raise response
        return response


def asking(peers: FakePeers) -> PeerMemberClient:
    return PeerMemberClient(cast(Peers, peers))


async def test_one_answer_of_two_pings_is_life_even_if_it_is_a_refusal() -> None:
    peers = FakePeers(LOST, PingResponse(is_serving=False))
    assert await asking(peers).probe(MEMBER, 1.0) is Evidence.LIFE
    assert len(peers.keys) == PINGS


async def test_two_pings_without_an_answer_are_silence() -> None:
    peers = FakePeers(LOST, LOST)
    assert await asking(peers).probe(MEMBER, 1.0) is Evidence.SILENCE
    assert peers.keys == [InternalKey.PING] * PINGS


@pytest.mark.parametrize("evidence", [Evidence.NONE, Evidence.LIFE])
async def test_without_a_descriptor_nothing_is_shown_and_a_refusal_by_the_member_itself_is_life(
    evidence: Evidence,
) -> None:
    peers = FakePeers(LOST, PeerLost("Too many open files", was_sent=False, evidence=evidence))
    assert await asking(peers).probe(MEMBER, 1.0) is evidence
    assert len(peers.keys) == PINGS, "it is not asked again at once: the next try would fail likewise"


@pytest.mark.parametrize("evidence", [Evidence.REFUSED, Evidence.REPLACED])
async def test_the_last_failure_says_what_is_there_instead(evidence: Evidence) -> None:
    peers = FakePeers(LOST, PeerLost("not here", was_sent=False, evidence=evidence))
    assert await asking(peers).probe(MEMBER, 1.0) is evidence


class HeldUpPeers(FakePeers):
    """The leader's loop is stopped during its first ``stops`` pings: their time is over by then."""

    def __init__(self, stops: int, *answers: object) -> None:
        super().__init__(*answers)
        self.stops = stops

    async def probe(self, member: Member, timeout_s: float) -> object:
        if self.stops:
            self.stops -= 1
            time.sleep(timeout_s)  # noqa: ASYNC251 - that is the stop
        await asyncio.sleep(0)
        return await super().probe(member, timeout_s)


@pytest.mark.loops("asyncio")
@pytest.mark.parametrize(
    ("stops", "answers", "evidence"),
    [
        (2, [LOST, LOST, PingResponse()], Evidence.LIFE),
        (1, [LOST, LOST, PingResponse()], Evidence.LIFE),
        (2, [LOST, LOST, LOST, LOST], Evidence.SILENCE),
        (PINGS_MAX, [LOST] * PINGS_MAX, Evidence.SILENCE),
    ],
)
async def test_a_ping_during_a_stop_of_our_own_does_not_count(
    stops: int, answers: list[object], evidence: Evidence
) -> None:
    peers = HeldUpPeers(stops, *answers)
    assert await asking(peers).probe(MEMBER, 0.4) is evidence
    assert not peers.answers, "so many pings"


async def test_a_brokers_load_is_decoded() -> None:
    topic = uuid.UUID(int=1)
    peers = FakePeers(LoadResponse(partitions=(PartitionLoad(topic, 2, 10, 20, 3),)))
    assert await asking(peers).load(MEMBER) == [Measured(PartitionKey(topic, 2), 10, 20, 3)]


async def test_a_brokers_report_of_open_files_is_decoded() -> None:
    peers = FakePeers(OpenFilesResponse(held=1, closing=2, waiting=3, refused=4, limit_max=5))
    found = await asking(peers).open_files(MEMBER, 7)
    assert found == OpenFileReport(held=1, closing=2, waiting=3, refused=4, limit_max=5)
    assert peers.messages == [OpenFilesRequest(7, int(SHARE_S * 1000))]


@pytest.mark.parametrize("error", [LOST, TimeoutError(), RequestError(ErrorCode.UNSUPPORTED_VERSION, "")])
async def test_a_broker_without_the_report_has_no_open_files_to_share(error: Exception) -> None:
    peers = FakePeers(error)
    assert await asking(peers).open_files(MEMBER, None) is None
    assert peers.messages == [OpenFilesRequest(-1, 0)]


@pytest.mark.parametrize("error", [LOST, TimeoutError(), RequestError(ErrorCode.UNSUPPORTED_VERSION, "")])
async def test_a_broker_whose_load_cannot_be_read_has_no_load(error: Exception) -> None:
    assert await asking(FakePeers(error)).load(MEMBER) is None


async def test_a_drain_request_without_an_answer_is_an_error() -> None:
    peers = FakePeers(LeaveResponse(), LOST)
    await asking(peers).leave(MEMBER)
    assert peers.keys == [InternalKey.LEAVE]
    with pytest.raises(RequestError) as caught:
        await asking(peers).leave(MEMBER)
    assert caught.value.code is ErrorCode.BROKER_NOT_AVAILABLE
