"""Answers of partitions' owners to other processes' questions: to one, or to all questions of a request together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

from bmq.broker.partition.owner import PartitionOwner
from bmq.core.aio.eager import start
from bmq.core.aio.tasks import cancel_and_wait
from bmq.core.aio.turns import Turns, next_turn
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.rpc.messages.broker import ASKED_TOGETHER, ENDS_FLUSHED, OwnerAnswer, PartitionQuestion, Question

ANSWERED_A_TURN = 200
"""Questions begun in one turn of the event loop, at 10 to 20 us for a question without reads from storage."""
NOT_ANSWERED = OwnerAnswer(ErrorCode.REQUEST_TIMED_OUT, -1)
FindOwner = Callable[[UUID, int], Awaitable[PartitionOwner]]
"""Returns the owner of a topic's partition once it is open.  Raises RequestError if it is not served here."""


async def answer_questions(
    owner_of: FindOwner, questions: Sequence[PartitionQuestion], wait_s: float
) -> list[OwnerAnswer]:
    """Return an answer to each of ``questions``, in their order: ``NOT_ANSWERED`` if it takes longer than ``wait_s``.

    They are asked concurrently, so one that waits for storage or for its partition to open delays no other.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    turns = Turns(ANSWERED_A_TURN)
    answers = [NOT_ANSWERED] * len(questions)
    waiting: dict[asyncio.Task[OwnerAnswer], int] = {}
    try:
        for number, question in enumerate(questions):
            if turns.is_over():
                await next_turn()
            response = start(_respond(owner_of, question))
            if isinstance(response, asyncio.Task):
                waiting[response] = number
            else:
                answers[number] = response
        if waiting:
            done, _ = await asyncio.wait(waiting, timeout=max(0.0, deadline - loop.time()))
            for task in done:
                answers[waiting.pop(task)] = task.result()
    finally:
        await cancel_and_wait(*waiting)
    return answers


async def _respond(owner_of: FindOwner, asked: PartitionQuestion) -> OwnerAnswer:
    try:
        if asked.question not in ASKED_TOGETHER:
            raise RequestError(ErrorCode.INVALID_REQUEST, f"question {asked.question} has to be asked alone")
        owner = await owner_of(asked.topic_id, asked.partition)
        values = await ANSWERS[Question(asked.question)](owner, asked.argument)
    except RequestError as error:
        return OwnerAnswer(error.code, 0)
    return OwnerAnswer(ErrorCode.NONE, len(values), *values)


async def _ends(owner: PartitionOwner, argument: int) -> tuple[int, ...]:
    return tuple(await (owner.flushed_ends() if argument == ENDS_FLUSHED else owner.ends()))


async def _confirm_end(owner: PartitionOwner, argument: int) -> tuple[int, ...]:
    return tuple(await owner.confirmed_ends())


async def _end_of_epoch(owner: PartitionOwner, argument: int) -> tuple[int, ...]:
    return await owner.end_of_epoch(argument)


async def _max_timestamp(owner: PartitionOwner, argument: int) -> tuple[int, ...]:
    return await owner.offset_of_max_timestamp()


async def _timestamp(owner: PartitionOwner, argument: int) -> tuple[int, ...]:
    """Return (offset, timestamp); empty if there is no such record."""
    return await owner.offset_for_timestamp(argument) or ()


async def _delete_before(owner: PartitionOwner, argument: int) -> tuple[int, ...]:
    return (await owner.delete_before(argument),)


async def _log_bytes(owner: PartitionOwner, argument: int) -> tuple[int, ...]:
    return (await owner.log_bytes(),)


ANSWERS: dict[Question, Callable[[PartitionOwner, int], Awaitable[tuple[int, ...]]]] = {
    Question.ENDS: _ends,
    Question.END_OF_EPOCH: _end_of_epoch,
    Question.MAX_TIMESTAMP: _max_timestamp,
    Question.TIMESTAMP: _timestamp,
    Question.DELETE_BEFORE: _delete_before,
    Question.LOG_BYTES: _log_bytes,
    Question.CONFIRM_END: _confirm_end,
}
"""The call of ``PartitionOwner`` that answers each question; ENDS and CONFIRM_END give the fields of
``core.records.batch.Ends``."""
