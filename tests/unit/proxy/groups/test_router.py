"""Group requests of a proxy: split by coordinator, repeated while a shard moves, and answered in bounded time."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from bmq.core.errors import ErrorCode
from bmq.core.rpc.peers import Peers
from bmq.core.wire import messages as m
from bmq.meta.shard_kinds import GROUPS, ShardId
from bmq.proxy.groups.router import RoutedCoordinator
from tests.unit.coordinator.cluster_world import (
    GROUP,
    SHARDS,
    FakePeers,
    TwoProxies,
    cluster,
    group_of,
    join_alone,
    serves,
)
from tests.unit.coordinator.fakes import CLIENT, commit_request, join_request
from tests.unit.coordinator.txn_requests import txn_request

pytestmark = pytest.mark.slow


async def test_clients_do_not_notice_a_move_of_their_shard() -> None:
    """Leave the shard without a coordinator for a second: commits, heartbeats and reads wait in the proxy."""

    async with cluster() as world:
        proxy = world.proxies[0]
        member, generation = await join_alone(proxy, GROUP)
        assert await proxy.commit(GROUP, 5, member_id=member, generation=generation) == 0
        world.kill("a")
        del world.truth.shards[ShardId(GROUPS, 0)]
        world.tell()
        work = asyncio.gather(
            proxy.commit(GROUP, 6, member_id=member, generation=generation),
            proxy.heartbeat(GROUP, member, generation),
        )
        await asyncio.sleep(1.0)
        assert not work.done()
        world.give(0, "b")
        world.truth.shards[ShardId(GROUPS, 0)] = world.truth.shards[ShardId(GROUPS, 0)]._replace(number=2)
        world.tell()
        assert list(await work) == [0, 0]
        assert await proxy.fetch(GROUP) == (0, 6)


async def test_a_group_that_nobody_serves_is_refused_in_bounded_time() -> None:
    async with cluster() as world:
        proxy = world.proxies[0]
        assert await proxy.commit(GROUP, 5) == 0
        world.kill("a")
        world.tell()
        before = asyncio.get_running_loop().time()
        assert await proxy.commit(GROUP, 6) == ErrorCode.NOT_COORDINATOR
        assert 1.9 < asyncio.get_running_loop().time() - before < 3.0


async def test_a_parked_join_is_answered_when_its_coordinator_dies() -> None:
    async with cluster() as world:
        proxy = world.proxies[0]
        await join_alone(proxy, GROUP)
        second = await proxy.coordinator.join_group(join_request(GROUP), CLIENT)
        parked = asyncio.ensure_future(proxy.coordinator.join_group(join_request(GROUP, second.member_id), CLIENT))
        await asyncio.sleep(1.0)
        assert not parked.done()
        world.kill("a")
        assert (await parked).error_code == ErrorCode.NOT_COORDINATOR


async def test_a_parked_join_goes_on_at_the_next_coordinator_when_the_shard_is_given_away() -> None:
    """The member that waits is one of a stored generation, so that the next coordinator knows it."""

    async with cluster() as world:
        proxy = world.proxies[0]
        member, generation = await join_alone(proxy, GROUP)
        second = await proxy.coordinator.join_group(join_request(GROUP), CLIENT)
        parked = asyncio.ensure_future(proxy.coordinator.join_group(join_request(GROUP, second.member_id), CLIENT))
        await asyncio.sleep(0.1)
        world.give(0, "b")
        world.tell()
        assert (await parked).error_code == ErrorCode.UNKNOWN_MEMBER_ID  # of no stored generation: it joins again
        assert await proxy.heartbeat(GROUP, member, generation) == 0  # and the stored one goes on


async def test_a_draining_proxy_answers_parked_joins() -> None:
    async with cluster() as world:
        proxy = world.proxies[0]
        await join_alone(proxy, GROUP)
        second = await proxy.coordinator.join_group(join_request(GROUP), CLIENT)
        parked = asyncio.ensure_future(proxy.coordinator.join_group(join_request(GROUP, second.member_id), CLIENT))
        await asyncio.sleep(0.1)
        proxy.coordinator.drain()
        assert (await parked).error_code == ErrorCode.NOT_COORDINATOR
        assert await proxy.commit(GROUP, 5) == ErrorCode.UNKNOWN_MEMBER_ID  # what does not wait is served


async def test_a_request_of_several_groups_is_split_and_joined_in_its_order() -> None:
    async with cluster() as world:
        world.give(1, "b")
        world.give(3, "b")
        world.tell()
        proxy = world.proxies[0]
        groups = [group_of(shard) for shard in (3, 0, 1, 2)]
        for number, group in enumerate(groups):
            assert await proxy.commit(group, number) == 0
        group_class = m.OffsetFetchRequest.OffsetFetchRequestGroup
        names = [*groups, groups[0]]  # a repeated name is listed once
        request = m.OffsetFetchRequest(
            version=9,
            groups=[group_class(group_id=each, member_id=None, member_epoch=-1, topics=None) for each in names],
            require_stable=False,
        )
        fetched = await proxy.coordinator.offset_fetch(request, CLIENT)
        assert [each.group_id for each in fetched.groups] == groups
        offsets = [each.topics[0].partitions[0].committed_offset for each in fetched.groups]
        assert offsets == [0, 1, 2, 3]

        described = await proxy.coordinator.describe_groups(
            m.DescribeGroupsRequest(version=5, groups=names, include_authorized_operations=False), CLIENT
        )
        assert [(each.group_id, each.group_state) for each in described.groups] == [(n, "Empty") for n in groups]

        deleted = await proxy.coordinator.delete_groups(
            m.DeleteGroupsRequest(version=2, groups_names=[*names, *names]), CLIENT
        )
        assert [(each.group_id, each.error_code) for each in deleted.results] == [(n, 0) for n in groups]


async def test_each_part_of_a_split_offset_fetch_is_for_stable_offsets_if_the_request_is() -> None:
    """Redpanda lost ``require_stable`` where it split a request (#28554): consumers passed open transactions over."""
    async with cluster() as world:
        world.give(1, "b")
        world.tell()
        coordinator = world.proxies[0].coordinator
        groups = [group_of(0), group_of(1)]
        for group in groups:
            committed = await coordinator.txn_offset_commit(txn_request(group, [("orders", 0, 5)]), CLIENT)
            assert committed.topics[0].partitions[0].error_code == 0
        group_class = m.OffsetFetchRequest.OffsetFetchRequestGroup
        topic = group_class.OffsetFetchRequestTopics(name="orders", partition_indexes=[0])
        for is_stable, code in ((True, ErrorCode.UNSTABLE_OFFSET_COMMIT), (False, ErrorCode.NONE)):
            request = m.OffsetFetchRequest(
                version=9,
                groups=[group_class(group_id=each, member_id=None, member_epoch=-1, topics=[topic]) for each in groups],
                require_stable=is_stable,
            )
            fetched = await coordinator.offset_fetch(request, CLIENT)
            assert [each.topics[0].partitions[0].error_code for each in fetched.groups] == [code, code]


async def test_only_the_groups_that_nobody_serves_are_refused() -> None:
    async with cluster() as world:
        world.give(1, "b")
        world.tell()
        world.kill("b")
        world.tell()
        names = [group_of(0), group_of(1)]
        described = await world.proxies[0].coordinator.describe_groups(
            m.DescribeGroupsRequest(version=5, groups=names, include_authorized_operations=False), CLIENT
        )
        assert [each.error_code for each in described.groups] == [0, ErrorCode.NOT_COORDINATOR]


async def test_all_groups_are_listed_wherever_they_are_served() -> None:
    async with cluster() as world:
        world.give(1, "b")
        world.tell()
        groups = [group_of(shard) for shard in range(4)]
        for group in groups:
            assert await world.proxies[0].commit(group, 1) == 0
        for proxy in world.proxies:
            listed = await proxy.coordinator.list_all_groups(m.ListGroupsRequest(version=4), CLIENT)
            assert sorted(each.group_id for each in listed.groups) == sorted(groups)


async def test_a_shard_that_is_not_loaded_is_named_and_the_others_groups_are_listed() -> None:
    """List groups while a shard is not loaded: consoles name it, a Kafka client gets the error beside the groups."""

    async with cluster() as world:
        world.give(1, "b")
        world.tell()
        groups = [group_of(shard) for shard in range(4)]
        for group in groups:
            assert await world.proxies[0].commit(group, 1) == 0
        world.give(2, "nobody that is here")
        world.tell()
        for proxy in world.proxies:
            listing = await proxy.coordinator.list_all_groups(m.ListGroupsRequest(version=4), CLIENT)
            assert sorted(each.group_id for each in listing.groups) == sorted(set(groups) - {group_of(2)})
            assert listing.missing == {2: ErrorCode.COORDINATOR_NOT_AVAILABLE}
        answers = [
            await proxy.coordinator.list_groups(m.ListGroupsRequest(version=5), CLIENT) for proxy in world.proxies
        ]
        assert [response.error_code for response in answers] == [ErrorCode.COORDINATOR_NOT_AVAILABLE, 0]
        found = {each.group_id for response in answers for each in response.groups}
        assert found == set(groups) - {group_of(2)}


async def test_each_group_is_listed_by_one_proxy() -> None:
    async with cluster() as world:
        world.give(1, "b")
        world.give(2, "b")
        world.tell()
        for shard in range(SHARDS):
            assert await world.proxies[0].commit(group_of(shard), 1) == 0
        listed = []
        for proxy in world.proxies:
            response = await proxy.coordinator.list_groups(m.ListGroupsRequest(version=5), CLIENT)
            assert response.error_code == 0
            listed.append({each.group_id for each in response.groups})
        assert listed == [{group_of(0), group_of(2)}, {group_of(1), group_of(3)}]


async def test_ready_loads_the_shard_at_its_coordinator() -> None:
    async with cluster() as world:
        await world.proxies[0].coordinator.ready(GROUP)
        assert serves(world.coordinators["a"], 0)


class NoPeers:
    """Peers for code that must not call another process."""

    def get(self, member: object, kind: object) -> None:
        raise AssertionError("another process was asked")


async def test_a_coordinator_in_the_same_process_is_called_directly() -> None:
    async with cluster() as world:
        process = world.coordinators["a"]
        routed = RoutedCoordinator(
            process.view,
            TwoProxies(1),
            cast(Peers, NoPeers()),
            world.catalog,
            world.topic,
            shards=SHARDS,
            local=process.coordinator,
        )
        request = commit_request(GROUP, [("orders", 0, 5)])
        response = await routed.offset_commit(request, CLIENT)
        assert response.topics[0].partitions[0].error_code == 0
        listed = await routed.list_groups(m.ListGroupsRequest(version=5), CLIENT)
        assert [each.group_id for each in listed.groups] == [GROUP]


async def test_a_process_that_is_not_a_member_sends_its_own_coordinators_groups_away() -> None:
    """Clients stay at a coordinator whose shard loads, so it must not be asked; the others' groups are served."""

    async with cluster() as world:
        world.give(1, "b")
        world.tell()
        process = world.coordinators["a"]
        routed = RoutedCoordinator(
            process.view,
            TwoProxies(1),
            cast(Peers, FakePeers(world.network, "a")),
            world.catalog,
            world.topic,
            shards=SHARDS,
            local=process.coordinator,
        )

        async def commit(group: str) -> int:
            response = await routed.offset_commit(commit_request(group, [("orders", 0, 5)]), CLIENT)
            code: int = response.topics[0].partitions[0].error_code
            return code

        await join_alone(world.proxies[0], GROUP)
        second = await routed.join_group(join_request(GROUP), CLIENT)
        parked = asyncio.ensure_future(routed.join_group(join_request(GROUP, second.member_id), CLIENT))
        await asyncio.sleep(0.1)
        assert not parked.done()
        routed.send_away(True)
        before = asyncio.get_running_loop().time()
        assert (await parked).error_code == ErrorCode.NOT_COORDINATOR
        assert await commit(group_of(0)) == ErrorCode.NOT_COORDINATOR
        assert await commit(group_of(1)) == 0
        del process.view.shards[ShardId(GROUPS, 2)]
        assert await commit(group_of(2)) == ErrorCode.NOT_COORDINATOR
        await routed.ready(GROUP)
        await routed.ready(group_of(2))
        assert asyncio.get_running_loop().time() - before < 0.1
        routed.send_away(False)
        assert (await routed.join_group(join_request(GROUP), CLIENT)).error_code == ErrorCode.MEMBER_ID_REQUIRED
        routed.close()


async def test_a_wait_for_a_coordinator_ends_when_the_process_is_no_member_any_more() -> None:
    async with cluster() as world:
        proxy = world.proxies[0]
        assert await proxy.commit(GROUP, 5) == 0
        world.kill("a")
        world.tell()
        waits = asyncio.ensure_future(proxy.commit(GROUP, 6))
        await asyncio.sleep(0.5)
        proxy.coordinator.send_away(True)
        before = asyncio.get_running_loop().time()
        assert await waits == ErrorCode.NOT_COORDINATOR
        assert asyncio.get_running_loop().time() - before < 0.4
