"""A job's request finds the partition's owner, or a refusal that says what to do."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.rpc.messages.broker import BeginCleaningRequest, BeginCleaningResponse
from bmq.core.rpc.peers import PeerLost
from bmq.meta.cluster.member import BROKER, Member
from bmq.server.queries.job_rounds import ANSWER_S, ask_owner

TOPIC = uuid.UUID(int=7)
KEY = PartitionKey(TOPIC, 1)
REQUEST = BeginCleaningRequest(TOPIC, 1, "j")
RESPONSE = BeginCleaningResponse(start=5)


class Cluster:
    """A cluster in which ``owner`` owns the partition, and responds with ``response`` or raises it."""

    def __init__(self, owner: str, response: BeginCleaningResponse | Exception = RESPONSE) -> None:
        self.asked: list[tuple[str, object, float]] = []
        self._response = response
        members = {name: Member(incarnation=name, roles=frozenset({BROKER})) for name in ("own", "other")}
        view = SimpleNamespace(own="own", members=members, owner_of=lambda key: owner if key == KEY else "")
        self.joined: Any = SimpleNamespace(view=view, peers=SimpleNamespace(ask=self.ask))

    async def ask(self, member: Member, request: object, timeout_s: float) -> BeginCleaningResponse:
        self.asked.append((member.incarnation, request, timeout_s))
        if isinstance(self._response, Exception):
            raise self._response
        return self._response


@pytest.mark.parametrize("owner", ["own", "other"])
async def test_the_owner_is_asked_also_if_it_is_this_process(owner: str) -> None:
    cluster = Cluster(owner)
    assert await ask_owner(cluster.joined, KEY, REQUEST) is RESPONSE
    assert cluster.asked == [(owner, REQUEST, ANSWER_S)]


@pytest.mark.parametrize(
    ("owner", "response", "code", "text"),
    [
        ("", RESPONSE, ErrorCode.NOT_LEADER_OR_FOLLOWER, "no owner"),
        ("gone", RESPONSE, ErrorCode.NOT_LEADER_OR_FOLLOWER, "no owner"),
        ("other", PeerLost("cut", was_sent=True), ErrorCode.BROKER_NOT_AVAILABLE, "other: cut"),
        ("other", TimeoutError(), ErrorCode.BROKER_NOT_AVAILABLE, "no response within 120 s"),
        (
            "other",
            RequestError(ErrorCode.UNSUPPORTED_VERSION, "odd"),
            ErrorCode.UNSUPPORTED_VERSION,
            "the owner other is of a version before",
        ),
        ("other", RequestError(ErrorCode.OPERATION_NOT_ATTEMPTED, "not now"), ErrorCode.OPERATION_NOT_ATTEMPTED, "not"),
    ],
)
async def test_a_refusal_says_what_is_wrong(owner: str, response: Any, code: ErrorCode, text: str) -> None:
    with pytest.raises(RequestError) as caught:
        await ask_owner(Cluster(owner, response).joined, KEY, REQUEST)
    assert caught.value.code is code
    assert text in caught.value.message
