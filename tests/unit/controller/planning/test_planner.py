"""The plan: everything has an owner, few moves, an end.  Properties over random clusters, then single cases."""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bmq.controller.planning.idle_partitions import IdlePartitions
from bmq.controller.planning.partition_table import PartitionTable
from bmq.controller.planning.planner import plan, plan_in_steps
from bmq.controller.planning.planner_view import PENDING_MOVES_MAX, Move, PlannerBroker, PlannerView, Why
from bmq.controller.planning.rates import Rate
from bmq.meta.cluster.assignment import CHUNK
from tests.harness.seeds import example_count
from tests.unit.controller.planning.plans import (
    applied,
    brokers,
    converge,
    keys,
    rates_of,
    view_of,
    with_owners,
)

pytestmark = pytest.mark.slow


@st.composite
def clusters(draw: st.DrawFn, min_able: int = 0) -> PlannerView:
    able = draw(st.integers(min_able, 5))
    living = [PlannerBroker(f"b{n}", draw(st.sampled_from(["", "x", "y"]))) for n in range(able)]
    living += [PlannerBroker(f"d{n}", "x", True) for n in range(draw(st.integers(0, 2)))]
    everything = keys(*draw(st.lists(st.integers(1, 12), max_size=8)))
    names = ["", "dead", *(broker.incarnation for broker in living)]
    owners = {key: draw(st.sampled_from(names)) for key in everything}
    # Whole numbers: the sum of fractions depends on the order, by a bit that may decide between two equal plans.
    whole = st.integers(0, 10**8).map(float), st.integers(0, 10**4).map(float)
    rate = st.builds(Rate, *whole)
    rates = {key: draw(rate) for key in everything if draw(st.booleans())}
    unreachable = {broker.incarnation: draw(st.integers(1, 3)) for broker in living if draw(st.integers(0, 5)) == 0}
    stalled, resting = (frozenset(b.incarnation for b in living if draw(st.integers(0, 5)) == 0) for _ in range(2))
    return view_of(
        brokers=living,
        owners=owners,
        rates=rates,
        unreachable=unreachable,
        proxies=3,
        stalled=stalled,
        resting=resting - stalled,
    )


@given(clusters(min_able=1))
@settings(max_examples=example_count(50, 1_500), deadline=None)
def test_every_partition_is_given_to_a_live_broker_that_does_not_drain(view: PlannerView) -> None:
    able = {broker.incarnation for broker in view.brokers if not broker.is_draining}
    first = plan(view, 0.0)
    assert all(move.target in able for move in first.moves)
    homeless = {key for key, owner in view.owners.items() if owner in ("", "dead")}
    assert homeless <= {move.key for move in first.moves}
    converged, moves = converge(view)
    assert set(converged.owners.values()) <= able
    assert all(move.target in able and move.target != move.source for move in moves)


@given(clusters())
@settings(max_examples=example_count(50, 1_500), deadline=None)
def test_plans_come_to_an_end_and_equal_views_have_equal_plans(view: PlannerView) -> None:
    turned = replace(
        view,
        brokers=view.brokers[::-1],
        owners=PartitionTable.of(view.owners, dict(reversed(list(rates_of(view).items())))),
        idle=IdlePartitions(),  # a plan takes from it
    )
    assert plan(view, 0.0) == plan(turned, 0.0)
    converge(view)


@given(clusters())
@settings(max_examples=example_count(33, 1_000), deadline=None)
def test_while_all_brokers_drain_nothing_moves(view: PlannerView) -> None:
    drained = replace(view, brokers=[broker._replace(is_draining=True) for broker in view.brokers])
    assert plan(drained, 0.0).moves == []


@given(clusters(min_able=2), st.data())
@settings(max_examples=example_count(33, 1_000), deadline=None)
def test_a_death_moves_only_the_dead_brokers_partitions(view: PlannerView, data: st.DataObject) -> None:
    converged, _ = converge(replace(view, unreachable={}, stalled=frozenset(), resting=frozenset()))
    dead = data.draw(st.sampled_from([b for b in converged.brokers if not b.is_draining]))
    after = replace(converged, brokers=[broker for broker in converged.brokers if broker != dead])
    moves = plan(after, 0.0).moves
    assert {move.key for move in moves} == {key for key, owner in converged.owners.items() if owner == dead.incarnation}
    assert all(move.why is Why.DEAD for move in moves)


