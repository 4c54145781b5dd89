"""Numbers of a process that /metrics shows: those of every process, of the leader, and of what it measures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import create_autospec

import pytest

from bmq.console.state import OwnHistogram, OwnSeries, StorageFacts
from bmq.coordinator.offsets.lag import LagReport, PairLag, PartitionLag
from bmq.coordinator.transaction_shard.manager import TransactionShards, UnwrittenMarkers
from bmq.core.metrics.loop_meter import LoopMeter
from bmq.server.node import Node
from bmq.server.queries.console_facts import console_state
from tests.unit.server.queries.console_node import collected, metrics, node

OF_EVERY_PROCESS = {
    "tail_cache_bytes",
    "block_cache_bytes",
    "cache_budget_bytes",
    "fetch_response_bytes_held",
    "fetch_responses_waiting",
    "block_cache_hits",
    "block_cache_hit_bytes",
    "storage_access_refused",
    "storage_reads",
    "storage_read_bytes",
}


def test_a_process_without_roles_shows_the_clusters_numbers() -> None:
    numbers = metrics(node())
    assert {name: numbers[name] for name in numbers if name not in OF_EVERY_PROCESS} == {
        "quarantined": 0,
        "certificate_expires_in_seconds{OUT}": 86_400.0,
        "audit_lines": 0,
        "audit_lines_left_out{act}": 0,
        "audit_lines_left_out{denial}": 0,
        "audit_lines_left_out{login}": 0,
        "audit_lines_waiting": 0,
        "audit_write_failures": 0,
        "audit_is_failing": 0,
        "cluster_members": 2,
        "cluster_has_leader": True,
        "is_leader": False,
        "feature_level{f}": 1,
        "is_member": True,
        "kafka_controller_kafkacontroller_activecontrollercount": 0,
        "lease_age_seconds": 1.5,
        "assigned_partitions": 3,
        "peers_connected": 1,
        "ways_relayed": 4,
        "produces_kept": 5,
        "partitions_followed": 7,
    }


def test_lag_of_groups_has_the_names_of_kafka_exporter() -> None:
    process, asked = cast(Any, node()), []
    report = LagReport([PairLag("g", "orders", 140, 10)], [PartitionLag("g", "orders", 3, 10)], 2)
    process.collected = collected(request=lambda: asked.append(1), group_lag=SimpleNamespace(report=report))
    own = console_state(process).own_metrics()
    series = {each.name: (tuple(each.labels), each.samples) for each in own if isinstance(each, OwnSeries)}
    pair = ("consumergroup", "topic")
    assert series == {
        "kafka_consumergroup_lag_sum": (pair, [(("g", "orders"), 10)]),
        "kafka_consumergroup_current_offset_sum": (pair, [(("g", "orders"), 140)]),
        "kafka_consumergroup_lag": ((*pair, "partition"), [(("g", "orders", "3"), 10)]),
    }
    assert metrics(process)["group_lag_unknown"] == 2
    assert asked == [1, 1], "a scrape asks for the next count"


def test_a_coordinator_counts_the_groups_that_it_refused() -> None:
    assert metrics(node(not_loaded={}))["user_groups_refused"] == 2
    assert "user_groups_refused" not in metrics(node())


def test_a_coordinator_counts_its_transactions_and_the_commits_that_wait_for_them() -> None:
    process = node(not_loaded={})
    assert metrics(process)["unverified_offset_commits"] == 4
    assert metrics(process)["oldest_pending_offsets_age_seconds"] == 12.5
    assert "oldest_transaction_age_seconds" not in metrics(process)
    shards = create_autospec(TransactionShards, instance=True)
    shards.transactions_by_state.return_value = {"Ongoing": 3, "Empty": 0}
    cast(Any, process).collected.counts.oldest_transaction_s = 7.5
    shards.unwritten_markers.return_value = UnwrittenMarkers(2, 90.0)
    cast(Any, process.coordinator).transaction_shards = shards
    found = metrics(process)
    assert (found["transactions{Ongoing}"], found["transactions{Empty}"]) == (3, 0)
    assert found["oldest_transaction_age_seconds"] == 7.5
    assert (found["markers_not_written"], found["oldest_marker_not_written_seconds"]) == (2, 90.0)


@pytest.mark.parametrize("is_leading", [True, False])
def test_the_leader_and_the_others_show_who_leads(is_leading: bool) -> None:
    assert metrics(node(is_leading=is_leading))["is_leader"] == is_leading
    assert metrics(node(has_leader=is_leading))["cluster_has_leader"] == is_leading


def test_a_leader_counts_failovers_and_moves_by_their_cause() -> None:
    numbers = metrics(node(is_leading=True))
    assert numbers["kafka_controller_kafkacontroller_activecontrollercount"] == 1
    assert numbers["members_declared_dead{lease_ended}"] == 2
    assert numbers["members_declared_dead{no_answer}"] == 1
    assert numbers["moves{dead}"] == 2
    assert numbers["moves_pending"] == 1


def test_the_leader_shows_the_room_of_storage_and_of_the_roots_quota() -> None:
    room: StorageFacts = {
        "root": "hdfs://n/bmq", "datanodes": 3, "is_in_safe_mode": False, "missing_blocks": 0, "error": "",
        "space": {"capacity_bytes": 1000, "used_bytes": 600, "remaining_bytes": 400},
        "usage": {"bytes": 90, "bytes_quota": 100, "names": 7, "names_quota": None},
    }  # fmt: skip
    numbers = metrics(node(is_leading=True, room=room))
    assert (numbers["storage_capacity_bytes"], numbers["storage_remaining_bytes"]) == (1000, 400)
    assert (numbers["root_bytes"], numbers["root_quota_bytes"]) == (90, 100)
    assert (numbers["root_names"], numbers["root_quota_names"]) == (7, 0)
    assert "root_bytes" not in metrics(node(room=room)), "one process of the cluster shows them"
    assert metrics(node(is_leading=True, room={**room, "space": None, "usage": None}))["root_bytes"] == 0


def test_stages_are_those_of_the_roles_and_the_loop_is_measured_by_its_meter() -> None:
    def times(of: Node, meter: LoopMeter | None = None) -> dict[str, set[str]]:
        own = console_state(of, meter).own_metrics()
        return {each.name: set(each.series) for each in own if isinstance(each, OwnHistogram)}

    assert times(node()) == {"produce_stage_seconds": {"route"}, "fetch_stage_seconds": {"wait", "read"}}
    assert times(node(), LoopMeter())["loop_delay_seconds"] == {""}
