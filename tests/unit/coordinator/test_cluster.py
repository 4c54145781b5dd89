"""Coordinators in processes of their own: one serves a shard at a time, whatever each believes.

A name with ``kafscale_N`` is of a fault that KafScale had, by the number of its issue.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, cast

import pytest

from bmq.coordinator.server import ForwardVerdict, judge
from bmq.coordinator.shard.remote_log import RemoteShardLog, RoutedShardLogs
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.net.request import Buffer
from bmq.core.rpc.messages.broker import ShardOpenResponse
from bmq.core.rpc.peers import Peer, Peers
from bmq.core.wire import messages as m
from bmq.meta.cluster.view import ShardOwner
from bmq.proxy.groups.router import RoutedCoordinator
from bmq.server.local_shard_log import LocalShardLog
from tests.unit.coordinator.cluster_world import (
    LATENCY_S,
    SHARDS,
    ClusterWorld,
    CoordinatorProcess,
    ProxyProcess,
    TwoProxies,
    View,
    cluster,
    group_of,
)
from tests.unit.coordinator.fakes import CLIENT, MemoryLogs, commit_request, join_request, sync_request

pytestmark = pytest.mark.slow

GROUP = group_of(0)


async def join(proxy: ProxyProcess, group: str) -> tuple[str, int]:
    """Form a Stable group of one member through a proxy and return its member id and generation."""
    coordinator = proxy.coordinator
    first = await coordinator.join_group(join_request(group), CLIENT)
    assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
    joined = await coordinator.join_group(join_request(group, first.member_id), CLIENT)
    assert joined.error_code == 0
    assignment = {joined.member_id: b"all"}
    synced = await coordinator.sync_group(
        sync_request(group, joined.member_id, joined.generation_id, assignment), CLIENT
    )
    assert synced.error_code == 0
    return joined.member_id, joined.generation_id


def serves(process: CoordinatorProcess, shard: int) -> bool:
    present = process.coordinator._shards._shards.get(shard)
    return present is not None and present.serving is not None


async def test_kafscale_121_two_coordinators_for_one_group() -> None:
    """The shard moves from a to b while a, and one proxy, still believe that it is a's."""

    async with cluster() as world:
        behind, ahead = world.proxies
        member, generation = await join(behind, GROUP)
        fields = {"member_id": member, "generation": generation}
        assert await behind.commit(GROUP, 5, **fields) == 0

        world.give(0, "b")
        world.tell(ahead.view, world.coordinators["b"].view)
        await world.coordinators["b"].coordinator.ready(GROUP)
        assert serves(world.coordinators["a"], 0)  # as far as it knows

        assert await behind.commit(GROUP, 9, **fields) == ErrorCode.NOT_COORDINATOR
        assert world.coordinators["a"].coordinator._shards._shards[0].is_closed  # refused by the log, it gives up
        assert serves(world.coordinators["b"], 0)
        assert await ahead.fetch(GROUP) == (0, 5)
        assert await ahead.heartbeat(GROUP, member, generation) == 0  # no need to join again
        assert await ahead.commit(GROUP, 7, **fields) == 0
        assert await behind.commit(GROUP, 9, **fields) == ErrorCode.NOT_COORDINATOR
        assert await ahead.fetch(GROUP) == (0, 7)

        world.tell()
        assert not serves(world.coordinators["a"], 0)
        assert await behind.fetch(GROUP) == (0, 7)
        assert await behind.heartbeat(GROUP, member, generation) == 0


async def test_kafscale_121_what_the_earlier_coordinator_was_answered_for_is_replayed() -> None:
    """Let the earlier coordinator's append reach the broker just before the later one opens the log.

    The append's response arrives just after.
    """

    async with cluster() as world:
        behind, ahead = world.proxies
        assert await behind.commit(GROUP, 5) == 0
        late = asyncio.ensure_future(behind.commit(GROUP, 6))
        await asyncio.sleep(3 * LATENCY_S)
        world.give(0, "b")
        world.tell(ahead.view, world.coordinators["b"].view)
        code = await late
        await world.coordinators["b"].coordinator.ready(GROUP)
        assert await ahead.fetch(GROUP) == (0, 6 if code == 0 else 5)