@given(st.integers(1, 6), st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_from_scratch_each_broker_and_each_zone_has_its_share(n: int, partitions: list[int], zones: int) -> None:
    everything = keys(*partitions)
    converged, moves = converge(view_of(brokers=brokers(n, zones), owners=dict.fromkeys(everything, "")))
    assert len(moves) == len(everything)
    had = Counter(converged.owners.values())
    assert max(had.values()) - min(had[b.incarnation] for b in converged.brokers) <= 1
    for topic, count in enumerate(partitions):
        of_topic = Counter(o for key, o in converged.owners.items() if key.topic_id == uuid.UUID(int=topic + 1))
        assert max(of_topic.values()) <= -(-count // n) + 1
    if n % zones == 0:
        zone_of = {broker.incarnation: broker.zone for broker in converged.brokers}
        in_zone = Counter(zone_of[owner] for owner in converged.owners.values())
        assert max(in_zone.values()) - min(in_zone[f"z{zone}"] for zone in range(zones)) <= n // zones


def test_a_drain_has_a_bounded_number_of_pending_moves() -> None:
    everything = keys(500)
    drained = [PlannerBroker("a"), PlannerBroker("b"), PlannerBroker("d", is_draining=True)]
    view = view_of(brokers=drained, owners=dict.fromkeys(everything, "d"))
    assert len(plan(view, 0.0).moves) == PENDING_MOVES_MAX
    assert len(plan(replace(view, pending_moves=60), 0.0).moves) == PENDING_MOVES_MAX - 60
    assert plan(replace(view, pending_moves=PENDING_MOVES_MAX), 0.0).moves == []
    converged, _ = converge(view)
    assert Counter(converged.owners.values()) == {"a": 250, "b": 250}


@pytest.mark.parametrize("is_draining", [True, False])
def test_partitions_with_traffic_move_before_those_at_rest(is_draining: bool) -> None:
    """Plan the partitions of one broker: those with traffic are in the first of many rounds if the broker drains.

    If it is gone, they are at the front of the only round.
    """
    everything = keys(500)
    used = {everything[499]: Rate(10.0, 1.0), everything[300]: Rate(0.0, 5.0), everything[2]: Rate(900.0, 1.0)}
    living = [PlannerBroker("a"), PlannerBroker("b"), *([PlannerBroker("d", is_draining=True)] if is_draining else [])]
    view = view_of(brokers=living, owners=dict.fromkeys(everything, "d"), rates=used)
    moved = [move.key for move in plan(view, 0.0).moves]
    assert moved[:5] == [everything[300], everything[2], everything[499], everything[0], everything[1]]


def test_a_broker_that_a_proxy_cannot_reach_is_given_nothing_and_one_that_most_cannot_is_emptied() -> None:
    everything = keys(6)
    view = view_of(brokers=brokers(3), owners=dict.fromkeys(everything, ""), proxies=3, unreachable={"b01": 1})
    assert {move.target for move in plan(view, 0.0).moves} == {"b00", "b02"}
    owned = {key: f"b0{index % 3}" for index, key in enumerate(everything)}
    assert plan(with_owners(view, owned), 0.0).moves == []
    emptied = plan(replace(with_owners(view, owned), unreachable={"b01": 2}), 0.0).moves
    assert [(move.source, move.why) for move in emptied] == [("b01", Why.UNREACHABLE)] * 2


def test_a_broker_that_stalls_is_emptied_and_given_nothing_while_it_rests() -> None:
    view = view_of(brokers=brokers(3), owners=dict.fromkeys(keys(6), "b00"))
    view, _ = converge(view)
    assert set(Counter(view.owners.values()).values()) == {2}
    stalled = plan(replace(view, stalled=frozenset({"b01"})), 0.0).moves
    assert {(move.source, move.why) for move in stalled} == {("b01", Why.STALLED)}
    assert len(stalled) == 2
    resting = replace(applied(view, list(stalled)), resting=frozenset({"b01"}))
    assert converge(resting)[1] == []
    assert Counter(converge(replace(resting, resting=frozenset()))[0].owners.values()) == {"b00": 2, "b01": 2, "b02": 2}


def test_without_a_fit_broker_the_least_unfit_one_is_given_the_partitions() -> None:
    """Leave unfit brokers only: a resting one goes first, then an unreachable one; a stalled one keeps what it has."""
    view = view_of(brokers=brokers(3), owners=dict.fromkeys(keys(6), ""), proxies=4)
    view = replace(view, resting=frozenset({"b00"}), unreachable={"b01": 1}, stalled=frozenset({"b02"}))
    assert set(converge(view)[0].owners.values()) == {"b00"}
    view = replace(view, brokers=view.brokers[1:])
    assert set(converge(view)[0].owners.values()) == {"b01"}
    view = replace(view, brokers=view.brokers[1:])
    converged = converge(view)[0]
    assert set(converged.owners.values()) == {"b02"}
    assert plan(converged, 0.0).moves == []


def test_partitions_have_owners_even_if_all_brokers_are_unreachable() -> None:
    view = view_of(brokers=brokers(2), owners=dict.fromkeys(keys(4), ""), proxies=1, unreachable={"b00": 1, "b01": 1})
    assert len(plan(view, 0.0).moves) == 4


def test_a_plan_that_moves_nothing_reads_no_partition() -> None:
    everything = keys(*[1000] * 10)
    rates = {key: Rate(1e5 * (1 + key.partition % 7), 10.0) for key in everything}
    owners = {key: f"b{index % 10:02d}" for index, key in enumerate(everything)}
    converged, _ = converge(view_of(brokers=brokers(10), owners=owners, rates=rates))
    for topic in converged.owners.topics.values():
        topic.chunks = []  # nothing is there to be looked at
    assert list(plan_in_steps(converged, 0.0)) == []


def test_a_plan_comes_in_steps_of_bounded_work() -> None:
    """Plan from nothing, after a death, and for a new broker: no step covers more than a few thousand partitions."""
    everything = keys(*[3 * CHUNK] * 20, *[1] * 3000)
    fresh = view_of(brokers=brokers(10), owners=dict.fromkeys(everything, ""))
    assigned = list(plan_in_steps(fresh, 0.0))
    assert sum(map(len, assigned)) == len(everything)
    assert max(map(len, assigned)) <= CHUNK
    full = applied(fresh, [move for moves in assigned for move in moves])
    without = list(plan_in_steps(replace(full, brokers=full.brokers[1:]), 0.0))
    assert sum(map(len, without)) == full.owners.count("b00")
    assert len(without) > 20
    more = replace(full, brokers=brokers(13))
    steps = list(plan_in_steps(more, 0.0))
    assert sum(map(len, steps)) == PENDING_MOVES_MAX
    assert sum(not step for step in steps) >= len(everything) / 2_000 / 2


def test_moves_written_during_a_plan_do_not_change_the_rest_of_it() -> None:
    """The leader writes the first moves of a plan before it asks for the next, and its table follows."""
    everything = keys(*[CHUNK + 20] * 6)
    owners = {key: ["a", "dead", "", "b"][index % 4] for index, key in enumerate(everything)}
    rates = {key: Rate(1e5, 10.0) for key in everything[::7]}
    living = [PlannerBroker("a"), PlannerBroker("b"), PlannerBroker("c")]
    at_once = plan(view_of(brokers=living, owners=owners, rates=rates), 0.0).moves
    view = view_of(brokers=living, owners=owners, rates=rates)
    done: list[Move] = []
    for moves in plan_in_steps(view, 0.0):
        done += moves
        for move in moves:
            topic, number = view.owners.topics[move.key.topic_id], move.key.partition // CHUNK
            chunk = list(topic.chunks[number])
            chunk[move.key.partition % CHUNK] = move.target
            view.owners.set_chunk(move.key.topic_id, number, chunk)
    assert done == at_once
    assert set(dict(view.owners).values()) == {"a", "b", "c"}
