"""Admission to the internal port: members, in their roles, with the controller's ownership numbers."""

from __future__ import annotations

import asyncio
import struct
import uuid
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from bmq.core.clock import LoopClock
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.features import LevelRange
from bmq.core.model import PartitionKey
from bmq.core.net.request import Buffer, Client, CloseConnection, Response
from bmq.core.rpc.api_keys import InternalKey
from bmq.core.rpc.messages.broker import ShardOpenRequest
from bmq.core.rpc.messages.member import HelloRequest, HelloResponse, PingRequest, Unregistered
from bmq.core.rpc.peers import PROTOCOL
from bmq.core.rpc.server import InternalCall, InternalEndpoint
from bmq.core.security.session import ANONYMOUS_SESSION
from bmq.meta.catalog import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, Topic
from bmq.meta.cluster.admission import AGAIN_S, MemberAdmission, ShardOwnership
from bmq.meta.cluster.assignment import encode_shards
from bmq.meta.cluster.keys import features_key, member_key, shards_key
from bmq.meta.cluster.kv_view import KvClusterView
from bmq.meta.cluster.levels import FeatureLevels, encode_record
from bmq.meta.cluster.member import Address, Member, encode_member
from bmq.meta.cluster.view import ShardOwner
from bmq.meta.kv import Delete, Put
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.meta.shard_kinds import GROUPS, TRANSACTIONS
from tests.harness.fakes import FakeCatalog

OFFSETS_ID, OTHER_ID, TRANSACTIONS_ID = (uuid.UUID(int=number) for number in (1, 2, 3))
OFFSETS = Topic(name=OFFSETS_TOPIC, topic_id=OFFSETS_ID, partitions=50)
TRANSACTIONAL = Topic(name=TRANSACTIONS_TOPIC, topic_id=TRANSACTIONS_ID, partitions=50)
OTHER = Topic(name="other", topic_id=OTHER_ID, partitions=1)


class World:
    """A process's endpoint over a store; ``seen`` is a view that may be behind."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.kv = MemoryKeyValue(self.store)
        self.seen = KvClusterView(self.kv, "c", "own")
        self.admission = MemberAdmission(self.kv, "c", self.seen, LoopClock())
        self.endpoint = InternalEndpoint("own", "c", LoopClock(), is_serving=lambda: True, admit=self.admission.admit)
        self.asked: list[str] = []
        self.endpoint.register(ShardOpenRequest, self._respond, role="coordinator")
        self.ownership = ShardOwnership(self.kv, "c", self.seen, FakeCatalog(OFFSETS, OTHER))

    def _respond(self, body: memoryview, call: InternalCall) -> list[Buffer]:
        self.asked.append(call.caller)
        return [b"\0\0"]

    async def put_member(self, name: str, *roles: str) -> None:
        value = encode_member(Member(incarnation=name, roles=frozenset(roles)))
        await self.kv.commit([], [Put(member_key("c", name), value)])

    async def put_shards(self, shards: dict[int, ShardOwner]) -> None:
        await self.kv.commit([], [Put(shards_key("c", GROUPS), encode_shards(shards))])


class Connection:
    peer, host, is_closed, client_software = "10.0.0.9:1", "10.0.0.9", False, ("", "")
    session = ANONYMOUS_SESSION
    client_id: str | None = None

    def __init__(self, world: World) -> None:
        self._world = world

    def on_close(self, call: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

    def mute(self, seconds: float) -> None:
        raise AssertionError("it has no quotas")

    def unmute(self) -> None:
        raise AssertionError("it has no quotas")

    async def send(self, key: int, body: bytes) -> memoryview:
        head = struct.pack(">hhih", key, 0, 1, -1) + b"\0"
        response = self._world.endpoint(memoryview(head + body), cast(Client, self))
        if isinstance(response, Awaitable):
            response = await response
        assert isinstance(response, Response)
        return memoryview(b"".join(response.buffers))[5:]

    async def hello(self, name: str) -> HelloResponse:
        body = b"".join(HelloRequest(PROTOCOL, "c", name, "own").encode())
        return HelloResponse.decode(await self.send(InternalKey.HELLO, body))


@pytest.mark.parametrize("is_behind", [False, True])
async def test_who_is_not_a_member_is_refused_at_hello(is_behind: bool) -> None:
    """A member is let in also when this process's view does not show it yet."""

    w = World()
    await w.put_member("coordinator-1", "coordinator")
    if not is_behind:
        await w.seen.start()
    for name in ("stranger", "", "a/b", "../members/coordinator-1"):
        one = Connection(w)
        response = await one.hello(name)
        assert response.error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert "not a member" in response.message
        with pytest.raises(CloseConnection, match="before Hello"):
            await one.send(InternalKey.SHARD_OPEN, b"")
    one = Connection(w)
    assert (await one.hello("coordinator-1")).error is ErrorCode.NONE
    await one.send(InternalKey.SHARD_OPEN, b"")
    assert w.asked == ["coordinator-1"]
    if not is_behind:
        await w.seen.close()