async def test_a_coordinator_that_has_not_heard_yet_waits_for_the_news() -> None:
    async with cluster() as world:
        proxy = world.proxies[0]
        assert await proxy.commit(GROUP, 5) == 0
        world.give(0, "b")
        world.tell(proxy.view)
        commit = asyncio.ensure_future(proxy.commit(GROUP, 6))
        await asyncio.sleep(0.1)
        assert not commit.done()
        world.tell()
        assert await commit == 0
        assert await proxy.fetch(GROUP) == (0, 6)


async def test_what_a_coordinator_remembers_of_an_earlier_ownership_is_not_served() -> None:
    """Move a shard from a to b and back to a, which sees no move: a proxy that sees both must not get a's old state."""

    async with cluster() as world:
        (first, second), (a, b) = world.proxies, world.coordinators.values()
        assert await first.commit(GROUP, 5) == 0
        world.give(0, "b")
        world.tell(b.view, second.view)
        assert await second.commit(GROUP, 7) == 0
        world.give(0, "a")
        world.tell(second.view)
        fetch = asyncio.ensure_future(second.fetch(GROUP))
        await asyncio.sleep(0.1)
        assert serves(a, 0)
        assert not fetch.done()
        world.tell()
        assert await fetch == (0, 7)


@pytest.mark.parametrize(
    ("known", "verdict"),
    [
        (None, ForwardVerdict.WAIT),
        (ShardOwner("me", 4), ForwardVerdict.WAIT),
        (ShardOwner("other", 4), ForwardVerdict.WAIT),
        (ShardOwner("me", 5), ForwardVerdict.SERVE),
        (ShardOwner("other", 5), ForwardVerdict.REFUSE),
        (ShardOwner("me", 6), ForwardVerdict.SERVE),
        (ShardOwner("other", 6), ForwardVerdict.REFUSE),
    ],
)
def test_what_is_served_by_what_is_expected(known: ShardOwner | None, verdict: ForwardVerdict) -> None:
    assert judge(5, known, "me") is verdict


async def test_a_number_of_its_own_that_is_higher_is_served() -> None:
    """Give the shard to the same process again: it loads again, and a proxy that is behind is served."""

    async with cluster() as world:
        proxy, process = world.proxies[0], world.coordinators["a"]
        assert await proxy.commit(GROUP, 5) == 0
        before = process.coordinator._shards._shards[0]
        world.give(0, "a")
        world.tell(process.view)
        after = process.coordinator._shards._shards[0]
        assert after is not before
        assert before.is_closed
        assert after.ownership == 2
        assert await proxy.fetch(GROUP) == (0, 5)


async def test_a_move_is_not_for_clients_to_know() -> None:
    """Leave the shard without a coordinator for a second: commits, heartbeats and reads wait in the proxy."""

    async with cluster() as world:
        proxy = world.proxies[0]
        member, generation = await join(proxy, GROUP)
        assert await proxy.commit(GROUP, 5, member_id=member, generation=generation) == 0
        world.kill("a")
        del world.truth.shards[0]
        world.tell()
        work = asyncio.gather(
            proxy.commit(GROUP, 6, member_id=member, generation=generation),
            proxy.heartbeat(GROUP, member, generation),
        )
        await asyncio.sleep(1.0)
        assert not work.done()
        world.give(0, "b")
        world.truth.shards[0] = world.truth.shards[0]._replace(number=2)
        world.tell()
        assert list(await work) == [0, 0]
        assert await proxy.fetch(GROUP) == (0, 6)


async def test_when_nobody_serves_the_client_is_told_so_in_bounded_time() -> None:
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
        await join(proxy, GROUP)
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
        member, generation = await join(proxy, GROUP)
        second = await proxy.coordinator.join_group(join_request(GROUP), CLIENT)
        parked = asyncio.ensure_future(proxy.coordinator.join_group(join_request(GROUP, second.member_id), CLIENT))
        await asyncio.sleep(0.1)
        world.give(0, "b")
        world.tell()
        assert (await parked).error_code == ErrorCode.UNKNOWN_MEMBER_ID  # of no stored generation: it joins again
        assert await proxy.heartbeat(GROUP, member, generation) == 0  # and the stored one goes on


