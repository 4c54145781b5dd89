"""Owner and traffic of every partition, with totals by owner that follow every change.  Pure.

The table is the planner's model of a cluster.  A plan needs every partition only when members change.  Otherwise it
needs totals: the brokers' numbers of partitions and their traffic, and the topics that have a partition without an
owner.  So a change updates the totals, at a cost that depends on the change and not on the cluster.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from bmq.controller.planning.rates import NO_RATE, OwnedRates, Rate, Rates
from bmq.core.aio.steps import Steps, finish_steps
from bmq.core.model import PartitionKey
from bmq.meta.cluster.assignment import CHUNK

_NO_RATES: Mapping[PartitionKey, Rate] = {}


class TopicOwners:
    """One topic's owners, in chunks as the store keeps them, each as long as the topic has partitions there."""

    __slots__ = ("chunks", "partitions", "unowned")

    def __init__(self) -> None:
        self.partitions = 0
        self.chunks: list[tuple[str, ...]] = []
        self.unowned = 0

    def length(self, number: int) -> int:
        """Return how many partitions one chunk has."""
        return min(CHUNK, self.partitions - number * CHUNK)


class PartitionTable(Mapping[PartitionKey, str]):
    """A mapping of each existing partition to its owner, "" for none.  Topics are in the order in which they came."""

    def __init__(self) -> None:
        self.unowned: dict[uuid.UUID, None] = {}
        """Topics with a partition that has no owner, an ordered set."""
        self.lasting = OwnedRates()
        """The traffic that partitions have had for minutes: see ``partition_load``."""
        self._topics: dict[uuid.UUID, TopicOwners] = {}
        self._counts: dict[str, int] = {}
        self._now = OwnedRates()
        self._partitions = 0

    @classmethod
    def of(cls, owners: Mapping[PartitionKey, str], rates: Mapping[PartitionKey, Rate] = _NO_RATES) -> PartitionTable:
        """Return a table of these partitions.

        A topic's partitions are numbered from 0 without a gap; partitions that ``owners`` leaves out have no owner.
        """
        table = cls()
        names: dict[uuid.UUID, list[str]] = {}
        for key, owner in owners.items():
            of_topic = names.setdefault(key.topic_id, [])
            of_topic.extend([""] * (key.partition + 1 - len(of_topic)))
            of_topic[key.partition] = owner
        for topic_id, of_topic in names.items():
            table.set_topic(topic_id, len(of_topic))
            for number in range(-(-len(of_topic) // CHUNK)):
                table.set_chunk(topic_id, number, of_topic[number * CHUNK : (number + 1) * CHUNK])
        for key, rate in rates.items():
            table.set_rate(key, rate)
        return table

    def __repr__(self) -> str:
        return f"<PartitionTable partitions={self._partitions} topics={len(self._topics)} rated={self.rated_count}>"

    def __len__(self) -> int:
        return self._partitions

    def __getitem__(self, key: PartitionKey) -> str:
        topic = self._topics[key.topic_id]
        if not 0 <= key.partition < topic.partitions:
            raise KeyError(key)
        return topic.chunks[key.partition // CHUNK][key.partition % CHUNK]

    def __iter__(self) -> Iterator[PartitionKey]:
        return (PartitionKey(topic_id, n) for topic_id, topic in self._topics.items() for n in range(topic.partitions))

    # ------------------------------------------------------------------------------------------------------ reading

    @property
    def topics(self) -> Mapping[uuid.UUID, TopicOwners]:
        """All topics' owners, by topic id."""
        return self._topics

    @property
    def owners(self) -> Iterable[str]:
        """The owners that have a partition, with "" if there is a partition without an owner."""
        return self._counts.keys()

    @property
    def rated_count(self) -> int:
        """Number of partitions that have traffic."""
        return len(self._now)

    @property
    def traffic(self) -> Rates:
        """Traffic of all partitions together."""
        return self._now.total

    def count(self, owner: str) -> int:
        """Return how many partitions the owner has."""
        return self._counts.get(owner, 0)

    def traffic_of(self, owner: str) -> Rates:
        """Return the sum of the traffic of the owner's partitions."""
        return self._now.sum_of(owner)

    def rates_of(self, owner: str) -> Mapping[PartitionKey, Rate]:
        """Return the rates of the owner's partitions that have traffic."""
        return self._now.of(owner)

    def rate(self, key: PartitionKey) -> Rate:
        """Return the partition's rate; ``NO_RATE`` if it has no traffic or does not exist."""
        owner = self.get(key)
        return NO_RATE if owner is None else self.rates_of(owner).get(key, NO_RATE)

    def spread(self, topic_id: uuid.UUID) -> Counter[str]:
        """Return how many partitions of the topic each owner has.  Raises KeyError for an unknown topic."""
        counts: Counter[str] = Counter()
        for chunk in self._topics[topic_id].chunks:
            counts.update(chunk)
        return counts

    # ----------------------------------------------------------------------------------------------------- changing

    def set_topic(self, topic_id: uuid.UUID, partitions: int) -> None:
        """Add a topic, or change its number of partitions; new partitions have no owner."""
        topic = self._topics.get(topic_id)
        if topic is None:
            topic = self._topics[topic_id] = TopicOwners()
        before = topic.partitions
        if partitions < before:
            self.remove_topic(topic_id)
            self.set_topic(topic_id, partitions)
            return
        topic.partitions = partitions
        for number in range(before // CHUNK, -(-partitions // CHUNK)):
            if number == len(topic.chunks):
                topic.chunks.append(())
            self.set_chunk(topic_id, number, topic.chunks[number])

    def remove_topic(self, topic_id: uuid.UUID) -> None:
        """Forget a topic with its owners and rates.  Idempotent."""
        finish_steps(self.remove_in_steps(topic_id))

    def remove_in_steps(self, topic_id: uuid.UUID) -> Steps[None]:
        """Do the same as ``remove_topic``, with a pause after each chunk.  The last chunk is the first to go."""
        topic = self._topics.get(topic_id)
        if topic is None:
            return
        while topic.chunks:
            number, chunk = len(topic.chunks) - 1, topic.chunks[-1]
            if any(owner in self._now or owner in self.lasting for owner in set(chunk)):
                for index, owner in enumerate(chunk):
                    key = PartitionKey(topic_id, number * CHUNK + index)
                    self._now.set(owner, key, NO_RATE)
                    self.lasting.set(owner, key, NO_RATE)
            self._count(topic_id, topic, chunk, ())
            topic.partitions = number * CHUNK
            topic.chunks.pop()
            yield
        del self._topics[topic_id]
        self.unowned.pop(topic_id, None)

    def set_chunk(self, topic_id: uuid.UUID, number: int, owners: Sequence[str]) -> None:
        """Set the owners of one chunk of a topic.

        Missing owners become "", and those beyond the topic's last partition are ignored.  So is the call if the topic
        is not in the table, or has no such chunk.
        """
        topic = self._topics.get(topic_id)
        if topic is None or number >= len(topic.chunks):
            return
        before, length = topic.chunks[number], topic.length(number)
        after = tuple(owners[:length])
        after += ("",) * (length - len(after))
        if before == after:
            return
        self._count(topic_id, topic, before, after)
        topic.chunks[number] = after
        if self._now or self.lasting:
            self._carry_rates(topic_id, number, before, after)

    def set_rate(self, key: PartitionKey, rate: Rate) -> None:
        """Set a partition's traffic; one without any costs no memory.  A partition that does not exist is ignored."""
        owner = self.get(key)
        if owner is not None:
            self._now.set(owner, key, rate)

    def set_lasting(self, key: PartitionKey, rate: Rate) -> None:
        """Set the traffic that a partition has had for minutes.  A partition that does not exist is ignored."""
        owner = self.get(key)
        if owner is not None:
            self.lasting.set(owner, key, rate)

    def _count(self, topic_id: uuid.UUID, topic: TopicOwners, before: Sequence[str], after: Sequence[str]) -> None:
        self._partitions += len(after) - len(before)
        old, new = Counter(before), Counter(after)
        for owner in old.keys() | new.keys():
            count = self._counts.get(owner, 0) + new[owner] - old[owner]
            if count:
                self._counts[owner] = count
            else:
                self._counts.pop(owner, None)
        topic.unowned += new[""] - old[""]
        if topic.unowned:
            self.unowned[topic_id] = None
        else:
            self.unowned.pop(topic_id, None)

    def _carry_rates(self, topic_id: uuid.UUID, number: int, before: Sequence[str], after: Sequence[str]) -> None:
        """Move the rates of partitions that have changed owners to their new owners."""
        for rates in (self._now, self.lasting):
            if not any(owner in rates for owner in set(before)):
                continue
            for index, (old, new) in enumerate(zip(before, after, strict=False)):
                if old != new and old in rates:
                    rates.carry(PartitionKey(topic_id, number * CHUNK + index), old, new)
