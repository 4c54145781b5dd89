"""State of one shard of groups: the groups and their offsets.  A replay and live writes change it alike.  Pure.

Stored facts change only by ``GroupsState.apply``, both live and in a replay.  A classic group's stored fact is its last
stored generation; the ``Group`` beside it is rebuilt from that when the replay ends, as in Kafka.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

from bmq.coordinator.group.group import Group
from bmq.coordinator.group.messages import Now
from bmq.coordinator.group.states import GroupRules
from bmq.coordinator.group.timers import GroupTimers
from bmq.coordinator.group_shard.pending import OffsetKey, PendingOffsets
from bmq.coordinator.offsets.committed import Offsets, TopicRef, is_expired
from bmq.coordinator.records import CoordinatorRecord, GroupRecord, OffsetRecord, StoredGroup, Unknown, decode, encode
from bmq.coordinator.shard.log_records import REPEATING, BatchProducer, KeyValue, Repeated
from bmq.core.aio.steps import Steps
from bmq.core.aio.turns import ELEMENTS_A_TURN
from bmq.core.records.control import EndMarker, end_marker_of_record


class GroupsState:
    """Groups, offsets and timers of one shard.  Deleted keys leave nothing in memory."""

    def __init__(self, rules: GroupRules) -> None:
        self.rules = rules
        self.deadlines = GroupTimers()
        self.offsets = Offsets()
        self.pending = PendingOffsets()
        self._groups: dict[str, Group] = {}
        self._owned: dict[str, int] = {}  # groups by principal, of principals with any
        self._stored: dict[str, StoredGroup] = {}
        self._unknown: dict[bytes, bytes] = {}
        self._is_live = False

    def apply(self, record: CoordinatorRecord, producer: BatchProducer | None = None) -> None:
        """Set the record's key to its value, or delete it if the record is a tombstone.

        An offset of a ``producer``'s transaction is pending until the transaction's end.
        """
        if isinstance(record, OffsetRecord):
            self._apply_offset(record, producer)
        elif isinstance(record, GroupRecord):
            if record.value is not None:
                self._stored[record.group_id] = record.value
            else:
                self._stored.pop(record.group_id, None)
                if record.group_id in self._groups:
                    self._drop(record.group_id)
        elif record.value is not None:
            self._unknown[record.key] = record.value
        else:
            self._unknown.pop(record.key, None)

    def _apply_offset(self, record: OffsetRecord, producer: BatchProducer | None) -> None:
        value = record.value
        if value is not None and producer is not None and producer.is_transactional:
            self.pending.add(record, value, producer)
        else:
            self.offsets.apply(record)
            if self.pending.has_group(record.group_id):
                (self.pending.remove if value is None else self.pending.overtake)(record[:3])
        if self._is_live and value is not None and record.group_id not in self._groups:
            self.create(record.group_id, value.commit_timestamp)

    def end_transaction(self, producer: BatchProducer, marker: EndMarker, now_s: float = -math.inf) -> Steps[None]:
        """Apply a transaction's end: its pending offsets are committed, or dropped.

        ``now_s``: monotonic time.  A step is of ``ELEMENTS_A_TURN`` offsets at most.
        """
        groups: set[str] = set()
        for count, record in enumerate(self.pending.end(producer, marker, now_s), 1):
            if record.value is not None:
                self.offsets.apply(record)
            groups.add(record.group_id)
            if not count % ELEMENTS_A_TURN:
                yield
        for count, group_id in enumerate(groups if self._is_live else (), 1):
            self.forget_unused(group_id)
            if not count % ELEMENTS_A_TURN:
                yield

    @property
    def is_by_key(self) -> bool:
        return True

    def replay(self, key: bytes, value: bytes | None, producer: BatchProducer | None) -> Steps[None] | None:
        if producer is None:
            self.apply(decode(key, value))
        elif producer.is_control:
            end = end_marker_of_record(key, value)
            if end is not None:
                return self.end_transaction(producer, end)
        elif producer is REPEATING:
            self._apply_repeated(decode(key, value))
        else:
            self.apply(decode(key, value), producer)
        return None

    def _apply_repeated(self, record: CoordinatorRecord) -> None:
        """Apply a committed offset that a snapshot repeats, unless the log has another record of its key."""
        if isinstance(record, OffsetRecord) and self.offsets.get(*record[:3]) is None:
            self.offsets.apply(record)

    @property
    def summary(self) -> str:
        return f"{len(self._groups)} groups"

    def go_live(self, now: Callable[[], Now]) -> Iterator[Group]:
        """Make the replayed state live: yield each group once it is restored, with sessions that begin then.

        The state must not be used before the last group was yielded.
        """
        for group_id, stored in self._stored.items():
            yield self._add(Group.restore(group_id, stored, self.rules, self.deadlines, now()))
        for group_id in (*self.offsets.group_ids, *self.pending.group_ids):
            if group_id not in self._groups:
                yield self.create(group_id, now().wall_ms)
        self._is_live = True

    @property
    def groups(self) -> Mapping[str, Group]:
        return self._groups

    @property
    def unknown_keys(self) -> int:
        """The number of live keys of versions that are not known here."""
        return len(self._unknown)

    @property
    def topics(self) -> set[TopicRef]:
        """The topics that have offsets, committed or pending."""
        return {*self.offsets.topics, *self.pending.topics}

    def create(self, group_id: str, wall_ms: int, principal: str = "") -> Group:
        """Add an empty group, in memory only, which counts for ``principal`` (see ``Group``)."""
        return self._add(Group(group_id, self.rules, self.deadlines, wall_ms, principal))

    def owned_by(self, principal: str) -> int:
        """Return how many groups count for a principal."""
        return self._owned.get(principal, 0)

    def is_stored(self, group_id: str) -> bool:
        """Return whether a record of the group itself is stored: of a generation, or of its creation."""
        return group_id in self._stored

    def _add(self, group: Group) -> Group:
        self._groups[group.group_id] = group
        if group.principal:
            self._owned[group.principal] = self._owned.get(group.principal, 0) + 1
        return group

    def _drop(self, group_id: str) -> None:
        principal = self._groups.pop(group_id).principal
        if not principal:
            return
        left = self._owned[principal] - 1
        if left:
            self._owned[principal] = left
        else:
            del self._owned[principal]

    def forget_unused(self, group_id: str) -> None:
        """Drop a group that has no member and of which nothing is stored."""
        group = self._groups.get(group_id)
        if group is None or not group.is_idle:
            return
        if group_id not in self._stored and not self._has_offsets(group_id):
            self._drop(group_id)

    def has_offset(self, key: OffsetKey) -> bool:
        """Return whether the key has an offset, committed or pending."""
        return self.offsets.get(*key) is not None or self.pending.has(key)

    def _has_offsets(self, group_id: str) -> bool:
        """Return whether the group has committed offsets, or an open transaction has offsets of it."""
        return self.offsets.has_group(group_id) or self.pending.has_group(group_id)

    def deletion(self, group_id: str) -> list[CoordinatorRecord]:
        """Return the records that delete the group and its offsets; pending offsets, too, as in Kafka."""
        committed = self.offsets.of_group(group_id)
        pending = (
            OffsetRecord(group_id, topic, partition, None)
            for topic, partition in self.pending.keys(group_id)
            if partition not in committed.get(topic, ())
        )
        return [*self.offsets.tombstones(group_id), *pending, GroupRecord(group_id, None)]

    def expired_offsets(
        self, group_id: str, topic: str, partitions: Iterable[int], wall_ms: int, retention_ms: int
    ) -> list[CoordinatorRecord]:
        """Return the records that delete the expired ones of these offsets (KIP-211).

        Offsets of a topic that the group's members subscribe to do not expire, nor do offsets with a pending successor.
        """
        group = self._groups.get(group_id)
        if group is None or group.is_subscribed(topic):
            return []
        kept = self.offsets.of_topic(group_id, topic)
        records: list[CoordinatorRecord] = []
        for partition in partitions:
            if self.pending.has((group_id, topic, partition)):
                continue
            value = kept.get(partition)
            since = group.expires_since(value) if value is not None else None
            if value is not None and since is not None and is_expired(value, since, wall_ms, retention_ms):
                records.append(OffsetRecord(group_id, topic, partition, None))
        return records

    def expired_group(self, group_id: str) -> list[CoordinatorRecord]:
        """Return the record that deletes the group if it is stored, idle and has no offsets; else nothing.

        A pending offset keeps its group, too: the transaction may still commit it.
        """
        group = self._groups.get(group_id)
        if group is None or not group.is_idle or self._has_offsets(group_id) or group_id not in self._stored:
            return []
        return [GroupRecord(group_id, None)]

    def live_records(self) -> Iterator[KeyValue]:
        for record in self._live_records():
            is_pending = isinstance(record, OffsetRecord) and self.pending.has(record[:3])
            yield Repeated(*encode(record)) if is_pending else encode(record)

    def _live_records(self) -> Iterator[CoordinatorRecord]:
        """Yield a record for every key that is live now, with its value at the moment when it is yielded.

        Other records may be applied between two steps: keys that were deleted meanwhile are left out, and keys that
        are new may be.
        """
        unknown, stored, with_offsets = list(self._unknown), list(self._stored), self.offsets.group_ids
        for key in unknown:
            if (raw := self._unknown.get(key)) is not None:
                yield Unknown(key, raw)
        for group_id in stored:
            if (group := self._stored.get(group_id)) is not None:
                yield GroupRecord(group_id, group)
        for group_id in with_offsets:
            for topic in list(self.offsets.of_group(group_id)):
                for partition in list(self.offsets.of_topic(group_id, topic)):
                    if (value := self.offsets.get(group_id, topic, partition)) is not None:
                        yield OffsetRecord(group_id, topic, partition, value)

    def parts(self) -> list[object]:
        """Return the objects that hold most of the state's memory, so that they can be freed in turns."""
        return [*self._groups.values(), *self._stored.values(), *self.offsets.parts(), *self.pending.parts()]

    def facts(self) -> dict[tuple[object, ...], object]:
        """Return all stored facts by key.  States with equal facts are equal after a failover."""
        return {
            **{("group", group_id): value for group_id, value in self._stored.items()},
            **{each[:3]: each.value for each in self.offsets},
            **{("unknown", key): value for key, value in self._unknown.items()},
            **self.pending.facts(),
        }
