"""The response to PartitionsNotServed: the first partitions by name, with bounded reasons."""

from __future__ import annotations

from typing import Any

import pytest

from bmq.broker.not_served_api import NAMED_MAX, REASON_MAX, not_served
from bmq.storage.layout import PartitionPath
from tests.harness.loop_stops import is_short, loop_stops
from tests.harness.members import NotServing, memory_broker


async def found(count: int, why: str = "why", trouble: str = "") -> Any:
    """Return what is not served of a broker with ``count`` such partitions, which come last first."""
    partitions = [(PartitionPath(f"t{n % 2}", "id", n), why) for n in reversed(range(count))]
    broker = memory_broker()
    broker.context.state.trouble, broker._storage._stalls.is_stalled = trouble, bool(trouble)
    assigned = NotServing(broker, partitions)
    with loop_stops() as stops:
        result = await not_served(broker, assigned)
    assert is_short(stops.longest_s), stops.longest_s
    return result


async def test_partitions_are_named_by_topic_and_number() -> None:
    assert [(each.topic, each.partition) for each in (await found(4)).partitions] == [
        ("t0", 0),
        ("t0", 2),
        ("t1", 1),
        ("t1", 3),
    ]
    assert (await found(0)).total == 0


async def test_past_the_bound_partitions_are_only_counted() -> None:
    assert len((await found(NAMED_MAX)).partitions) == NAMED_MAX
    more = await found(NAMED_MAX + 5)
    assert (more.total, len(more.partitions)) == (NAMED_MAX + 5, NAMED_MAX)


async def test_reasons_are_cut_to_their_bound() -> None:
    long = await found(1, "x" * (REASON_MAX + 1), "y" * (REASON_MAX + 1))
    assert (len(long.partitions[0].why), len(long.storage_trouble)) == (REASON_MAX, REASON_MAX)


@pytest.mark.slow
async def test_very_many_partitions_are_counted_without_a_stop() -> None:
    assert (await found(300_000)).total == 300_000
