"""Scores: the parts of bytes, requests and partitions, and sums that stay whole."""

from __future__ import annotations

from bmq.controller.planning.planner import plan
from bmq.controller.planning.planner_view import WHOLE
from bmq.controller.planning.rates import Rate
from bmq.controller.planning.scores import BYTES_FLOOR_S, BYTES_WEIGHT, REQUESTS_WEIGHT, Scores
from tests.unit.controller.planning.plans import brokers, keys, view_of


def test_little_traffic_is_no_load() -> None:
    owners = dict(zip(keys(10), ["b00", "b01"] * 5, strict=True))
    noise = {key: Rate(9_000.0, 3.0) for key, owner in owners.items() if owner == "b00"}
    assert plan(view_of(brokers=brokers(2), owners=owners, rates=noise), 0.0).moves == []


def test_bytes_requests_and_partitions_have_their_parts_of_a_score() -> None:
    """Give one broker all bytes, the next all requests, and the third as many partitions at rest as those have."""
    first, second, third = keys(3)
    rates = {first: Rate(10 * BYTES_FLOOR_S, 0.0), second: Rate(0.0, 1e6)}
    scores = Scores(
        view_of(brokers=brokers(3), owners={first: "b00", second: "b01", third: "b02"}, rates=rates), brokers(3)
    )
    at_rest = (1 - BYTES_WEIGHT - REQUESTS_WEIGHT) / 3
    parts = [round(score / WHOLE, 6) for score in scores.scores.values()]
    assert parts == [round(BYTES_WEIGHT + at_rest, 6), round(REQUESTS_WEIGHT + at_rest, 6), round(at_rest, 6)]
    assert scores.weight(first, "b00") == scores.scores["b00"]
    assert scores.weight(third, "b02") == scores.at_rest


def test_a_move_of_a_dead_brokers_partition_gives_its_weight_to_the_target_alone() -> None:
    owners = dict(zip(keys(4), ["b00", "b01", "dead", "dead"], strict=True))
    scores = Scores(view_of(brokers=brokers(2), owners=owners), brokers(2))
    scores.moved("dead", "b00", scores.at_rest)
    assert scores.scores == {"b00": 2 * scores.at_rest, "b01": scores.at_rest}
    scores.moved("b00", "b01", scores.at_rest)
    assert scores.scores == {"b00": scores.at_rest, "b01": 2 * scores.at_rest}


def test_a_cluster_without_partitions_has_scores_of_0() -> None:
    scores = Scores(view_of(brokers=brokers(2), owners={}), brokers(2))
    assert scores.scores == {"b00": 0, "b01": 0}
