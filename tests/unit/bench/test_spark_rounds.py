"""The rounds of a part: ways by turns, first those that warm up; a failure costs no other figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

import pytest

from bench.results import Results, Sample
from bench.spark_cpu import costs
from bench.spark_plan import FULL, QUICK, Plan, Topic, plan_of
from bench.spark_rounds import Measurement, play
from bench.spark_sites import BASE, STORAGE, Way

PLAN = replace(FULL, rounds=2)


def results() -> Results:
    return Results(command="", machine={}, plan=asdict(PLAN), started="")


def measured(rates: dict[str, list[float]], order: list[str] | None = None) -> Measurement:
    """Return a measurement whose rates these are, round by round; a rate of 0 fails."""

    def run(way: Way) -> Iterator[Sample]:
        if order is not None:
            order.append(way.name)
        rate = rates[way.name].pop(0)
        if not rate:
            raise ValueError("a wrong result\nwith a stack")
        yield Sample(adapter=way.name, bench="part/count", case="", round=0, metrics={"records_s": rate})

    return Measurement(name="count", ways=(STORAGE, BASE), run=run)


def rates(found: Sequence[Sample], name: str) -> list[tuple[int, float]]:
    return [(each.round, each.metrics["records_s"]) for each in found if each.adapter == name]


def test_rounds_count_once_no_rate_rises() -> None:
    found, order = results(), list[str]()
    play("part", [measured({"storage": [1, 2, 2, 5, 6], "kafka": [3, 3, 3, 7, 8]}, order)], PLAN, found)
    assert found.plan["warm_up"] == {"part": {"rounds": 3, "is_warm": True}}
    assert rates(found.warm_up, "storage") == [(0, 1), (-1, 2), (-2, 2)]
    assert rates(found.samples, "storage") == [(1, 5), (2, 6)]
    assert rates(found.samples, "kafka") == [(1, 7), (2, 8)]
    assert order[6:] == ["storage", "kafka", "kafka", "storage"]
    assert len(found.load) == 5


def test_a_rise_without_an_end_is_told() -> None:
    found, plan = results(), replace(PLAN, rounds=0, warm_rounds_most=3)
    play("part", [measured({"storage": [1, 2, 4], "kafka": [1, 1, 1]})], plan, found)
    assert found.plan["warm_up"] == {"part": {"rounds": 3, "is_warm": False}}


def test_a_failure_costs_no_other_figure() -> None:
    found = results()
    play("part", [measured({"storage": [1, 1, 0, 6], "kafka": [3, 3, 7, 8]})], PLAN, found)
    assert found.failures == ["round 1, count, storage: ValueError: a wrong result"]
    assert rates(found.samples, "storage") == [(2, 6)]
    assert rates(found.samples, "kafka") == [(1, 7), (2, 8)]


@pytest.mark.parametrize("plan", [FULL, QUICK])
def test_a_plan_is_found_again_in_its_results(plan: Plan) -> None:
    found = results()
    found.plan = asdict(plan) | {"settings": {}}
    assert plan_of(found) == plan


def test_topics_of_parts_have_names_of_their_own() -> None:
    assert Topic("batch", 100, "lz4", 5).name == "batch-100-lz4"
    assert Topic("batch", 100, "lz4", 5).case == "100 B, lz4"
    assert Topic("batch", 100, "none", 0).name == "batch-nothing"
    assert FULL.cold_topic.plain_bytes == 2_000_000_000


def test_costs_are_of_each_part_and_of_all() -> None:
    assert costs({"jvm": 1.0, "own": 3.0}, 2.0, "s_gb") == {
        "jvm_cpu_s_gb": 0.5, "own_cpu_s_gb": 1.5, "all_cpu_s_gb": 2.0,
    }  # fmt: skip
