"""The watched view of members and assignments: complete at the start, in order, notifying what changed and no more."""

from __future__ import annotations

import json
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.core.errors import FormatError
from bmq.core.model import PartitionKey
from bmq.meta.cluster.assignment import (
    CHUNK,
    AssignmentChunk,
    decode_chunk,
    decode_shards,
    encode_chunk,
    encode_shards,
)
from bmq.meta.cluster.keys import assignment_key, controller_key, member_key, shards_key
from bmq.meta.cluster.kv_view import KvClusterView
from bmq.meta.cluster.member import Address, Member, decode_member, encode_member
from bmq.meta.cluster.view import ShardOwner, ViewChange
from bmq.meta.kv import Delete, Put
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore

pytestmark = pytest.mark.slow

TOPIC = uuid.UUID(int=5)
names = st.sampled_from(["", "a", "b", "c"])


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


@given(st.lists(names, max_size=30))
def test_a_chunk_is_read_as_it_was_written(owners: list[str]) -> None:
    assert decode_chunk(encode_chunk(AssignmentChunk(tuple(owners)))) == AssignmentChunk(tuple(owners))


def test_a_full_chunk_is_a_small_fraction_of_a_commit() -> None:
    owners = tuple(f"broker-{number % 100:04d}-0123456789abcdef" for number in range(CHUNK))
    assert len(encode_chunk(AssignmentChunk(owners))) < 10_000


@given(st.dictionaries(st.integers(0, 99), st.tuples(names, st.integers(0, 2**40)), max_size=20))
def test_shards_are_read_as_they_were_written(shards: dict[int, tuple[str, int]]) -> None:
    wanted = {shard: ShardOwner(*owner) for shard, owner in shards.items()}
    assert decode_shards(encode_shards(wanted)) == wanted


def test_a_member_is_read_as_it_was_written() -> None:
    member = Member(
        incarnation="m",
        roles=frozenset({"proxy", "broker"}),
        node_id=3,
        kafka=Address(host="::1", port=9092),
        zone="z",
        protocols=(1, 2),
        is_draining=True,
    )
    assert decode_member(encode_member(member)) == member
    assert str(member.kafka) == "[::1]:9092"


@pytest.mark.parametrize(
    "data", [b"", b"[]", b'{"format":2}', b'{"format":1}', b'{"format":1,"names":["a"],"owners":[1]}']
)
def test_what_is_no_record_is_refused(data: bytes) -> None:
    for decode in (decode_chunk, decode_member, decode_shards):
        with pytest.raises(FormatError):
            decode(data)


def changed(**fields: object) -> bytes:
    """Return a member's record with wrong values in these fields."""
    raw = json.loads(encode_member(Member(incarnation="bad", roles=frozenset({"broker"}))))
    return json.dumps(raw | fields).encode()


@pytest.mark.parametrize(
    "wrong",
    [
        {"node_id": 1 << 31},
        {"node_id": -2},
        {"zone": "z" * 32_768},
        {"zone": "\ud800"},
        {"kafka": ["h" * 32_768, 1]},
        {"kafka": ["\ud800", 1]},
        {"listeners": {"\ud800": ["h", 1]}},
    ],
)
def test_a_member_that_no_response_could_name_is_refused(wrong: dict[str, object]) -> None:
    """One such key would fail Metadata and DescribeCluster of every proxy."""
    assert decode_member(changed(node_id=(1 << 31) - 1, zone="z" * 32_767)).node_id == (1 << 31) - 1
    with pytest.raises(FormatError):
        decode_member(changed(**wrong))


BAD = {
    member_key("c", "other"): changed(),  # its value says that it is another
    member_key("c", "bad"): changed(node_id="1"),
    controller_key("c"): b"\xff",
    member_key("c", "deep"): b"[" * 100_000,
    assignment_key("c", TOPIC, 3): b"[" * 100_000,
    assignment_key("c", TOPIC, 1): b'{"format":1,"names":[7],"owners":[0]}',
    assignment_key("c", TOPIC, 2): encode_chunk(AssignmentChunk(("b",) * 1_001)),
    f"/c/cluster/assignment/{TOPIC}/x": encode_chunk(AssignmentChunk(("b",))),
    shards_key("c"): b'{"format":1,"shards":[[1.5,"a",1]]}',
}


@pytest.mark.parametrize("is_started", [False, True])
async def test_one_bad_key_stops_nobody(is_started: bool) -> None:
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


@pytest.mark.parametrize(
    "fields",
    [
        {"incarnation": 1}, {"roles": "broker"}, {"roles": [1]}, {"node_id": True}, {"node_id": 1.5}, {"kafka": ["h"]},
        {"kafka": ["h", "1"]}, {"internal": [None, 1]}, {"http": ["h", 65_536]}, {"http": ["h", -1]}, {"zone": None},
        {"version": 1}, {"protocols": [1]}, {"protocols": ["0", "1"]}, {"formats": "1"}, {"is_draining": 0},
    ],
)  # fmt: skip
def test_a_member_has_the_right_types(fields: dict[str, object]) -> None:
    assert decode_member(changed()).incarnation == "bad"
    with pytest.raises(FormatError):
        decode_member(changed(**fields))


def chunk(*owners: str) -> Put:
    return Put(assignment_key("c", TOPIC, 0), encode_chunk(AssignmentChunk(owners)))


def member(incarnation: str) -> Put:
    return Put(member_key("c", incarnation), encode_member(Member(incarnation=incarnation, roles=frozenset())))


def keys(*partitions: int) -> set[PartitionKey]:
    return {PartitionKey(TOPIC, partition) for partition in partitions}


async def test_it_shows_what_was_there_and_tells_what_changes() -> None:
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
    done = await kv.commit([], [chunk("b", "b", "a", "a"), Put(shards_key("c"), encode_shards(shards))])
    await view.wait_revision(done.revision)
    assert changes[-1].partitions == keys(0, 2, 3), "partition 1 is where it was"
    assert changes[-1].shards == {4}
    assert changes[-1].revision == done.revision
    assert not changes[-1].members
    assert owned_by(view, "a") == keys(2, 3)
    assert owned_by(view, "b") == keys(0, 1)
    assert view.shard(4) == ShardOwner("a", 7)

    gone = [Delete(member_key("c", "a")), Delete(assignment_key("c", TOPIC, 0)), Delete(shards_key("c"))]
    done = await kv.commit([], gone)
    await view.wait_revision(done.revision)
    assert changes[-1].members == {"a"}
    assert changes[-1].partitions == keys(0, 1, 2, 3)
    assert not view.members
    assert view.controller is None, "a leader that is no member is none"
    assert not owned_by(view, "b")
    assert view.shard(4) is None
    await view.close()


async def test_one_who_has_unsubscribed_hears_nothing() -> None:
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


async def test_an_unreadable_change_leaves_what_was_there() -> None:
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
