"""Groups of a principal: what creates and deletes them, the bound, and what a failover keeps of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bmq.coordinator.api import ClientInfo
from bmq.coordinator.group.states import GroupRules
from bmq.coordinator.group_shard.state import GroupsState
from bmq.coordinator.records import Offset, OffsetRecord, encode
from bmq.core.errors import ErrorCode
from bmq.core.logging.fields import fields_of
from bmq.core.records.batch import Record, build_batch
from bmq.core.wire import messages as m
from tests.unit.coordinator.fakes import CLIENT, MemoryLogs, World, join_request, running, sync_request

ALICE = ClientInfo("a", "/10.0.0.1", "User:alice")
BOB = ClientInfo("b", "/10.0.0.2", "User:bob")
PAST = ErrorCode.POLICY_VIOLATION


class SetBounds:
    """Bounds on groups by principal."""

    def __init__(self, **bounds: int) -> None:
        self.of = {f"User:{name}": bound for name, bound in bounds.items()}

    def find_bound(self, kind: str, principal: str) -> int | None:
        assert kind == "max_groups"
        return self.of.get(principal)


def bounded(shards: int = 1, **bounds: int) -> World:
    return World(MemoryLogs(shards), SetBounds(**bounds))


def owned(world: World, client: ClientInfo = ALICE) -> int:
    return sum(each.state.owned_by(client.principal) for each in world.coordinator.shards._loaded())


async def ask_id(world: World, group: str, client: ClientInfo = ALICE) -> Any:
    """Send a member's first join, which creates the group and returns an id."""
    return await world.coordinator.join_group(join_request(group), client)


async def stable(world: World, group: str, client: ClientInfo = ALICE) -> tuple[str, int]:
    """Form a group of one member; return its id and generation."""
    given = await ask_id(world, group, client)
    assert given.error_code == ErrorCode.MEMBER_ID_REQUIRED
    joined = await world.coordinator.join_group(join_request(group, given.member_id), client)
    assert joined.error_code == 0
    request = sync_request(group, joined.member_id, joined.generation_id, {joined.member_id: b"all"})
    assert (await world.coordinator.sync_group(request, client)).error_code == 0
    return joined.member_id, joined.generation_id


async def leave(world: World, group: str, member_id: str) -> None:
    member = m.LeaveGroupRequest.MemberIdentity(member_id=member_id, group_instance_id=None, reason=None)
    response = await world.coordinator.leave_group(
        m.LeaveGroupRequest(version=5, group_id=group, members=[member]), CLIENT
    )
    assert response.members[0].error_code == 0


async def delete(world: World, *groups: str) -> list[int]:
    response = await world.coordinator.delete_groups(
        m.DeleteGroupsRequest(version=2, groups_names=list(groups)), CLIENT
    )
    return [each.error_code for each in response.results]


async def test_a_group_past_the_bound_is_refused_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    async with running(bounded(alice=2)) as world:
        member, generation = await stable(world, "first")
        assert await world.commit("second", 5, client=ALICE) == 0
        assert (await ask_id(world, "third")).error_code == PAST
        assert await world.commit("third", 5, client=ALICE) == PAST
        assert world.coordinator.groups_refused == 2
        (line, _) = [each for each in caplog.records if "not created" in each.getMessage()]
        assert line.getMessage().startswith("group 'third' not created: its user has as many groups in this process")
        assert fields_of(line)["error"] == "User:alice owns 2, max_groups is 2"
        assert "third" not in world.coordinator.shards._shards[0].serving.state.groups  # type: ignore[union-attr]
        assert await world.commit("first", 6, client=ALICE, member_id=member, generation=generation) == 0
        assert await world.commit("second", 6, client=ALICE) == 0
        assert (await ask_id(world, "second")).error_code == ErrorCode.MEMBER_ID_REQUIRED, "the group exists"
        assert await world.commit("third", 5, client=BOB) == 0, "another user's groups are not bounded"
        assert await world.commit("third", 6, client=ALICE) == 0, "a group counts for the principal that created it"
        assert (owned(world), owned(world, BOB)) == (2, 1)


async def test_without_a_principal_nothing_is_counted_and_records_are_kafkas() -> None:
    """Requests of a proxy of an earlier version have none."""
    async with running(bounded(alice=0)) as world:
        assert await world.commit("g", 5) == 0
        assert list(world.offsets()) == [("g", "orders", 0)]
        assert world.coordinator.shards._shards[0].serving.state._owned == {}  # type: ignore[union-attr]


