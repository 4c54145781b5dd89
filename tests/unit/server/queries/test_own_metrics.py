"""Numbers of a process that /metrics shows: those of every process, and those of its roles."""

from __future__ import annotations

import asyncio

from bmq.core.features import FEATURES
from bmq.endpoint.fetch.fetch_params import FetchParams
from bmq.endpoint.fetch.purgatory import SessionPartition
from bmq.endpoint.fetch.result import FetchResult
from bmq.meta.security.client_quotas import PRODUCER_BYTE_RATE
from tests.unit.server.queries.console_node import metrics, node_with

OF_EVERY_PROCESS = {
    "tail_cache_bytes": 0,
    "block_cache_bytes": 0,
    "fetch_response_bytes_held": 0,
    "fetch_responses_waiting": 0,
    "block_cache_hits": 0,
    "block_cache_hit_bytes": 0,
    "storage_reads": 0,
    "storage_read_bytes": 0,
    "quarantined": 0,
    "audit_lines": 0,
    "audit_lines_left_out{act}": 0,
    "audit_lines_left_out{denial}": 0,
    "audit_lines_left_out{login}": 0,
    "audit_lines_waiting": 0,
    "audit_write_failures": 0,
    "audit_is_failing": 0,
    "cluster_members": 1,
    "cluster_has_leader": False,
    "is_leader": False,
    "is_member": True,
    "kafka_controller_kafkacontroller_activecontrollercount": 0,
    "assigned_partitions": 0,
    "peers_connected": 0,
    "clients_given_up": 0,
    "kafka_server_fetchsessioncache_numincrementalfetchsessions": 0,
    "fetches_parked": 0,
    "ways_relayed": 0,
    "produces_kept": 0,
    "partitions_followed": 0,
    **{f"feature_level{{{name}}}": 0 for name in FEATURES.ranges},
}
NOT_ALWAYS_THE_SAME = {"storage_access_refused", "storage_calls_overdue", "cache_budget_bytes", "lease_age_seconds"}
"""Numbers of all tests of a run, of the machine's memory, and of time."""


async def test_a_process_without_roles_shows_the_clusters_numbers() -> None:
    async with node_with() as node:
        numbers = metrics(node)
    assert numbers.keys() - OF_EVERY_PROCESS.keys() == NOT_ALWAYS_THE_SAME
    assert {name: numbers[name] for name in OF_EVERY_PROCESS} == OF_EVERY_PROCESS


async def test_a_scrape_asks_for_the_next_collection() -> None:
    async with node_with("coordinator") as node:
        assert node.collected.group_lag is not None
        before = node.collected.group_lag.report
        metrics(node)
        await node.collected.wait()
        assert node.collected.group_lag.report is not before


async def test_numbers_of_a_role_are_those_of_processes_that_have_it() -> None:
    shown: dict[str, dict[str, float]] = {}
    for role in ("broker", "coordinator", "controller", "proxy"):
        async with node_with(role) as node:
            shown[role] = metrics(node)
    for role, name in (
        ("broker", "open_pipelines"),
        ("coordinator", "user_groups_refused"),
        ("coordinator", "user_transactional_ids_refused"),
        ("coordinator", "group_lag_unknown"),
        ("controller", "partitions_without_owner"),
        ("proxy", f"quota_throttled{{{PRODUCER_BYTE_RATE}}}"),
    ):
        assert [each for each, numbers in shown.items() if name in numbers] == [role], name
    assert {role: numbers["is_leader"] for role, numbers in shown.items() if numbers["is_leader"]} == {
        "controller": True
    }
    assert shown["controller"]["cluster_has_leader"]


async def test_fetches_that_wait_their_sessions_and_clients_given_up_are_counted_once_for_the_process() -> None:
    async with node_with("proxy", starts=False) as node:
        service = node.proxy.fetch_service
        params = FetchParams(1, 1_000, 0.0, committed=False, metrics=node.client_requests)
        fetched = service.fetch(0, 0, [SessionPartition("unknown", 0, 0, 1_000)], (), params, by_id=False)
        assert isinstance(fetched, FetchResult)
        parked = asyncio.get_running_loop().create_future()
        service.parked.add(parked)
        node._give_clients_up("a test")
        numbers = metrics(node)
        service.parked.remove(parked)
    assert numbers["kafka_server_fetchsessioncache_numincrementalfetchsessions"] == 1
    assert (numbers["fetches_parked"], numbers["clients_given_up"]) == (1, 1)
