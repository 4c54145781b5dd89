"""Questions to brokers that go out together: requests shared, slow partitions, brokers of an earlier version."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.rpc.api_keys import InternalKey
from bmq.core.rpc.messages.broker import (
    QUESTIONS_MAX,
    AskPartitionsRequest,
    AskPartitionsResponse,
    AskRequest,
    AskResponse,
    OwnerAnswer,
    Question,
)
from bmq.core.rpc.peers import PeerLost
from bmq.core.rpc.server import InternalCall
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import ListOffsetsRequest
from bmq.proxy.handlers import list_offsets
from bmq.proxy.routing.batched_queries import LOST_S, SINGLES_MAX, TOGETHER_MAX, WAIT_S, BatchedQueries
from tests.harness.fakes import member, request_of
from tests.harness.loop_stops import is_short, loop_stops
from tests.harness.waiting import now
from tests.unit.proxy.cluster import Cluster, cluster, plain

TOPIC = uuid.UUID(int=1)
LATENCY_S = 0.001
PATIENCE_S = 30.0
B1 = member("b1")


class Broker:
    """An ``Asker``.  A partition's end is ten times its number; one of ``slow`` is answered ``opens_at``."""

    def __init__(self) -> None:
        self.is_earlier = False
        self.slow: set[int] = set()
        self.opens_at = 0.0
        self.together: list[int] = []  # questions in each request
        self.singles: list[int] = []
        self.lost = 0  # requests about many partitions that are lost next
        self.under_way: Counter[int] = Counter()  # requests, by API
        self.most: Counter[int] = Counter()
        self.answers: list[OwnerAnswer] | None = None

    async def ask(self, member: Any, message: Any, timeout_s: float) -> Any:
        self.under_way[message.KEY] += 1
        self.most |= self.under_way
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.sleep(LATENCY_S)
                return await (self._single(message) if isinstance(message, AskRequest) else self._many(message))
        finally:
            self.under_way[message.KEY] -= 1

    async def _single(self, message: AskRequest) -> AskResponse:
        self.singles.append(message.partition)
        if message.partition in self.slow:
            await asyncio.sleep(self.opens_at - now())
        return AskResponse(ErrorCode.NONE, "", ends(message.partition))

    async def _many(self, message: AskPartitionsRequest) -> AskPartitionsResponse:
        self.together.append(len(message.questions))
        if self.is_earlier:
            raise RequestError(ErrorCode.UNSUPPORTED_VERSION, "no such API")
        if self.lost:
            self.lost -= 1
            raise PeerLost("cut", was_sent=True)
        if self.answers is not None:
            return AskPartitionsResponse(ErrorCode.NONE, "", self.answers)
        slow = self.slow if now() < self.opens_at else set()
        if any(each.partition in slow for each in message.questions):
            await asyncio.sleep(message.wait_ms / 1000)
        answers = [
            OwnerAnswer(ErrorCode.REQUEST_TIMED_OUT, -1)
            if each.partition in slow
            else OwnerAnswer(ErrorCode.NONE, 4, *ends(each.partition))
            for each in message.questions
        ]
        return AskPartitionsResponse(ErrorCode.NONE, "", answers)


def ends(partition: int) -> tuple[int, int, int, int]:
    return 1, 0, 10 * partition, 10 * partition


@asynccontextmanager
async def batching() -> AsyncIterator[tuple[Broker, BatchedQueries]]:
    broker = Broker()
    questions = BatchedQueries(broker)
    yield broker, questions
    await questions.close()


async def ask(questions: BatchedQueries, partition: int, question: Question = Question.ENDS) -> AskResponse:
    message = AskRequest(TOPIC, partition, question)
    return await questions.ask(B1, message, PATIENCE_S)


async def ask_all(questions: BatchedQueries, count: int) -> list[AskResponse]:
    return await asyncio.gather(*(ask(questions, partition) for partition in range(count)))


async def test_questions_of_one_turn_are_one_request() -> None:
    async with batching() as (broker, questions):
        found = await ask_all(questions, 300)
        assert [each.values for each in found] == [ends(partition) for partition in range(300)]
        assert (broker.together, broker.singles) == ([300], [])


async def test_a_lone_question_waits_at_the_broker() -> None:
    """One request, however long it takes: a search in storage is not begun twice."""

    async with batching() as (broker, questions):
        broker.slow, broker.opens_at = {7}, 3.0
        assert (await ask(questions, 7)).values == ends(7)
        assert (broker.together, broker.singles) == ([], [7])


