"""Queries to partitions' owners, for handlers of requests that name many partitions."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from bmq.core.aio.children import Children
from bmq.core.aio.eager import start
from bmq.core.aio.steps import batched
from bmq.core.aio.turns import Turns, map_in_turns, next_turn
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.endpoint.leader_epochs import epoch_error
from bmq.endpoint.partitions import Owner, Owners
from bmq.proxy.scopes import ProxyScopes

T = TypeVar("T")
R = TypeVar("R")
PARALLEL = 16
"""Partitions of one request that are queried at once; storage has a bound of its own for reads."""
TOGETHER = 1_000
"""Partitions of a request that are queried at once, by queries that ``BatchedQueries`` joins into few requests."""
ASKED_A_TURN = 100
"""Queries of one request in a turn of the loop: at 50 us for one within the process, some milliseconds."""
LISTED_A_TURN = 2_000
"""Partitions that are only listed, in a turn of the loop, at a microsecond or two each."""
LOOK_S = 1.0
"""Time that a request about many partitions waits, in all, for partitions that are not open: a connection takes
milliseconds."""


async def owner_of(scopes: ProxyScopes, topic_name: str, partition: int, timeout_s: float | None = None) -> Owner:
    """Return the partition's owner, once it is in WRITE.

    Waits for it for ``held_produce_ms``, or for ``timeout_s`` if that is less.  Raises RequestError if the partition
    does not exist or has no such owner in time; retriable unless the partition is OFFLINE.
    """
    topic = scopes.process.catalog.topics.get(topic_name)
    if topic is None or not 0 <= partition < topic.partitions:
        raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic_name}-{partition} does not exist")
    key = PartitionKey(topic.topic_id, partition)
    owner = scopes.process.owners.get(key)
    if owner is None:
        longest_s = scopes.view.config.held_produce_ms / 1000
        owner = await scopes.process.owners.wait(key, longest_s if timeout_s is None else min(timeout_s, longest_s))
    return owner


async def open_owner(owners: Owners, key: PartitionKey, deadline: float) -> Owner | None:
    """Return the partition's owner, for a query about many partitions; None if it is not there by ``deadline``.

    ``deadline`` is on the loop's clock.  Waiting matters even for an open partition: the first query to a process opens
    the connection to it.
    """
    owner = owners.get(key)
    left_s = deadline - asyncio.get_running_loop().time()
    if owner is not None or left_s <= 0:
        return owner
    try:
        return await owners.wait(key, left_s)
    except RequestError:
        return None


def check_epoch(current: int, epoch: int) -> None:
    """Raise RequestError if a client's epoch differs from ``current``, the owner's (``endpoint.leader_epochs``)."""
    error = epoch_error(current, epoch)
    if error:
        raise RequestError(error, f"epoch {epoch} is not the leader's, {current}")


class QueriedPartition(NamedTuple):
    """One partition of a request, with the name of its topic.  ``times``: how often the request names it."""

    topic: str
    partition: Any
    times: int


async def list_partitions(topics: Sequence[Any], name: str, index: str) -> list[QueriedPartition]:
    """Return all partitions of a request's ``topics``, in their order.

    ``name`` and ``index`` are the fields that hold a topic's name and a partition's number.
    """
    counts: Counter[tuple[str, int]] = Counter()
    turns = Turns(LISTED_A_TURN)
    for topic in topics:
        if turns.is_over():  # a topic without partitions costs time, too
            await next_turn()
        topic_name = getattr(topic, name)
        for part in batched(topic.partitions, LISTED_A_TURN):
            if turns.is_over(len(part)):
                await next_turn()
            counts.update((topic_name, getattr(each, index)) for each in part)
    pairs = ((getattr(topic, name), each) for topic in topics for each in topic.partitions)
    return await map_in_turns(
        lambda pair: QueriedPartition(*pair, counts[pair[0], getattr(pair[1], index)]), pairs, LISTED_A_TURN
    )


async def ask_all(items: Sequence[T], ask: Callable[[T], Awaitable[R]], parallel: int = PARALLEL) -> list[R]:
    """Return the result of ``ask`` for each item, in the order of the items; at most ``parallel`` run at once.

    The first exception of ``ask`` is raised, and the other calls are cancelled.  A cancellation of the caller reaches
    them in the same call: its client has gone, and they may send nothing more.
    """
    answers: dict[int, R] = {}
    under_way = Children()
    turns = Turns(ASKED_A_TURN)
    try:
        for number, item in enumerate(items):
            if turns.is_over():
                await under_way.next_turn()
            await under_way.fall_below(parallel)
            response = start(_ask_one(ask, item))  # an owner in this process mostly returns at once
            if isinstance(response, asyncio.Task):
                under_way.add(response, partial(answers.__setitem__, number))
            else:
                answers[number] = response
        await under_way.fall_below(1)
    finally:
        await under_way.cancel()
    return await map_in_turns(answers.__getitem__, range(len(items)), LISTED_A_TURN)


async def _ask_one(ask: Callable[[T], Awaitable[R]], item: T) -> R:
    return await ask(item)


async def by_topic(topics: Sequence[Any], answers: Sequence[R], make: Callable[[Any, list[R]], T]) -> list[T]:
    """Return ``make(topic, its answers)`` for each of a request's topics.

    ``answers`` has one element for each partition, in the order of the request.
    """
    rest = iter(answers)
    return await map_in_turns(lambda topic: make(topic, list(islice(rest, len(topic.partitions)))), topics)
