"""The parts of an admin request, done some at a time within the request's time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from bmq.core.aio.task_group import TaskGroup
from bmq.core.aio.turns import Turns, map_in_turns, next_turn
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.net.request import CloseConnection

T = TypeVar("T")
R = TypeVar("R")

PARALLEL = 16
"""Of one request: enough to hide the store's latency, too few to keep others from it."""

A_TURN = 5
"""Parts that each of these does in a turn of the loop: to check a topic's configs takes a fifth of a millisecond."""


TOPICS_MAX = 20_000
"""Topics that one request creates or extends: twice what Kafka's tools are used with."""
ASSIGNED_MAX = 100_000
"""Partitions of one topic that a request assigns by hand."""


PARTITIONS_A_REQUEST = 1_000_000
"""Partitions that the topics of one request have in all: a hundred times Kafka's bound, as many as a cluster is for."""


def check_partitions(counts: Iterable[int]) -> None:
    """Raise RequestError if the topics of one request have too many partitions in all.

    Kafka's ``ReplicationControlManager.validateTotalNumberOfPartitions`` refuses with the same error.
    """
    total = sum(counts)
    if total > PARTITIONS_A_REQUEST:
        text = f"Excessively large number of partitions per request: {total}, more than {PARTITIONS_A_REQUEST}."
        raise RequestError(ErrorCode.POLICY_VIOLATION, text)


def check_count(topics: Sequence[object]) -> None:
    """Raise CloseConnection if a request has more topics than are worked on at once."""
    if len(topics) > TOPICS_MAX:
        raise CloseConnection(f"a request with {len(topics)} topics, more than {TOPICS_MAX}")


async def broker_ids_of(assignments: Sequence[Any]) -> list[list[int]]:
    """Return the nodes of each manual assignment.  Raises RequestError if there are too many."""
    if len(assignments) > ASSIGNED_MAX:
        text = f"{len(assignments)} manual partition assignments for a topic, more than {ASSIGNED_MAX}"
        raise RequestError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    return await map_in_turns(lambda each: list(each.broker_ids), assignments, 5_000)


async def each(items: Sequence[T], work: Callable[[T], Awaitable[R]], timeout_ms: int) -> list[R | RequestError]:
    """``work`` of every item, or what it raised; REQUEST_TIMED_OUT for those that were not done in time."""
    late = RequestError(
        ErrorCode.REQUEST_TIMED_OUT, "the request's time was over before this was done; it may still have been done"
    )
    results: list[R | RequestError] = [late] * len(items)
    todo = iter(range(len(items)))
    try:
        async with asyncio.timeout(max(0, timeout_ms) / 1000), TaskGroup() as tasks:
            for _ in range(min(PARALLEL, len(items))):
                tasks.create_task(_work_off(todo, items, work, results))
    except TimeoutError:
        return results
    return results


async def _work_off(
    todo: Iterator[int], items: Sequence[T], work: Callable[[T], Awaitable[R]], results: list[R | RequestError]
) -> None:
    turns = Turns(A_TURN)
    for index in todo:
        if turns.is_over():  # what is refused, or only checked, takes no pause
            await next_turn()
        try:
            results[index] = await work(items[index])
        except RequestError as error:
            # Not ``error``: its traceback holds this frame, which holds ``results``.  Only the cyclic collector would
            # free that, with the whole request, and it would stop the loop: for 1.4 s, measured after 700 requests.
            results[index] = RequestError(error.code, error.message)
