"""What one shard knows: its groups and their offsets, rebuilt from the log by the function that kept them.  Pure.

``apply`` is the only way in which stored facts change, live and at load.  Of a classic group the stored fact is its
last stored generation; the living ``Group`` beside it is rebuilt from that when a load ends, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from bmq.coordinator.group.group import Group
from bmq.coordinator.group.messages import Now
from bmq.coordinator.group.states import GroupRules
from bmq.coordinator.group.timers import Deadlines
from bmq.coordinator.offsets.committed import Offsets, is_expired
from bmq.coordinator.shard.records import CoordinatorRecord, GroupRecord, OffsetRecord, StoredGroup, Unknown


class ShardState:
    """Memory is bounded by what lives: deleted keys leave nothing behind."""

    def __init__(self, rules: GroupRules) -> None:
        self.rules = rules
        self.deadlines = Deadlines()
        self.offsets = Offsets()
        self._groups: dict[str, Group] = {}
        self._stored: dict[str, StoredGroup] = {}
        self._unknown: dict[bytes, bytes] = {}
        self._is_live = False

    def apply(self, record: CoordinatorRecord) -> None:
        if isinstance(record, OffsetRecord):
            self.offsets.apply(record)
            if self._is_live and record.value is not None and record.group_id not in self._groups:
                self.create(record.group_id, record.value.commit_timestamp)
        elif isinstance(record, GroupRecord):
            if record.value is not None:
                self._stored[record.group_id] = record.value
            else:
                self._stored.pop(record.group_id, None)
                self._groups.pop(record.group_id, None)
        elif record.value is not None:
            self._unknown[record.key] = record.value
        else:
            self._unknown.pop(record.key, None)

    def go_live(self, now: Callable[[], Now]) -> Iterator[Group]:
        """The log is replayed: give out group after group as it lives again; sessions start from then.

        Nothing may be asked of the state before the last one is out.
        """
        for group_id, stored in self._stored.items():
            group = self._groups[group_id] = Group.restore(group_id, stored, self.rules, self.deadlines, now())
            yield group
        for group_id in self.offsets.group_ids:
            if group_id not in self._groups:
                yield self.create(group_id, now().wall_ms)
        self._is_live = True

    @property
    def groups(self) -> Mapping[str, Group]:
        return self._groups

    @property
    def unknown_keys(self) -> int:
        return len(self._unknown)

    def create(self, group_id: str, wall_ms: int) -> Group:
        group = self._groups[group_id] = Group(group_id, self.rules, self.deadlines, wall_ms)
        return group

    def forget_unused(self, group_id: str) -> None:
        """Drop a group that nobody joined in the end and nothing was stored of."""
        group = self._groups.get(group_id)
        if group is None or not group.is_idle:
            return
        if group_id not in self._stored and not self.offsets.has_group(group_id):
            del self._groups[group_id]

    def deletion(self, group_id: str) -> list[CoordinatorRecord]:
        """What deletes the group and its offsets."""
        return [*self.offsets.tombstones(group_id), GroupRecord(group_id, None)]

    def expired_offsets(
        self, group_id: str, topic: str, partitions: Iterable[int], wall_ms: int, retention_ms: int
    ) -> list[CoordinatorRecord]:
        """Return what deletes the expired ones of these offsets (KIP-211).

        None expire of a topic that the group's members subscribe to.
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
        """Return what deletes the group when it is idle and has no offsets."""
        group = self._groups.get(group_id)
        if group is None or not group.is_idle or self.offsets.has_group(group_id) or group_id not in self._stored:
            return []
        return [GroupRecord(group_id, None)]

    def live_records(self) -> Iterator[CoordinatorRecord]:
        """A record for every key that lives now, with its value at the moment it is given out.

        Other records may be applied between two steps: a key that has gone is left out, a new one may be.
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
        """Most of what the state's memory consists of."""
        return [*self._groups.values(), *self._stored.values(), *self.offsets.parts()]

    def facts(self) -> dict[tuple[object, ...], object]:
        """All that is stored, by key: two states that print alike are alike after a failover."""
        return {
            **{("group", group_id): value for group_id, value in self._stored.items()},
            **{each[:3]: each.value for each in self.offsets},
            **{("unknown", key): value for key, value in self._unknown.items()},
        }
