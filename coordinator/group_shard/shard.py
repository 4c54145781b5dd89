"""Life cycle of a shard of groups, and the removal of outdated offsets."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from bmq.coordinator.group_shard.active import ActiveGroups
from bmq.coordinator.group_shard.parts import GroupParts
from bmq.coordinator.group_shard.refused_markers import RefusedMarkers
from bmq.coordinator.group_shard.state import GroupsState
from bmq.coordinator.offsets.committed import TopicRef
from bmq.coordinator.offsets.deleted_topics import gone_topics, refs_of, unsure_topics
from bmq.coordinator.records import OffsetRecord, encode
from bmq.coordinator.shard.active import Loaded
from bmq.coordinator.shard.context import ShardContext
from bmq.coordinator.shard.log_records import KeyValue
from bmq.coordinator.shard.shard import Phase, Shard
from bmq.core.logging.fields import fields
from bmq.meta.catalog import Topic

_log = logging.getLogger(__name__)


class GroupShard(Shard[GroupsState, ActiveGroups]):
    """A shard of groups under a single ownership of this process."""

    def __init__(self, context: ShardContext, parts: GroupParts) -> None:
        super().__init__(context)
        self._parts = parts
        self._refused = RefusedMarkers()  # outlives each load of the shard
        self._unsure: set[TopicRef] = set()  # topics of offsets that may exist, though the catalog does not show them
        self._deleted: set[str] = set()  # names of topics that were deleted while the shard was not loaded

    def topic_deleted(self, topic: Topic) -> None:
        if self._serving is not None:
            self.context.spawn(self._forget(self._serving, refs_of(topic)))
        elif self.phase in (Phase.LOADING, Phase.FAILED):
            self._deleted.add(topic.name)

    async def expire(self) -> None:
        """Delete expired offsets and groups, and offsets left of deleted topics; log overdue transactions.

        Errors are logged, not raised: the next round tries again.
        """
        serving = self._serving
        if serving is not None:
            self._report_overdue(serving)
            await self._forget(serving, gone_topics(serving.state.offsets, self.context.catalog))
            await self._try(serving.expire(), "expired offsets")

    def _report_overdue(self, serving: ActiveGroups) -> None:
        """Log the oldest overdue transaction, in one line: the log's start cannot pass its first offset."""
        context = self.context
        now_ms, longest_ms = context.clock.now_ms(), context.settings.transaction_timeout_max_ms
        overdue = serving.state.pending.report_overdue(now_ms, longest_ms)
        if overdue:
            oldest = overdue[0]
            _log.warning(
                "a transaction is pending for longer than transaction.max.timeout.ms: producer %d, epoch %d, %.0f s."
                "  The shard's log is kept from offset %d on.  Further transactions like it: %d",
                oldest.producer_id,
                oldest.epochs.producer,
                (now_ms - oldest.began_ms) / 1000,
                oldest.first_offset,
                len(overdue) - 1,
                extra=fields(topic=self.id.kind.topic, shard=self.id.number),
            )

    async def _forget(self, serving: ActiveGroups, topics: Sequence[TopicRef]) -> None:
        for topic in topics:
            if serving is self._serving:  # else the next load finds the offsets that are left
                await self._try(serving.forget_topic(*topic), f"offsets of the deleted topic {topic[0]}")

    def _new_state(self) -> GroupsState:
        self._unsure = set()
        return GroupsState(self.context.settings.rules)

    def _barrier(self) -> KeyValue:
        """Return a record without effect, here and for Kafka's tools: the deletion of an offset of the group ""."""
        return encode(OffsetRecord("", "", self.id.number, None))

    async def _replayed(self, state: GroupsState) -> None:
        self._unsure |= await unsure_topics(state.topics, self.context.catalog)

    def _activate(self, loaded: Loaded[GroupsState]) -> ActiveGroups:
        if loaded.state.unknown_keys:
            _log.warning(
                "shard has %d keys of unknown versions, which it keeps as they are",
                loaded.state.unknown_keys,
                extra=fields(topic=self.id.kind.topic, shard=self.id.number),
            )
        return ActiveGroups(self.context, loaded, self._parts, self._refused)

    def _served(self, serving: ActiveGroups) -> None:
        gone = gone_topics(serving.state.offsets, self.context.catalog, self._deleted)
        gone = [each for each in gone if each not in self._unsure]
        self._deleted.clear()
        if gone:
            self.context.spawn(self._forget(serving, gone))