async def test_a_draining_proxy_answers_those_that_wait() -> None:
    async with cluster() as world:
        proxy = world.proxies[0]
        await join(proxy, GROUP)
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


async def test_of_several_groups_only_those_that_nobody_serves_are_refused() -> None:
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
        assert [answer.error_code for answer in answers] == [ErrorCode.COORDINATOR_NOT_AVAILABLE, 0]
        told = {each.group_id for answer in answers for each in answer.groups}
        assert told == set(groups) - {group_of(2)}


async def test_each_group_is_listed_by_one_proxy() -> None:
    async with cluster() as world:
        world.give(1, "b")
        world.give(2, "b")
        world.tell()
        for shard in range(SHARDS):
            assert await world.proxies[0].commit(group_of(shard), 1) == 0
        listed = []
        for proxy in world.proxies:
            answer = await proxy.coordinator.list_groups(m.ListGroupsRequest(version=5), CLIENT)
            assert answer.error_code == 0
            listed.append({each.group_id for each in answer.groups})
        assert listed == [{group_of(0), group_of(2)}, {group_of(1), group_of(3)}]


async def test_ready_asks_the_coordinator() -> None:
    async with cluster() as world:
        await world.proxies[0].coordinator.ready(GROUP)
        assert serves(world.coordinators["a"], 0)


async def test_the_log_follows_its_partition_to_another_broker() -> None:
    async with cluster() as world:
        proxy = world.proxies[0]
        member, generation = await join(proxy, GROUP)
        for number in range(20):
            if number == 5:
                world.own(0, "b2")
            if number == 10:
                world.tell()
            code = await proxy.commit(GROUP, number, member_id=member, generation=generation)
            assert code == 0 or 5 <= number < 10
        assert await proxy.fetch(GROUP) == (0, 19)


async def test_a_handle_takes_nothing_from_an_earlier_connection() -> None:
    """An append of the same ownership lingers on a connection that broke: it is not for the later handle."""

    async with cluster() as world:
        proxy, process = world.proxies[0], world.coordinators["a"]
        assert await proxy.commit(GROUP, 5) == 0
        (link,) = process.peers.links.values()
        link.lag_s = 0.5  # its last request hangs in a buffer
        late = asyncio.ensure_future(proxy.commit(GROUP, 6))
        await asyncio.sleep(10 * LATENCY_S)
        link.cut(lingers=True)
        assert await late == 0  # tried again over a new connection
        assert await proxy.commit(GROUP, 7) == 0
        await asyncio.sleep(1.0)  # it has arrived
        assert await proxy.commit(group_of(1), 1) == 0
        world.give(0, "b")
        world.tell()
        assert await proxy.fetch(GROUP) == (0, 7)


async def test_a_snapshot_moves_the_log_start_at_the_broker() -> None:
    async with cluster() as world:
        proxy = world.proxies[0]
        for number in range(50):
            assert await proxy.commit(GROUP, number) == 0
        world.coordinators["a"].coordinator._shards._shards[0]._snapshot_at = 0
        assert await proxy.commit(GROUP, 50) == 0
        owner = await world.brokers["b1"].assigned.wait(world.key(0), 1.0)
        async with asyncio.timeout(10.0):
            while owner.log_start == 0:
                await proxy.fetch(GROUP)
        world.give(0, "b")
        world.tell()
        assert await proxy.fetch(GROUP) == (0, 50)


