"""The largest requests of the group APIs: no stop of the loop, no response beyond its bound, nothing sent twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from bmq.coordinator.api import GroupCoordinator
from bmq.coordinator.apis import group_admin
from bmq.coordinator.apis import offsets as offset_api
from bmq.coordinator.group.states import GroupRules
from bmq.coordinator.shard.response_queue import RESPONSES_A_TURN
from bmq.core.aio.turns import ELEMENTS_A_TURN
from bmq.core.errors import ErrorCode
from bmq.core.wire import messages as m
from bmq.endpoint.response_room import ResponseRoom
from bmq.meta.proxy_addresses import ProxyAddress
from bmq.proxy.handlers import find_coordinator
from tests.harness.fakes import request_of
from tests.harness.loop_stops import TurnCounter, is_short, loop_stops
from tests.harness.members import OneProxy
from tests.harness.scopes import make_scopes
from tests.harness.seeds import amount
from tests.unit.coordinator.cluster_world import cluster, group_of
from tests.unit.coordinator.fakes import (
    CLIENT,
    MemoryLogs,
    World,
    join_alone,
    join_request,
    running,
    sync_request,
    topic,
)

pytestmark = pytest.mark.slow

COUNT = amount(20_000, 40_000)
"""Elements of a request: each turn handles a thousand, so a step that is not cut takes twenty times its share."""
NAMES = [f"group-{n}" for n in range(COUNT)]
GROUPS = amount(4_000, 10_000)
"""Groups of a list."""
Send = Callable[[GroupCoordinator, Any], Awaitable[Any]]


def find(coordinator: GroupCoordinator, names: list[str]) -> Awaitable[Any]:
    proxies = OneProxy(ProxyAddress(7, "proxy", 9092))
    scopes = make_scopes(coordinator=coordinator, proxies=proxies)
    message = m.FindCoordinatorRequest(version=4, key_type=0, coordinator_keys=names)
    return _of(find_coordinator.handle(scopes, request_of(version=4), message), "coordinators")


def describe(coordinator: GroupCoordinator, names: list[str]) -> Awaitable[Any]:
    message = m.DescribeGroupsRequest(version=6, groups=names, include_authorized_operations=False)
    return _of(coordinator.describe_groups(message, CLIENT), "groups")


def delete(coordinator: GroupCoordinator, names: list[str]) -> Awaitable[Any]:
    message = m.DeleteGroupsRequest(version=2, groups_names=names)
    return _of(coordinator.delete_groups(message, CLIENT), "results")


def fetch(coordinator: GroupCoordinator, names: list[str]) -> Awaitable[Any]:
    group_class = m.OffsetFetchRequest.OffsetFetchRequestGroup
    groups = [group_class(group_id=each, member_id=None, member_epoch=-1, topics=None) for each in names]
    message = m.OffsetFetchRequest(version=9, groups=groups, require_stable=False)
    return _of(coordinator.offset_fetch(message, CLIENT), "groups")


async def _of(response: Awaitable[Any], name: str) -> Any:
    return getattr(await response, name)


@pytest.mark.parametrize("send", [find, describe, delete, fetch])
@pytest.mark.parametrize("is_loaded", [False, True], ids=["not loaded", "loaded"])
async def test_a_request_for_many_groups_does_not_stop_the_loop(send: Send, is_loaded: bool) -> None:
    world = World(MemoryLogs(20))
    async with running(world):
        if is_loaded:
            await asyncio.gather(*(world.commit(each, 1) for each in NAMES[:200]))
        work = send(world.coordinator, [*NAMES, *NAMES])
        with loop_stops() as stops:
            answers = await work
        assert len(answers) == COUNT
        assert is_short(stops.longest_s), stops.longest_s


@pytest.mark.parametrize("send", [describe, delete, fetch])
async def test_a_request_for_many_groups_through_a_proxy_does_not_stop_the_loop(send: Send) -> None:
    async with cluster() as world:
        proxy = world.proxies[0]
        for shard in range(4):
            assert await proxy.commit(group_of(shard), 1) == 0
        assert {group_of(shard) for shard in range(4)} <= set(NAMES)
        work = send(proxy.coordinator, [*NAMES, *NAMES])
        with loop_stops() as stops:
            answers = await work
        assert len(answers) == COUNT
        assert is_short(stops.longest_s), stops.longest_s


@pytest.mark.parametrize("send", [describe, delete, fetch])
async def test_a_request_waits_once_for_all_groups_that_nobody_serves(send: Send) -> None:
    async with cluster() as world:
        for name in ("a", "b"):
            world.kill(name)
        world.tell()
        began = asyncio.get_running_loop().time()
        work = send(world.proxies[0].coordinator, NAMES[: COUNT // 2])
        with loop_stops() as stops:
            answers = await work
        assert {each.error_code for each in answers} == {ErrorCode.NOT_COORDINATOR}
        assert asyncio.get_running_loop().time() - began < 3
        assert is_short(stops.longest_s), stops.longest_s


async def test_many_partitions_are_committed_fetched_and_deleted_without_a_stop() -> None:
    async with running(World()) as world:
        world.catalog.topics["wide"] = topic("wide", COUNT)
        await world.coordinator.ready("g")
        request = _commit_many()
        with loop_stops() as committing:
            committed = await world.coordinator.offset_commit(request, CLIENT)
        assert {each.error_code for each in committed.topics[0].partitions} == {0}
        with loop_stops() as fetching:
            (fetched,) = await fetch(world.coordinator, ["g"])
        assert sorted(each.committed_offset for each in fetched.topics[0].partitions) == list(range(COUNT))

        topic_class = m.OffsetFetchRequest.OffsetFetchRequestTopic
        wanted = [topic_class(name="wide", partition_indexes=list(range(COUNT)))] * 3
        single = m.OffsetFetchRequest(version=7, group_id="g", topics=wanted, require_stable=False)
        with loop_stops() as asking:
            response = await world.coordinator.offset_fetch(single, CLIENT)
        (only,) = response.topics
        assert [each.committed_offset for each in only.partitions] == list(range(COUNT))

        delete_class = m.OffsetDeleteRequest.OffsetDeleteRequestTopic
        parts = [delete_class.OffsetDeleteRequestPartition(partition_index=n) for n in range(COUNT // 2)]
        deletion = m.OffsetDeleteRequest(group_id="g", topics=[delete_class(name="wide", partitions=parts)])
        with loop_stops() as deleting:
            deleted = await world.coordinator.offset_delete(deletion, CLIENT)
        assert {each.error_code for each in deleted.topics[0].partitions} == {0}
        with loop_stops() as ending:
            (gone,) = await delete(world.coordinator, ["g"])
        assert gone.error_code == 0
        assert world.facts() == {}
        for each in (committing, fetching, asking, deleting, ending):
            assert is_short(each.longest_s), each.longest_s


def _commit_many(**fields: Any) -> Any:
    topic_class = m.OffsetCommitRequest.OffsetCommitRequestTopic
    parts = [
        topic_class.OffsetCommitRequestPartition(
            partition_index=n, committed_offset=n, committed_leader_epoch=-1, committed_metadata=""
        )
        for n in range(COUNT)
    ]
    return m.OffsetCommitRequest(
        version=9,
        group_id="g",
        generation_id_or_member_epoch=fields.get("generation", -1),
        member_id=fields.get("member_id", ""),
        group_instance_id=None,
        topics=[topic_class(name="wide", partitions=parts)],
    )


async def test_a_large_commit_of_a_member_that_is_lost_meanwhile_stores_no_more() -> None:
    """Each turn's part is checked: what comes after the rebalance is refused."""

    async with running(World()) as world:
        world.catalog.topics["wide"] = topic("wide", COUNT)
        member, generation = await join_alone(world, "g", group_instance_id="i")
        large = _commit_many(generation=generation, member_id=member)
        large.group_instance_id = "i"
        commit = asyncio.ensure_future(world.coordinator.offset_commit(large, CLIENT))
        serving = world.coordinator.shards._shards[0].serving
        assert serving is not None
        while not serving.state.offsets.has_group("g"):  # noqa: ASYNC110 - a turn of the loop is what is waited for
            await asyncio.sleep(0)
        again = await world.coordinator.join_group(join_request("g", group_instance_id="i"), CLIENT)
        assert again.error_code == 0
        answers = {each.error_code for each in (await commit).topics[0].partitions}
        assert answers == {ErrorCode.FENCED_INSTANCE_ID}
        assert 0 < serving.state.offsets.count_of_group("g") < COUNT


