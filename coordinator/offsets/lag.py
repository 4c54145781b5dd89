"""Lag of the groups of this process's shards: high watermarks minus committed offsets, as in Kafka's tools.

So the records of open transactions count, which consumers of committed records cannot read yet.

A group has one coordinator, so the sum over all coordinators is the cluster's, and no group counts twice.  Only offsets
of topics and partitions that exist count.  A refresh walks over the committed offsets in turns of the event loop.  It
sends every broker a request for the watermarks of the broker's partitions.  Shards come and go during the requests.
Only a shard that was there before them and after them counts: of a new shard no watermark was asked for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from bmq.coordinator.offsets.committed import Offsets
from bmq.core.aio.steps import batched, run_in_steps
from bmq.core.aio.turns import Turns, next_turn
from bmq.core.metrics.counters import OTHER_TOPICS
from bmq.core.metrics.series_bound import SeriesBound
from bmq.core.model import PartitionKey
from bmq.meta.catalog import Catalog, Topic

Watermarks = Callable[[Sequence[PartitionKey]], Awaitable[Mapping[PartitionKey, int]]]
"""Returns the high watermarks of the given partitions only; partitions whose owner does not respond are missing."""
PARTITIONS_A_PART = 500
"""Partitions of a pair that are counted between two turns of the loop, at up to 5 us each."""
Pair = tuple[str, str]
"""A group and the name of a topic that it has committed offsets of."""


class PairLag(NamedTuple):
    """One group's progress in one topic."""

    group: str
    topic: str
    offset_sum: int
    """Sum of the committed offsets: its rate is the rate of consumption."""
    lag: int
    """Sum over the partitions whose high watermark is known."""
    lag_max: int
    """The largest lag of one of these partitions."""


class PartitionLag(NamedTuple):
    """One group's lag in one partition, in records."""

    group: str
    topic: str
    partition: int
    lag: int


@dataclass(frozen=True, slots=True)
class LagReport:
    """All lag that is shown, as of one refresh."""

    pairs: Sequence[PairLag] = ()
    """Lag by pair.  If there are more pairs than series, the last one is ``OTHER_TOPICS``."""
    partitions: Sequence[PartitionLag] = ()
    partitions_unknown: int = 0
    """Partitions with committed offsets whose owner did not return the high watermark, or was not asked for it: their
    first commit came during the requests."""
    groups_in_part: Set[str] = frozenset()
    """Groups whose lag in ``pairs`` is incomplete: an owner did not respond, or one of their pairs shares a series."""


class _Totals:
    """Sums of one pair, while they are counted."""

    __slots__ = ("lag", "lag_max", "offset_sum", "partitions", "unknown")

    def __init__(self) -> None:
        self.lag = self.lag_max = self.offset_sum = self.partitions = self.unknown = 0


