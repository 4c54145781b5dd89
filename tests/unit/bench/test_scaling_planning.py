"""The planner's figures: what is planned, that it is applied, and that a lost broker's part is placed again."""

from __future__ import annotations

import uuid
from collections import Counter

import pytest

from bench.scaling_planning import Size, apply, figures, plan_timed
from bench.scaling_plot import size_of
from bmq.controller.planning.partition_table import PartitionTable
from bmq.controller.planning.planner_view import PlannerBroker, PlannerView


@pytest.mark.slow
def test_everything_is_placed_and_the_share_of_a_lost_broker_again() -> None:
    found = figures(Size(4, 3, 1000))
    assert found["all_moves"] == 3000
    assert found["lost_moves"] == 750
    assert found["none_moves"] < 100, "what is as it should be stays, but for a few that balancing moves"
    assert found["all_seconds"] > 0
    assert 0 < found["all_step_ms"] <= 1000 * found["all_seconds"]
    assert "bytes_partition" in found  # no bound: so few partitions fit into memory that this process has already


def test_moves_are_applied_across_chunks() -> None:
    table, topic = PartitionTable(), uuid.UUID(int=1)
    table.set_topic(topic, 2500)
    brokers = [PlannerBroker(name) for name in ("a", "b")]
    found = plan_timed(PlannerView(brokers=brokers, owners=table), "all")
    assert found["all_moves"] == 2500
    assert Counter(table.values()) == {"a": 1250, "b": 1250}
    apply(table, [])
    assert len(table) == 2500


def test_a_plan_that_is_not_applied_leaves_the_table() -> None:
    table = PartitionTable()
    table.set_topic(uuid.UUID(int=1), 10)
    found = plan_timed(PlannerView(brokers=[PlannerBroker("a")], owners=table), "all", is_applied=False)
    assert found["all_moves"] == 10
    assert set(table.values()) == {""}


def test_a_case_tells_its_size() -> None:
    assert Size(1000, 100_000, 10).name == "1,000 brokers, 100,000 topics of 10"
    assert size_of(Size(1000, 100_000, 10).name) == (1000, 1_000_000)
