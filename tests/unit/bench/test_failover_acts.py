"""The acts of the failover measurement: which deployment has which, in which order, and with which aim."""

from __future__ import annotations

import pytest

from bench.failover_acts import ACTS, ADD, DEATHS, HAS, NAMENODE, PARTS, SITES, UNPLUG, Act, acts_of, chosen, in_order


@pytest.mark.parametrize("name", HAS)
def test_each_part_of_a_deployment_is_lost_in_every_way(name: str) -> None:
    lost = {(act.part, act.how) for act in acts_of(name) if act.how in DEATHS}
    assert lost == {(part, how) for part in HAS[name] for how in DEATHS}


def test_kafka_has_no_act_that_its_counterpart_has_not() -> None:
    for kafka, ours in SITES.values():
        assert set(acts_of(kafka)) < set(acts_of(ours))


def test_every_part_is_named_and_measured() -> None:
    assert {part for parts in HAS.values() for part in parts} == set(PARTS)
    assert {act.part for act in ACTS.values()} == set(PARTS)


def test_each_round_has_every_act_once_and_begins_with_another_one() -> None:
    acts = acts_of("bmq-3")
    orders = [in_order(acts, number) for number in range(1, 6)]
    assert all(sorted(order, key=acts.index) == acts for order in orders)
    assert len({order[0] for order in orders}) == 5
    assert all(order[-1].how == ADD for order in orders)


def test_one_act_has_an_order() -> None:
    assert in_order([Act("node", "killed")], 5) == [Act("node", "killed")]
    assert in_order([], 1) == []


def test_the_size_of_data_and_the_machine_leave_acts_out() -> None:
    first = chosen("bmq-3", ACTS, is_first_size=True, can_unplug=True)
    assert first == acts_of("bmq-3")
    later = {act.case for act in chosen("bmq-3", ACTS, is_first_size=False, can_unplug=True)}
    assert later == {
        "node-killed", "machine-killed", "datanode-killed", "node-drained", "node-restarted", "node-one-more"
    }  # fmt: skip
    assert all(act.how != UNPLUG for act in chosen("bmq-3", ACTS, is_first_size=True, can_unplug=False))
    wanted = chosen("kafka-3", ["datanode-killed", "node-killed"], is_first_size=True, can_unplug=True)
    assert [act.case for act in wanted] == ["node-killed"]


@pytest.mark.parametrize(
    ("act", "aim_ms"),
    [(Act("node", how), 3000.0) for how in DEATHS]
    + [(Act("node", how), 100.0) for how in ("drained", "restarted", ADD)],
)
def test_an_aim_is_what_it_was_before_anything_was_measured(act: Act, aim_ms: float) -> None:
    assert act.aim_ms == aim_ms


def test_only_the_lone_namenode_comes_back_before_the_stream_flows() -> None:
    assert {act.part for act in ACTS.values() if act.away_s is not None} == {NAMENODE}
    assert Act(NAMENODE, "killed").away_s == 0.0
