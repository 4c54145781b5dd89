"""Traffic by partition: counted for each caller that asks, and for no one else."""

from __future__ import annotations

import uuid

import pytest

from bmq.broker.traffic import CALLERS_MAX, PARTITIONS_MAX, TrafficCounters
from bmq.core.model import PartitionKey


def test_only_partitions_with_traffic_are_kept_and_for_few_callers() -> None:
    load = TrafficCounters()
    keys = [PartitionKey(uuid.UUID(int=1), number) for number in range(3)]
    for number in range(CALLERS_MAX + 3):
        assert load.take(f"c{number}") == {}
    load.wrote(keys[0], 10)
    found = [load.take(f"c{number}") for number in range(3, CALLERS_MAX + 3)]
    assert [list(each) for each in found] == [[keys[0]]] * CALLERS_MAX
    assert not load.knows("c0")
    assert load.take("c0") == {}, "forgotten, so it begins anew"
    load.read(keys[1], 5)
    (traffic,) = load.take("c0").values()
    assert (traffic.bytes_in, traffic.bytes_out, traffic.requests) == (0, 5, 1)


@pytest.mark.slow
def test_traffic_that_no_caller_asks_for_is_not_kept() -> None:
    """Nothing is counted before the first question, nor for ever after the last one; a caller that asks again later
    begins from nothing."""
    load = TrafficCounters()
    keys = [PartitionKey(uuid.UUID(int=1), number) for number in range(PARTITIONS_MAX + 1)]
    for key in keys:
        load.wrote(key, 10)
    assert repr(load) == "<TrafficCounters partitions=0 callers=0>"
    assert load.take("gone") == {}
    for key in keys:
        load.wrote(key, 10)
    assert repr(load) == "<TrafficCounters partitions=0 callers=0>"
    assert not load.knows("gone")
    assert load.take("gone") == {}
    for first in (0, PARTITIONS_MAX // 2 + 1):
        for key in keys[first:][: PARTITIONS_MAX // 2 + 1]:
            load.read(key, 5)
        assert len(load.take("asks")) == (0 if first == 0 else PARTITIONS_MAX // 2)
    assert not load.knows("gone"), "what it has not been told grew past the bound"
    load.wrote(keys[0], 1)
    assert list(load.take("asks")) == [keys[0]]
