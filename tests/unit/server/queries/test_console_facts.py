"""Facts of one process and of its cluster, from what the process knows."""

from __future__ import annotations

from bmq.server.console_view import console_state
from tests.unit.server.queries.console_node import node_with


async def test_bytes_on_storage_are_those_of_the_last_count() -> None:
    async with node_with("broker", starts=False) as node:
        assert node.collected.log_sizes is not None
        node.collected.log_sizes.by_topic = {"orders": 12}
        gauges = console_state(node).gauges()
    assert gauges.log_bytes_by_topic == {"orders": 12}
    assert gauges.groups_by_state is None, "it is no coordinator"


async def test_the_cluster_is_shown_as_clients_see_it() -> None:
    async with node_with("proxy", "coordinator", starts=False) as node:
        node.client_port.connections = 3
        state = console_state(node)
        cluster = state.cluster()
        assert (cluster["node_id"], cluster["connections"], cluster["topics"]) == (node.config.node_id, 3, 0)
        assert state.gauges().groups_by_state is not None