@pytest.mark.parametrize("question", sorted(set(Question) - {Question.ENDS}))
async def test_a_question_with_an_effect_is_a_request_of_its_own(question: Question) -> None:
    async with batching() as (broker, questions):
        await asyncio.gather(*(ask(questions, partition, question) for partition in range(3)))
        is_alone = question in (Question.DELETE_BEFORE, Question.CONFIRM_END)
        assert (broker.together, len(broker.singles)) == (([], 3) if is_alone else ([3], 0))


@pytest.mark.slow
async def test_requests_are_bounded() -> None:
    async with batching() as (broker, questions):
        count = 3 * QUESTIONS_MAX + 7
        found = await ask_all(questions, count)
        assert [each.values for each in found] == [ends(partition) for partition in range(count)]
        assert max(broker.together) == QUESTIONS_MAX
        assert sum(broker.together) == count
        assert broker.most[InternalKey.ASK_PARTITIONS] == TOGETHER_MAX


async def test_a_slow_partition_does_not_hold_the_others() -> None:
    async with batching() as (broker, questions):
        broker.slow, broker.opens_at = {3}, 4.0
        took: dict[int, float] = {}

        async def one(partition: int) -> None:
            assert (await ask(questions, partition)).values == ends(partition)
            took[partition] = now()

        await asyncio.gather(*map(one, range(100)))
        assert max(at for partition, at in took.items() if partition != 3) < WAIT_S + 0.01
        assert took[3] == pytest.approx(4.0, abs=0.01)
        assert (broker.together, broker.singles) == ([100], [3])


async def test_many_slow_partitions_are_asked_again_together() -> None:
    """All places of single questions are taken by partitions that never open: the others are answered all the same."""

    async with batching() as (broker, questions):
        count = 3 * SINGLES_MAX
        broker.slow, broker.opens_at = set(range(count)), 1e9
        asked = [asyncio.ensure_future(ask(questions, partition)) for partition in range(count)]
        await asyncio.sleep(2.0)
        assert broker.most[InternalKey.ASK] == SINGLES_MAX
        stuck = set(broker.singles)
        opened = next(iter(set(range(count)) - stuck))
        broker.slow.discard(opened)
        await asyncio.sleep(1.0)
        assert [number for number, each in enumerate(asked) if each.done()] == [opened]
        broker.slow = stuck
        await asyncio.sleep(1.0)
        assert {number for number, each in enumerate(asked) if not each.done()} == stuck
        found = await asyncio.gather(*asked, return_exceptions=True)
        late = [each for each in found if isinstance(each, RequestError)]
        assert {each.code for each in late} == {ErrorCode.REQUEST_TIMED_OUT}
        assert len(late) == SINGLES_MAX
        assert now() == pytest.approx(PATIENCE_S, abs=0.1)


@pytest.mark.slow
async def test_a_broker_of_an_earlier_version_is_asked_one_by_one() -> None:
    async with batching() as (broker, questions):
        broker.is_earlier = True
        found = await ask_all(questions, 1_000)
        assert [each.values for each in found] == [ends(partition) for partition in range(1_000)]
        await ask_all(questions, 10)
        assert len(broker.together) == 1, "it is remembered"
        assert sorted(broker.singles) == sorted([*range(1_000), *range(10)])
        assert broker.most[InternalKey.ASK] == SINGLES_MAX


async def test_a_lost_request_fails_its_questions_and_the_next_go_one_by_one() -> None:
    """A relay of an earlier version closes the connection over a request that it does not know."""

    async with batching() as (broker, questions):
        broker.lost = 1
        found = await asyncio.gather(*(ask(questions, number) for number in range(10)), return_exceptions=True)
        assert [each.code for each in found if isinstance(each, RequestError)] == 10 * [
            ErrorCode.NOT_LEADER_OR_FOLLOWER
        ]
        await ask_all(questions, 100)
        assert (len(broker.together), len(broker.singles)) == (1, 100)
        await asyncio.sleep(LOST_S)
        await ask_all(questions, 100)
        assert (len(broker.together), len(broker.singles)) == (2, 100)


@pytest.mark.parametrize(
    ("answers", "codes"),
    [
        (
            [OwnerAnswer(ErrorCode.NOT_LEADER_OR_FOLLOWER, 0), OwnerAnswer(12345, 0)],
            ["NOT_LEADER_OR_FOLLOWER", "UNKNOWN_SERVER_ERROR"],
        ),
        ([OwnerAnswer(ErrorCode.NONE, 1, 5)], 2 * ["UNKNOWN_SERVER_ERROR"]),
        ([], 2 * ["UNKNOWN_SERVER_ERROR"]),
    ],
)
async def test_errors_reach_their_callers(answers: list[OwnerAnswer], codes: list[str]) -> None:
    async with batching() as (broker, questions):
        broker.answers = answers
        found = await asyncio.gather(*(ask(questions, number) for number in range(2)), return_exceptions=True)
        assert [each.code.name for each in found if isinstance(each, RequestError)] == codes