async def test_a_deleted_group_makes_room() -> None:
    async with running(bounded(alice=2)) as world:
        member, _ = await stable(world, "first")
        await world.commit("second", 5, client=ALICE)
        assert await delete(world, "first", "second") == [ErrorCode.NON_EMPTY_GROUP, 0]
        assert owned(world) == 1
        await leave(world, "first", member)
        assert owned(world) == 1, "an empty group is a group until it is deleted or expires"
        assert await delete(world, "first") == [0]
        assert owned(world) == 0
        await world.crash()
        await world.coordinator.ready("first")
        assert owned(world) == 0


async def test_a_group_of_which_nothing_is_left_makes_room() -> None:
    async with running(bounded(alice=1)) as world:
        given = await ask_id(world, "first")
        assert (await ask_id(world, "second")).error_code == PAST, "a group that waits for its first member counts"
        await leave(world, "first", given.member_id)
        assert owned(world) == 0
        assert (await ask_id(world, "second")).error_code == ErrorCode.MEMBER_ID_REQUIRED
        await asyncio.sleep(11)  # the session time-out of the join
        assert owned(world) == 0


async def test_expired_groups_make_room() -> None:
    world = World(MemoryLogs(), SetBounds(alice=2), retention_ms=60_000, expiry_interval_s=10.0)
    async with running(world):
        await world.commit("simple", 5, client=ALICE)
        member, _ = await stable(world, "members")
        assert owned(world) == 2
        await leave(world, "members", member)
        await asyncio.sleep(100)
        assert owned(world) == 0
        assert world.offsets() == {}
        assert await world.commit("more", 1, client=ALICE) == 0


@pytest.mark.parametrize("with_snapshot", [False, True])
async def test_a_failover_keeps_whose_groups_they_are(*, with_snapshot: bool) -> None:
    changes = {"snapshot_bytes": 1} if with_snapshot else {}
    world = World(MemoryLogs(), SetBounds(alice=3), **changes)
    async with running(world):
        member, generation = await stable(world, "members")
        await world.commit("simple", 5, client=ALICE)
        left, _ = await stable(world, "left")
        await leave(world, "left", left)
        await world.commit("bobs", 5, client=BOB)
        await asyncio.sleep(1)
        assert bool(world.log.snapshots) is with_snapshot
        for _ in range(2):  # what was restored is stored again, and restored from that
            await world.crash()
            await world.coordinator.ready("members")
            assert (owned(world), owned(world, BOB)) == (3, 1)
            assert await world.commit("simple", 6, client=BOB) == 0
            assert await world.commit("more", 5, client=ALICE) == PAST
            assert await world.commit("members", 6, member_id=member, generation=generation) == 0
            assert await world.fetch("simple") == 6


async def test_a_commit_beside_a_members_first_join_stores_the_principal() -> None:
    """The join has created the group in memory, so the commit does not."""
    async with running(bounded(alice=1)) as world:
        assert (await ask_id(world, "g")).error_code == ErrorCode.MEMBER_ID_REQUIRED
        assert await world.commit("g", 5, client=ALICE) == 0
        await world.crash()
        await world.coordinator.ready("g")
        assert owned(world) == 1
        assert await world.fetch("g") == 5


async def test_a_commit_that_stores_nothing_creates_no_group() -> None:
    async with running(World(bounds=SetBounds(alice=1), metadata_max=3)) as world:
        too_large = ErrorCode.OFFSET_METADATA_TOO_LARGE
        assert await world.commit("g", 5, client=ALICE, metadata="long") == too_large
        assert owned(world) == 0
        assert world.offsets() == {}


async def test_groups_of_earlier_versions_count_for_nobody() -> None:
    world = bounded(alice=1)
    old = [OffsetRecord("old", "orders", 0, Offset(7))]
    world.log.store(build_batch([Record(key=key, value=value) for key, value in map(encode, old)], base_timestamp=0))
    async with running(world):
        assert await world.commit("old", 8, client=ALICE) == 0
        assert owned(world) == 0
        assert await world.commit("new", 8, client=ALICE) == 0
        assert owned(world) == 1


async def test_a_shard_that_is_lost_takes_its_counts_along() -> None:
    async with running(bounded(8, alice=100)) as world:
        for number in range(20):
            await world.commit(f"g{number}", 1, client=ALICE)
        own = world.coordinator.shard_of("g0")
        inside = sum(world.coordinator.shard_of(f"g{each}") == own for each in range(20))
        log = world.logs.partitions[own.number].open_log
        assert log is not None
        log.end()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert owned(world) == 20 - inside
        await world.coordinator.ready("g0")
        assert owned(world) == 20


def test_the_table_of_counts_is_as_large_as_the_principals_with_groups() -> None:
    state = GroupsState(GroupRules())
    for number in range(100):
        state.create(f"g{number}", 0, f"User:{number}")
        state.forget_unused(f"g{number}")
    assert state._owned == {}
