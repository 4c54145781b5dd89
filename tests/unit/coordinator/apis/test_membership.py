"""Joins at their bounds: metadata of a member and of a group."""

from __future__ import annotations

from bmq.coordinator.apis.membership import MEMBER_METADATA_BYTES_MAX
from bmq.coordinator.group.states import GroupRules
from bmq.core.errors import ErrorCode
from tests.unit.coordinator.fakes import (
    CLIENT,
    World,
    join_code,
    join_request,
    protocols,
    running,
    sync_request,
)


async def test_a_member_with_too_much_metadata_is_refused() -> None:
    async with running(World()) as world:
        most = MEMBER_METADATA_BYTES_MAX
        assert await join_code(world, "g", protocols=protocols(most)) == 0
        assert await join_code(world, "other", protocols=protocols(most + 1)) == ErrorCode.INVALID_REQUEST
        two = [*protocols(most // 2, "a"), *protocols(most // 2 + 1, "b")]
        assert await join_code(world, "other", protocols=two) == ErrorCode.INVALID_REQUEST
        assert world.membership_budget.used < most + 10_000


async def test_a_group_with_too_much_metadata_takes_no_more() -> None:
    async with running(World(rules=GroupRules(0, metadata_bytes_max=10_000))) as world:
        first = await world.coordinator.join_group(join_request("g", version=3, protocols=protocols(6_000)), CLIENT)
        member = first.member_id
        sync = sync_request("g", member, first.generation_id, {member: b""})
        await world.coordinator.sync_group(sync, CLIENT)
        assert await join_code(world, "g", protocols=protocols(4_001)) == ErrorCode.GROUP_MAX_SIZE_REACHED
        assert await join_code(world, "g", member, protocols=protocols(10_001)) == ErrorCode.GROUP_MAX_SIZE_REACHED
        assert await join_code(world, "g", member, protocols=protocols(10_000)) == 0
        assert await join_code(world, "g", member, protocols=protocols(9_000)) == 0, "its old metadata counts no more"
