"""Questions about many partitions together: answered in their order, in time, and each by itself."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from bmq.broker.partition_queries import ANSWERS, NOT_ANSWERED, answer_questions
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.rpc.messages.broker import ENDS_FLUSHED, OwnerAnswer, PartitionQuestion, Question
from tests.harness.waiting import now

TOPIC = uuid.UUID(int=1)


class Owner:
    """The owner of partition ``number``, whose log ends at that offset; its flushes take ``number`` seconds."""

    def __init__(self, number: int) -> None:
        self._number = number

    async def ends(self) -> tuple[int, ...]:
        return 1, 0, self._number, self._number

    async def flushed_ends(self) -> tuple[int, ...]:
        await asyncio.sleep(self._number)
        return await self.ends()

    async def offset_for_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        return None if timestamp > self._number else (self._number, timestamp)


async def owner_of(topic_id: uuid.UUID, partition: int) -> Any:
    if partition < 0:
        raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "elsewhere")
    return Owner(partition)


def ask(partition: int, question: int, argument: int = 0) -> PartitionQuestion:
    return PartitionQuestion(TOPIC, partition, question, argument)


def ends(partition: int) -> OwnerAnswer:
    return OwnerAnswer(ErrorCode.NONE, 4, 1, 0, partition, partition)


def test_every_question_has_an_answer() -> None:
    assert set(ANSWERS) == set(Question)


async def test_answers_come_in_the_order_of_the_questions_and_each_fails_by_itself() -> None:
    questions = [
        ask(2, Question.ENDS, ENDS_FLUSHED),
        ask(-1, Question.ENDS),
        ask(3, Question.ENDS),
        ask(4, Question.TIMESTAMP, 3),
        ask(4, Question.TIMESTAMP, 5),
        ask(4, Question.CONFIRM_END),
        ask(4, 77),
    ]
    assert await answer_questions(owner_of, questions, 5.0) == [
        ends(2),
        OwnerAnswer(ErrorCode.NOT_LEADER_OR_FOLLOWER, 0),
        ends(3),
        OwnerAnswer(ErrorCode.NONE, 2, 4, 3),
        OwnerAnswer(ErrorCode.NONE, 0),
        OwnerAnswer(ErrorCode.INVALID_REQUEST, 0),
        OwnerAnswer(ErrorCode.INVALID_REQUEST, 0),
    ]
    assert now() == 2.0


async def test_a_question_that_takes_too_long_is_not_answered_and_delays_no_other() -> None:
    questions = [ask(number, Question.ENDS, ENDS_FLUSHED) for number in (9, 1, 2)]
    assert await answer_questions(owner_of, questions, 3.0) == [NOT_ANSWERED, ends(1), ends(2)]
    assert now() == 3.0


async def test_a_caller_that_is_cancelled_leaves_no_question_under_way() -> None:
    asking = asyncio.ensure_future(answer_questions(owner_of, [ask(9, Question.ENDS, ENDS_FLUSHED)], 60.0))
    await asyncio.sleep(1.0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert asyncio.all_tasks() == {asyncio.current_task()}
