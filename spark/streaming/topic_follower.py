"""Topics as they grow: a streaming query's view of storage, updated by what changed.

A refresh lists the topics' folders, reads the new bytes of journals (``spark.planning.journal_follower``), and lists
the partitions from their last known segments on.  Segments below the offsets that the query has committed are dropped.
So a refresh costs the same however old a topic is; only a query's first one lists partitions from the beginning.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace

from bmq.core.model import PartitionKey
from bmq.spark.options import ReadOptions, Subscription
from bmq.spark.planning.discover import PARTITIONS_AT_ONCE, NoSuchTopic, find_topics, paths_of
from bmq.spark.planning.index_cache import IndexCache
from bmq.spark.planning.journal_follower import FollowedJournals
from bmq.spark.planning.log_view import LogView, in_windows
from bmq.spark.planning.permissions import reading, shared_not_readable
from bmq.spark.streaming.offsets import TopicPartition
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.cluster_files import StoredTopic
from bmq.storage.filesystem import FileSystem, NotAllowed
from bmq.storage.layout import PartitionPath
from bmq.storage.log_segments import ListedSegment, walk


class Follower:
    """A streaming query's partitions.

    ``views`` holds each of them as it was at the last ``refresh``; ``recreated`` those whose topic was deleted and
    created again since the planner last cleared it.  ``missing`` holds a text for each selected topic that does not
    exist, or lacks a selected partition.
    """

    def __init__(self, fs: FileSystem, options: ReadOptions) -> None:
        self._fs = fs
        self._options = options
        self._journals = FollowedJournals(fs)
        self._cache = IndexCache()
        self._partitions: dict[TopicPartition, _Partition] = {}
        self.views: dict[TopicPartition, LogView] = {}
        self.recreated: set[TopicPartition] = set()
        self.missing: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<Follower {len(self._partitions)} partitions, {self._journals!r}, {self._cache!r}>"

    async def refresh(self) -> None:
        """Bring ``views``, ``recreated`` and ``missing`` up to date.  Raises OptionError, StorageError."""
        topics = await self._topics()
        paths = self._paths(topics)
        try:
            checkpoints = await self._journals.refresh(frozenset(map(_key, paths)))  # before listing: planning.discover
        except NotAllowed as error:
            raise await shared_not_readable(self._fs, "the journals", error) from error
        before = self._partitions
        self._partitions = {}
        for path in paths:
            at = path.topic, path.partition
            known = before.get(at)
            if known is not None and known.path != path:
                self.recreated.add(at)
                known = None
            self._partitions[at] = known or _Partition(self._fs, path)
        found = await in_windows(
            list(self._partitions.values()),
            lambda each: self._view(each, checkpoints),
            PARTITIONS_AT_ONCE,
        )
        self.views = dict(zip(self._partitions, found, strict=True))

    async def _topics(self) -> list[StoredTopic]:
        self.missing.clear()
        if self._options.subscription is Subscription.PATTERN:
            return await find_topics(self._fs, self._options)
        topics: list[StoredTopic] = []
        for name in sorted(self._options.topics):
            try:
                topics += await find_topics(self._fs, replace(self._options, topics=(name,)))
            except NoSuchTopic as error:
                self.missing[name] = str(error)
        return topics

    def _paths(self, topics: Sequence[StoredTopic]) -> list[PartitionPath]:
        paths = []
        for topic in topics:
            found, missing = paths_of(topic, self._options)
            paths += found
            if missing:
                self.missing[topic.name] = missing
        return paths

    async def _view(self, partition: _Partition, checkpoints: Mapping[PartitionKey, Checkpoint]) -> LogView:
        checkpoint = checkpoints.get(_key(partition.path))
        view = LogView(self._fs, partition.path, checkpoint, self._cache)
        return await reading(self._fs, partition.path.topic, self._over(view, partition))

    async def _over(self, view: LogView, partition: _Partition) -> LogView:
        return await view.over(await partition.listed(), read_committed=self._options.committed)

    def forget(self) -> None:
        """List all partitions from the beginning at the next refresh: a known file is gone."""
        for partition in self._partitions.values():
            partition.forget()

    def trim(self, committed: Mapping[TopicPartition, int]) -> None:
        """Drop the segments below ``committed``, the offsets that will not be read again."""
        for at, offset in committed.items():
            if at in self._partitions:
                self._partitions[at].trim(offset)


def _key(path: PartitionPath) -> PartitionKey:
    return PartitionKey(uuid.UUID(path.topic_id), path.partition)


class _Partition:
    """One partition's live segments that are still to be read, and the segment before them."""

    def __init__(self, fs: FileSystem, path: PartitionPath) -> None:
        self._fs = fs
        self.path = path
        self._listed: list[ListedSegment] = []

    async def listed(self) -> list[ListedSegment]:
        """Return the live segments, listed again from the oldest that may have changed: the last, or one without an
        index."""
        at = next((n for n, each in enumerate(self._listed) if not each.has_idx), len(self._listed) - 1)
        if self._listed:
            after = self._listed[at].name
            fresh = [each async for each in walk(self._fs, self.path, after) if each.is_live]
            if fresh and fresh[0].name == after:
                self._listed[at:] = fresh
                return self._listed
        # The first listing; or that one is gone: merged with its neighbour, deleted, or superseded by one of its base.
        self._listed = [each async for each in walk(self._fs, self.path) if each.is_live]
        return self._listed

    def forget(self) -> None:
        self._listed = []

    def trim(self, offset: int) -> None:
        """Drop the segments below ``offset`` but the last, whose index shows the transactions open where the next
        begins."""
        needed = next((n for n, each in enumerate(self._listed) if each.end is None or each.end > offset), 0)
        del self._listed[: max(0, needed - 1)]