async def test_a_cancelled_question_is_not_sent() -> None:
    async with batching() as (broker, questions):
        asked = [asyncio.ensure_future(ask(questions, number)) for number in range(4)]
        await asyncio.sleep(0)
        asked[1].cancel()
        asked[2].cancel()
        await asyncio.gather(asked[0], asked[3])
        assert broker.together == [2]


async def test_closing_cancels_questions_in_flight() -> None:
    async with batching() as (broker, questions):
        broker.slow, broker.opens_at = {0}, 1e9
        asked = [asyncio.ensure_future(ask(questions, number)) for number in range(4)]
        await asyncio.sleep(2 * WAIT_S)
        await questions.close()
        assert [each.done() for each in asked] == [False, True, True, True]
        assert not +broker.under_way
        asked[0].cancel()


# --------------------------------------------------------------------------------------------------- with real brokers


async def list_ends(world: Cluster, partitions: int) -> list[Any]:
    Topic = ListOffsetsRequest.ListOffsetsTopic
    asked = [
        Topic.ListOffsetsPartition(partition_index=number, current_leader_epoch=-1, timestamp=-1)
        for number in range(partitions)
    ]
    topics = [Topic(name="orders", partitions=asked)]
    message = ListOffsetsRequest(version=7, replica_id=-1, isolation_level=0, topics=topics)
    request = request_of(ApiKey.LIST_OFFSETS, 7)
    (topic,) = (await list_offsets.handle(world.scopes, request, message)).topics
    return list(topic.partitions)


@pytest.mark.slow
@pytest.mark.parametrize("is_earlier", [False, True])
async def test_list_offsets_of_two_brokers(is_earlier: bool) -> None:
    """b2 may be of an earlier version."""

    async with cluster(partitions=40) as world:
        for partition in range(20, 40):
            world.move(partition, "b2")
        if is_earlier:
            del world.broker("b2").endpoint._apis[InternalKey.ASK_PARTITIONS]
        for partition in (5, 25):
            assert (await world.send(plain(), partition)).error_code == 0
        found = await list_ends(world, 40)
        assert [each.error_code for each in found] == 40 * [0]
        assert [each.partition_index for each in found if each.offset == 1] == [5, 25]
        assert world.network.asked[InternalKey.ASK] == (20 if is_earlier else 0)
        assert world.network.asked[InternalKey.ASK_PARTITIONS] == 2


async def test_a_partition_that_is_not_open_holds_up_only_itself() -> None:
    async with cluster(partitions=10) as world:
        await list_ends(world, 10)
        world.broker("b1").assigned.withdraw(world.key(4))
        began = now()
        asked = asyncio.ensure_future(list_ends(world, 10))
        others = [await (await world.owners.wait(world.key(n), 1)).ends() for n in range(10) if n != 4]
        assert len(others) == 9
        assert now() - began < 1.0
        await asyncio.sleep(1.0)
        assert not asked.done()
        world.open(4, "b1")
        assert [each.error_code for each in await asked] == 10 * [0]


@pytest.mark.slow
async def test_list_offsets_of_many_partitions_goes_in_turns() -> None:
    """Fewer than a request may name: a turn takes as long with all of them."""
    count = 4_000

    async with cluster(partitions=1) as world:
        world.topic = replace(world.topic, partitions=count)
        world.catalog.put("orders", world.topic)
        world.view.owners.update((world.key(number), "b1") for number in range(count))

        def respond(body: memoryview, call: InternalCall) -> Any:
            asked = AskPartitionsRequest.decode(body).questions
            return AskPartitionsResponse(
                ErrorCode.NONE, "", [OwnerAnswer(0, 4, 1, 0, each.partition, each.partition) for each in asked]
            ).encode()

        apis = world.broker("b1").endpoint._apis
        apis[InternalKey.ASK_PARTITIONS] = apis[InternalKey.ASK_PARTITIONS]._replace(handler=respond)
        with loop_stops() as stops:
            found = await list_ends(world, count)
        assert [each.offset for each in found] == list(range(count))
        assert is_short(stops.longest_s), stops.longest_s
        assert world.network.asked[InternalKey.ASK_PARTITIONS] <= count / 100
