"""Bytes on storage by topic, summed over all brokers, for the console."""

from __future__ import annotations

from collections import Counter

from bmq.broker.log_sizes_api import log_sizes
from bmq.console.state import TopicSizes
from bmq.core.aio.memoized import Memoized
from bmq.core.aio.turns import Turns, next_turn
from bmq.core.rpc.messages.broker import LogSizesRequest
from bmq.meta.catalog import Catalog
from bmq.meta.cluster.member import BROKER
from bmq.server.cluster_member import ClusterMember
from bmq.server.queries.collected_metrics import Collected
from bmq.server.queries.member_queries import ask_members, others_with

KEPT_S = 15.0
"""Sums are shown for so long before they are read again: a broker does not count more often."""


class ClusterTopicSizes:
    """Sums of the brokers that respond, and the names of the others; read once for all requests of ``KEPT_S``."""

    def __init__(self, joined: ClusterMember, catalog: Catalog, collected: Collected) -> None:
        self._joined = joined
        self._catalog = catalog
        self._collected = collected
        self.facts = Memoized(self._ask, KEPT_S).get

    async def _ask(self) -> TopicSizes:
        others = others_with(self._joined, BROKER)
        found = await ask_members(self._joined, others, LogSizesRequest())
        silent = sorted(member.incarnation for member in others if member.incarnation not in found)
        if self._collected.log_sizes is not None:
            own = await self._collected.count_log_sizes()
            found[self._joined.view.own] = log_sizes(own, self._catalog)
        sums, unknown, turns = Counter[str](), 0, Turns()
        for response in found.values():
            unknown += response.partitions_unknown
            for topic_id, size in response.topics:
                if turns.is_over():
                    await next_turn()
                topic = self._catalog.by_id(topic_id)
                if topic is not None:
                    sums[topic.name] += size
        return TopicSizes(sums, unknown, silent)
