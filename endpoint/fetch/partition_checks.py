"""The check of one partition for a fetch: its topic, the client's rights, its owner, its tail."""

from __future__ import annotations

from collections.abc import Callable

from bmq.core.errors import ErrorCode
from bmq.core.metrics.counters import RequestCounters
from bmq.core.model import PartitionKey
from bmq.core.wire.api_keys import ApiKey
from bmq.endpoint.authorization.authorizer import MayRead
from bmq.endpoint.fetch.context import FetchContext
from bmq.endpoint.fetch.partition_read import PartitionRead, read_partition
from bmq.endpoint.fetch.purgatory import SessionPartition
from bmq.endpoint.partitions import Owners
from bmq.meta.catalog import Catalog, Topic


class PartitionChecks:
    """The partitions as the fetches of one service see them.

    ``served`` is called with the bytes of each partition in a response.
    """

    def __init__(
        self,
        context: FetchContext,
        catalog: Catalog,
        owners: Owners,
        served: Callable[[PartitionKey, int], None] | None = None,
    ) -> None:
        self._tails = context.tails
        self._poll = context.poll
        self._catalog = catalog
        self._owners = owners
        self._served = served
        self.sends_away = False
        """True while all partitions are refused with NOT_LEADER_OR_FOLLOWER, so that clients ask Metadata."""

    def check(
        self,
        wanted: SessionPartition,
        limit: int,
        *,
        at_least_one: bool,
        committed: bool,
        wants_aborted: bool,
        follows: bool,
        batches_max: int,
        may_read: MayRead | None = None,
    ) -> PartitionRead:
        """Return what the partition has now, ``limit`` bytes at most, and from memory ``batches_max`` batches.

        ``at_least_one``: the first batch even if it is larger; ``committed``: only records below the last stable
        offset; ``wants_aborted``: with the records' aborted transactions; ``follows``: the partition's events count for
        ``wanted`` from here on; ``may_read``: the topics that the client may read, None for all.
        """
        topic = self._topic_of(wanted)
        if may_read is not None:
            name = wanted.topic if isinstance(wanted.topic, str) else topic.name if topic is not None else None
            if name is not None and not may_read(name):
                return PartitionRead(wanted, topic, limit).fails(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if topic is None or not 0 <= wanted.partition < topic.partitions:
            return self._unknown(wanted, limit, has_topic=topic is not None)
        key = wanted.key
        if key is None or key.topic_id != topic.topic_id:
            key = PartitionKey(topic.topic_id, wanted.partition)
        if follows:
            self._poll.follow(wanted, key)
        elif wanted.key != key:
            self._poll.leave(wanted)  # the former topic's partition, which nobody would leave later
        wanted.key = key
        if self.sends_away:
            return PartitionRead(wanted, topic, limit).fails(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        followed = self._owners.follow(key)
        return read_partition(
            wanted,
            topic,
            followed,
            self._tails,
            limit,
            at_least_one=at_least_one,
            committed=committed,
            wants_aborted=wants_aborted,
            batches_max=batches_max,
        )

    def _topic_of(self, wanted: SessionPartition) -> Topic | None:
        if isinstance(wanted.topic, str):
            return self._catalog.topics.get(wanted.topic)
        return self._catalog.by_id(wanted.topic)

    def _unknown(self, wanted: SessionPartition, limit: int, *, has_topic: bool) -> PartitionRead:
        result = PartitionRead(wanted, None, limit)
        result.is_gone = wanted.key is not None
        self._poll.leave(wanted)
        if has_topic or isinstance(wanted.topic, str):
            return result.fails(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return result.fails(ErrorCode.UNKNOWN_TOPIC_ID)

    def count(self, result: PartitionRead, metrics: RequestCounters) -> None:
        """Count a partition's part of a response in ``metrics``, the counters of the caller."""
        if result.error:
            metrics.api(ApiKey.FETCH).failed(result.error)
        if result.topic is None:
            return  # a topic that does not exist gets no counters
        counters = metrics.topic(result.topic.name)
        counters.fetches += 1
        counters.bytes_out += result.size
        if result.size and result.key is not None:
            if self._served is not None:
                self._served(result.key, result.size)
            if metrics.traffic is not None:
                metrics.traffic.read(result.topic.name, result.key.partition, result.size)
        if result.error:
            counters.failed_fetches += 1
        elif result.is_stored:
            metrics.storage_read_bytes += result.size
        else:
            metrics.tail_hit_bytes += result.size
