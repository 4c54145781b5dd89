"""Bounds on the coordinator's memory that members use, and on a request's wait for a log that hangs."""

from __future__ import annotations

import asyncio

import pytest

from bmq.coordinator.apis.membership import MEMBER_METADATA_BYTES_MAX
from bmq.coordinator.group.states import GroupRules
from bmq.coordinator.shard import writer
from bmq.coordinator.shard.state import ShardState
from bmq.core.aio.byte_budget import ByteBudget
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.wire import messages as m
from tests.unit.coordinator.fakes import CLIENT, World, join_alone, join_request, running, sync_request


def budget(world: World) -> ByteBudget:
    return world.coordinator._shards._budget


def protocols(size: int, name: str = "range") -> list[tuple[str, bytes]]:
    return [(name, b"x" * (size - len(name)))]


async def join(world: World, group: str, member_id: str = "", **fields: object) -> int:
    request = join_request(group, member_id, version=3, **fields)
    return int((await world.coordinator.join_group(request, CLIENT)).error_code)


async def test_a_member_with_too_much_metadata_is_refused() -> None:
    async with running(World()) as world:
        most = MEMBER_METADATA_BYTES_MAX
        assert await join(world, "g", protocols=protocols(most)) == 0
        assert await join(world, "other", protocols=protocols(most + 1)) == ErrorCode.INVALID_REQUEST
        two = [*protocols(most // 2, "a"), *protocols(most // 2 + 1, "b")]
        assert await join(world, "other", protocols=two) == ErrorCode.INVALID_REQUEST
        assert budget(world).used < most + 10_000


async def test_a_group_with_too_much_metadata_takes_no_more() -> None:
    async with running(World(rules=GroupRules(0, metadata_bytes_max=10_000))) as world:
        first = await world.coordinator.join_group(join_request("g", version=3, protocols=protocols(6_000)), CLIENT)
        member = first.member_id
        sync = sync_request("g", member, first.generation_id, {member: b""})
        await world.coordinator.sync_group(sync, CLIENT)
        assert await join(world, "g", protocols=protocols(4_001)) == ErrorCode.GROUP_MAX_SIZE_REACHED
        assert await join(world, "g", member, protocols=protocols(10_001)) == ErrorCode.GROUP_MAX_SIZE_REACHED
        assert await join(world, "g", member, protocols=protocols(10_000)) == 0
        assert await join(world, "g", member, protocols=protocols(9_000)) == 0, "its old metadata counts no more"


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
        assert 100_000 <= budget(world).used < 110_000
        assert await join(world, "g", member) == 0
        request = sync_request("g", member, generation + 1, {member: b""})
        assert (await world.coordinator.sync_group(request, CLIENT)).error_code == 0
        await asyncio.sleep(100)
        assert budget(world).used == 0, "sessions have ended"
        await join_alone(world, "g99")


@pytest.mark.parametrize("how", ["leave", "delete", "lose", "crash"])
async def test_the_bound_is_kept_however_members_go(how: str) -> None:
    async with running(World()) as world:
        member, _ = await join_alone(world, "g", session_timeout_ms=1_000_000)
        before = budget(world).used
        assert before > 2_000
        if how == "leave":
            leaving = [m.LeaveGroupRequest.MemberIdentity(member_id=member, group_instance_id=None)]
            await world.coordinator.leave_group(m.LeaveGroupRequest(version=3, group_id="g", members=leaving), CLIENT)
            assert budget(world).used == 0
        elif how == "delete":
            await world.coordinator.join_group(join_request("pending"), CLIENT)
            assert budget(world).used > before
            deleting = m.DeleteGroupsRequest(groups_names=["pending"])
            (deleted,) = (await world.coordinator.delete_groups(deleting, CLIENT)).results
            assert (deleted.error_code, budget(world).used) == (0, before)
        elif how == "lose":
            log = world.log.open_log
            assert log is not None
            log.end()
            await asyncio.sleep(1)
            assert budget(world).used == before, "loaded again"
            await world.coordinator.close()
            assert budget(world).used == 0
        else:
            await world.crash()
            await world.coordinator.ready("g")
            assert budget(world).used == before


async def test_whoever_waits_for_room_is_answered_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log hangs, and more waits for it than may."""
    monkeypatch.setattr(writer, "QUEUE_BYTES_MAX", 10_000)

    async with running(World()) as world:
        member, generation = await join_alone(world, "g", session_timeout_ms=1_000_000)
        assert await world.commit("simple", 1) == 0
        world.log.hang = True
        first = [asyncio.ensure_future(world.commit("in flight", 1))]
        await asyncio.sleep(1)
        first += [asyncio.ensure_future(world.commit(f"g{n}", n, metadata="x" * 4_000)) for n in range(5)]
        await asyncio.sleep(0)
        began = asyncio.get_running_loop().time()
        topic_class = m.OffsetDeleteRequest.OffsetDeleteRequestTopic
        part = topic_class.OffsetDeleteRequestPartition(partition_index=0)
        deletion = m.OffsetDeleteRequest(group_id="simple", topics=[topic_class(name="orders", partitions=[part])])
        answers = await asyncio.gather(
            world.commit("late", 1),
            join(world, "g", member),
            _sync(world, member, generation),
            _delete(world, "simple"),
            _code(world.coordinator.offset_delete(deletion, CLIENT)),
        )
        assert set(answers) == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert asyncio.get_running_loop().time() - began < 5.1
        assert {await each for each in first} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}


async def _code(answer: object) -> int:
    return int((await answer).error_code)  # type: ignore[misc]


async def _sync(world: World, member: str, generation: int) -> int:
    return await _code(world.coordinator.sync_group(sync_request("g", member, generation), CLIENT))


async def _delete(world: World, group: str) -> int:
    response = await world.coordinator.delete_groups(m.DeleteGroupsRequest(groups_names=[group]), CLIENT)
    return int(response.results[0].error_code)


async def test_expiry_goes_on_after_a_fault_in_a_shard(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(World(expiry_interval_s=60.0, retention_ms=100_000)) as world:
        assert await world.commit("g", 1) == 0
        right = ShardState.expired_offsets
        faults: list[str] = []

        def fault(*arguments: object) -> list[object]:
            faults.append("once")
            monkeypatch.setattr(ShardState, "expired_offsets", right)
            raise ZeroDivisionError("a fault of ours")

        monkeypatch.setattr(ShardState, "expired_offsets", fault)
        await asyncio.sleep(200)
        assert faults == ["once"]
        assert "a fault of ours" in caplog.text
        assert await world.fetch("g") == -1


async def test_no_room_is_a_refusal_of_the_log_too() -> None:
    async with running(World()) as world:
        await world.coordinator.ready("g")
        serving = world.coordinator._shards._shards[0].serving
        assert serving is not None
        serving.writer.fail(RequestError(ErrorCode.KAFKA_STORAGE_ERROR, "gone"))
        with pytest.raises(RequestError) as refused:
            await serving.room()
        assert refused.value.code is ErrorCode.NOT_COORDINATOR