async def test_many_members_leave_and_many_protocols_are_refused_without_a_stop() -> None:
    async with running(World()) as world:
        member, _ = await join_alone(world, "g")
        leaving = [
            m.LeaveGroupRequest.MemberIdentity(member_id=each, group_instance_id=None)
            for each in [member, *NAMES, member]
        ]
        with loop_stops() as stops:
            left = await world.coordinator.leave_group(
                m.LeaveGroupRequest(version=3, group_id="g", members=leaving), CLIENT
            )
        codes = [each.error_code for each in left.members]
        assert codes == [0, *[ErrorCode.UNKNOWN_MEMBER_ID] * (COUNT + 1)]
        many = join_request("g", protocols=[(each, b"") for each in NAMES])
        with loop_stops() as joining:
            assert (await world.coordinator.join_group(many, CLIENT)).error_code == ErrorCode.INVALID_REQUEST
        for each in (stops, joining):
            assert is_short(each.longest_s), each.longest_s


MEMBERS = 5 * RESPONSES_A_TURN // 2


async def count_answers(turns: TurnCounter, asked: list[Coroutine[Any, Any, Any]]) -> asyncio.Future[list[Any]]:
    """Ask all, and count those that are answered in each turn."""
    tasks = [asyncio.create_task(each) for each in asked]
    for task in tasks:
        task.add_done_callback(turns.count)
    await asyncio.sleep(0.1)  # all wait, in a rebalance that takes three seconds
    turns.take()
    return asyncio.gather(*tasks)


