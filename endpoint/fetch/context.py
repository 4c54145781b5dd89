"""The shared parts of a process's fetches: tails, memory, readers, parked fetches.

A process with the roles proxy and broker has two fetch services (``endpoint.fetch.service``), for clients and for other
proxies.  Both use one context.  So there is one copy of a tail, and an owner's call wakes the parked fetches of both.
The context is made before the owners of partitions, which call it, and before the services, which read from owners.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from bmq.core.aio.lru import LruCache
from bmq.core.aio.steps import Steps
from bmq.core.aio.turns import ELEMENTS_A_TURN, StepQueue
from bmq.core.config import NodeConfig
from bmq.core.model import PartitionKey
from bmq.core.records.batch import Batch
from bmq.endpoint.fetch.memory_budget import FetchBudget
from bmq.endpoint.fetch.purgatory import FetchPurgatory, FetchWatch
from bmq.endpoint.fetch.tail_cache import RELEASED_AT_ONCE
from bmq.meta.catalog import Catalog, Topic, TopicChange
from bmq.storage.aborted import StableMove
from bmq.storage.block_cache import BlockCache
from bmq.storage.layout import PartitionPath
from bmq.storage.log_reader import LogReader

READERS_MAX = 1_000
"""Partitions whose ``LogReader`` is kept, with the name of each of its segments; the least recently used ones are
dropped."""


class FetchContext:
    """The tails, the memory, the readers and the purgatory of one process.

    It is the ``endpoint.partitions.FlushListener`` that owners call synchronously.
    """

    def __init__(self, config: NodeConfig, catalog: Catalog, pool: BlockCache) -> None:
        self.budget = FetchBudget(config.cache_bytes, config.tail_fraction, pool)
        self.tails = self.budget.tails
        self.poll = FetchPurgatory()
        self._pool = pool
        self._readers: LruCache[PartitionKey, LogReader] = LruCache(READERS_MAX)
        self._gone = StepQueue()
        self._is_releasing = False
        catalog.subscribe(self._topic_changed)

    def __repr__(self) -> str:
        return f"<FetchContext {self.tails!r} {self.budget!r} followed={len(self.poll)}>"

    # ---------------------------------------------------------------------------------------------------------- readers

    def reader(self, key: PartitionKey, path: PartitionPath) -> LogReader:
        """Return the partition's reader; the least recently used one of more than READERS_MAX is dropped."""
        reader = self._readers.get(key)
        if reader is None:
            reader = LogReader(self._pool, path)
            self._readers.put(key, reader)
        return reader

    def drop_reader(self, key: PartitionKey) -> None:
        """Drop the partition's reader: its list of segments may be out of date."""
        self._readers.pop(key)

    # ----------------------------------------------------------------------------------------------------------- events

    def opened(self, key: PartitionKey, epoch: int, log_start: int, high_watermark: int) -> None:
        """Drop the tail of the former owner, and wake the fetches that follow the partition."""
        self._forget_tail(key)
        wake(self.poll.changed(key))

    def flushed(
        self, key: PartitionKey, batches: Sequence[Batch], high_watermark: int, move: StableMove | None = None
    ) -> None:
        """Add the batches to the tail, and wake the fetches that have enough now, each at its isolation level."""
        if not batches:
            return
        size = decided = sum([batch.size for batch in batches])
        if move is None:
            self.tails.add(key, batches)
        else:
            self.tails.add(key, batches, move.aborted)
            decided = self.tails.size_between(key, move.before, move.after)
        self._tails_changed()
        wake(self.poll.flushed(key, size, decided))

    def log_start_moved(self, key: PartitionKey, log_start: int) -> None:
        """Drop the batches below the log start, and wake the fetches that follow the partition."""
        self.tails.trim(key, log_start)
        self._tails_changed()
        wake(self.poll.changed(key))

    def closed(self, key: PartitionKey) -> None:
        """Drop the tail, and wake the fetches that follow the partition."""
        self._forget_tail(key)
        wake(self.poll.changed(key))

    def changed(self, key: PartitionKey) -> None:
        """Wake the fetches that follow the partition: its end is confirmed, or its new leader has become known."""
        wake(self.poll.changed(key))

    def _forget_tail(self, key: PartitionKey) -> None:
        self.tails.drop(key)
        self._tails_changed()

    def _tails_changed(self) -> None:
        self.budget.tails_changed()
        if self.tails.dead and not self._is_releasing:
            self._is_releasing = True
            self._gone.run(min(self.tails.dead, RELEASED_AT_ONCE), self._release())

    def _release(self) -> Steps[None]:
        """Release the batches of runs that have ended, in turns of the loop."""
        try:
            while True:
                self.tails.release()
                self.budget.tails_changed()
                if not self.tails.dead:
                    return
                yield
        finally:  # a later run begins a release of its own, whatever ended this one
            self._is_releasing = False

    def _topic_changed(self, change: TopicChange) -> None:
        """Wake the fetches of a topic that is gone, and drop its tails and readers: in turns, if it is large."""
        before = change.before
        if before is not None and is_gone(change):
            self._gone.run(min(before.partitions, ELEMENTS_A_TURN), self._forget_topic(before))

    def _forget_topic(self, topic: Topic) -> Steps[None]:
        for partition in range(topic.partitions):
            if partition and not partition % ELEMENTS_A_TURN:
                yield
            key = PartitionKey(topic.topic_id, partition)
            self._readers.pop(key)
            self._forget_tail(key)
            wake(self.poll.changed(key))


def is_gone(change: TopicChange) -> bool:
    """Return whether the topic of this name is deleted, or is another topic now."""
    before, after = change.before, change.after
    return before is not None and (after is None or after.topic_id != before.topic_id)


def wake(watches: Iterable[FetchWatch]) -> None:
    """Wake the fetches that are parked on these watches."""
    for watch in watches:
        future = watch.token
        if isinstance(future, asyncio.Future) and not future.done():
            future.set_result(None)
