"""State of one shard of groups: the groups and their offsets.  A replay and live writes change it alike.  Pure.

Stored facts change only by ``GroupsState.apply``, both live and in a replay.  A classic group's stored fact is its last
stored generation; the ``Group`` beside it is rebuilt from that when the replay ends, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from bmq.coordinator.group.group import Group
from bmq.coordinator.group.messages import Now
from bmq.coordinator.group.states import GroupRules
from bmq.coordinator.group.timers import GroupTimers
from bmq.coordinator.offsets.committed import Offsets, is_expired
from bmq.coordinator.records import CoordinatorRecord, GroupRecord, OffsetRecord, StoredGroup, Unknown, decode, encode
from bmq.coordinator.shard.log_records import BatchProducer, KeyValue


class GroupsState:
    """Groups, offsets and timers of one shard.  Deleted keys leave nothing in memory."""

    def __init__(self, rules: GroupRules) -> None:
        self.rules = rules
        self.deadlines = GroupTimers()
        self.offsets = Offsets()
        self._groups: dict[str, Group] = {}
        self._owned: dict[str, int] = {}  # groups by principal, of principals with any
        self._stored: dict[str, StoredGroup] = {}
        self._unknown: dict[bytes, bytes] = {}
        self._is_live = False

    def apply(self, record: CoordinatorRecord) -> None:
        """Set the record's key to its value, or delete it if the record is a tombstone."""
        if isinstance(record, OffsetRecord):
            self.offsets.apply(record)
            if self._is_live and record.value is not None and record.group_id not in self._groups:
                self.create(record.group_id, record.value.commit_timestamp)
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

    @property
    def is_by_key(self) -> bool:
        return True

    def replay(self, key: bytes, value: bytes | None, producer: BatchProducer | None) -> None:
        self.apply(decode(key, value))

    @property
    def summary(self) -> str:
        return f"{len(self._groups)} groups"

    def go_live(self, now: Callable[[], Now]) -> Iterator[Group]:
        """Make the replayed state live: yield each group once it is restored, with sessions that begin then.

        The state must not be used before the last group was yielded.
        """
        for group_id, stored in self._stored.items():
            yield self._add(Group.restore(group_id, stored, self.rules, self.deadlines, now()))
        for group_id in self.offsets.group_ids:
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
        if group_id not in self._stored and not self.offsets.has_group(group_id):
            self._drop(group_id)

    def deletion(self, group_id: str) -> list[CoordinatorRecord]:
        """Return the records that delete the group and its offsets."""
        return [*self.offsets.tombstones(group_id), GroupRecord(group_id, None)]

    def expired_offsets(
        self, group_id: str, topic: str, partitions: Iterable[int], wall_ms: int, retention_ms: int
    ) -> list[CoordinatorRecord]:
        """Return the records that delete the expired ones of these offsets (KIP-211).

        Offsets of a topic that the group's members subscribe to do not expire.
        """
        group = self._groups.get(group_id)
        if group is None or group.is_subscribed(topic):
            return []
        kept = self.offsets.of_topic(group_id, topic)
        records: list[CoordinatorRecord] = []
        for partition in partitions:
            value = kept.get(partition)
            since = group.expires_since(value) if value is not None else None
            if value is not None and since is not None and is_expired(value, since, wall_ms, retention_ms):
                records.append(OffsetRecord(group_id, topic, partition, None))
        return records

    def expired_group(self, group_id: str) -> list[CoordinatorRecord]:
        """Return the record that deletes the group if it is stored, idle and has no offsets; else nothing."""
        group = self._groups.get(group_id)
        if group is None or not group.is_idle or self.offsets.has_group(group_id) or group_id not in self._stored:
            return []
        return [GroupRecord(group_id, None)]

    def live_records(self) -> Iterator[KeyValue]:
        return map(encode, self._live_records())

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
        return [*self._groups.values(), *self._stored.values(), *self.offsets.parts()]

    def facts(self) -> dict[tuple[object, ...], object]:
        """Return all stored facts by key.  States with equal facts are equal after a failover."""
        return {
            **{("group", group_id): value for group_id, value in self._stored.items()},
            **{each[:3]: each.value for each in self.offsets},
            **{("unknown", key): value for key, value in self._unknown.items()},
        }