@pytest.mark.parametrize("is_lost", [False, True])
async def test_the_members_of_a_large_group_are_answered_in_turns(is_lost: bool) -> None:
    """Look at the end of both phases of a rebalance, and at a shard that is lost meanwhile."""
    async with running(World(rules=GroupRules(initial_delay_ms=3_000))) as world:
        await join_alone(world, "first")  # the shard is loaded
        turns = TurnCounter()
        join = world.coordinator.join_group
        joining = await count_answers(turns, [join(join_request("g", version=3), CLIENT) for _ in range(MEMBERS)])
        if is_lost:
            await world.crash()
            lost = {each.error_code for each in await joining}
            assert lost == {ErrorCode.NOT_COORDINATOR}
            assert max(turns.take()) <= RESPONSES_A_TURN
            return
        joined = await joining
        assert turns.take() == [RESPONSES_A_TURN, RESPONSES_A_TURN, RESPONSES_A_TURN // 2]
        assert {(each.error_code, each.generation_id) for each in joined} == {(0, 1)}

        ids = [each.member_id for each in joined]
        leader = joined[0].leader
        sync = world.coordinator.sync_group
        others = await count_answers(turns, [sync(sync_request("g", e, 1), CLIENT) for e in ids if e != leader])
        assigned = {each: each.encode() for each in ids}
        await sync(sync_request("g", leader, 1, assigned), CLIENT)
        found = {each.assignment.decode() for each in await others}
        assert found == {each for each in ids if each != leader}
        assert max(turns.take()) <= RESPONSES_A_TURN


async def test_all_groups_are_listed_without_a_stop() -> None:
    async with running(World(MemoryLogs(4))) as world:
        await asyncio.gather(*(world.commit(each, 1) for each in NAMES[:GROUPS]))
        with loop_stops() as stops:
            listed = await world.coordinator.list_groups(m.ListGroupsRequest(version=4), CLIENT)
        assert len(listed.groups) == GROUPS
        assert stops.turns >= GROUPS // ELEMENTS_A_TURN
        assert is_short(stops.longest_s), stops.longest_s


@pytest.mark.parametrize("send", [describe, fetch])
async def test_a_full_response_refuses_the_groups_that_do_not_fit(send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill a response to its bound: a request for the rest alone gets it, and a single group always fits."""

    def small() -> ResponseRoom:
        return ResponseRoom(10_000)

    monkeypatch.setattr(group_admin, "ResponseRoom", small)
    monkeypatch.setattr(offset_api, "ResponseRoom", small)

    async with running(World()) as world:
        names = NAMES[:10]
        for each in names:
            await join_alone(world, each, protocols=[("range", b"x" * 3_000)], version=3)
            assert await world.commit(each + "-offsets", 1, metadata="x" * 3_000) == 0
        if send is fetch:
            names = [f"{each}-offsets" for each in names]
        codes = [each.error_code for each in await send(world.coordinator, names)]
        assert codes == [0] * 4 + [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 6
        codes = [each.error_code for each in await send(world.coordinator, names[4:])]
        assert codes[:3] == [0] * 3


def commit_topics(coordinator: GroupCoordinator, names: list[str]) -> Awaitable[Any]:
    topic_class = m.OffsetCommitRequest.OffsetCommitRequestTopic
    topics = [topic_class(name=each, partitions=[]) for each in names]
    message = m.OffsetCommitRequest(
        version=8, group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=topics
    )
    return _of(coordinator.offset_commit(message, CLIENT), "topics")


def fetch_topics(coordinator: GroupCoordinator, names: list[str]) -> Awaitable[Any]:
    topic_class = m.OffsetFetchRequest.OffsetFetchRequestTopic
    topics = [topic_class(name=each, partition_indexes=[]) for each in names]
    message = m.OffsetFetchRequest(version=7, group_id="g", topics=topics, require_stable=False)
    return _of(coordinator.offset_fetch(message, CLIENT), "topics")


def delete_topics(coordinator: GroupCoordinator, names: list[str]) -> Awaitable[Any]:
    topic_class = m.OffsetDeleteRequest.OffsetDeleteRequestTopic
    topics = [topic_class(name=each, partitions=[]) for each in names]
    return _of(coordinator.offset_delete(m.OffsetDeleteRequest(group_id="g", topics=topics), CLIENT), "topics")


def commit_topics_in_a_transaction(coordinator: GroupCoordinator, names: list[str]) -> Awaitable[Any]:
    topic_class = m.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    topics = [topic_class(name=each, partitions=[]) for each in names]
    message = m.TxnOffsetCommitRequest(
        version=3, transactional_id="t", group_id="g", producer_id=1, producer_epoch=0, generation_id=-1, topics=topics
    )
    return _of(coordinator.txn_offset_commit(message, CLIENT), "topics")


@pytest.mark.parametrize("send", [commit_topics, fetch_topics, delete_topics, commit_topics_in_a_transaction])
async def test_topics_without_partitions_count_as_elements(send: Send) -> None:
    """Their number alone is bounded by the limit: a step that counts partitions only would stop for all of them."""
    async with running(World()) as world:
        await world.commit("g", 1)
        names = [f"topic-{n}" for n in range(3 * COUNT)]
        work = send(world.coordinator, names)
        with loop_stops() as stops:
            answers = await work
        assert len(answers) in (0, len(names))
        assert is_short(stops.longest_s), stops.longest_s
