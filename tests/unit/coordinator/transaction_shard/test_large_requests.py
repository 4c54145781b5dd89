"""The largest AddPartitionsToTxn: no stop of the loop, whatever shape the request has."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bmq.coordinator.transaction.records import StoredTransaction, TopicPartitions, TransactionRecord, encode
from bmq.coordinator.transaction.states import TransactionState
from bmq.core.aio.steps import batched
from bmq.core.errors import ErrorCode as E
from bmq.core.model import PartitionKey
from bmq.core.records.batch import Record, build_batch
from bmq.core.wire import messages as m
from tests.harness.loop_stops import is_short, loop_stops
from tests.harness.seeds import amount
from tests.harness.waiting import until
from tests.unit.coordinator.fakes import CLIENT, topic
from tests.unit.coordinator.transaction_shard.world import ORDERS, Producer, World, running

pytestmark = pytest.mark.slow
COUNT = amount(50_000, 100_000)
"""Partitions of a transaction."""
REPEATED = amount(100_000, 400_000)
"""Numbers in a request: a client may name a partition again and again."""


Topics = list[tuple[str, list[int]]]


def one_of(tid: str, producer: Producer, topics: Topics, *, verify: bool = False) -> Any:
    made = [m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=each, partitions=some) for each, some in topics]
    return m.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
        transactional_id=tid, producer_id=producer[0], producer_epoch=producer[1], verify_only=verify, topics=made
    )


async def send(world: World, *transactions: Any) -> list[Any]:
    """Send a request; return the results of each transaction, once it is sure that no turn was long."""
    request = m.AddPartitionsToTxnRequest(version=5, transactions=list(transactions))
    with loop_stops() as stops:
        response = await world.a.apis.add_partitions(request, CLIENT)
    assert is_short(stops.longest_s), stops.longest_s
    return list(response.results_by_transaction)


def codes_of(result: Any) -> set[E]:
    return {each.partition_error_code for topic in result.topic_results for each in topic.results_by_partition}


@asynccontextmanager
async def wide_world() -> AsyncIterator[World]:
    async with running(World()) as world:
        world.a.catalog.topics["wide"] = topic("wide", COUNT)
        yield world


async def test_many_partitions_are_added_and_verified_without_a_stop() -> None:
    async with wide_world() as world:
        producer = await world.a.begin(0)

        async def send_one(numbers: list[int], *, verify: bool = False) -> set[E]:
            (result,) = await send(world, one_of("tx", producer, [("wide", numbers)], verify=verify))
            (found,) = result.topic_results
            assert [each.partition_index for each in found.results_by_partition] == numbers
            return codes_of(result)

        assert await send_one(list(range(COUNT))) == {E.NONE}
        assert await send_one(list(range(COUNT))) == {E.NONE}
        assert await send_one(list(range(COUNT)), verify=True) == {E.NONE}
        assert await send_one([0] * REPEATED) == {E.NONE}
        assert await send_one([0] * REPEATED, verify=True) == {E.NONE}
        assert await send_one([0, COUNT] * (REPEATED // 4)) == {E.OPERATION_NOT_ATTEMPTED, E.UNKNOWN_TOPIC_OR_PARTITION}
        assert await send_one(list(range(COUNT, COUNT + REPEATED))) == {E.UNKNOWN_TOPIC_OR_PARTITION}


async def test_many_adds_to_one_transaction_at_once_take_turns() -> None:
    async with wide_world() as world:
        producer = await world.a.begin(0)
        parts = [list(range(at, at + 200)) for at in range(0, COUNT, 200)]
        results = await send(world, *(one_of("tx", producer, [("wide", part)]) for part in parts))
        assert len(results) == COUNT // 200
        assert set.union(*map(codes_of, results)) == {E.NONE}
        (result,) = await send(world, one_of("tx", producer, [("wide", list(range(COUNT)))], verify=True))
        assert codes_of(result) == {E.NONE}
        results = await send(world, *(one_of("tx", producer, [("wide", [n, n])], verify=True) for n in range(500)))
        assert set.union(*map(codes_of, results)) == {E.NONE}


async def test_many_transactions_at_once_take_turns() -> None:
    async with wide_world() as world:
        producers = [await world.a.begin(0, tid=f"tx-{number}") for number in range(200)]
        part = list(range(1_000))
        many = [one_of(f"tx-{at}", producer, [("wide", part)]) for at, producer in enumerate(producers)]
        results = await send(world, *many)
        assert [each.transactional_id for each in results] == [f"tx-{number}" for number in range(200)]
        assert set.union(*map(codes_of, results)) == {E.NONE}


async def test_many_topics_are_added_and_verified_without_a_stop() -> None:
    async with running(World()) as world:
        names = [f"topic-{number}" for number in range(5_000)]
        world.a.catalog.topics.update((name, topic(name, 10)) for name in names)
        producer = await world.a.begin(0)
        topics: Topics = [(name, list(range(10))) for name in names]
        for verify in (False, True, False):
            (result,) = await send(world, one_of("tx", producer, topics, verify=verify))
            assert [each.name for each in result.topic_results] == names
            assert codes_of(result) == {E.NONE}


async def test_markers_of_many_replayed_transactions_are_begun_in_turns() -> None:
    """A coordinator that takes a shard over sends the markers of all that was decided before."""
    world = World()
    value = StoredTransaction(
        7, 0, 60_000, TransactionState.PREPARE_COMMIT, (TopicPartitions("orders", ORDERS.topic_id, (1,)),), 1, 1
    )
    pairs = [encode(TransactionRecord(f"tx-{number}", value)) for number in range(amount(30_000, 100_000))]
    records = [Record(key=key, value=value) for key, value in pairs]
    for some in batched(records, 2_000):
        world.log.store(build_batch(list(some), base_timestamp=1))
    world.partitions.open.clear()
    async with running(world):
        with loop_stops() as stops:
            await until(lambda: len(world.a.shards.endings()) == len(records))
        assert is_short(stops.longest_s), stops.longest_s


async def test_a_transaction_with_very_many_partitions_is_described_without_a_stop() -> None:
    """Describe it while it is open, and while half of its partitions lack their markers."""
    async with wide_world() as world:
        producer = await world.a.begin(0)
        await send(world, one_of("tx", producer, [("wide", list(range(COUNT)))]))

        async def described() -> tuple[str, list[int]]:
            with loop_stops() as stops:
                found = await world.a.describe()
            assert is_short(stops.longest_s, 0.025), stops.longest_s
            return found.transaction_state, next(each.partitions for each in found.topics if each.topic == "wide")

        assert await described() == ("Ongoing", list(range(COUNT)))
        wide = world.a.catalog.topics["wide"].topic_id
        late = {PartitionKey(wide, number): [E.KAFKA_STORAGE_ERROR] * 1_000 for number in range(0, COUNT, 2)}
        world.partitions.codes = late
        await world.a.end(producer, commit=True)
        serving = await world.a.serving()
        await until(lambda: len(next(iter(serving.endings)).missing) == len(late))
        assert await described() == ("PrepareCommit", list(range(0, COUNT, 2)))
        world.partitions.codes = {}
