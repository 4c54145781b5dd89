"""The watched view of members and assignments: complete at the start, in order, notifying what changed and no more."""

from __future__ import annotations

import json
import uuid

import pytest

from bmq.core.model import PartitionKey
from bmq.meta.cluster.assignment import (
    CHUNK,
    AssignmentChunk,
    encode_chunk,
    encode_shards,
)
from bmq.meta.cluster.keys import assignment_key, controller_key, features_key, member_key, shards_key
from bmq.meta.cluster.kv_view import KvClusterView
from bmq.meta.cluster.levels import NO_LEVELS, FeatureLevels, encode_record
from bmq.meta.cluster.member import Member, encode_member
from bmq.meta.cluster.view import ShardOwner, ViewChange
from bmq.meta.kv import Delete, Put
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.meta.shard_kinds import GROUPS, ShardId

pytestmark = pytest.mark.slow

TOPIC = uuid.UUID(int=5)


def owned_by(view: KvClusterView, incarnation: str) -> set[PartitionKey]:
    """Return the partitions of the member, after the view has counted as many."""
    found = {
        PartitionKey(topic_id, number * CHUNK + index)
        for (topic_id, number), chunk in view.chunks.items()
        for index, owner in enumerate(chunk.owners)
        if owner == incarnation
    }
    assert view.owned_count(incarnation) == len(found)
    assert (incarnation in view.owners) == bool(found)
    return found


def changed(**fields: object) -> bytes:
    """Return a member's record with wrong values in these fields."""
    raw = json.loads(encode_member(Member(incarnation="bad", roles=frozenset({"broker"}))))
    return json.dumps(raw | fields).encode()


BAD = {
    member_key("c", "other"): changed(),  # its value says that it is another
    member_key("c", "bad"): changed(node_id="1"),
    controller_key("c"): b"\xff",
    member_key("c", "deep"): b"[" * 100_000,
    assignment_key("c", TOPIC, 3): b"[" * 100_000,
    assignment_key("c", TOPIC, 1): b'{"format":1,"names":[7],"owners":[0]}',
    assignment_key("c", TOPIC, 2): encode_chunk(AssignmentChunk(("b",) * 1_001)),
    f"/c/cluster/assignment/{TOPIC}/x": encode_chunk(AssignmentChunk(("b",))),
    shards_key("c", GROUPS): b'{"format":1,"shards":[[1.5,"a",1]]}',
}


@pytest.mark.parametrize("is_started", [False, True])
async def test_a_key_that_cannot_be_read_does_not_hide_the_others(is_started: bool) -> None:
    kv = MemoryKeyValue(MemoryStore())
    failures: list[str] = []
    view = KvClusterView(kv, "c", "a", failures.append)
    if is_started:
        await view.start()
    for key, value in BAD.items():
        await kv.commit([], [Put(key, value)])
    await kv.commit([], [member("a"), chunk("a", "b")])
    if not is_started:
        await view.start()
    await view.wait_revision(await kv.revision())
    assert set(view.unreadable) == set(BAD)
    assert set(view.members) == {"a"}
    assert owned_by(view, "a") == keys(0)
    assert (view.controller, view.shards, failures) == (None, {}, [])
    for key in BAD:
        done = await kv.commit([], [Delete(key)])
    await view.wait_revision(done.revision)
    assert view.unreadable == {}
    await view.close()


def chunk(*owners: str) -> Put:
    return Put(assignment_key("c", TOPIC, 0), encode_chunk(AssignmentChunk(owners)))


def member(incarnation: str) -> Put:
    return Put(member_key("c", incarnation), encode_member(Member(incarnation=incarnation, roles=frozenset())))


def keys(*partitions: int) -> set[PartitionKey]:
    return {PartitionKey(TOPIC, partition) for partition in partitions}


