"""The largest AddPartitionsToTxn: no stop of the loop."""

from __future__ import annotations

from typing import Any

import pytest

from bmq.core.errors import ErrorCode as E
from bmq.core.wire import messages as m
from tests.harness.loop_stops import is_short, loop_stops
from tests.unit.coordinator.fakes import CLIENT, topic
from tests.unit.coordinator.transaction_shard.world import World, running

pytestmark = pytest.mark.slow
COUNT = 5_000
"""Partitions of a transaction."""
REPEATED = 200_000
"""Numbers in a request: a client may name a partition again and again."""


def request_of(producer: tuple[int, int], numbers: list[int], *, verify: bool) -> Any:
    added = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="wide", partitions=numbers)
    one = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
        transactional_id="tx", producer_id=producer[0], producer_epoch=producer[1], verify_only=verify, topics=[added]
    )
    return m.AddPartitionsToTxnRequest(version=5, transactions=[one])


async def test_many_partitions_are_added_and_verified_without_a_stop() -> None:
    async with running(World()) as world:
        world.a.catalog.topics["wide"] = topic("wide", COUNT)
        producer = await world.a.begin(0)

        async def send(numbers: list[int], *, verify: bool = False) -> set[int]:
            request = request_of(producer, numbers, verify=verify)
            with loop_stops() as stops:
                response = await world.a.apis.add_partitions(request, CLIENT)
            assert is_short(stops.longest_s), stops.longest_s
            (found,) = response.results_by_transaction[0].topic_results
            assert [each.partition_index for each in found.results_by_partition] == numbers
            return {each.partition_error_code for each in found.results_by_partition}

        assert await send(list(range(COUNT))) == {E.NONE}
        assert await send(list(range(COUNT)), verify=True) == {E.NONE}
        assert await send([0] * REPEATED) == {E.NONE}
        assert await send([0, COUNT] * REPEATED) == {E.OPERATION_NOT_ATTEMPTED, E.UNKNOWN_TOPIC_OR_PARTITION}
