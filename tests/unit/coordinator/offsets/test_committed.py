"""Offsets in memory: no empty group or topic is kept, and each topic is known by name and id."""

from __future__ import annotations

import uuid

import pytest

from bmq.coordinator.offsets.committed import Offsets, is_expired
from bmq.coordinator.records import Offset, OffsetRecord

OLD, NEW = uuid.UUID(int=1), uuid.UUID(int=2)


def record(group: str, partition: int, value: int | None, topic_id: uuid.UUID | None = None) -> OffsetRecord:
    return OffsetRecord(group, "t", partition, None if value is None else Offset(value, topic_id=topic_id))


def kept(*records: OffsetRecord) -> Offsets:
    offsets = Offsets()
    for each in records:
        offsets.apply(each)
    return offsets


def test_a_groups_last_tombstone_leaves_nothing() -> None:
    offsets = kept(record("g", 0, 5), record("g", 1, 6), record("g", 0, None))
    assert (offsets.count_of_group("g"), offsets.topics) == (1, {("t", None)})
    offsets.apply(record("g", 1, None))
    assert not offsets.has_group("g")
    assert (offsets.group_ids, set(offsets.topics), list(offsets), offsets.parts()) == ([], set(), [], [])


def test_a_tombstone_of_an_unknown_offset_changes_nothing() -> None:
    offsets = kept(record("g", 0, 5))
    for each in (record("g", 1, None), record("other", 0, None), OffsetRecord("g", "other", 0, None)):
        offsets.apply(each)
    assert list(offsets) == [record("g", 0, 5)]


def test_a_commit_to_the_recreated_topic_counts_for_the_new_id_only() -> None:
    offsets = kept(record("g", 0, 5, OLD), record("g", 0, 6, OLD), record("h", 0, 1, OLD))
    offsets.apply(record("g", 0, 7, NEW))
    assert offsets.topics == {("t", OLD), ("t", NEW)}
    offsets.apply(record("h", 0, 2, NEW))
    assert offsets.topics == {("t", NEW)}
    assert offsets.get("g", "t", 0) == Offset(7, topic_id=NEW)


def test_tombstones_of_a_topic_are_of_offsets_with_its_id_only() -> None:
    offsets = kept(record("g", 0, 5, OLD), record("g", 1, 6, NEW), record("g", 2, 7))
    wanted = range(5)  # also partitions without an offset
    assert offsets.tombstones_of_topic("g", "t", OLD, wanted) == [record("g", 0, None)]
    assert offsets.tombstones_of_topic("g", "t", None, wanted) == [record("g", 2, None)]
    assert offsets.tombstones_of_topic("other", "t", OLD, wanted) == []
    assert offsets.tombstones("g") == [record("g", n, None) for n in range(3)]


@pytest.mark.parametrize(
    ("value", "since_ms", "now_ms", "is_over"),
    [
        (Offset(1, commit_timestamp=0), 500, 1_499, False),
        (Offset(1, commit_timestamp=0), 500, 1_500, True),
        (Offset(1, commit_timestamp=0, expire_timestamp=800), 500, 799, False),
        (Offset(1, commit_timestamp=0, expire_timestamp=800), 500, 800, True),
        (Offset(1, commit_timestamp=0, expire_timestamp=9_000), 500, 1_500, False),
    ],
)
def test_an_offset_expires_after_its_retention_or_at_its_own_time(
    value: Offset, since_ms: int, now_ms: int, is_over: bool
) -> None:
    assert is_expired(value, since_ms, now_ms, retention_ms=1_000) is is_over
