"""The numbers of a real node, on storage and a store in memory, as ``/metrics`` shows them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bmq.console.state import OwnMetric
from bmq.core.clock import LoopClock
from bmq.core.config import NodeConfig
from bmq.server.console_view import own_metrics
from bmq.server.node import Node
from tests.harness.single_node import memory_node
from tests.harness.waiting import until


@asynccontextmanager
async def node_with(*roles: str, starts: bool = True) -> AsyncIterator[Node]:
    """Yield a node with these roles that serves its clients; a controller leads, unless the roles are not started."""
    config = NodeConfig(roles=roles, default_replication_factor=1, offsets_topic_num_partitions=2)
    async with memory_node(config, LoopClock()) as node:
        if starts:
            await node.start()
            leader = node.controller
            if leader is not None:
                await until(lambda: leader.controller.parts is not None)
        node.begin_serving()
        yield node


def metrics(of: Node) -> dict[str, float]:
    return {
        f"{each.name}{{{each.label_value}}}" if each.label else each.name: each.value
        for each in own_metrics(of).read()
        if isinstance(each, OwnMetric)
    }
