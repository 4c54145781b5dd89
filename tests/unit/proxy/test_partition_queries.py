"""Queries to partitions' owners: whose owner is waited for, how many run at once, and in which order they return."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.wire.messages import DeleteRecordsRequest
from bmq.meta.catalog import Topic
from bmq.proxy.partition_queries import (
    PARALLEL,
    QueriedPartition,
    ask_all,
    by_topic,
    check_epoch,
    list_partitions,
    open_owner,
    owner_of,
)
from bmq.proxy.scopes import ProxyScopes
from tests.harness.fakes import FakeCatalog
from tests.harness.scopes import make_scopes
from tests.harness.waiting import now

TOPIC = UUID(int=1)
KEY = PartitionKey(TOPIC, 0)
HELD_S = 2.0
OPEN: Any = "the owner of partition 1"
OPENED: Any = "the owner of another one"


class FakeOwners:
    """The owner of partition 1 is there; that of others opens after ``opens_s`` seconds."""

    def __init__(self, opens_s: float = 1.0) -> None:
        self._opens_s = opens_s
        self.waited_s: list[float] = []

    def get(self, key: PartitionKey) -> Any:
        return OPEN if key.partition == 1 else None

    async def wait(self, key: PartitionKey, timeout_s: float) -> Any:
        self.waited_s.append(timeout_s)
        if timeout_s < self._opens_s:
            await asyncio.sleep(timeout_s)
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "not in time")
        await asyncio.sleep(self._opens_s)
        return OPENED


def scopes(owners: FakeOwners) -> ProxyScopes:
    catalog = FakeCatalog(Topic(name="t", topic_id=TOPIC, partitions=2))
    return make_scopes(catalog=catalog, owners=owners, config=NodeConfig(held_produce_ms=int(HELD_S * 1000)))


# ------------------------------------------------------------------------------------------------------------ owners


@pytest.mark.parametrize(("topic", "partition"), [("u", 0), ("t", 2), ("t", -1)])
async def test_a_partition_that_does_not_exist_has_no_owner(topic: str, partition: int) -> None:
    owners = FakeOwners()
    with pytest.raises(RequestError) as refused:
        await owner_of(scopes(owners), topic, partition)
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert owners.waited_s == []


async def test_an_open_owner_is_returned_without_a_wait() -> None:
    owners = FakeOwners()
    assert await owner_of(scopes(owners), "t", 1) is OPEN
    assert owners.waited_s == []


@pytest.mark.parametrize(("timeout_s", "waited_s"), [(None, HELD_S), (1.5, 1.5), (60.0, HELD_S)])
async def test_an_owner_is_waited_for_as_long_as_a_produce_is_held_at_most(
    timeout_s: float | None, waited_s: float
) -> None:
    owners = FakeOwners()
    assert await owner_of(scopes(owners), "t", 0, timeout_s) is OPENED
    assert owners.waited_s == [waited_s]


async def test_of_many_partitions_only_those_that_open_by_the_deadline_have_an_owner() -> None:
    owners: Any = FakeOwners(opens_s=1.0)
    deadline = now() + 1.5
    assert await open_owner(owners, KEY, deadline) is OPENED
    assert await open_owner(owners, KEY, deadline) is None, "half a second is left"
    assert now() == deadline
    assert await open_owner(owners, KEY, deadline) is None
    assert owners.waited_s == [1.5, 0.5], "after the deadline nothing is waited for"
    assert await open_owner(owners, PartitionKey(TOPIC, 1), deadline) is OPEN


@pytest.mark.parametrize(
    ("epoch", "code"),
    [
        (-1, None), (0, None), (5, None), (4, ErrorCode.FENCED_LEADER_EPOCH), (6, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)  # fmt: skip
def test_a_clients_epoch_is_the_owners_or_none(epoch: int, code: ErrorCode | None) -> None:
    if code is None:
        check_epoch(5, epoch)
        return
    with pytest.raises(RequestError) as refused:
        check_epoch(5, epoch)
    assert refused.value.code is code


# ------------------------------------------------------------------------------------------------ lists of a request


def topic(name: str, *partitions: int) -> Any:
    Asked = DeleteRecordsRequest.DeleteRecordsTopic
    return Asked(
        name=name, partitions=[Asked.DeleteRecordsPartition(partition_index=each, offset=0) for each in partitions]
    )


async def test_partitions_are_listed_in_the_requests_order_with_the_times_that_they_are_named() -> None:
    """A topic may be named twice, too."""
    listed = await list_partitions([topic("a", 1, 0, 1), topic("b"), topic("a", 1)], "name", "partition_index")
    assert [(each.topic, each.partition.partition_index, each.times) for each in listed] == [
        ("a", 1, 3), ("a", 0, 1), ("a", 1, 3), ("a", 1, 3),
    ]  # fmt: skip
    assert all(isinstance(each, QueriedPartition) for each in listed)


async def test_responses_are_given_to_their_topics_in_order() -> None:
    topics = [topic("a", 1, 0), topic("b"), topic("c", 5)]
    found = await by_topic(topics, ["a1", "a0", "c5"], lambda each, answers: (each.name, answers))
    assert found == [("a", ["a1", "a0"]), ("b", []), ("c", ["c5"])]


# ------------------------------------------------------------------------------------------------------------ asking


async def test_results_are_in_the_order_of_the_items_whatever_returns_first() -> None:
    async def ask(number: int) -> int:
        await asyncio.sleep((7 * number) % 5)
        return number

    assert await ask_all(range(50), ask) == list(range(50))
    assert await ask_all([], ask) == []


@pytest.mark.parametrize("parallel", [1, PARALLEL])
async def test_so_many_queries_run_at_once_and_no_more(parallel: int) -> None:
    running, most = 0, 0

    async def ask(number: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(1)
        running -= 1

    await ask_all(range(3 * PARALLEL), ask, parallel)
    assert most == parallel
    assert now() == 3 * PARALLEL / parallel


async def test_the_first_error_is_raised_and_cancels_the_other_queries() -> None:
    cancelled: list[int] = []

    async def ask(number: int) -> None:
        try:
            await asyncio.sleep(10 + number)
            raise ValueError(f"query {number}")
        except asyncio.CancelledError:
            cancelled.append(number)
            raise

    with pytest.raises(ValueError, match="query 0"):
        await ask_all(range(5), ask)
    assert sorted(cancelled) == [1, 2, 3, 4]
    assert now() == 10


async def test_an_error_of_a_query_that_did_not_wait_ends_the_others() -> None:
    ended: list[int] = []

    async def ask(number: int) -> None:
        if number == 3:
            raise ValueError("at once")
        try:
            await asyncio.sleep(10)
        finally:
            ended.append(number)

    with pytest.raises(ValueError, match="at once"):
        await ask_all(range(5), ask)
    assert (sorted(ended), now()) == ([0, 1, 2], 0)