class Mumbling:
    """A peer whose responses cannot be decoded."""

    incarnation = "b"
    is_up = True

    def on_lost(self, call: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

    def call(self, api_key: int, api_version: int, body: Sequence[Buffer]) -> asyncio.Future[memoryview]:
        answer: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        answer.set_result(memoryview(b"\0\0?"))
        return answer


@pytest.mark.parametrize("question", ["append", "read", "delete_before"])
async def test_a_broker_whose_answers_cannot_be_read_is_as_good_as_none(question: str) -> None:
    opened = ShardOpenResponse(ErrorCode.NONE, "", epoch=1, log_start=0, high_watermark=10, max_batch_bytes=1000)
    log = RemoteShardLog(cast(Peer, Mumbling()), PartitionKey(uuid.UUID(int=1), 0), 1, opened, lambda: None)
    asked: dict[str, Callable[[], Awaitable[Any]]] = {
        "append": lambda: log.append(bytearray(b"batch")),
        "read": lambda: log.read(0, 1000),
        "delete_before": lambda: log.delete_before(5),
    }
    with pytest.raises(RequestError) as caught:
        await asked[question]()
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert log.log_start == 0


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


async def test_a_log_is_opened_in_this_process_when_its_partition_is_here() -> None:
    async with cluster() as world:
        view = View("b1")
        view.show(world.truth)
        view.owners[world.key(1)] = "b2"
        remote = MemoryLogs(SHARDS)
        logs = RoutedShardLogs(view, world.catalog, world.brokers["b1"].logs, remote)
        here = await logs.open(0, 9, 1.0, lambda: None)
        there = await logs.open(1, 9, 1.0, lambda: None)
        assert isinstance(here, LocalShardLog)
        assert there is remote.partitions[1].open_log
        with pytest.raises(RequestError, match="NOT_COORDINATOR"):
            await logs.open(0, 8, 1.0, lambda: None)


# ------------------------------------------------------------------------------------------------- random histories


@dataclass
class Writer:
    """Commits 1, 2, 3, … of one group, each until it is answered as done."""

    group: str
    acked: int = 0

    async def commit(self, world: ClusterWorld, rng: Random, until: float) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < until:
            code = await rng.choice(world.proxies).commit(self.group, self.acked + 1)
            assert code in (0, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), ErrorCode(code)
            if code == 0:
                self.acked += 1
            await asyncio.sleep(rng.random() * 0.02)


async def disturb(world: ClusterWorld, rng: Random, until: float) -> None:
    loop = asyncio.get_running_loop()
    while loop.time() < until:
        await asyncio.sleep(rng.random() * 0.1)
        match rng.randrange(5):
            case 0:
                world.give(rng.randrange(SHARDS), rng.choice("ab"))
            case 1:
                world.own(rng.randrange(SHARDS), rng.choice(["b1", "b2"]))
            case 2:
                world.tell(rng.choice(world.views))
            case 3:
                links = [each for process in world.coordinators.values() for each in process.peers.links.values()]
                for link in links:
                    link.lag_s = rng.choice((LATENCY_S, 0.05))
                if links:
                    rng.choice(links).cut(lingers=rng.random() < 0.5)
            case _:
                for view in world.views:
                    if rng.random() < 0.5:
                        view.show(world.truth)


async def fetch_until_served(proxy: ProxyProcess, group: str) -> int:
    """Return a committed offset once all views agree; requests that backed off are repeated after a while."""
    for _ in range(100):
        code, offset = await proxy.fetch(group)
        if code == 0:
            return offset
    raise AssertionError(f"{group} is not served")


@pytest.mark.parametrize("seed", range(8))
async def test_no_commit_that_was_answered_is_lost(seed: int) -> None:
    """Rounds of disorder, each followed by a look at what the coordinators remember, and one at what they replay."""

    rng = Random(seed)
    async with cluster(seed) as world:
        drivers = [Writer(group_of(shard)) for shard in range(SHARDS)]
        for _ in range(6):
            until = asyncio.get_running_loop().time() + 1.0
            await asyncio.gather(disturb(world, rng, until), *(each.commit(world, rng, until) for each in drivers))
            for is_replayed in (False, True):
                for shard in range(SHARDS if is_replayed else 0):
                    world.give(shard, rng.choice("ab"))
                world.tell()
                for driver in drivers:
                    offset = await fetch_until_served(rng.choice(world.proxies), driver.group)
                    assert driver.acked <= max(0, offset) <= driver.acked + 1, (driver, is_replayed)
        assert all(driver.acked for driver in drivers)