class GroupLag:
    """Lag of one coordinator's groups.  ``refresh`` counts it again; ``report`` is the last count.

    ``series_max`` bounds the series twice. So many pairs of group and topic have a sum of their own; all other pairs
    share a sum. Single partitions are reported for as many of these pairs as fit into ``series_max`` partitions.
    """

    def __init__(
        self, offsets: Callable[[], Sequence[Offsets]], catalog: Catalog, watermarks: Watermarks, series_max: int
    ) -> None:
        self._offsets = offsets
        self._catalog = catalog
        self._watermarks = watermarks
        self._pairs_shown: SeriesBound[Pair] = SeriesBound(series_max)
        self._partitions_shown: SeriesBound[Pair] = SeriesBound(series_max)
        self.report = LagReport()

    async def refresh(self) -> None:
        """Count all lag again and replace ``report``.  Raises the exceptions of ``watermarks``.

        After a failure the report has no lag: an older lag would look as if it had been counted now.
        """
        keys: dict[PartitionKey, None] = {}
        try:
            self.report = await self._report(keys)
        except Exception:
            self.report = LagReport(partitions_unknown=len(keys))
            raise

    async def _report(self, keys: dict[PartitionKey, None]) -> LagReport:
        """Count all lag, and add the partitions with committed offsets to ``keys``."""
        asked = self._offsets()
        async for _, topic, committed in self._pairs(asked):
            keys.update((PartitionKey(topic.topic_id, number), None) for number in committed)
        ends = await self._watermarks(list(keys))
        present = set(self._offsets())
        shards = [each for each in asked if each in present]
        totals = await self._count(shards, ends, keys)
        turns = Turns()
        lags = dict(await turns.map(_lag_of, totals.items()))
        await next_turn()
        shown = await run_in_steps(self._pairs_shown.choose_in_steps(lags))
        by_partition = self._partitions_shown.choose(
            {pair: lags[pair] for pair in shown}, {pair: totals[pair].partitions for pair in shown}
        )
        pairs, in_part, others = list[PairLag](), set[str](), _Totals()
        for pair, each in totals.items():
            if turns.is_over():
                await next_turn()
            if each.unknown or pair not in shown:
                in_part.add(pair[0])
            if pair in shown:
                pairs.append(PairLag(*pair, each.offset_sum, each.lag, each.lag_max))
            else:
                others.offset_sum += each.offset_sum
                others.lag += each.lag
                others.lag_max = max(others.lag_max, each.lag_max)
        if len(pairs) < len(totals):
            pairs.append(PairLag(OTHER_TOPICS, OTHER_TOPICS, others.offset_sum, others.lag, others.lag_max))
        return LagReport(
            pairs=pairs,
            partitions=await self._partition_lags(shards, by_partition, ends),
            partitions_unknown=len(keys) - len(ends),
            groups_in_part=in_part,
        )

    async def _count(
        self, shards: Sequence[Offsets], ends: Mapping[PartitionKey, int], keys: dict[PartitionKey, None]
    ) -> dict[Pair, _Totals]:
        """Return the sums of each pair; add the partitions without a watermark to ``keys``."""
        totals: dict[Pair, _Totals] = {}
        async for group, topic, committed in self._pairs(shards):
            each = totals.get((group, topic.name))
            if each is None:
                each = totals[group, topic.name] = _Totals()
            for number, offset in committed.items():
                key = PartitionKey(topic.topic_id, number)
                end = ends.get(key)
                each.partitions += 1
                each.offset_sum += offset
                if end is None:
                    each.unknown += 1
                    keys[key] = None
                elif end > offset:
                    each.lag += end - offset
                    each.lag_max = max(each.lag_max, end - offset)
        return totals

    async def _partition_lags(
        self, shards: Sequence[Offsets], shown: set[Pair], ends: Mapping[PartitionKey, int]
    ) -> list[PartitionLag]:
        found = []
        async for group, topic, committed in self._pairs(shards):
            if (group, topic.name) not in shown:
                continue
            for number, offset in committed.items():
                end = ends.get(PartitionKey(topic.topic_id, number))
                if end is not None:
                    found.append(PartitionLag(group, topic.name, number, max(0, end - offset)))
        return found

    async def _pairs(self, shards: Sequence[Offsets]) -> AsyncIterator[tuple[str, Topic, Mapping[int, int]]]:
        """Yield the pairs of a group and a topic with committed offsets, with these offsets by partition.

        A pair with many offsets is yielded in parts.  Groups may come and go meanwhile.
        """
        turns = Turns()
        for offsets in shards:
            for group in offsets.group_ids:
                for name in list(offsets.of_group(group)):
                    for part in batched(tuple(offsets.of_topic(group, name).items()), PARTITIONS_A_PART):
                        if turns.is_over(1 + len(part)):
                            await next_turn()
                        topic = self._catalog.topics.get(name)
                        if topic is None:
                            break
                        committed = {
                            number: each.offset
                            for number, each in part
                            if number < topic.partitions and each.topic_id in (None, topic.topic_id)
                        }
                        if committed:
                            yield group, topic, committed


def _lag_of(pair: tuple[Pair, _Totals]) -> tuple[Pair, float]:
    return pair[0], float(pair[1].lag)
