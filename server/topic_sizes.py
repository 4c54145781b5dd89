"""Bytes on storage by topic, summed over all brokers, for the console of a `Node`."""

from __future__ import annotations

from collections import Counter

from bmq.broker.log_sizes_api import log_sizes
from bmq.console.state import TopicSizes
from bmq.core.aio.memoized import Memoized
from bmq.core.rpc.messages.broker import LogSizesRequest
from bmq.meta.cluster.member import BROKER
from bmq.server.member_queries import ask_members, others_with
from bmq.server.node import Node

KEPT_S = 15.0
"""Sums are shown for so long before they are read again: a broker does not count more often."""


class ClusterTopicSizes:
    """Sums of the brokers that respond, and the names of those that do not; read once for all requests of `KEPT_S`."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.facts = Memoized(self._ask, KEPT_S).get

    async def _ask(self) -> TopicSizes:
        node = self._node
        others = others_with(node, BROKER)
        found = await ask_members(node, others, LogSizesRequest())
        silent = sorted(member.incarnation for member in others if member.incarnation not in found)
        if node.broker is not None:
            found[node.view.own] = log_sizes(await node.collected.count_log_sizes(), node.catalog)
        sums, unknown = Counter[str](), 0
        for response in found.values():
            unknown += response.partitions_unknown
            for topic_id, size in response.topics:
                topic = node.catalog.by_id(topic_id)
                if topic is not None:
                    sums[topic.name] += size
        return TopicSizes(sums, unknown, silent)
