"""Replay against live state: random histories of real requests, crashes, failures and snapshots, by Hypothesis."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bmq.coordinator.group.states import GroupState
from bmq.core.wire import messages as m
from tests.harness.loop import run
from tests.harness.seeds import example_count
from tests.unit.coordinator.fakes import CLIENT, World, join_alone, join_request, running

pytestmark = pytest.mark.slow

GROUPS = ("a", "b", "c")
_group = st.sampled_from(GROUPS)
_step = st.one_of(
    st.tuples(st.just("commit"), _group, st.integers(0, 3), st.integers(0, 100)),
    st.tuples(st.just("join"), _group, st.none() | st.sampled_from(["i1", "i2"])),
    st.tuples(st.just("leave"), _group),
    st.tuples(st.just("delete offset"), _group, st.integers(0, 3)),
    st.tuples(st.just("delete group"), _group),
    st.tuples(st.just("wait"), st.sampled_from([0.5, 7.0, 70.0])),
    st.tuples(st.just("snapshot")),
    st.tuples(st.just("fail")),
    st.tuples(st.just("crash")),
)


class History:
    """Applies steps; ``acked`` is what a client knows to be stored."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.acked: dict[tuple[str, int], int] = {}
        self.unsure: set[tuple[str, int]] = set()
        self.tasks: list[asyncio.Task[None]] = []

    async def step(self, step: tuple[Any, ...]) -> None:
        world, name, *args = self.world, *step
        if name == "commit":
            group, partition, offset = args
            code = await world.commit(group, offset, partition=partition)
            if code == 0:
                self.acked[group, partition] = offset
                self.unsure.discard((group, partition))
            else:
                self.unsure.add((group, partition))
        elif name == "join":
            self.tasks.append(asyncio.create_task(self.join(*args)))
        elif name == "leave":
            await self.leave(args[0])
        elif name == "delete offset":
            await self.delete_offset(*args)
        elif name == "delete group":
            await self.delete_group(args[0])
        elif name == "wait":
            await asyncio.sleep(args[0])
        elif name == "snapshot":
            world.coordinator.shards._shards[0]._snapshot_at = 0
            await world.commit("snapshot", 1)
        elif name == "fail":
            world.log.fail_next = 1
        elif name == "crash":
            await world.crash()

    async def join(self, group: str, instance_id: str | None) -> None:
        try:
            await join_alone(self.world, group, group_instance_id=instance_id)
        except AssertionError:
            return  # others joined, or the shard was lost: the history goes on

    async def leave(self, group: str) -> None:
        serving = self.world.coordinator.shards._shards[0].serving
        known = serving.state.groups.get(group) if serving is not None else None
        for member in list(known.members) if known is not None else []:
            leaving = m.LeaveGroupRequest.MemberIdentity(member_id=member.member_id, group_instance_id=None)
            request = m.LeaveGroupRequest(version=3, group_id=group, members=[leaving])
            await self.world.coordinator.leave_group(request, CLIENT)

    async def delete_offset(self, group: str, partition: int) -> None:
        topic_class = m.OffsetDeleteRequest.OffsetDeleteRequestTopic
        part = topic_class.OffsetDeleteRequestPartition(partition_index=partition)
        request = m.OffsetDeleteRequest(group_id=group, topics=[topic_class(name="orders", partitions=[part])])
        response = await self.world.coordinator.offset_delete(request, CLIENT)
        if response.error_code == 0 and response.topics[0].partitions[0].error_code == 0:
            self.acked.pop((group, partition), None)
        else:
            self.unsure.add((group, partition))

    async def delete_group(self, group: str) -> None:
        request = m.DeleteGroupsRequest(groups_names=[group])
        response = await self.world.coordinator.delete_groups(request, CLIENT)
        for key in [each for each in self.acked if each[0] == group]:
            if response.results[0].error_code == 0:
                del self.acked[key]
            else:
                self.unsure.add(key)


@settings(max_examples=example_count(50, 1_500), deadline=None)
@given(st.lists(_step, max_size=40))
def test_a_replayed_state_is_the_state_before(steps: list[tuple[Any, ...]]) -> None:
    async def main() -> None:
        world = World(snapshot_bytes=1 << 30, snapshot_chunk_bytes=100, read_bytes=300)
        async with running(world):
            history = History(world)
            await world.coordinator.ready("a")
            for step in steps:
                await history.step(step)
            await asyncio.gather(*history.tasks)
            world.log.fail_next = 0
            await asyncio.sleep(30)  # what is in flight settles
            await world.coordinator.ready("a")
            before, groups = world.facts(), _groups(world)
            for (group, partition), offset in history.acked.items():
                if (group, partition) not in history.unsure:
                    assert before[group, "orders", partition].offset == offset  # type: ignore[attr-defined]
            await world.crash()
            await world.coordinator.ready("a")
            assert world.facts() == before
            assert _groups(world) == groups
            start = world.log.log_start
            await history.step(("snapshot",))
            await asyncio.sleep(1)
            assert world.log.log_start > start
            before = world.facts()
            await world.crash()
            await world.coordinator.ready("a")
            assert world.facts() == before

    run(main())


def _groups(world: World) -> dict[str, object]:
    """Return the groups between rebalances, as members see them."""
    serving = world.coordinator.shards._shards[0].serving
    assert serving is not None
    return {
        group_id: (
            group.state,
            group.generation,
            group.protocol,
            group.members.leader,
            sorted((each.member_id, each.instance_id or "", each.assignment) for each in group.members),
        )
        for group_id, group in serving.state.groups.items()
        if group.state in (GroupState.STABLE, GroupState.EMPTY) and not (group.protocol_type is None and group.is_idle)
    }


async def test_the_random_histories_have_members_and_snapshots() -> None:
    """The generator's steps do what their names say."""

    world = World(snapshot_bytes=1 << 30)
    async with running(world):
        history = History(world)
        await history.step(("commit", "a", 1, 5))
        await history.step(("join", "b", "i1"))
        await asyncio.gather(*history.tasks)
        assert _groups(world)["b"][0] is GroupState.STABLE  # type: ignore[index]
        await history.step(("snapshot",))
        await asyncio.sleep(1)
        assert world.log.log_start > 0
        other = await world.coordinator.join_group(join_request("b", version=3), CLIENT)
        assert other.error_code != 0 or other.members