async def test_the_view_shows_the_present_state_and_notifies_of_changes() -> None:
    kv = MemoryKeyValue(MemoryStore())
    await kv.commit([], [member("a"), chunk("a", "b", ""), Put(controller_key("c"), b"a")])
    view = KvClusterView(kv, "c", "a")
    changes: list[ViewChange] = []
    view.subscribe(changes.append)
    await view.start()
    assert view.controller == view.members["a"]
    assert [view.owner_of(key) for key in sorted(keys(0, 1, 2, 3), key=str)] == ["a", "b", "", ""]
    assert changes[0].partitions == keys(0, 1)
    assert changes[0].is_controller

    shards = {4: ShardOwner("a", 7)}
    done = await kv.commit([], [chunk("b", "b", "a", "a"), Put(shards_key("c", GROUPS), encode_shards(shards))])
    await view.wait_revision(done.revision)
    assert changes[-1].partitions == keys(0, 2, 3), "partition 1 is where it was"
    assert changes[-1].shards == {ShardId(GROUPS, 4)}
    assert changes[-1].revision == done.revision
    assert not changes[-1].members
    assert owned_by(view, "a") == keys(2, 3)
    assert owned_by(view, "b") == keys(0, 1)
    assert view.shard(ShardId(GROUPS, 4)) == ShardOwner("a", 7)

    gone = [Delete(member_key("c", "a")), Delete(assignment_key("c", TOPIC, 0)), Delete(shards_key("c", GROUPS))]
    done = await kv.commit([], gone)
    await view.wait_revision(done.revision)
    assert changes[-1].members == {"a"}
    assert changes[-1].partitions == keys(0, 1, 2, 3)
    assert not view.members
    assert view.controller is None, "a leader that is no member is none"
    assert not owned_by(view, "b")
    assert view.shard(ShardId(GROUPS, 4)) is None
    await view.close()


async def test_the_view_shows_the_levels_of_features() -> None:
    kv = MemoryKeyValue(MemoryStore())
    view = KvClusterView(kv, "c", "a")
    changes: list[ViewChange] = []
    view.subscribe(changes.append)
    await view.start()
    assert view.levels == NO_LEVELS
    record = FeatureLevels(epoch=1, levels={"f": 1}, intended={"f": 2})
    for value, shown in ((encode_record(record), record), (b'{"format":2}', record), (None, NO_LEVELS)):
        write = Put(features_key("c"), value) if value is not None else Delete(features_key("c"))
        done = await kv.commit([], [write])
        await view.wait_revision(done.revision)
        assert changes[-1].are_levels == (value != b'{"format":2}')
        assert view.levels == shown, "a record of a later format leaves the one before in force"
    done = await kv.commit([], [member("a")])
    await view.wait_revision(done.revision)
    assert not changes[-1].are_levels
    await view.close()


async def test_the_partitions_that_leave_this_process_are_named() -> None:
    """Partitions that it gets, those of others, and one that comes back within the same change are not."""
    kv = MemoryKeyValue(MemoryStore())
    await kv.commit([], [chunk("a", "a", "b", "b", "a")])
    view = KvClusterView(kv, "c", "a")
    changes: list[ViewChange] = []
    view.subscribe(changes.append)
    await view.start()
    assert not changes[0].left
    done = await kv.commit([], [chunk("b", "a", "a", "c")])
    await view.wait_revision(done.revision)
    assert changes[-1].left == keys(0, 4)
    done = await kv.commit([], [Delete(assignment_key("c", TOPIC, 0))])
    await view.wait_revision(done.revision)
    assert changes[-1].left == keys(1, 2)
    await view.close()


async def test_a_caller_that_has_unsubscribed_is_not_notified() -> None:
    kv = MemoryKeyValue(MemoryStore())
    view = KvClusterView(kv, "c", "a")
    changes: list[ViewChange] = []
    forget = view.subscribe(changes.append)
    await view.start()
    forget()
    await view.wait_revision((await kv.commit([], [member("a")])).revision)
    assert changes == []
    assert "a" in view.members
    await view.close()


async def test_a_change_that_cannot_be_read_leaves_the_earlier_state() -> None:
    kv = MemoryKeyValue(MemoryStore())
    key, other = assignment_key("c", TOPIC, 0), assignment_key("c", TOPIC, 1)
    first = await kv.commit([], [chunk("a")])
    view = KvClusterView(kv, "c", "a")
    await view.start()
    for _ in range(2):
        await kv.commit([], [Put(key, b"{}"), Put(other, b"{}")])
    done = await kv.commit([], [member("a")])
    await view.wait_revision(done.revision)
    assert view.owner_of(PartitionKey(TOPIC, 0)) == "a"
    assert view.revision_of(key) == first.revision, "a write that is decided on what was there is refused"
    assert view.revision_of(other) == 0
    for write in (chunk("b"), Delete(key)):
        done = await kv.commit([], [write])
        await view.wait_revision(done.revision)
        assert view.revision_of(key) == (done.revision if isinstance(write, Put) else 0)
    await view.close()
