"""Histories of transactional clients with a name, each of a rule and of the steps at which it might break."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.harness.loop import run
from tests.simulation.cluster_world import ClusterWorld, Process
from tests.simulation.test_transactional_clients import (
    History,
    committed,
    dies,
    history,
    is_drained,
    loses_the_store,
    stands_still,
)


def nothing(world: ClusterWorld, rng: Random, process: Process) -> None:
    """Let the process go on."""


def play(seed: int, point: str, fault: Callable[..., None]) -> History:
    """Run a history in which the fault befalls a process at the point; it is judged at its end."""
    played = run(history(seed, point, fault), seed)
    assert played.points.passed[point] > 0, "nobody came to the point"
    assert committed(played) > 0, "nothing was committed"
    return played


def test_rule_11_no_marker_comes_before_its_prepare_is_durable() -> None:
    played = play(1, "before PrepareCommit", dies)
    assert played.points.decisions.arrived > 10


def test_rule_11_whoever_serves_the_shard_later_sends_the_markers() -> None:
    play(2, "after PrepareCommit", dies)
    play(3, "before SendMarkers", loses_the_store)


def test_rule_12_a_batch_that_comes_after_the_end_of_its_transaction_is_refused() -> None:
    assert sum(play(seed, "after Verify", stands_still).known.late for seed in range(3)) > 0


def test_rule_13_readers_of_committed_records_see_them_once_all_are_decided() -> None:
    play(4, "after Append", nothing)
    play(5, "before PartitionMarker", dies)


def test_rule_13_offsets_of_a_transaction_are_pending_until_its_end() -> None:
    play(6, "after TxnOffsetCommit", dies)
    play(7, "before GroupMarker", is_drained)


def test_rule_14_a_shard_is_at_any_time_what_its_replay_gives() -> None:
    assert play(8, "before Snapshot", nothing).replays > 10
    play(9, "after Snapshot", dies)
