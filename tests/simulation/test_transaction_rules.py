"""Histories of transactional clients with a name, each of a rule and of the steps at which it might break."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bmq.meta import producer_ids
from tests.harness.loop import run
from tests.simulation import transaction_clients, transaction_points, transaction_producers
from tests.simulation.test_transactional_clients import (
    History,
    committed,
    history,
)
from tests.simulation.transaction_faults import (
    all_die,
    deletes_a_topic,
    dies,
    is_drained,
    loses_the_store_for_good,
    moves_and_loses_the_store,
    stands_still,
    the_store_is_away,
    views_stand_still,
)


def play(
    seed: int,
    point: str,
    fault: Callable[..., None],
    *,
    switches: bool = False,
    expires: bool = False,
    are_versions_mixed: bool = False,
    has_ring: bool = False,
) -> History:
    """Run a history in which the fault befalls a process at the point; it is judged at its end."""
    made = history(
        seed,
        point,
        fault,
        switches=switches,
        expires=expires,
        are_versions_mixed=are_versions_mixed,
        has_ring=has_ring,
    )
    played = run(made, seed)
    assert played.points.has_befallen, f"nobody came to the point {played.points.count} times"
    assert committed(played) > 0, "nothing was committed"
    return played


def test_rule_11_no_marker_comes_before_its_prepare_is_durable() -> None:
    played = play(1, "before PrepareCommit", dies)
    assert played.points.decisions.arrived > 10


def test_rule_11_whoever_serves_the_shard_later_sends_the_markers() -> None:
    play(2, "after PrepareCommit", dies)


def test_rule_11_a_transaction_times_out_whoever_serves_the_shard_by_then() -> None:
    play(13, "before Overdue", dies)


def test_rule_11_an_end_that_its_coordinator_has_not_decided_is_repeated() -> None:
    play(12, "before EndTxn", dies)


def test_rule_11_an_abort_is_complete_whoever_serves_the_shard_later() -> None:
    play(12, "after CompleteAbort", dies)


def test_rule_11_transactions_end_while_the_store_is_away_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process has only the producer ids of its last block, and no end needs any while epochs are left."""
    monkeypatch.setattr(producer_ids, "BLOCK", 2)
    monkeypatch.setattr(producer_ids, "AHEAD", 1)
    monkeypatch.setattr(transaction_points, "SOON", 0.0)
    played = play(16, "after CompleteCommit", the_store_is_away)
    assert played.points.ended_without_store > len(played.world.places) * producer_ids.BLOCK


def test_rule_12_a_batch_that_comes_after_the_end_of_its_transaction_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transaction_clients, "LATE", 1.0)
    assert play(4, "after Verify", stands_still).known.late > 0


def test_rule_12_produce_and_commits_of_version_2_add_their_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_producers, "KINDS", (transaction_producers.Kind.FOLLOWS,))
    played = play(10, "before Verify", is_drained)
    assert not played.points.passed["before AddOffsetsToTxn"]


def test_rule_13_readers_of_committed_records_see_them_once_all_are_decided() -> None:
    play(5, "before PartitionMarker", dies)


def test_rule_13_offsets_of_a_transaction_are_pending_until_its_end() -> None:
    play(7, "before GroupMarker", is_drained)


def test_rule_13_offsets_move_once_while_only_one_process_sees_the_move_of_a_groups_shard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All transactions of a producer have one epoch, and markers go where the shard was."""
    monkeypatch.setattr(transaction_producers, "KINDS", (transaction_producers.Kind.OLD,))
    play(7, "after GroupMarker", views_stand_still)


@pytest.mark.parametrize("seed", [7, 9])
def test_a_marker_for_a_deleted_topic_is_not_waited_for(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_clients, "SIDES", 1.0)
    assert play(seed, "before SendMarkers", deletes_a_topic).known.sides > 0


def test_rule_4_a_fenced_producer_never_gets_the_epoch_of_its_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer of version 2 aborts again and again, behind a successor of version 1."""
    monkeypatch.setattr(transaction_clients, "SIDES", 1.0)
    play(4, "before SendMarkers", deletes_a_topic)


@pytest.mark.parametrize("point", ["after Append", "after PrepareCommit"])
def test_transactions_go_on_in_a_store_that_was_rebuilt_while_they_were_open(point: str) -> None:
    played = play(4, point, loses_the_store_for_good)
    assert played.world.rebuilding is not None


@pytest.mark.parametrize("seed", [5, 7])
def test_rule_11_a_rebuilt_store_gives_higher_ownership_numbers_than_any_marker_has(seed: int) -> None:
    assert play(seed, "after PrepareCommit", moves_and_loses_the_store).world.rebuilding is not None


def test_transactions_go_on_while_the_level_changes() -> None:
    """Levels 2 and 1 in turn: each transaction ends as it began, and clients follow with the next one."""
    played = play(6, "before Append", stands_still, switches=True)
    assert played.level_changes > 0
    assert played.known.switched > 0


@pytest.mark.parametrize("seed", [10, 16])
def test_a_producer_whose_epochs_run_out_goes_on_under_another_id(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_points, "SOON", 1.0)
    assert play(seed, "after PrepareAbort", is_drained).points.ran_out > 0


def test_rule_14_a_shard_is_at_any_time_what_its_replay_gives() -> None:
    assert play(10, "before Snapshot", stands_still).replays > 10


@pytest.mark.parametrize("seed", [1, 2])
def test_a_transactional_id_is_forgotten_only_after_it_was_not_used_for_long(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_clients, "IDLE", 0.8)
    assert play(seed, "after CompleteCommit", dies, expires=True).known.expired > 0


@pytest.mark.parametrize("point", ["before PrepareCommit", "after SendMarkers"])
def test_transactions_go_on_while_processes_of_other_versions_come_and_go(point: str) -> None:
    played = play(11, point, all_die, are_versions_mixed=True)
    assert len(set(played.world.versions.values())) > 1
