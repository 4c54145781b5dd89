"""The bound on the memory of members: all groups share it, and it is kept however members go."""

from __future__ import annotations

import asyncio

import pytest

from bmq.core.errors import ErrorCode
from bmq.core.wire import messages as m
from tests.unit.coordinator.fakes import (
    CLIENT,
    World,
    join_alone,
    join_code,
    join_request,
    running,
    sync_request,
)


async def test_members_of_all_groups_share_a_bound() -> None:
    """Fill the bound with members that never return with the id they were given: an existing group goes on."""

    async with running(World(membership_bytes_max=100_000)) as world:
        member, generation = await join_alone(world, "g")
        codes = []
        for number in range(100):
            request = join_request(f"g{number}", session_timeout_ms=60_000)
            codes.append((await world.coordinator.join_group(request, CLIENT)).error_code)
        assert set(codes) == {ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert codes == sorted(codes, reverse=True)
        assert codes.count(ErrorCode.MEMBER_ID_REQUIRED) > 20
        assert 100_000 <= world.membership_budget.used < 110_000
        assert await join_code(world, "g", member) == 0
        request = sync_request("g", member, generation + 1, {member: b""})
        assert (await world.coordinator.sync_group(request, CLIENT)).error_code == 0
        await asyncio.sleep(100)
        assert world.membership_budget.used == 0, "sessions have ended"
        await join_alone(world, "g99")


@pytest.mark.parametrize("how", ["leave", "delete", "lose", "crash"])
async def test_members_that_have_gone_count_no_more(how: str) -> None:
    async with running(World()) as world:
        member, _ = await join_alone(world, "g", session_timeout_ms=1_000_000)
        before = world.membership_budget.used
        assert before > 2_000
        if how == "leave":
            leaving = [m.LeaveGroupRequest.MemberIdentity(member_id=member, group_instance_id=None)]
            await world.coordinator.leave_group(m.LeaveGroupRequest(version=3, group_id="g", members=leaving), CLIENT)
            assert world.membership_budget.used == 0
        elif how == "delete":
            await world.coordinator.join_group(join_request("pending"), CLIENT)
            assert world.membership_budget.used > before
            deleting = m.DeleteGroupsRequest(groups_names=["pending"])
            (deleted,) = (await world.coordinator.delete_groups(deleting, CLIENT)).results
            assert (deleted.error_code, world.membership_budget.used) == (0, before)
        elif how == "lose":
            log = world.log.open_log
            assert log is not None
            log.end()
            await asyncio.sleep(1)
            assert world.membership_budget.used == before, "loaded again"
            await world.coordinator.close()
            assert world.membership_budget.used == 0
        else:
            await world.crash()
            await world.coordinator.ready("g")
            assert world.membership_budget.used == before
