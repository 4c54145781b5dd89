"""DescribeProducers: each producer's last batch, each partition once, and the bound of a response."""

from __future__ import annotations

from typing import Any

import pytest

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.records.batch import MAX_SEQUENCE
from bmq.core.wire.messages import DescribeProducersRequest
from bmq.proxy.handlers import describe_producers
from bmq.storage.checkpoint import ProducerBatch, ProducerState
from tests.unit.proxy.handlers.owned_topic import FakeOwner, scopes_of
from tests.unit.proxy.turns import Turns

Wanted = DescribeProducersRequest.TopicRequest


def state(producer_id: int, *batches: ProducerBatch) -> ProducerState:
    return ProducerState(producer_id, 3, -1, 1_000, -1, batches)


async def ask(owners: dict[int, FakeOwner], *wanted: tuple[str, list[int]]) -> Any:
    topics = [Wanted(name=name, partition_indexes=indexes) for name, indexes in wanted]
    message: Any = DescribeProducersRequest(topics=topics)
    unused: Any = None
    return (await describe_producers.handle(scopes_of(owners), unused, message)).topics


async def test_a_producer_is_described_by_its_last_batch() -> None:
    batches = ProducerBatch(0, 5, 4, 900), ProducerBatch(5, 10, 2, 950)
    ((partition,),) = [
        each.partitions for each in await ask({0: FakeOwner(producers=[state(7, *batches)])}, ("t", [0]))
    ]
    (producer,) = partition.active_producers
    assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (7, 3, 7)
    assert (producer.last_timestamp, producer.coordinator_epoch, producer.current_txn_start_offset) == (950, -1, -1)


async def test_an_open_transaction_shows_its_first_offset_and_the_coordinators_epoch() -> None:
    """Show the record's timestamp, not the time of receipt: hanging transactions are found by it."""
    opened = ProducerState(7, 3, 12, 1_000, 40, (ProducerBatch(0, 40, 0, 900),))
    ended = ProducerState(8, 4, 13, 1_000, -1, ())
    (topic,) = await ask({0: FakeOwner(producers=[opened, ended])}, ("t", [0]))
    found = [
        (each.last_timestamp, each.coordinator_epoch, each.current_txn_start_offset)
        for each in topic.partitions[0].active_producers
    ]
    assert found == [(900, 12, 40), (1_000, 13, -1)]


@pytest.mark.parametrize(
    ("batches", "last"), [((), -1), ((ProducerBatch(MAX_SEQUENCE, 0, 2, 0),), 1), ((ProducerBatch(0, 0, 0, 0),), 0)]
)
async def test_the_last_sequence_wraps_and_is_minus_1_without_a_batch(
    batches: tuple[ProducerBatch, ...], last: int
) -> None:
    (topic,) = await ask({0: FakeOwner(producers=[state(7, *batches)])}, ("t", [0]))
    assert [each.last_sequence for each in topic.partitions[0].active_producers] == [last]


async def test_internal_producers_are_not_shown() -> None:
    (topic,) = await ask({0: FakeOwner(producers=[state(-5), state(0), state(9)])}, ("t", [0]))
    assert [each.producer_id for each in topic.partitions[0].active_producers] == [0, 9]


async def test_a_partition_that_is_named_twice_is_described_once() -> None:
    owners = {0: FakeOwner(producers=[]), 1: FakeOwner(producers=[])}
    (topic,) = await ask(owners, ("t", [0, 1, 0]), ("t", [1]))
    assert [each.partition_index for each in topic.partitions] == [0, 1]
    assert owners[0].calls == owners[1].calls == [("producers",)]


async def test_each_partition_has_its_own_error() -> None:
    owners = {
        0: FakeOwner(producers=[state(1)]),
        2: FakeOwner(producers=RequestError(ErrorCode.KAFKA_STORAGE_ERROR, "damaged")),
    }
    (topic,) = await ask(owners, ("t", [0, 1, 2, 4]))
    found = [(ErrorCode(each.error_code), bool(each.error_message)) for each in topic.partitions]
    assert found == [
        (ErrorCode.NONE, False),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, True),
        (ErrorCode.KAFKA_STORAGE_ERROR, True),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, True),
    ]


@pytest.mark.parametrize(("counts", "is_whole"), [((2, 1), True), ((2, 2), False), ((5, 1), False), ((5, 0), True)])
async def test_producers_of_a_response_are_bounded_unless_one_partition_alone_has_more(
    counts: tuple[int, int], is_whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(describe_producers, "PRODUCERS_MAX", 3)
    owners = {
        number: FakeOwner(producers=[state(each) for each in range(count)]) for number, count in enumerate(counts)
    }
    (topic,) = await ask(owners, ("t", [0, 1]))
    first, second = topic.partitions
    assert len(first.active_producers) == counts[0]
    assert ErrorCode(second.error_code) is (ErrorCode.NONE if is_whole else ErrorCode.INVALID_REQUEST)
    assert len(second.active_producers) == (counts[1] if is_whole else 0)


async def test_producers_of_several_partitions_share_their_turns_of_the_loop() -> None:
    """No partition fills a turn by itself."""
    owners = {number: FakeOwner(producers=[state(each) for each in range(900)]) for number in range(4)}
    turns = Turns()
    (topic,) = await ask(owners, ("t", [0, 1, 2, 3]))
    assert await turns.end() >= 3
    assert [[one.producer_id for one in each.active_producers] for each in topic.partitions] == [[*range(900)]] * 4
