"""Numbers of a coordinator that /metrics shows: its shards, its transactions, and the lag of its groups."""

from __future__ import annotations

from unittest.mock import create_autospec

import pytest

from bmq.console.state import OwnMetric, OwnSeries
from bmq.coordinator.coordinator import Coordinator
from bmq.coordinator.offsets.lag import LagReport, PairLag, PartitionLag
from bmq.coordinator.transaction_shard.manager import TransactionShards, UnwrittenMarkers
from bmq.server.queries.coordinator_metrics import lag_metrics
from bmq.server.queries.transaction_metrics import transaction_metrics
from bmq.server.roles.coordinator import CoordinatorRole
from tests.unit.server.queries.console_node import metrics, node_with


def test_lag_of_groups_has_the_names_of_kafka_exporter() -> None:
    own = lag_metrics(LagReport([PairLag("g", "orders", 140, 10, 7)], [PartitionLag("g", "orders", 3, 10)], 2))
    series = {each.name: (tuple(each.labels), each.samples) for each in own if isinstance(each, OwnSeries)}
    pair = ("consumergroup", "topic")
    assert series == {
        "kafka_consumergroup_lag_sum": (pair, [(("g", "orders"), 10)]),
        "group_lag_max": (pair, [(("g", "orders"), 7)]),
        "kafka_consumergroup_current_offset_sum": (pair, [(("g", "orders"), 140)]),
        "kafka_consumergroup_lag": ((*pair, "partition"), [(("g", "orders", "3"), 10)]),
    }
    (unknown,) = (each for each in own if isinstance(each, OwnMetric))
    assert (unknown.name, unknown.value) == ("group_lag_unknown", 2)


async def test_a_coordinator_counts_what_it_refused_and_the_commits_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("groups_refused", 2), ("commits_unverified", 4), ("oldest_pending_s", 12.5)):
        monkeypatch.setattr(Coordinator, name, value)
    async with node_with("coordinator", starts=False) as node:
        numbers = metrics(node)
    assert numbers["user_groups_refused"] == 2
    assert numbers["unverified_offset_commits"] == 4
    assert numbers["oldest_pending_offsets_age_seconds"] == 12.5


async def test_shards_that_are_not_loaded_are_counted_by_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    async with node_with("coordinator", starts=False) as node:
        assert metrics(node)["shards_not_loaded{storage}"] == 0, "a series that is there shows that it is over"
        monkeypatch.setattr(CoordinatorRole, "shards_not_loaded_by_reason", lambda self: {"storage": 2, "no_owner": 0})
        assert metrics(node)["shards_not_loaded{storage}"] == 2
        assert metrics(node)["shards_not_loaded{no_owner}"] == 0


async def test_a_coordinator_shows_its_transactions_as_of_the_last_count() -> None:
    async with node_with("coordinator", starts=False) as node:
        node.collected.counts.oldest_transaction_s = 7.5
        numbers = metrics(node)
    assert numbers["oldest_transaction_age_seconds"] == 7.5
    assert numbers["transactions{Ongoing}"] == 0


def test_transactions_are_counted_by_state_and_markers_that_are_not_written() -> None:
    shards = create_autospec(TransactionShards, instance=True)
    shards.transactions_by_state.return_value = {"Ongoing": 3, "Empty": 0}
    shards.unwritten_markers.return_value = UnwrittenMarkers(2, 90.0)
    shards.ids_refused = 4
    found = {f"{each.name}{each.label_value}": each.value for each in transaction_metrics(shards, 7.5)}
    assert (found["transactionsOngoing"], found["transactionsEmpty"]) == (3, 0)
    assert found["oldest_transaction_age_seconds"] == 7.5
    assert found["user_transactional_ids_refused"] == 4
    assert (found["markers_not_written"], found["oldest_marker_not_written_seconds"]) == (2, 90.0)
