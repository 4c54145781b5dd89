"""Rates: smoothed, kept over a move, and forgotten with what is idle or gone."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pytest

from bmq.controller.planning.partition_load import SMOOTH_S, Loads, Measured
from bmq.controller.planning.partition_table import PartitionTable
from bmq.controller.planning.rates import Rate
from bmq.core.model import PartitionKey
from tests.harness.loop_stops import is_short, longest_step_s, without_collector

TOPIC = uuid.UUID(int=1)
KEY = PartitionKey(TOPIC, 0)


def table(owner: str = "a") -> PartitionTable:
    return PartitionTable.of({KEY: owner})


def rates(table: PartitionTable) -> dict[PartitionKey, Rate]:
    return {key: rate for owner in table.owners for key, rate in table.rates_of(owner).items()}


def take(loads: Loads, member: str, measured: Sequence[Measured], now: float) -> bool:
    steps = loads.update(member, measured, now)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return bool(end.value)


def ask(loads: Loads, member: str, start: float, end: float, bytes_s: int, requests_s: int = 0) -> None:
    """Every five seconds."""
    now = start
    while now < end:
        now += 5
        measured = [Measured(KEY, bytes_s * 4, bytes_s, requests_s * 5)] if bytes_s or requests_s else []
        take(loads, member, measured, now)


def test_a_steady_load_is_what_is_measured() -> None:
    loads = Loads(partitions := table())
    ask(loads, "a", 0, 200, 1_000, 10)
    assert rates(partitions)[KEY] == pytest.approx((1_000, 10), rel=0.01)


def test_a_brokers_first_measure_gives_no_rate() -> None:
    loads = Loads(partitions := table())
    assert not take(loads, "a", [Measured(KEY, 1 << 40, 0, 0)], 5.0)
    assert rates(partitions) == {}


def test_a_burst_counts_little_and_a_change_is_seen_in_half_a_minute() -> None:
    loads = Loads(partitions := table())
    ask(loads, "a", 0, 200, 1_000)
    ask(loads, "a", 200, 205, 10_000)
    assert rates(partitions)[KEY].bytes_s < 4_000
    ask(loads, "a", 205, 200 + 2 * SMOOTH_S, 10_000)
    assert rates(partitions)[KEY].bytes_s > 8_000


def test_the_rate_of_an_idle_partition_is_forgotten() -> None:
    loads = Loads(partitions := table())
    ask(loads, "a", 0, 100, 1_000)
    ask(loads, "a", 100, 400, 0)
    assert rates(partitions) == {}


def test_a_rate_moves_with_its_partition() -> None:
    """Omit a moved partition from reports: the former owner's omission means nothing, the new owner's does."""
    loads = Loads(partitions := table())
    take(loads, "b", [], 0)
    ask(loads, "a", 0, 200, 1_000)
    take(loads, "b", [], 200)
    partitions.set_chunk(TOPIC, 0, ["b"])
    for now in range(205, 400, 5):
        take(loads, "a", [], now)
        take(loads, "b", [Measured(KEY, 5_000, 0, 0)], now)
    assert rates(partitions)[KEY].bytes_s == pytest.approx(1_000, rel=0.01)
    ask(loads, "b", 400, 700, 0)
    assert rates(partitions) == {}


def test_a_dead_brokers_rates_stay_and_a_deleted_topics_are_removed() -> None:
    loads = Loads(partitions := table())
    ask(loads, "a", 0, 200, 1_000)
    loads.forget("a")
    assert KEY in rates(partitions)
    partitions.remove_topic(TOPIC)
    assert rates(partitions) == {}


def test_a_load_is_a_change_while_it_is_measured_and_rest_is_none() -> None:
    loads = Loads(table())
    assert not take(loads, "a", [], 0)
    assert not take(loads, "a", [], 5)
    assert take(loads, "a", [Measured(KEY, 5_000, 0, 0)], 10)
    assert take(loads, "a", [], 15), "it was something"


@pytest.mark.slow
def test_very_many_loads_are_taken_in_short_steps() -> None:
    """Take the responses of a broker with 100,000 loaded partitions, then one in which all of them are silent."""
    keys = [PartitionKey(TOPIC, number) for number in range(100_000)]
    loads = Loads(partitions := PartitionTable.of(dict.fromkeys(keys, "a")))
    measured = [Measured(key, 1_000, 1_000, 5) for key in keys]
    longest_s = 0.0
    with without_collector():
        for now, response in ((0.0, measured), (5.0, measured), (70.0, measured), (75.0, [])):
            longest_s = max(longest_s, longest_step_s(loads.update("a", response, now)))
    assert partitions.rated_count == len(keys)
    assert is_short(longest_s, 0.025), longest_s
