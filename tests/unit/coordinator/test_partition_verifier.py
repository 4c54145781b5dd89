"""Questions of partition owners to coordinators: joined by process, bounded, and a code for each outcome."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from bmq.coordinator import partition_verifier
from bmq.coordinator.partition_verifier import VERSION, PartitionVerifier
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.rpc.message_fields import Unencoded, encoded
from bmq.core.rpc.messages.coordinator import ForwardResponse
from bmq.core.rpc.peers import PeerLost
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.codec import decode_request
from bmq.core.wire.codec_client import encode_response_body
from bmq.core.wire.messages import AddPartitionsToTxnResponse
from bmq.meta.catalog import Topic
from bmq.meta.cluster.view import ShardOwner
from bmq.meta.group_placement import shard_of
from bmq.meta.shard_kinds import TRANSACTIONS, ShardId
from tests.harness.fakes import FakeCatalog, FakeView, member

TOPIC, HIDDEN = UUID(int=1), UUID(int=2)
Transaction = tuple[str, int, int, bool, dict[str, list[int]]]


class View(FakeView):
    def __init__(self) -> None:
        super().__init__("own")
        self.owners_of_shards: dict[ShardId, ShardOwner] = {}

    def shard(self, shard: ShardId) -> ShardOwner | None:
        return self.owners_of_shards.get(shard)

    def give(self, transactional_id: str, incarnation: str, number: int) -> ShardId:
        shard = ShardId(TRANSACTIONS, shard_of(transactional_id, 50))
        self.owners_of_shards[shard] = ShardOwner(incarnation, number)
        return shard


class World:
    """A view, a catalog, and coordinators that answer by ``respond``; ``asked`` has the requests."""

    def __init__(self) -> None:
        self.view = View()
        self.catalog = FakeCatalog()
        self.catalog.put("t", Topic(name="t", topic_id=TOPIC, partitions=4))
        self.catalog.put(TRANSACTIONS.topic, Topic(name=TRANSACTIONS.topic, topic_id=UUID(int=9), partitions=50))
        for name in ("own", "a", "b"):
            self.view.members[name] = member(name)
        self.asked: list[tuple[str, tuple[tuple[int, int], ...], list[Transaction]]] = []
        self.respond: Callable[[str, int], ErrorCode] = lambda name, partition: ErrorCode.NONE
        self.failure: Exception | None = None
        self.error = ErrorCode.NONE
        self.verify = PartitionVerifier(self.view, self.catalog, self)

    async def ask(self, to: Any, request: Any, timeout_s: float) -> Any:
        assert (request.api_key, request.api_version) == (ApiKey.ADD_PARTITIONS_TO_TXN, VERSION)
        body = memoryview(encoded(request.body))
        message = decode_request(request.api_key, request.api_version, body)
        found = [
            (
                each.transactional_id,
                each.producer_id,
                each.producer_epoch,
                each.verify_only,
                {topic.name: list(topic.partitions) for topic in each.topics},
            )
            for each in message.transactions
        ]
        assert dict(request.topic_ids) == {"t": TOPIC}, "the names of the question"
        self.asked.append((to.incarnation, request.ownerships, found))
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        result = AddPartitionsToTxnResponse.AddPartitionsToTxnResult
        topic_class = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
        part = topic_class.AddPartitionsToTxnPartitionResult
        results = [
            result(
                transactional_id=name,
                topic_results=[
                    topic_class(
                        name=topic,
                        results_by_partition=[
                            part(partition_index=index, partition_error_code=self.respond(name, index))
                            for index in partitions
                        ],
                    )
                    for topic, partitions in topics.items()
                ],
            )
            for name, _, _, _, topics in found
        ]
        response = AddPartitionsToTxnResponse(error_code=self.error, results_by_transaction=results)
        sent = Unencoded(response, partial(encode_response_body, response, VERSION))
        if to.incarnation == "own":
            assert isinstance(request.body, Unencoded), "the own process needs no bytes"
            return ForwardResponse(ErrorCode.NONE, "", sent)
        return ForwardResponse(ErrorCode.NONE, "", encoded(sent))

    async def codes(
        self, name: str, *partitions: int, producer: tuple[int, int] = (1, 0), add: bool = False, topic: UUID = TOPIC
    ) -> list[tuple[str, int]]:
        keys = [PartitionKey(topic, number) for number in partitions]
        found = await self.verify(name, *producer, keys, add)
        return [(found[key][0].name, found[key][1]) for key in keys]


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    made = World()
    try:
        yield made
    finally:
        await made.verify.close()


async def test_questions_of_one_turn_share_a_request_by_process() -> None:
    async with world() as w:
        shard, other = w.view.give("x", "a", 7), w.view.give("y", "own", 3)
        w.respond = lambda name, partition: ErrorCode.INVALID_TXN_STATE if partition == 2 else ErrorCode.NONE
        found = await asyncio.gather(
            w.codes("x", 0), w.codes("x", 1, 2), w.codes("y", 3, producer=(2, 5), add=True), w.codes("x", 0)
        )
        assert list(found) == [[("NONE", 7)], [("NONE", 7), ("INVALID_TXN_STATE", 7)], [("NONE", 3)], [("NONE", 7)]]
        assert w.asked == [
            ("a", ((shard.code, 7),), [("x", 1, 0, True, {"t": [0, 1, 2]})]),
            ("own", ((other.code, 3),), [("y", 2, 5, False, {"t": [3]})]),
        ]
        assert repr(w.verify) == "<PartitionVerifier processes=0 waiting=0 requests=0>"


async def test_two_questions_about_an_id_that_differ_are_two_requests_in_their_order() -> None:
    async with world() as w:
        w.view.give("x", "a", 7)
        await asyncio.gather(
            w.codes("x", 0), w.codes("x", 0, producer=(1, 1)), w.codes("x", 0, producer=(1, 1), add=True)
        )
        assert [found[0][1:4] for _, _, found in w.asked] == [(1, 0, True), (1, 1, True), (1, 1, False)]


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (PeerLost("away", was_sent=True), "NOT_COORDINATOR"),
        (RequestError(ErrorCode.NOT_COORDINATOR, "moved"), "NOT_COORDINATOR"),
        (RequestError(ErrorCode.UNSUPPORTED_VERSION, "old"), "UNSUPPORTED_VERSION"),
        (TimeoutError(), "REQUEST_TIMED_OUT"),
    ],
)
async def test_each_failure_has_a_code(failure: Exception, code: str) -> None:
    async with world() as w:
        w.view.give("x", "a", 7)
        w.failure = failure
        assert await w.codes("x", 0, 1) == [(code, 0)] * 2


async def test_an_error_of_the_whole_request_is_of_each_question() -> None:
    async with world() as w:
        w.view.give("x", "a", 7)
        w.error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert await w.codes("x", 0) == [("CLUSTER_AUTHORIZATION_FAILED", 0)]


async def test_without_a_coordinator_or_a_topic_nothing_is_asked() -> None:
    async with world() as w:
        assert await w.codes("x", 0) == [("COORDINATOR_NOT_AVAILABLE", 0)]
        w.view.give("x", "gone", 7)
        assert await w.codes("x", 0) == [("COORDINATOR_NOT_AVAILABLE", 0)]
        w.view.give("x", "a", 7)
        assert await w.codes("x", 0, topic=HIDDEN) == [("UNKNOWN_TOPIC_OR_PARTITION", 0)]
        del w.catalog.topics[TRANSACTIONS.topic]
        assert await w.codes("x", 0) == [("COORDINATOR_NOT_AVAILABLE", 0)]
        assert w.asked == []


async def test_a_shard_that_moves_in_the_turn_of_the_question_is_not_asked() -> None:
    async with world() as w:
        w.view.give("x", "a", 7)
        asked = asyncio.create_task(w.codes("x", 0))
        asyncio.get_running_loop().call_soon(w.view.give, "x", "b", 8)
        assert await asked == [("NOT_COORDINATOR", 0)]
        assert w.asked == []


async def test_questions_are_bounded_by_request_and_by_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_verifier, "QUESTIONS_MAX", 2)
    monkeypatch.setattr(partition_verifier, "REQUESTS_MAX", 1)
    monkeypatch.setattr(partition_verifier, "WAITING_MAX", 5)
    async with world() as w:
        w.view.give("x", "a", 7)
        found = await asyncio.gather(*(w.codes("x", 0) for _ in range(6)))
        assert found == [[("NONE", 7)]] * 5 + [[("COORDINATOR_NOT_AVAILABLE", 0)]]
        assert len(w.asked) == 3


async def test_questions_end_with_the_process() -> None:
    async with world() as w:
        w.view.give("x", "a", 7)
        asked = asyncio.create_task(w.codes("x", 0))
        await asyncio.sleep(0)
        await w.verify.close()
        assert await asked == [("NOT_COORDINATOR", 0)]
