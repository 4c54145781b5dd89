"""Bytes on storage by topic, of the partitions that this broker has open: Kafka's ``Log,name=Size``, for metrics.

A partition's size is known without a call to storage until one of its segments is registered or closed
(``broker.partition.log_size.LogSize``), so a refresh lists few folders.  After the broker's start all folders must be
listed, ``LISTINGS_MAX`` per refresh.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from bmq.broker.partition.owner import PartitionOwner
from bmq.core.aio.turns import Turns, next_turn
from bmq.core.metrics.counters import OTHER_TOPICS
from bmq.core.metrics.series_bound import SeriesBound

LISTINGS_MAX = 300
"""Folders listed by one refresh, one after another.  At one refresh in 15 s these are 20 per second, a negligible load
for a NameNode; 10,000 partitions are all counted 8 minutes after their broker's start."""


class LogSizes:
    """One broker's log sizes.  ``refresh`` counts again; ``by_topic`` is the last count."""

    def __init__(self, owners: Callable[[], Sequence[PartitionOwner]], topics_max: int) -> None:
        self._owners = owners
        self._bound: SeriesBound[str] = SeriesBound(topics_max)
        self.by_topic: Mapping[str, int] = MappingProxyType({})
        """Bytes by topic name.  Topics past the bound share one number, under ``OTHER_TOPICS``."""
        self.of_all_topics: Mapping[str, int] = MappingProxyType({})
        """The same count without the bound."""
        self.is_counted = False
        self.partitions_unknown = 0
        """Partitions that have not been counted yet, and are not in the sums."""

    async def refresh(self) -> None:
        """Count again the logs that have changed, up to ``LISTINGS_MAX``.

        Raises RequestError if storage does not respond.
        """
        stale = await self._add_up()
        try:
            for owner in random.sample(stale, min(len(stale), LISTINGS_MAX)):
                await owner.log_bytes()
        finally:
            await self._add_up()

    async def _add_up(self) -> list[PartitionOwner]:
        """Add the known sizes up.  Returns the partitions whose size a listing would bring up to date."""
        sums: Counter[str] = Counter()
        stale, unknown, turns = [], 0, Turns()
        for owner in self._owners():
            if turns.is_over():
                await next_turn()
            if not owner.is_log_size_current:
                stale.append(owner)
            known = owner.log_bytes_known
            if known is None:
                unknown += 1
            else:
                sums[owner.topic] += known
        shown = self._bound.choose(sums)
        others = sum(size for topic, size in sums.items() if topic not in shown)
        self.by_topic = {topic: sums[topic] for topic in shown} | ({OTHER_TOPICS: others} if others else {})
        self.of_all_topics = sums
        self.partitions_unknown = unknown
        self.is_counted = True
        return stale
