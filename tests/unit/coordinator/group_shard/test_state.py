"""A shard's state: which offsets and groups expire (KIP-211)."""

from __future__ import annotations

import pytest

from bmq.coordinator.group.messages import Now
from bmq.coordinator.group.states import GroupRules
from bmq.coordinator.group_shard.state import GroupsState
from bmq.coordinator.records import GroupRecord, Offset, OffsetRecord, StoredGroup
from bmq.coordinator.stored_members import StoredMember

MEMBER = StoredMember("m", None, "c", "h", 10, 10, b"\0\1\0\0\0\1\0\1a", b"")


EMPTY = StoredGroup("consumer", 3, None, None, 500)


STABLE = StoredGroup("consumer", 3, "range", "m", 500, (MEMBER,))


OTHER_TYPE = StoredGroup("connect", 3, "range", "m", 500, (MEMBER,))


@pytest.mark.parametrize(
    ("group", "topic", "value", "expires_at"),
    [
        (None, "a", Offset(1, commit_timestamp=100), 1_100),
        (None, "a", Offset(1, commit_timestamp=100, expire_timestamp=300), 300),
        (EMPTY, "a", Offset(1, commit_timestamp=100), 1_500),
        (StoredGroup("consumer", 3, None, None), "a", Offset(1, commit_timestamp=100), 1_100),
        (STABLE, "a", Offset(1, commit_timestamp=100), None),
        (STABLE, "unsubscribed", Offset(1, commit_timestamp=100), 1_100),
        (OTHER_TYPE, "a", Offset(1, commit_timestamp=100), None),
    ],
    ids=["simple", "own expiry", "since empty", "empty, old record", "subscribed", "unsubscribed", "not consumers"],
)
def test_offsets_and_their_group_expire_as_kip_211_says(
    group: StoredGroup | None, topic: str, value: Offset, expires_at: int | None
) -> None:
    state = GroupsState(GroupRules())
    if group is not None:
        state.apply(GroupRecord("g", group))
    state.apply(OffsetRecord("g", topic, 0, value))
    list(state.go_live(lambda: Now(0, 0)))
    if expires_at is None:
        assert state.expired_offsets("g", topic, [0], 1 << 60, 1_000) == []
        return
    assert state.expired_offsets("g", topic, [0], expires_at - 1, 1_000) == []
    assert state.expired_group("g") == [], "it has an offset"
    records = state.expired_offsets("g", topic, [0, 1], expires_at, 1_000)
    assert records == [OffsetRecord("g", topic, 0, None)]
    for record in records:
        state.apply(record)
    assert state.expired_group("g") == ([GroupRecord("g", None)] if group is not None and not group.members else [])
    assert "a" not in state.offsets.of_group("g")
