"""Histories of transactional clients with a name, each of a rule and of the steps at which it might break."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.harness.loop import run
from tests.simulation import transaction_clients
from tests.simulation.test_transactional_clients import (
    History,
    committed,
    dies,
    history,
    is_drained,
    stands_still,
)


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


def test_rule_12_a_batch_that_comes_after_the_end_of_its_transaction_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transaction_clients, "LATE", 1.0)
    assert play(0, "after Verify", stands_still).known.late > 0


def test_rule_13_readers_of_committed_records_see_them_once_all_are_decided() -> None:
    play(5, "before PartitionMarker", dies)


def test_rule_13_offsets_of_a_transaction_are_pending_until_its_end() -> None:
    play(7, "before GroupMarker", is_drained)


def test_rule_14_a_shard_is_at_any_time_what_its_replay_gives() -> None:
    assert play(9, "before Snapshot", stands_still).replays > 10
