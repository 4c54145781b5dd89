"""A job's request finds the partition's owner, or a refusal that says what to do."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest

from bmq.console.operations import RoundFacts
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.rpc.messages.broker import (
    BeginCleaningRequest,
    BeginCleaningResponse,
    SwapCleanedRequest,
    SwapCleanedResponse,
)
from bmq.core.rpc.peers import PeerLost
from bmq.meta.cluster.member import BROKER, Member
from bmq.server.queries.job_rounds import RESPONSE_S, JobRounds, ask_owner
from tests.unit.server.queries.joined import catalog_of, joined, member, topic

TOPIC = uuid.UUID(int=7)
KEY = PartitionKey(TOPIC, 1)
REQUEST = BeginCleaningRequest(TOPIC, 1, "j")
RESPONSE = BeginCleaningResponse(
    start=5, first_dirty=6, end=9, now_ms=70, swap_until_ms=80, delete_retention_ms=4, segment_bytes=100,
    index_interval_bytes=10, clean_bytes=30, dirty_bytes=50, hold_ms=60, aborted=b"a", producers=b"p",
)  # fmt: skip


class Cluster:
    """A cluster in which ``owner`` owns the partition, and responds with ``response`` or raises it."""

    def __init__(self, owner: str, response: Any = RESPONSE) -> None:
        self.asked: list[tuple[str, object, float]] = []
        self._response = response
        self.joined = joined(member("own", BROKER), member("other", BROKER), ask=self.ask, owners={KEY: owner})

    async def ask(self, member: Member, request: object, timeout_s: float) -> Any:
        self.asked.append((member.incarnation, request, timeout_s))
        if isinstance(self._response, Exception):
            raise self._response
        return self._response


@pytest.mark.parametrize("owner", ["own", "other"])
async def test_the_owner_is_asked_also_if_it_is_this_process(owner: str) -> None:
    cluster = Cluster(owner)
    assert await ask_owner(cluster.joined, KEY, REQUEST) is RESPONSE
    assert cluster.asked == [(owner, REQUEST, RESPONSE_S)]


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


async def test_a_round_of_an_existing_partition_is_planned_by_its_owner() -> None:
    cluster = Cluster("other")
    rounds = JobRounds(cluster.joined, catalog_of(topic("orders", TOPIC, 2)))
    facts = await rounds.begin_cleaning("orders", 1, "j")
    assert facts == {
        "topic_id": str(TOPIC), "partition": 1, "start": 5, "first_dirty": 6, "end": 9, "now_ms": 70,
        "swap_until_ms": 80, "delete_retention_ms": 4, "segment_bytes": 100, "index_interval_bytes": 10,
        "clean_bytes": 30, "dirty_bytes": 50, "hold_ms": 60, "aborted": "YQ==", "producers": "cA==",
    }  # fmt: skip
    assert facts.keys() == RoundFacts.__annotations__.keys()
    assert cluster.asked == [("other", REQUEST, RESPONSE_S)]
    for wrong in (("orders", 2), ("nobody", 0)):
        with pytest.raises(RequestError) as caught:
            await rounds.begin_cleaning(*wrong, "j")
        assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_cleaned_segments_are_swapped_by_the_owner_and_the_hold_ends_without_one() -> None:
    cluster = Cluster("other", SwapCleanedResponse(swapped=3, expired=1))
    rounds = JobRounds(cluster.joined, catalog_of(topic("orders", TOPIC, 2)))
    assert await rounds.swap_cleaned("orders", 1, "j", 9, 70, []) == {"swapped": 3, "expired": 1, "stopped": None}
    await rounds.end_cleaning("orders", 1, "j")
    swap = SwapCleanedRequest(topic_id=TOPIC, partition=1, job="j", end=9, swap_until_ms=70, groups=(), ends_hold=False)
    ends = replace(swap, end=-1, swap_until_ms=-1, ends_hold=True)
    assert [request for _, request, _ in cluster.asked] == [swap, ends]