@pytest.mark.parametrize("is_behind", [False, True])
async def test_a_member_that_does_not_support_a_level_is_refused(is_behind: bool) -> None:
    w = World()
    record = encode_record(FeatureLevels(levels={"f": 2}))
    await w.kv.commit([], [Put(features_key("c"), record)])
    if is_behind:
        await w.seen.start()
    await w.put_member("old", "broker")
    able = Member(incarnation="new", roles=frozenset({"broker"}), features=(("f", LevelRange(0, 2)),))
    await w.kv.commit([], [Put(member_key("c", "new"), encode_member(able))])
    if not is_behind:
        await w.seen.start()
    else:
        await w.seen.close()  # it shows the levels, and neither member
    response = await Connection(w).hello("old")
    assert response.error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert "f 2 is in force, old supports 0 to 0" in response.message
    assert (await Connection(w).hello("new")).error is ErrorCode.NONE
    if not is_behind:
        await w.seen.close()


async def test_a_refused_member_that_tries_again_and_again_is_logged_once_a_pause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A member without support of a level is refused at every Hello, and says Hello for as long as it lives."""
    w = World()
    await w.kv.commit([], [Put(features_key("c"), encode_record(FeatureLevels(levels={"f": 2})))])
    await w.put_member("old-1", "broker")
    await w.put_member("old-2", "broker")
    await w.seen.start()

    async def hellos() -> int:
        before = len(caplog.records)
        for name in ("old-1", "old-2", "old-1") * 30:
            response = await Connection(w).hello(name)
            assert response.error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return len(caplog.records) - before

    assert await hellos() == 2, "a line for each member"
    assert await hellos() == 0
    revised = await w.kv.commit([], [Put(features_key("c"), encode_record(FeatureLevels(levels={"f": 3})))])
    await w.seen.wait_revision(revised.revision)
    assert await hellos() == 2, "another reason"
    await asyncio.sleep(AGAIN_S)
    assert await hellos() == 2, "still there after the pause"
    await w.seen.close()


async def test_a_store_that_is_away_is_logged_once_for_a_process_that_is_admitted_unchecked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    w = World()
    w.store.stop()
    for _ in range(30):
        assert (await Connection(w).hello("coordinator-9")).error is ErrorCode.NONE
    assert caplog.text.count("is admitted unchecked") == 1


async def test_who_is_refused_is_told_at_which_revision_its_key_is_absent() -> None:
    """Together with the roles of the members that may be given its work.

    Nothing is given to a member that drains, does not listen yet, or does not support a level in force.
    """
    w = World()
    await w.put_member("broker-1", "broker")
    await w.kv.commit([], [Put(features_key("c"), encode_record(FeatureLevels(levels={"f": 2})))])
    able = (("f", LevelRange(0, 2)),)
    await w.seen.start()
    gone = await w.kv.commit([], [Delete(member_key("c", "broker-1"))])
    here = Address(host="h", port=1)
    for one in (
        Member(incarnation="broker-2", roles=frozenset({"broker"}), internal=here, is_draining=True, features=able),
        Member(incarnation="controller-1", roles=frozenset({"controller"}), features=able),
        Member(incarnation="coordinator-1", roles=frozenset({"coordinator"}), internal=here),
        Member(incarnation="proxy-1", roles=frozenset({"proxy"}), internal=here, features=able),
    ):
        await w.kv.commit([], [Put(member_key("c", one.incarnation), encode_member(one))])
    await w.seen.wait_revision(w.store.revision)
    response = await Connection(w).hello("broker-1")
    assert response.error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert response.unregistered == Unregistered(w.store.revision, frozenset({"proxy"}))
    assert response.unregistered.revision > gone.revision
    await w.seen.close()  # it stands still from here on
    await w.put_member("broker-3", "broker")
    known = w.seen.revision
    late = await Connection(w).hello("broker-1")
    assert late.unregistered is not None
    assert late.unregistered.revision == known < w.store.revision, "no later than what this process has seen"
    await w.kv.commit([], [Put(member_key("c", "broker-1"), b"of a later version")])
    assert (await Connection(w).hello("broker-1")).unregistered is None, "it is there, though nobody can read it"


async def test_an_api_is_for_members_of_its_role() -> None:
    w = World()
    await w.put_member("proxy-1", "proxy")
    one = Connection(w)
    assert (await one.hello("proxy-1")).error is ErrorCode.NONE
    await one.send(InternalKey.PING, b"".join(PingRequest().encode()))
    with pytest.raises(CloseConnection, match="does not have the role coordinator"):
        await one.send(InternalKey.SHARD_OPEN, b"")
    assert w.asked == []


async def test_rule_7_a_store_that_is_away_is_no_reason_to_refuse() -> None:
    w = World()
    w.store.stop()
    one = Connection(w)
    assert (await one.hello("coordinator-9")).error is ErrorCode.NONE
    await one.send(InternalKey.SHARD_OPEN, b"")
    assert w.asked == ["coordinator-9"]
    assert (await one.hello("coordinator-9")).unregistered is None
    await w.ownership.check(PartitionKey(OFFSETS_ID, 3), 1 << 62, "coordinator-9")


@pytest.mark.parametrize("is_behind", [False, True])
async def test_an_ownership_is_the_controllers(is_behind: bool) -> None:
    w = World()
    await w.put_shards({3: ShardOwner("c1", 7)})
    if not is_behind:
        await w.seen.start()
    check = w.ownership.check
    await check(PartitionKey(OFFSETS_ID, 3), 7, "c1")
    for shard, number, caller in ((3, 7, "c2"), (3, 8, "c1"), (3, 1 << 62, "c1"), (3, 6, "c1"), (4, 1, "c1")):
        with pytest.raises(RequestError) as refused:
            await check(PartitionKey(OFFSETS_ID, shard), number, caller)
        assert refused.value.code is ErrorCode.NOT_COORDINATOR
    with pytest.raises(RequestError) as refused:
        await check(PartitionKey(OTHER_ID, 3), 7, "c1")
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    if not is_behind:
        await w.seen.close()


async def test_an_assignment_that_the_view_does_not_show_yet_is_known() -> None:
    w = World()
    await w.put_shards({3: ShardOwner("c1", 7)})
    await w.seen.start()
    await w.seen.close()  # it stands still from here on
    await w.put_shards({3: ShardOwner("c2", 8)})
    await w.ownership.check(PartitionKey(OFFSETS_ID, 3), 8, "c2")
    await w.ownership.check(PartitionKey(OFFSETS_ID, 3), 7, "c1")  # the view does not contradict it


async def test_an_ownership_is_that_of_the_kind_whose_topic_the_partition_is_of() -> None:
    w = World()
    await w.put_shards({3: ShardOwner("c1", 7)})
    await w.kv.commit([], [Put(shards_key("c", TRANSACTIONS), encode_shards({3: ShardOwner("c2", 9)}))])
    await w.seen.start()
    check = ShardOwnership(w.kv, "c", w.seen, FakeCatalog(OFFSETS, TRANSACTIONAL)).check
    await check(PartitionKey(OFFSETS_ID, 3), 7, "c1")
    await check(PartitionKey(TRANSACTIONS_ID, 3), 9, "c2")
    for topic_id, number, caller in ((OFFSETS_ID, 9, "c2"), (TRANSACTIONS_ID, 7, "c1")):
        with pytest.raises(RequestError) as refused:
            await check(PartitionKey(topic_id, 3), number, caller)
        assert refused.value.code is ErrorCode.NOT_COORDINATOR
    await w.seen.close()


async def test_a_topic_that_the_catalog_does_not_show_yet_may_be_of_each_kind_that_it_does_not_show() -> None:
    w = World()
    await w.put_shards({3: ShardOwner("c1", 7)})
    await w.kv.commit([], [Put(shards_key("c", TRANSACTIONS), encode_shards({3: ShardOwner("c2", 9)}))])
    await w.seen.start()
    key = PartitionKey(TRANSACTIONS_ID, 3)
    empty = ShardOwnership(w.kv, "c", w.seen, FakeCatalog())
    await empty.check(key, 7, "c1")
    await empty.check(key, 9, "c2")
    with pytest.raises(RequestError) as refused:
        await w.ownership.check(key, 7, "c1")
    assert refused.value.code is ErrorCode.NOT_COORDINATOR, "the groups' topic is known, and is another"
    await w.ownership.check(key, 9, "c2")
    await w.seen.close()
