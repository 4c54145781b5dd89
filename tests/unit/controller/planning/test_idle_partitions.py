"""Candidates at rest: one search serves many plans, and each is checked again when it is taken."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

import pytest

from bmq.controller.planning.idle_partitions import FOUND_MAX, PARTITIONS_PER_STEP, IdlePartitions
from bmq.controller.planning.partition_table import PartitionTable
from bmq.controller.planning.planner import plan
from bmq.controller.planning.planner_view import PENDING_MOVES_MAX
from bmq.controller.planning.rates import Rate
from bmq.core.model import PartitionKey
from bmq.meta.cluster.assignment import CHUNK
from tests.unit.controller.planning.plans import (
    applied,
    brokers,
    keys,
    view_of,
)


@pytest.mark.slow
def test_one_search_finds_partitions_for_many_plans() -> None:
    everything = keys(*[CHUNK] * 10)
    owners = {key: f"b0{index % 2}" for index, key in enumerate(everything)}
    searches = 0

    class Counted(IdlePartitions):
        def search(self, *args: object, **kwargs: object) -> Generator[None, None, None]:
            nonlocal searches
            searches += 1
            return super().search(*args, **kwargs)  # type: ignore[arg-type]

    view = replace(view_of(brokers=brokers(4), owners=owners), idle=Counted())
    moved: set[PartitionKey] = set()
    for _ in range(20):
        result = plan(view, 0.0)
        assert len(result.moves) == PENDING_MOVES_MAX
        assert moved.isdisjoint(move.key for move in result.moves)
        moved |= {move.key for move in result.moves}
        view = replace(applied(view, list(result.moves)), balance=result.balance)
    assert searches == 1
    assert len({key.topic_id for key in moved}) == 10


def any_partition(key: PartitionKey) -> bool:
    return True


def test_partitions_with_traffic_that_does_not_last_come_last() -> None:
    everything = keys(40)
    table = PartitionTable.of(dict.fromkeys(everything, "a"))
    for key in everything[:20]:
        table.set_rate(key, Rate(1e6, 1.0))
    for key in everything[:10]:
        table.set_lasting(key, Rate(1e6, 1.0))
    idle = IdlePartitions()
    list(idle.search(table, {"a"}, any_partition))
    found = [idle.take(table, "a", any_partition) for _ in range(31)]
    assert set(found[:20]) == set(everything[20:])
    assert set(found[20:30]) == set(everything[10:20])
    assert found[30] is None


def test_a_candidate_that_has_left_or_has_a_load_or_may_not_move_is_not_given_out() -> None:
    everything = keys(4)
    table = PartitionTable.of(dict.fromkeys(everything, "a"))
    idle = IdlePartitions()
    list(idle.search(table, {"a"}, any_partition))
    left, used, fixed, movable = everything
    table.set_chunk(left.topic_id, 0, ["b", "a", "a", "a"])
    table.set_lasting(used, Rate(1e6, 1.0))
    assert idle.take(table, "a", lambda key: key != fixed) == movable
    assert idle.take(table, "a", lambda key: key != fixed) is None


def test_a_search_passes_over_other_owners_and_over_partitions_with_a_load() -> None:
    everything = keys(6)
    owners = {key: "ab"[key.partition % 2] for key in everything}
    idle = IdlePartitions()
    table = PartitionTable.of(owners)
    table.set_lasting(everything[0], Rate(1e6, 1.0))
    list(idle.search(table, {"a"}, lambda key: key != everything[2]))
    assert idle.take(table, "b", any_partition) is None
    assert idle.take(table, "a", any_partition) == everything[4]
    assert idle.take(table, "a", any_partition) is None


def test_candidates_are_bounded_and_of_all_topics() -> None:
    table = PartitionTable.of(dict.fromkeys(keys(FOUND_MAX + 500, CHUNK), "a"))
    idle = IdlePartitions()
    list(idle.search(table, {"a"}, any_partition))
    found = set()
    while (key := idle.take(table, "a", any_partition)) is not None:
        found.add(key)
    assert len(found) == FOUND_MAX
    assert len({key.topic_id for key in found}) == 2


def test_a_step_of_a_search_covers_a_bounded_number_of_partitions() -> None:
    table = PartitionTable.of(dict.fromkeys(keys(*[CHUNK] * 6), "a"))
    checked = [0]

    def counted(key: PartitionKey) -> bool:
        checked[-1] += 1
        return False

    for _ in IdlePartitions().search(table, {"a"}, counted):
        checked.append(0)
    assert sum(checked) == 6 * CHUNK
    assert max(checked) <= PARTITIONS_PER_STEP + CHUNK


def test_nothing_is_left_after_a_clear() -> None:
    table = PartitionTable.of(dict.fromkeys(keys(1), "a"))
    idle = IdlePartitions()
    list(idle.search(table, {"a"}, any_partition))
    idle.clear()
    assert idle.take(table, "a", any_partition) is None
