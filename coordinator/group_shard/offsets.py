"""Offsets of a loaded shard of groups: deleted, expired, and forgotten with their topic."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TypeVar

from bmq.coordinator.group.states import GroupState
from bmq.coordinator.group_shard.state import GroupsState
from bmq.coordinator.records import CoordinatorRecord, OffsetRecord, encode
from bmq.coordinator.shard.active import ActiveShard
from bmq.coordinator.shard.log_records import KeyValue
from bmq.core.aio.subscribers import no_op
from bmq.core.aio.turns import ELEMENTS_A_TURN, Turns, next_turn

T = TypeVar("T")
OFFSETS_A_TURN = 500
"""Offsets that are stored or deleted in a turn: an offset is applied, encoded, and put into a batch."""
OFFSET_ELEMENTS = ELEMENTS_A_TURN // OFFSETS_A_TURN


class ActiveOffsets(ActiveShard[GroupsState]):
    """The part of ``ActiveGroups`` that writes plain offsets, and deletes them."""

    async def offsets_durable(self, group_id: str) -> None:
        """Wait until the group's offsets, as they are now, are durable.  Raises RequestError if that takes too long."""
        if self.writer.has_open_writes(group_id):
            await self.durable()

    def delete(self, group_id: str, records: Sequence[CoordinatorRecord]) -> None:
        """Append tombstones without waiting.  They must have been decided in this turn of the event loop."""
        if records:
            self._write(records, [encode(each) for each in records], group_id)

    async def delete_many_offsets(self, group_id: str, turns: Turns) -> None:
        """Delete a group's offsets before the group, pending offsets too, in several turns of the event loop.

        Stops early if the group gets members.  Raises RequestError if the log has no room.
        """
        committed = (
            [(topic, each) for each in partitions]
            for topic in list(self.state.offsets.of_group(group_id))
            for partitions in slices(list(self.state.offsets.of_topic(group_id, topic)))
        )
        pending = (keys for _ in range(1) for keys in slices(self.state.pending.keys(group_id)))  # as they are then
        for keys in chain(committed, pending):
            if turns.is_over(len(keys) * OFFSET_ELEMENTS):
                await next_turn()
            await self.room()
            group = self.state.groups.get(group_id)
            if group is None or group.state is not GroupState.EMPTY:
                return
            self.delete(group_id, [OffsetRecord(group_id, *key, None) for key in keys])

    async def expire(self) -> int:
        """Delete expired offsets, and idle groups without offsets; return the number of records written.

        Raises RequestError if the log fails.
        """
        count, turns = 0, Turns()
        clock, settings = self._context.clock, self._context.settings
        for group_id in list(self.state.groups):
            for topic in list(self.state.offsets.of_group(group_id)):
                for partitions in slices(list(self.state.offsets.of_topic(group_id, topic))):
                    await self._breathe(turns, len(partitions) * OFFSET_ELEMENTS)
                    now_ms, retention_ms = clock.now_ms(), settings.retention_ms
                    records = self.state.expired_offsets(group_id, topic, partitions, now_ms, retention_ms)
                    count += await self._remove(group_id, records)
            await self._breathe(turns, 1)
            count += await self._remove(group_id, self.state.expired_group(group_id))
            self.state.forget_unused(group_id)
        return count

    async def forget_topic(self, topic: str, topic_id: uuid.UUID | None) -> int:
        """Delete the offsets that were committed for a deleted topic; return the number of records written.

        Offsets of a later topic of the same name have another id, and stay.  A tombstone would remove pending offsets
        of the later topic, too.  So a later round deletes an offset with a pending successor.  Raises RequestError if
        the log fails.
        """
        count, turns = 0, Turns()
        offsets = self.state.offsets
        if (topic, topic_id) not in offsets.topics:
            return 0
        for group_id in offsets.group_ids:
            for partitions in slices(list(offsets.of_topic(group_id, topic))):
                await self._breathe(turns, len(partitions) * OFFSET_ELEMENTS)
                records = offsets.tombstones_of_topic(group_id, topic, topic_id, partitions)
                pending = self.state.pending
                records = [each for each in records if not pending.has(each[:3])]  # a later round deletes them
                count += await self._remove(group_id, records)
            await self._breathe(turns, 1)
        return count

    async def _remove(self, group_id: str, records: Sequence[CoordinatorRecord]) -> int:
        """Append tombstones that were decided just now, without a time limit: no client waits for them."""
        if records:
            await self._append(records, [encode(each) for each in records], group_id)
        return len(records)

    def _write(self, records: Sequence[CoordinatorRecord], encoded: Sequence[KeyValue], group_id: str) -> None:
        """Append without waiting: a failure is reported to the shard, and to operations that wait for later records."""
        for record in records:
            self.state.apply(record)
        self.writer.write(encoded, group_id, no_op)

    def _append(
        self, records: Sequence[CoordinatorRecord], encoded: Sequence[KeyValue], group_id: str
    ) -> asyncio.Future[None]:
        for record in records:
            self.state.apply(record)
        return self._written(encoded, group_id)


def slices(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Split ``items`` into slices of one turn of the event loop each."""
    return (items[at : at + OFFSETS_A_TURN] for at in range(0, len(items), OFFSETS_A_TURN))
