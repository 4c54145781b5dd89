"""Balancing: when it begins and ends, which partitions it moves, and which it leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bmq.controller.planning.balance_state import ASKED
from bmq.controller.planning.balancing import START, STOP, UNEVEN_S
from bmq.controller.planning.planner import plan, plan_in_steps
from bmq.controller.planning.planner_view import COOL_DOWN_S
from bmq.controller.planning.rates import Rate
from bmq.core.model import PartitionKey
from tests.unit.controller.planning.plans import (
    brokers,
    converge,
    keys,
    spread,
    view_of,
)

pytestmark = pytest.mark.slow


@given(st.integers(1, 9), st.integers(5, 60))
@settings(max_examples=60, deadline=None)
def test_a_new_broker_takes_its_share_and_nothing_else_moves(n: int, each: int) -> None:
    everything = keys(n * each)
    owners = {key: f"b{index % n:02d}" for index, key in enumerate(everything)}
    converged, moves = converge(view_of(brokers=brokers(n + 1), owners=owners))
    assert all(move.target == f"b{n:02d}" for move in moves)
    fair = n * each / (n + 1)
    assert (1 - STOP) * fair - 1 <= len(moves) <= fair + 1
    assert spread(converged) <= max(STOP, 1.5 / fair) + 1e-9


@given(st.integers(2, 6), st.integers(20, 40), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_ten_times_the_load_on_one_partition_is_balanced(n: int, each: int, hot: int) -> None:
    everything = keys(n * each)
    owners = {key: f"b{index % n:02d}" for index, key in enumerate(everything)}
    rates = dict.fromkeys(everything, Rate(1e6, 100.0))
    rates[everything[hot % len(everything)]] = Rate(1e7, 1000.0)
    converged, _ = converge(view_of(brokers=brokers(n), owners=owners, rates=rates))
    carried = _bytes(converged.owners, rates)
    mean = sum(carried.values()) / n
    assert all(abs(bytes_s - mean) <= 0.20 * mean for bytes_s in carried.values())


def _bytes(owners: Mapping[PartitionKey, str], rates: Mapping[PartitionKey, Rate]) -> Counter[str]:
    carried: Counter[str] = Counter()
    for key, owner in owners.items():
        carried[owner] += int(rates[key].bytes_s)
    return carried


def test_an_imbalance_within_the_limit_is_left() -> None:
    """Hysteresis: the same cluster moves nothing at rest, and goes on when it was balancing."""
    owners = dict(zip(keys(46), ["b00"] * 26 + ["b01"] * 20, strict=True))
    view = view_of(brokers=brokers(2), owners=owners)
    assert STOP < spread(view) < START
    assert plan(view, 0.0).moves == []
    assert plan(replace(view, balance=ASKED), 0.0).moves


def test_one_partition_that_is_the_load_stays_and_the_others_are_balanced_by_their_number() -> None:
    everything = keys(40)
    owners = {key: "b00" if index == 0 else f"b0{1 + index % 2}" for index, key in enumerate(everything)}
    rates = {everything[0]: Rate(1e9, 1e5)}
    converged, moves = converge(view_of(brokers=brokers(3), owners=owners, rates=rates))
    assert everything[0] not in {move.key for move in moves}
    assert len(moves) == 12
    assert sorted(Counter(converged.owners.values()).values()) == [13, 13, 14]


def test_the_move_that_helps_most_comes_first() -> None:
    everything = keys(5)
    rates = {key: Rate(bytes_s * 1e7, 0.0) for key, bytes_s in zip(everything, [1, 2, 6, 9, 1], strict=True)}
    owners = dict(zip(everything, ["b00"] * 4 + ["b01"], strict=True))
    view = view_of(brokers=brokers(2), owners=owners, rates=rates)
    first = plan(view, 0.0)
    assert not first.moves, "it has not been uneven for long"
    assert plan(replace(view, balance=first.balance), UNEVEN_S - 1).balance == first.balance
    moves = plan(replace(view, balance=first.balance), UNEVEN_S).moves
    assert [rates[move.key].bytes_s for move in moves] == [9e7]


def test_a_partition_that_was_moved_lately_is_not_balanced() -> None:
    everything = keys(8)
    view = view_of(brokers=brokers(2), owners=dict.fromkeys(everything, "b00"))
    assert len(plan(view, 100.0).moves) == 4
    lately = replace(view, moved_at=dict.fromkeys(everything[:7], 90.0))
    assert [move.key for move in plan(lately, 100.0).moves] == everything[7:]
    assert len(plan(lately, 90.0 + COOL_DOWN_S).moves) == 4


def test_partitions_at_rest_pass_a_broker_that_has_its_share_of_them() -> None:
    """Begin with b00, which has the fewest partitions, and its share of those at rest; b01 has none at rest."""
    heavy, light = Rate(15e6, 1500.0), Rate(1e5, 10.0)
    parts = (("b00", 1, heavy), ("b01", 150, light), ("b02", 1, heavy), ("b00", 104, None), ("b02", 206, None))
    each = [(owner, rate) for owner, count, rate in parts for _ in range(count)]
    owners = {key: owner for key, (owner, _) in zip(keys(len(each)), each, strict=True)}
    rates = {key: rate for key, (_, rate) in zip(keys(len(each)), each, strict=True) if rate is not None}
    converged, _ = converge(view_of(brokers=brokers(3), owners=owners, rates=rates))
    at_rest = Counter(owner for key, owner in converged.owners.items() if key not in rates)
    assert at_rest["b01"] > 0
    assert at_rest["b02"] < 206


def test_each_broker_that_is_set_aside_ends_a_step() -> None:
    """Have brokers that are one partition's each: a plan finds no move, and looks at one after the other."""
    everything = keys(100)
    owners = {key: f"b{index:02d}" for index, key in enumerate(everything)}
    rates = {key: Rate(1e6 * (1 + index % 7), 100.0) for index, key in enumerate(everything)}
    steps = list(plan_in_steps(view_of(brokers=brokers(100), owners=owners, rates=rates), 0.0))
    assert not any(steps)
    assert len(steps) > 50
